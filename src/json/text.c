#include "json/text.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/str.h"

#define ESCAPE_BYTES 6                   /* \uXXXX; the longest sequence that is replaced has 3 */

static size_t count(const char *s)
{
	size_t n = 0;
	unsigned c;

	for (; *s; s++)
		n += str_control(s, &c) > 0;
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
		size_t len = str_control(p, &c);

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
