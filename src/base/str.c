#include "base/str.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "base/alloc.h"

static const char str_b64_alphabet[] =
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

bool str_eq(const char *a, const char *b)
{
	if (!a || !b)
		return a == b;
	return strcmp(a, b) == 0;
}

static char str_lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c + 'a' - 'A') : c;
}

bool str_ieq(const char *a, const char *b)
{
	if (!a || !b)
		return a == b;
	for (; *a && str_lower(*a) == str_lower(*b); a++, b++)
		;
	return str_lower(*a) == str_lower(*b);
}

bool str_starts(const char *s, const char *prefix)
{
	return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool str_ends(const char *s, const char *suffix)
{
	size_t n = strlen(s), m = strlen(suffix);

	return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

/*
 * What was cut inside a UTF-8 character ends before it: a text that was valid stays so (JSON takes
 * no other).
 */
static void str_trim_partial(char *s, size_t n)
{
	size_t i = n;
	unsigned char lead;

	while (i > 0 && n - i < 3 && ((unsigned char)s[i - 1] & 0xc0) == 0x80)
		i--;
	if (i == 0)
		return;
	lead = (unsigned char)s[i - 1];
	if (lead >= 0xc0 && n - i + 1 < (lead >= 0xf0 ? 4u : lead >= 0xe0 ? 3u : 2u))
		s[i - 1] = '\0';
}

int str_copy(char *dst, size_t dst_size, const char *src)
{
	size_t n = strlen(src);

	if (dst_size == 0)
		return -ENOSPC;
	if (n < dst_size) {
		memmove(dst, src, n + 1);
		return 0;
	}
	memmove(dst, src, dst_size - 1);
	dst[dst_size - 1] = '\0';
	str_trim_partial(dst, dst_size - 1);
	return -ENOSPC;
}

int str_format(char *dst, size_t dst_size, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(dst, dst_size, fmt, ap);
	va_end(ap);
	if (n < 0)
		return -EINVAL;
	if ((size_t)n < dst_size)
		return 0;
	if (dst_size > 0)
		str_trim_partial(dst, dst_size - 1);
	return -ENOSPC;
}

int str_to_u64_n(const char *s, size_t n, uint64_t max, uint64_t *ret)
{
	uint64_t v = 0;

	if (n == 0)
		return -EINVAL;
	for (size_t i = 0; i < n; i++)
		if (s[i] < '0' || s[i] > '9')
			return -EINVAL;
	for (size_t i = 0; i < n; i++)
		if (__builtin_mul_overflow(v, 10, &v) ||
		    __builtin_add_overflow(v, (uint64_t)(s[i] - '0'), &v))
			return -ERANGE;
	if (v > max)
		return -ERANGE;
	*ret = v;
	return 0;
}

int str_to_u64(const char *s, uint64_t max, uint64_t *ret)
{
	return str_to_u64_n(s, strlen(s), max, ret);
}

bool str_is(const char *s, size_t min_len, size_t max_len, const char *alphabet)
{
	size_t n;

	if (!s)
		return false;
	n = strspn(s, alphabet);
	return s[n] == '\0' && n >= min_len && n <= max_len;
}

/*
 * Length of the valid UTF-8 sequence at s (RFC 3629: no overlong forms, no surrogates), 0 = none.
 */
static size_t str_utf8_len(const unsigned char *s, size_t n)
{
	unsigned char lo = 0x80, hi = 0xbf;
	size_t len;

	if (n == 0)
		return 0;
	if (s[0] < 0x80)
		return 1;
	if (s[0] >= 0xc2 && s[0] <= 0xdf)
		len = 2;
	else if ((s[0] & 0xf0) == 0xe0)
		len = 3;
	else if (s[0] >= 0xf0 && s[0] <= 0xf4)
		len = 4;
	else
		return 0;
	if (len > n)
		return 0;
	if (s[0] == 0xe0)
		lo = 0xa0;
	if (s[0] == 0xed)
		hi = 0x9f;
	if (s[0] == 0xf0)
		lo = 0x90;
	if (s[0] == 0xf4)
		hi = 0x8f;
	if (s[1] < lo || s[1] > hi)
		return 0;
	for (size_t i = 2; i < len; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	return len;
}

bool str_utf8_ok(const char *s, size_t n)
{
	for (size_t i = 0, len; i < n; i += len) {
		len = str_utf8_len((const unsigned char *)s + i, n - i);
		if (len == 0)
			return false;
	}
	return true;
}

size_t str_control(const char *text, unsigned *ret)
{
	const unsigned char *p = (const unsigned char *)text;

	*ret = p[0];
	if ((p[0] && p[0] < 0x20) || p[0] == 0x7f)
		return 1;
	if (p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0) {
		*ret = p[1];
		return 2;
	}
	if (p[0] != 0xe2 || (p[1] != 0x80 && p[1] != 0x81) || (p[2] & 0xc0) != 0x80)
		return 0;
	*ret = 0x2000u | (unsigned)(p[1] & 1) << 6 | (p[2] & 0x3f);
	return (*ret >= 0x200e && *ret <= 0x200f) || (*ret >= 0x2028 && *ret <= 0x202e) ||
			       (*ret >= 0x2066 && *ret <= 0x2069)
		       ? 3
		       : 0;
}

void str_hex(char *dst, const void *src, size_t n)
{
	const unsigned char *s = src;

	for (size_t i = 0; i < n; i++) {
		*dst++ = "0123456789abcdef"[s[i] >> 4];
		*dst++ = "0123456789abcdef"[s[i] & 15];
	}
	*dst = '\0';
}

static int str_hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = str_lower(c);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int str_unhex(void *dst, size_t dst_size, const char *hex)
{
	unsigned char *d = dst;

	if (strlen(hex) != dst_size * 2)
		return -EINVAL;
	for (size_t i = 0; i < dst_size * 2; i++)
		if (str_hex_digit(hex[i]) < 0)
			return -EINVAL;
	for (size_t i = 0; i < dst_size; i++)
		d[i] = (unsigned char)(str_hex_digit(hex[2 * i]) << 4 |
				       str_hex_digit(hex[2 * i + 1]));
	return 0;
}

void str_b64(char *dst, const void *src, size_t n)
{
	const unsigned char *s = src;

	/* Whole groups first, without a question inside: the output of commands passes here. */
	for (; n >= 3; n -= 3, s += 3, dst += 4) {
		unsigned v = (unsigned)s[0] << 16 | (unsigned)s[1] << 8 | s[2];

		dst[0] = str_b64_alphabet[v >> 18];
		dst[1] = str_b64_alphabet[v >> 12 & 63];
		dst[2] = str_b64_alphabet[v >> 6 & 63];
		dst[3] = str_b64_alphabet[v & 63];
	}
	if (n) {
		unsigned v = (unsigned)s[0] << 16 | (n > 1 ? (unsigned)s[1] << 8 : 0);

		*dst++ = str_b64_alphabet[v >> 18];
		*dst++ = str_b64_alphabet[v >> 12 & 63];
		*dst++ = n > 1 ? str_b64_alphabet[v >> 6 & 63] : '=';
		*dst++ = '=';
	}
	*dst = '\0';
}

/* Value + 1; 0 = not in the alphabet. */
static const unsigned char str_b64_values[256] = {
	['A'] = 1, ['B'] = 2, ['C'] = 3, ['D'] = 4, ['E'] = 5, ['F'] = 6,
	['G'] = 7, ['H'] = 8, ['I'] = 9, ['J'] = 10, ['K'] = 11, ['L'] = 12,
	['M'] = 13, ['N'] = 14, ['O'] = 15, ['P'] = 16, ['Q'] = 17, ['R'] = 18,
	['S'] = 19, ['T'] = 20, ['U'] = 21, ['V'] = 22, ['W'] = 23, ['X'] = 24,
	['Y'] = 25, ['Z'] = 26, ['a'] = 27, ['b'] = 28, ['c'] = 29, ['d'] = 30,
	['e'] = 31, ['f'] = 32, ['g'] = 33, ['h'] = 34, ['i'] = 35, ['j'] = 36,
	['k'] = 37, ['l'] = 38, ['m'] = 39, ['n'] = 40, ['o'] = 41, ['p'] = 42,
	['q'] = 43, ['r'] = 44, ['s'] = 45, ['t'] = 46, ['u'] = 47, ['v'] = 48,
	['w'] = 49, ['x'] = 50, ['y'] = 51, ['z'] = 52, ['0'] = 53, ['1'] = 54,
	['2'] = 55, ['3'] = 56, ['4'] = 57, ['5'] = 58, ['6'] = 59, ['7'] = 60,
	['8'] = 61, ['9'] = 62, ['+'] = 63, ['/'] = 64,
};

size_t str_b64_span(const char *s, size_t n)
{
	size_t i = 0;

	while (i < n && (str_b64_values[(unsigned char)s[i]] || s[i] == '='))
		i++;
	return i;
}

/* Four characters without padding: 24 bits, or -EINVAL. */
static int str_b64_four(const char *s)
{
	unsigned a = str_b64_values[(unsigned char)s[0]], b = str_b64_values[(unsigned char)s[1]];
	unsigned c = str_b64_values[(unsigned char)s[2]], d = str_b64_values[(unsigned char)s[3]];

	if (!a || !b || !c || !d)
		return -EINVAL;
	return (int)((a - 1) << 18 | (b - 1) << 12 | (c - 1) << 6 | (d - 1));
}

/*
 * The last group; the number of bytes, or -EINVAL. Unused bits must be zero, so that each text has
 * one form.
 */
static int str_b64_last(const char *s, unsigned char out[3])
{
	int pad = s[3] != '=' ? 0 : s[2] != '=' ? 1 : 2;
	char four[4];
	int v;

	memcpy(four, s, 4);
	for (int i = 0; i < pad; i++)
		four[3 - i] = 'A';
	v = str_b64_four(four);
	if (v < 0 || (pad == 1 && (v & 0xff)) || (pad == 2 && (v & 0xffff)))
		return -EINVAL;
	out[0] = (unsigned char)(v >> 16);
	out[1] = (unsigned char)(v >> 8);
	out[2] = (unsigned char)v;
	return 3 - pad;
}

int str_unb64(void *dst, size_t dst_size, const char *src, size_t src_len, size_t *ret_len)
{
	unsigned char *d = dst, out[3];
	size_t n = 0, i = 0;
	int k;

	if (src_len % 4)
		return -EINVAL;
	/* Whole groups first: the input of commands passes here. */
	for (; i + 4 < src_len && dst_size - n >= 3; i += 4, n += 3) {
		k = str_b64_four(src + i);
		if (k < 0)
			return k;
		d[n] = (unsigned char)(k >> 16);
		d[n + 1] = (unsigned char)(k >> 8);
		d[n + 2] = (unsigned char)k;
	}
	if (i + 4 < src_len)
		return -ENOSPC;
	if (i < src_len) {
		k = str_b64_last(src + i, out);
		if (k < 0)
			return k;
		if ((size_t)k > dst_size - n)
			return -ENOSPC;
		memcpy(d + n, out, (size_t)k);
		n += (size_t)k;
	}
	*ret_len = n;
	return 0;
}

int str_pct_decode(char *dst, size_t dst_size, const char *src, size_t n, bool plus_is_space)
{
	size_t o = 0;

	for (size_t i = 0; i < n; i++) {
		char c = src[i];

		if (c == '%') {
			int hi, lo;

			if (n - i < 3)
				return -EINVAL;
			hi = str_hex_digit(src[i + 1]);
			lo = str_hex_digit(src[i + 2]);
			if (hi < 0 || lo < 0)
				return -EINVAL;
			c = (char)(hi << 4 | lo);
			i += 2;
		} else if (c == '+' && plus_is_space) {
			c = ' ';
		}
		if (c == '\0')
			return -EINVAL;
		if (o + 1 >= dst_size)
			return -ENOSPC;
		dst[o++] = c;
	}
	if (o >= dst_size)
		return -ENOSPC;
	dst[o] = '\0';
	return 0;
}

int str_random_hex(char *dst, size_t n_bytes)
{
	unsigned char chunk[64];

	dst[0] = '\0';
	while (n_bytes > 0) {
		size_t k = n_bytes < sizeof(chunk) ? n_bytes : sizeof(chunk);
		ssize_t r = getrandom(chunk, k, 0);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		str_hex(dst, chunk, (size_t)r);
		dst += 2 * r;
		n_bytes -= (size_t)r;
	}
	explicit_bzero(chunk, sizeof(chunk));
	return 0;
}

char *str_printable(const char *s, size_t n)
{
	const unsigned char *p = (const unsigned char *)s;
	char *out, *o;

	if (n > (SIZE_MAX - 1) / 4)
		abort();
	o = out = x_alloc(n * 4 + 1);
	for (size_t i = 0, len; i < n; i += len) {
		len = str_utf8_len(p + i, n - i);
		/* C0, DEL and C1 (U+0080 to U+009F, which some terminals obey in UTF-8 too). */
		bool plain = len && p[i] >= 0x20 && p[i] != 0x7f &&
			     !(len == 2 && p[i] == 0xc2 && p[i + 1] < 0xa0);

		if (!len)
			len = 1;
		for (size_t k = 0; k < len; k++) {
			if (plain) {
				*o++ = s[i + k];
				continue;
			}
			*o++ = '\\';
			*o++ = 'x';
			str_hex(o, p + i + k, 1);
			o += 2;
		}
	}
	*o = '\0';
	return out;
}
