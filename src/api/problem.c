#include "api/problem.h"

#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "json/text.h"
#include "http/http.h"

#define DETAIL_MAX (2 * ERR_TEXT_MAX)    /* a sentence and an advice */

/* What the HTTP server of this program refuses by itself. */
static const struct { int status; const char *code; } http_codes[] = {
	{ 400, "malformed" },	     { 408, "request-timeout" },       { 413, "too-large" },
	{ 431, "head-too-large" },   { 501, "not-implemented" },       { 505, "http-version" },
};

const char *problem_http_code(int status)
{
	for (size_t i = 0; i < ARRAY_LEN(http_codes); i++)
		if (http_codes[i].status == status)
			return http_codes[i].code;
	return "internal";
}

const struct problem *problem_find(const char *code)
{
	for (unsigned i = 0; i < problems_len; i++)
		if (str_eq(problems[i].code, code))
			return &problems[i];
	return NULL;
}

bool problem_path(const char *target, size_t n)
{
	return n >= 3 && memcmp(target, "/v1", 3) == 0 && (n == 3 || strchr("/? ", target[3]));
}

char *problem_page(const struct problem *p)
{
	return x_asprintf("%s (%d %s)\n\n%s\n%s\n", p->code, p->status, http_reason(p->status),
			  p->title, p->advice);
}

/*
 * Sentences: many texts of the node begin small and end without a stop. What is no UTF-8 cannot
 * stand in JSON.
 */
static void put_sentence(struct buf *b, const char *text)
{
	char line[ERR_TEXT_MAX];         /* most come out of an err; longer ones are cut */
	size_t n;
	bool utf8;

	(void)str_copy(line, sizeof(line), text);
	n = strlen(line);
	utf8 = str_utf8_ok(line, n);
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)line[i];

		c = i == 0 && c < 0x80 ? (unsigned char)toupper(c) : c;
		c = c >= 0x80 && !utf8 ? '?' : c;
		buf_put(b, &c, 1);
	}
	if (n > 0 && !strchr(".!?", line[n - 1]))
		buf_puts(b, ".");
}

static char *detail_of(const struct problem *p, int status, const char *text)
{
	struct buf b;

	buf_init(&b, DETAIL_MAX);
	put_sentence(&b, *text ? text : p ? p->title : http_reason(status));
	if (p)
		buf_putf(&b, " %s", p->advice);
	return buf_take_str(&b);
}

char *problem_json(int status, const char *code, const char *text, const char *request_id)
{
	const struct problem *p = problem_find(code);
	autofree char *detail = detail_of(p, status, text);
	autofree char *type = p ? x_asprintf("%s%s", PROBLEM_BASE, code) : x_strdup("about:blank");
	json_t *o = json_pack("{s:s,s:s,s:i,s:s,s:s,s:s}", "type", type, "title",
			      p ? p->title : http_reason(status), "status", status, "detail",
			      detail, "code", code, "request_id", request_id);
	char *body = json_text(o);

	json_decref(o);
	return body;
}
