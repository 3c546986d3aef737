#include "spaced-guest/text.h"

#include <stdbool.h>
#include <string.h>

#include "base/str.h"

#define REPLACEMENT "\xef\xbf\xbd"

/* Length of the valid UTF-8 sequence at s, 0 = none. */
static size_t utf8_len(const char *s, size_t n)
{
	for (size_t k = 1; k <= 4 && k <= n; k++)
		if (str_utf8_ok(s, k))
			return k;
	return 0;
}

static bool plain(char c)
{
	return (unsigned char)c >= 0x20 && (unsigned char)c < 0x7f && c != '"' && c != '\\';
}

static int escape(struct buf *b, const char *s, size_t n, size_t *ret_used)
{
	size_t k;

	*ret_used = 1;
	if (*s == '"' || *s == '\\')
		return buf_putf(b, "\\%c", *s);
	if (*s == '\n')
		return buf_puts(b, "\\n");
	if ((unsigned char)*s < 0x20 || *s == 0x7f)
		return buf_putf(b, "\\u%04x", (unsigned)*s);
	k = utf8_len(s, n);
	if (k == 0)
		return buf_puts(b, REPLACEMENT);
	*ret_used = k;
	return buf_put(b, s, k);
}

int text_json(struct buf *b, const char *s, size_t n)
{
	int r = buf_puts(b, "\"");

	while (n && r == 0) {
		size_t k = 0;

		while (k < n && plain(s[k]))
			k++;
		if (k)
			r = buf_put(b, s, k);
		else
			r = escape(b, s, n, &k);
		s += k;
		n -= k;
	}
	return r ? r : buf_puts(b, "\"");
}

int text_json_s(struct buf *b, const char *s)
{
	return text_json(b, s, strlen(s));
}

int text_member(struct buf *b, const char *key, const char *value)
{
	int r = buf_putf(b, "\"%s\":", key);

	return r ? r : text_json_s(b, value);
}
