#include "json/strict.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <sys/random.h>

/*
 * Depth is counted on the text, before the parser recurses. Up to the first syntax error this scan
 * reads the same tokens as the parser; behind it the parser is not any more.
 */
static int strict_scan(const char *p, size_t n, unsigned max_depth, struct err *e)
{
	bool in_string = false;
	unsigned depth = 0;

	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)p[i];

		if (c < 0x20 && (in_string || (c != '\t' && c != '\n' && c != '\r')))
			return err_set(e, -EBADMSG, "JSON: control byte 0x%02x at %zu", c, i);
		if (in_string) {
			if (c == '\\')
				i++;
			else if (c == '"')
				in_string = false;
		} else if (c == '"') {
			in_string = true;
		} else if (c == '{' || c == '[') {
			if (++depth > max_depth)
				return err_set(e, -EBADMSG, "JSON: nested deeper than %u",
					       max_depth);
		} else if ((c == '}' || c == ']') && depth > 0) {
			depth--;
		}
	}
	return 0;
}

/* Recursion is bounded by the depth that strict_scan allowed. */
static bool strict_numbers_ok(json_t *v)
{
	const char *key;
	json_t *child;
	size_t i;

	if (json_is_integer(v))
		return json_integer_value(v) <= STRICT_INT_MAX &&
		       json_integer_value(v) >= -STRICT_INT_MAX;
	if (json_is_real(v))
		return fabs(json_real_value(v)) <= (double)STRICT_INT_MAX;
	json_array_foreach(v, i, child)
		if (!strict_numbers_ok(child))
			return false;
	json_object_foreach(v, key, child)
		if (!strict_numbers_ok(child))
			return false;
	return true;
}

json_t *strict_parse(const char *p, size_t n, unsigned max_depth, struct err *e)
{
	json_error_t je;
	json_t *v;

	if (n > STRICT_BYTES_MAX) {
		err_set(e, -EMSGSIZE, "JSON: %zu bytes, at most %d are taken", n, STRICT_BYTES_MAX);
		return NULL;
	}
	if (strict_scan(p, n, max_depth, e) < 0)
		return NULL;
	v = json_loadb(p, n, JSON_REJECT_DUPLICATES, &je);
	if (!v) {
		err_set(e, -EBADMSG, "JSON: malformed at byte %d", je.position);
		return NULL;
	}
	if (!strict_numbers_ok(v)) {
		json_decref(v);
		err_set(e, -EBADMSG, "JSON: a number beyond 2^53");
		return NULL;
	}
	return v;
}

int strict_seed(void)
{
	size_t seed = 0;

	while (seed == 0)                /* which jansson takes for none */
		if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
			return -EIO;
	json_object_seed(seed);
	return 0;
}
