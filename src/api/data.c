/*
 * The data surface: which sandbox a request is for, and whether the client may. It names its
 * sandbox by host, by header or by its token. For the agent the token (or a signed address) proves
 * that he may; a port of the guest is open to all, or wants the traffic token (E2B's
 * allowPublicTraffic, which stands in the sandbox's row: stream.c asks).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "api/api.h"
#include "api/host.h"
#include "api/stream.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "routes/routes.h"

/* ---- which sandbox ---- */

static int by_header(const struct http_head *h, struct data_target *ret, struct err *e)
{
	const char *id = http_get(h, "E2b-Sandbox-Id"), *port = http_get(h, "E2b-Sandbox-Port");

	if (!id && !port)
		return 0;
	if (!id || !port || http_count(h, "E2b-Sandbox-Id") > 1 ||
	    http_count(h, "E2b-Sandbox-Port") > 1)
		return err_set(e, -EINVAL,
			       "E2b-Sandbox-Id and E2b-Sandbox-Port must both be there, once.");
	if (str_to_u64(port, 65535, &ret->port) < 0 || ret->port == 0)
		return err_set(e, -EINVAL, "E2b-Sandbox-Port is not a port number.");
	if (str_copy(ret->id, sizeof(ret->id), id) < 0)
		return err_set(e, -EINVAL, "E2b-Sandbox-Id is too long.");
	return 1;
}

/* "<id>-<client>" is an old form. */
static void cut_suffix(char *id)
{
	id[strcspn(id, "-")] = '\0';
}

/* Who comes under a sandbox's own name is there for that one; fields that say the same are fine. */
static int by_host(const struct http_head *h, const struct host *host, struct data_target *ret,
		   struct err *e)
{
	struct data_target named;
	int r = by_header(h, &named, e);

	if (r < 0)
		return r;
	ret->port = host->port;
	str_copy(ret->id, sizeof(ret->id), host->id);
	cut_suffix(ret->id);
	if (r == 0)
		return 1;
	cut_suffix(named.id);
	if (named.port != ret->port || !str_eq(named.id, ret->id))
		return err_set(e, -EINVAL,
			       "E2b-Sandbox-Id and E2b-Sandbox-Port name another sandbox or port "
			       "than the host.");
	return 1;
}

int data_target_of(struct api *a, const struct http_head *h, struct data_target *ret, struct err *e)
{
	struct host host = host_parse(h->host, a->domain_host);
	int r;

	*ret = (struct data_target){ 0 };
	if (host.kind == HOST_PREVIEW)
		return by_host(h, &host, ret, e);
	if (host.kind == HOST_UNKNOWN)
		return err_set_code(e, -ENOENT, "no-such-host",
				    "There is no such host: <port>-<sandbox>.%s is one.", a->domain);
	r = by_header(h, ret, e);
	if (r == 0 && host.kind == HOST_SHARED && (r = data_target_by_token(h, ret)) == 0)
		return err_set(e, -EINVAL,
			       "This host serves sandboxes: E2b-Sandbox-Id and E2b-Sandbox-Port "
			       "say which.");
	return r;
}

int data_target_by_token(const struct http_head *h, struct data_target *ret)
{
	const char *token = http_get(h, "X-Access-Token");
	char id[ID_SANDBOX_LEN + 1];

	*ret = (struct data_target){ .port = ROUTES_CONTROL_PORT, .by_token = true };
	if (!token || token_sandbox(token, id) < 0)
		return 0;
	str_copy(ret->id, sizeof(ret->id), id);
	return 1;
}

/* ---- from the request to its stream ---- */

static int check_access(const struct call *c, const struct data_target *t,
			const struct http_head *h, struct err *e)
{
	const char *token = http_get(h, "X-Access-Token");
	const struct token_key *k = keys_token(c->api);
	int r;

	/*
	 * Without a body or an upgrade: who has no token must not hold a stream of the sandbox for
	 * as long as he likes.
	 */
	if ((str_eq(h->method, "GET") || str_eq(h->method, "HEAD")) &&
	    strcspn(h->target, "?") == 7 && str_starts(h->target, "/health") &&
	    (h->body == HTTP_BODY_NONE || (h->body == HTTP_BODY_LENGTH && h->length == 0)) &&
	    !h->upgrade)
		return 0;
	if (token && http_count(h, "X-Access-Token") == 1 && id_sandbox_ok(t->id) &&
	    token_ok(k, t->id, token))
		return 0;
	r = token ? -ENOENT
		  : token_signature_check(k, t->id, h->method, h->target, clock_wall_ms() / 1000,
					  e);
	return r == -ENOENT ? err_set(e, -ENOKEY, "The access token is missing or wrong.") : r;
}

/* The traffic token; the client's token of the agent's port is none. */
static void take_traffic_token(const struct call *c, const struct http_head *h,
			       struct stream_ask *ask)
{
	const char *token = http_get(h, "E2B-Traffic-Access-Token");

	ask->token_given = token != NULL;
	ask->token_ok = token && http_count(h, "E2B-Traffic-Access-Token") == 1 &&
			id_sandbox_ok(ask->sandbox) &&
			token_traffic_ok(keys_token(c->api), ask->sandbox, token);
}

void data_handle(struct call *c, const struct data_target *t)
{
	const struct http_head *h = http_req_head(c->req);
	const struct route *route = routes_find(h->method, h->target);
	struct data_target target = *t;
	struct stream_ask ask = { .port = (uint16_t)t->port, .route = route };
	struct err e = { 0 };

	ask.kind = t->port == ROUTES_CONTROL_PORT ? STREAM_CONTROL : STREAM_PORT;
	c->cors = ask.kind == STREAM_CONTROL && !route->host_only && http_get(h, "Origin");
	cut_suffix(target.id);
	str_copy(ask.sandbox, sizeof(ask.sandbox), target.id);
	if (str_eq(h->method, "CONNECT"))
		err_set(&e, -EINVAL, "CONNECT is not served.");
	else if (ask.kind == STREAM_CONTROL && route->host_only)
		err_set(&e, -ENOENT, "There is no such path.");
	else if (c->api->n_streams >= API_STREAMS_MAX)
		err_set(&e, -EUSERS, "Too many requests are open.");
	else if (ask.kind == STREAM_CONTROL)
		check_access(c, &target, h, &e);
	else
		take_traffic_token(c, h, &ask);
	if (e.num < 0)
		call_error(c, &e);
	else
		stream_start(c, &ask);
}
