#include "spaced-guest/negotiate.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/alloc.h"
#include "base/str.h"

#define BLANKS " \t"

/* ---- Accept-Encoding ---- */

/* One member of a list: its name and whether its weight is above zero. */
struct member { const char *name; size_t len; bool wanted; };

/* "q=0", "q=0.0", ... is a refusal; what is no weight counts as one. */
static bool weight(const char *p, size_t n)
{
	const char *q = memchr(p, ';', n);

	if (!q)
		return true;
	n -= (size_t)(q + 1 - p);
	p = q + 1;
	while (n && strchr(BLANKS, *p)) {
		p++;
		n--;
	}
	if (n < 3 || strncasecmp(p, "q=0", 3) != 0)
		return true;
	for (size_t i = 3; i < n; i++)
		if (p[i] >= '1' && p[i] <= '9')
			return true;
	return false;
}

/* The member at *at; false = the list is over. */
static bool next_member(const char **at, struct member *ret)
{
	const char *p = *at + strspn(*at, BLANKS ",");
	size_t n = strcspn(p, ",");

	if (!*p)
		return false;
	*at = p + n;
	ret->wanted = weight(p, n);
	ret->name = p;
	ret->len = strcspn(p, BLANKS ";,");
	return true;
}

static bool is_name(const struct member *m, const char *name)
{
	return m->len == strlen(name) && strncasecmp(m->name, name, m->len) == 0;
}

enum coding negotiate_coding(const char *accept_encoding)
{
	bool gzip = false, gzip_named = false, identity = true, identity_named = false;
	bool star = true, star_named = false, other = false;
	struct member m;

	if (!accept_encoding)
		return CODING_IDENTITY;
	while (next_member(&accept_encoding, &m)) {
		if (is_name(&m, "gzip") || is_name(&m, "x-gzip")) {
			gzip_named = true;
			gzip = m.wanted;
		} else if (is_name(&m, "identity")) {
			identity_named = true;
			identity = m.wanted;
		} else if (is_name(&m, "*")) {
			star_named = true;
			star = m.wanted;
		} else {
			other = true;
		}
	}
	if (star_named && !identity_named)
		identity = star;
	if (star_named && !gzip_named)
		gzip = star;
	if (!identity)
		return gzip ? CODING_GZIP : CODING_NONE;
	return gzip_named && gzip && !other && !identity_named && !star_named ? CODING_GZIP
									      : CODING_IDENTITY;
}

/* ---- dates ---- */

void negotiate_date(char dst[NEGOTIATE_DATE_LEN], int64_t s)
{
	static const char days[] = "SunMonTueWedThuFriSat";
	static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
	time_t t = (time_t)s;
	struct tm tm;

	if (s < 0 || !gmtime_r(&t, &tm) || tm.tm_year > 9999 - 1900)
		tm = (struct tm){ .tm_mday = 1, .tm_year = 70, .tm_wday = 4 };
	str_format(dst, NEGOTIATE_DATE_LEN, "%.3s, %02d %.3s %04d %02d:%02d:%02d GMT",
		   days + tm.tm_wday * 3, tm.tm_mday, months + tm.tm_mon * 3, tm.tm_year + 1900,
		   tm.tm_hour, tm.tm_min, tm.tm_sec);
}

/* -EINVAL; the obsolete forms too. */
static int negotiate_parse_date(const char *s, int64_t *ret_s)
{
	static const char *const forms[] = { "%a, %d %b %Y %H:%M:%S GMT",
					     "%A, %d-%b-%y %H:%M:%S GMT",
					     "%a %b %d %H:%M:%S %Y" };

	for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
		struct tm tm = { 0 };
		const char *end = strptime(s, forms[i], &tm);

		if (end && !*end) {
			*ret_s = (int64_t)timegm(&tm);
			return 0;
		}
	}
	return -EINVAL;
}

/* ---- conditions ---- */

static const char *opaque(const char *etag)
{
	return str_starts(etag, "W/") ? etag + 2 : etag;
}

/* Whether a list of entity tags names this one. Strong comparison: neither may be weak. */
static bool etag_in(const char *list, const char *etag, bool strong)
{
	size_t len = strlen(opaque(etag));

	if (str_eq(list, "*"))
		return true;
	if (!*etag || (strong && opaque(etag) != etag))
		return false;
	for (const char *p = list; *p;) {
		bool weak;
		const char *end;

		p += strspn(p, BLANKS ",");
		weak = str_starts(p, "W/");
		p += weak ? 2 : 0;
		if (*p != '"' || !(end = strchr(p + 1, '"')))
			return false;
		end++;
		if ((size_t)(end - p) == len && memcmp(p, opaque(etag), len) == 0 &&
		    !(strong && weak))
			return true;
		p = end;
	}
	return false;
}

/* -1 = the field is absent or no date. */
static int changed_since(const struct http_head *h, const char *name, const struct validator *v)
{
	const char *value = http_get(h, name);
	int64_t t;

	if (!value || negotiate_parse_date(value, &t) < 0)
		return -1;
	return v->mtime_s > t;
}

int negotiate_condition(const struct http_head *h, const struct validator *v, bool *ret_conditional)
{
	const char *match = http_get(h, "If-Match"), *none = http_get(h, "If-None-Match");
	int since = changed_since(h, "If-Modified-Since", v);
	int unchanged = changed_since(h, "If-Unmodified-Since", v);

	*ret_conditional = match || none || since >= 0 || unchanged >= 0;
	if (match ? !etag_in(match, v->etag, true) : unchanged == 1)
		return 412;
	if (none ? etag_in(none, v->etag, false) : since == 0)
		return 304;
	return 0;
}

/* ---- ranges ---- */

static bool if_range_ok(const struct http_head *h, const struct validator *v)
{
	const char *value = http_get(h, "If-Range");
	int64_t t;

	if (!value)
		return true;
	if (*value == '"' || str_starts(value, "W/"))
		return etag_in(value, v->etag, true);
	/* A date counts only as exact as a strong tag would. */
	return negotiate_parse_date(value, &t) == 0 && t == v->mtime_s &&
	       opaque(v->etag) == v->etag;
}

/* "A-B", "A-", "-N"; 200, 206, 416 as negotiate_range. */
static int one_range(const char *p, uint64_t size, uint64_t *ret_first, uint64_t *ret_last)
{
	const char *dash = strchr(p, '-');
	uint64_t a = 0, b = UINT64_MAX;
	bool has_a, has_b;

	if (!dash)
		return 200;
	has_a = dash != p;
	has_b = dash[1] != '\0';
	if ((!has_a && !has_b) ||
	    (has_a && str_to_u64_n(p, (size_t)(dash - p), UINT64_MAX, &a) < 0) ||
	    (has_b && str_to_u64(dash + 1, UINT64_MAX, &b) < 0) || (has_a && has_b && a > b))
		return 200;
	if (!has_a) {
		if (b == 0 || size == 0)
			return 416;
		*ret_first = b < size ? size - b : 0;
		*ret_last = size - 1;
		return 206;
	}
	if (a >= size)
		return 416;
	*ret_first = a;
	*ret_last = b < size - 1 ? b : size - 1;
	return 206;
}

int negotiate_range(const struct http_head *h, const struct validator *v, uint64_t size,
		    uint64_t *ret_first, uint64_t *ret_last)
{
	const char *value = http_get(h, "Range");

	if (!value || strncasecmp(value, "bytes=", 6) != 0 || strchr(value, ',') ||
	    !if_range_ok(h, v))
		return 200;
	value += 6;
	return one_range(value + strspn(value, BLANKS), size, ret_first, ret_last);
}
