#include "identity/internal.h"

#include <string.h>

#include "base/str.h"

#define CLAIM_STR_MAX 128

bool claim_str(json_t *obj, const char *name, char *dst, size_t dst_size)
{
	json_t *v = json_object_get(obj, name);
	size_t n = json_string_length(v);

	if (!json_is_string(v) || n >= dst_size || memchr(json_string_value(v), '\0', n))
		return false;
	memcpy(dst, json_string_value(v), n + 1);
	return true;
}

bool claim_u64(json_t *obj, const char *name, uint64_t min, uint64_t max, uint64_t *ret)
{
	json_t *v = json_object_get(obj, name);
	json_int_t n = json_integer_value(v);

	if (!json_is_integer(v) || n < 0 || (uint64_t)n < min || (uint64_t)n > max)
		return false;
	*ret = (uint64_t)n;
	return true;
}

bool enum_of(const char *s, const char *const *names, unsigned n, unsigned *ret)
{
	for (unsigned i = 0; i < n; i++) {
		if (!str_eq(s, names[i]))
			continue;
		*ret = i;
		return true;
	}
	return false;
}

bool claim_enum(json_t *obj, const char *name, const char *const *names, unsigned n, unsigned *ret)
{
	char s[CLAIM_STR_MAX];

	return claim_str(obj, name, s, sizeof(s)) && enum_of(s, names, n, ret);
}

bool claim_hex(json_t *obj, const char *name, uint8_t *dst, size_t bytes)
{
	char s[CLAIM_STR_MAX + 1];

	return claim_str(obj, name, s, sizeof(s)) &&
	       str_is(s, 2 * bytes, 2 * bytes, "0123456789abcdef") && str_unhex(dst, bytes, s) >= 0;
}
