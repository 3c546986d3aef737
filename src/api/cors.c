#include "api/cors.h"

#include <strings.h>
#include "base/alloc.h"
#include "base/str.h"

#define REQUESTED_MAX 2000
#define NAME_LIST_CHARS "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-, "

/* What the reference's guest agent exposes: Connect's, and what files need. */
const struct http_field cors_fields[CORS_FIELDS_MAX] = {
	{ "Access-Control-Allow-Origin", "*" },
	{ "Access-Control-Expose-Headers",
	  "Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin, Location, Cache-Control, "
	  "X-Content-Type-Options, X-Request-Id" },
	{ NULL, NULL },
};

bool cors_is_preflight(const struct http_head *h)
{
	return str_eq(h->method, "OPTIONS") && http_get(h, "Origin") &&
	       http_get(h, "Access-Control-Request-Method");
}

bool cors_is_field(const char *name)
{
	return strncasecmp(name, "Access-Control-", 15) == 0;
}

void cors_answer(struct http_req *r, const char *req_id)
{
	/* "*" does not stand for Authorization: what was asked for is repeated. */
	const char *asked = http_get(http_req_head(r), "Access-Control-Request-Headers");
	autofree char *names =
		x_strdup(asked && str_is(asked, 1, REQUESTED_MAX, NAME_LIST_CHARS) ? asked : "*");
	const struct http_field extra[] = {
		{ "X-Request-Id", req_id },
		{ "Access-Control-Allow-Origin", "*" },
		{ "Access-Control-Allow-Methods", "HEAD, GET, POST, PUT, PATCH, DELETE" },
		{ "Access-Control-Allow-Headers", names },
		{ "Access-Control-Max-Age", "7200" },
		{ "Vary",
		  "Origin, Access-Control-Request-Method, Access-Control-Request-Headers" },
		{ NULL, NULL },
	};

	http_req_answer(r, 204, extra, NULL, NULL, 0);
}
