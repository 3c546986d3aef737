/*
 * The fields that keep a page to itself: scripts, styles and connections from and to this server
 * alone, nothing inline, no frame around it. What a sandbox prints is text to the page; should that
 * ever fail, this still holds.
 */
#include "api/pages.h"

#include <string.h>

#include "api/api.h"
#include "base/str.h"

#define POLICY \
	"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " \
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

static const struct page *page_of(const char *target)
{
	size_t n = strcspn(target, "?");

	for (unsigned i = 0; i < pages_len; i++)
		if (strlen(pages[i].path) == n && memcmp(pages[i].path, target, n) == 0)
			return &pages[i];
	return NULL;
}

bool pages_handle(struct call *c)
{
	const struct http_head *h = http_req_head(c->req);
	const struct page *p = page_of(h->target);
	const char *known = http_get(h, "If-None-Match");
	const struct http_field extra[] = {
		{ "X-Request-Id", c->req_id },
		{ "Content-Security-Policy", POLICY },
		{ "X-Content-Type-Options", "nosniff" },
		{ "X-Frame-Options", "DENY" },
		{ "Referrer-Policy", "no-referrer" },
		{ "Cross-Origin-Opener-Policy", "same-origin" },
		{ "Cross-Origin-Resource-Policy", "same-origin" },
		{ "Cache-Control", "no-cache" },
		{ "ETag", p ? p->etag : "" },
		{ NULL, NULL },
	};

	if (!p)
		return false;
	if (!str_eq(h->method, "GET") && !str_eq(h->method, "HEAD"))
		http_req_error(c->req, 405, extra, "A page can be read, with GET.");
	else if (known && str_eq(known, p->etag))
		http_req_answer(c->req, 304, extra, NULL, NULL, 0);
	else
		http_req_answer(c->req, 200, extra, p->type, p->data, p->len);
	return true;
}
