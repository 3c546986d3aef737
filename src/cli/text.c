/* What others wrote, made harmless for a terminal; tables; numbers for people. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include "base/alloc.h"
#include "base/str.h"
#include "cli/cli.h"

#define TABLE_CELLS_MAX 1000000

/*
 * Characters that are no control bytes and yet change how a line is shown: where it ends, in which
 * direction it runs. All of them have three bytes in UTF-8 but U+061C, which has two.
 */
static bool turns(unsigned cp)
{
	return cp == 0x61c || cp == 0x200e || cp == 0x200f || (cp >= 0x2028 && cp <= 0x202e) ||
	       (cp >= 0x2066 && cp <= 0x2069) || cp == 0xfeff;
}

/* The character at p of valid UTF-8; its length. */
static size_t code_point(const unsigned char *p, unsigned *ret)
{
	if (p[0] < 0x80) {
		*ret = p[0];
		return 1;
	}
	if (p[0] < 0xe0) {
		*ret = (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
		return 2;
	}
	if (p[0] < 0xf0) {
		*ret = (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
		return 3;
	}
	*ret = (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
	return 4;
}

char *text_safe(const char *s, size_t n)
{
	autofree char *plain = str_printable(s, n);
	const unsigned char *p = (const unsigned char *)plain;
	char *out = x_alloc(strlen(plain) * 4 + 1), *o = out;

	while (*p) {
		unsigned cp;
		size_t len = code_point(p, &cp);

		for (size_t i = 0; i < len; i++) {
			if (!turns(cp)) {
				*o++ = (char)p[i];
				continue;
			}
			*o++ = '\\';
			*o++ = 'x';
			str_hex(o, p + i, 1);
			o += 2;
		}
		p += len;
	}
	*o = '\0';
	return out;
}

char *text_json_safe(const char *json)
{
	const unsigned char *p = (const unsigned char *)json;
	char *out = x_alloc(strlen(json) * 6 + 1), *o = out;

	while (*p) {
		unsigned cp;
		size_t len = code_point(p, &cp);

		if (cp == 0x7f || (cp >= 0x80 && cp < 0xa0) || turns(cp)) {
			(void)str_format(o, 7, "\\u%04x", cp);
			o += 6;
		} else {
			memcpy(o, p, len);
			o += len;
		}
		p += len;
	}
	*o = '\0';
	return out;
}

/* Columns of a terminal, of a text_safe text. */
static size_t text_width(const char *s)
{
	const unsigned char *p = (const unsigned char *)s;
	size_t width = 0;

	while (*p) {
		unsigned cp;
		int w;

		p += code_point(p, &cp);
		w = wcwidth((wchar_t)cp);
		width += w >= 0 ? (size_t)w : 1;
	}
	return width;
}

void text_age(int64_t ms, char dst[16])
{
	static const struct { int64_t below, unit; char letter; } units[] = {
		{ 120, 1, 's' }, { 7200, 60, 'm' }, { 172800, 3600, 'h' }, { INT64_MAX, 86400, 'd' }
	};
	int64_t s = ms > 0 ? ms / 1000 : 0;
	size_t u = 0;

	while (s >= units[u].below)
		u++;
	(void)str_format(dst, 16, "%" PRId64 "%c", s / units[u].unit, units[u].letter);
}

void text_bytes(uint64_t n, char dst[16])
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double v = (double)n;
	size_t u = 0;

	while (v >= 1000 && u + 1 < ARRAY_LEN(units)) {
		v /= 1024;
		u++;
	}
	(void)str_format(dst, 16, u && v < 99.95 ? "%.1f %s" : "%.0f %s", v, units[u]);
}

/* ---- tables ---- */

void table_init(struct table *t, size_t cols, const char *const *heads)
{
	*t = (struct table){ .cols = cols };
	for (size_t i = 0; i < cols; i++)
		table_add(t, heads[i]);
}

void table_add(struct table *t, const char *cell)
{
	if (t->n == TABLE_CELLS_MAX)
		return;
	if (t->n == t->room) {
		t->room = t->room ? t->room * 2 : 64;
		t->cells = x_realloc(t->cells, t->room * sizeof(char *));
	}
	t->cells[t->n++] = text_safe(cell ? cell : "-", strlen(cell ? cell : "-"));
}

void table_addf(struct table *t, const char *fmt, ...)
{
	autofree char *s = NULL;
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&s, fmt, ap) < 0)
		abort();
	va_end(ap);
	table_add(t, s);
}

void table_done(struct table *t)
{
	for (size_t i = 0; i < t->n; i++)
		free(t->cells[i]);
	free(t->cells);
	*t = (struct table){ 0 };
}

void table_print(struct table *t)
{
	autofree size_t *widths = x_array(t->cols, sizeof(*widths));

	for (size_t i = 0; i < t->n; i++) {
		size_t w = text_width(t->cells[i]);

		if (w > widths[i % t->cols])
			widths[i % t->cols] = w;
	}
	for (size_t i = 0; i < t->n; i++) {
		size_t col = i % t->cols, w = text_width(t->cells[i]);

		fputs(t->cells[i], stdout);
		if (col + 1 == t->cols || i + 1 == t->n)
			putchar('\n');
		else
			printf("%*s", (int)(widths[col] - w) + 2, "");
	}
	table_done(t);
}
