#include "json/text.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/str.h"

#define ESCAPE_BYTES 6                   /* \uXXXX; the longest sequence that is replaced has 3 */

/* The bytes of the character at p that is to be escaped, and its number; 0: it stays. */
static size_t escaped(const unsigned char *p, unsigned *ret)
{
	if (p[0] == 0x7f) {
		*ret = 0x7f;
		return 1;
	}
	if (p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0) {
		*ret = p[1];
		return 2;
	}
	if (p[0] != 0xe2 || (p[1] != 0x80 && p[1] != 0x81))
		return 0;
	*ret = 0x2000u | (unsigned)(p[1] & 1) << 6 | (p[2] & 0x3f);
	return (*ret >= 0x200e && *ret <= 0x200f) || (*ret >= 0x2028 && *ret <= 0x202e) ||
			       (*ret >= 0x2066 && *ret <= 0x2069)
		       ? 3
		       : 0;
}

static size_t count(const char *s)
{
	size_t n = 0;
	unsigned c;

	for (; *s; s++)
		n += escaped((const unsigned char *)s, &c) > 0;
	return n;
}

char *json_text(const json_t *v)
{
	char *plain = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY), *out, *to;
	size_t n = plain ? count(plain) : 0;
	unsigned c;

	if (n == 0)
		return plain;
	out = to = x_alloc(strlen(plain) + n * ESCAPE_BYTES + 1);
	for (const char *p = plain; *p;) {
		size_t len = escaped((const unsigned char *)p, &c);

		if (len == 0) {
			*to++ = *p++;
			continue;
		}
		str_format(to, ESCAPE_BYTES + 1, "\\u%04x", c);
		to += ESCAPE_BYTES;
		p += len;
	}
	free(plain);
	return out;
}
