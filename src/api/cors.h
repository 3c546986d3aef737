/*
 * Pages of other origins at the data surface (facts: e2b-protocol, 3.4). Whoever has a sandbox's
 * token may use it from a page, so any origin may; nothing here rests on cookies. Control routes
 * answer no page: an API key does not belong into one.
 */
#ifndef API_CORS_H
#define API_CORS_H

#include "http/server.h"

#define CORS_FIELDS_MAX 3

/* OPTIONS as a browser asks it before a request of another origin. */
bool cors_is_preflight(const struct http_head *h);
void cors_answer(struct http_req *r, const char *req_id);        /* to a preflight; r is gone */
/* Of the answer to a request that names an origin; ends with NULL. */
extern const struct http_field cors_fields[CORS_FIELDS_MAX];
/* What a guest says about origins itself is not passed on. */
bool cors_is_field(const char *name);

#endif
