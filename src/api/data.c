/*
 * The data surface. A request names its sandbox by header, by host or by its token; the token (or a
 * signed address) proves that the client may. Then: route -> capability -> node, relayed by forward
 * (http/forward.h).
 *
 *	take the connection -> route_get -> forward_start -+-> the guest's answer
 *	                          ^                        |
 *	                          |                        +-> 421 refresh-route, once, if the route table allows it and the
 *	                     route_refresh <---------------'   body is still there (V-2)
 *	                                                   +-> 421 deny, or again: 502 as E2B's clients know it
 *
 * Where the look-up finds a paused sandbox that requests may wake (C-9), it is woken and looked up
 * again, once.
 *
 * Only node-api can say Space-Refusal or Space-Error: it takes Space-* out of what a guest says.
 * They go no further than here. A stream is bound to the generation that admitted it; data_cut ends
 * those of a retired one as soon as this process knows (the node ends them too).
 *
 * The stream is freed when its forward has ended and no look-up is under way for it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include "api/api.h"
#include "api/cors.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "http/forward.h"
#include "routes/routes.h"

#define CONNECT_TIMEOUT_MS 5000
#define HEAD_TIMEOUT_MS 610000               /* a little more than node-api's, which can say what went wrong */
#define STALL_TIMEOUT_MS 600000
#define HEAD_MAX (2 * HTTP_HEAD_MAX)

struct stream {
	struct list node;
	struct api *api;
	struct forward *f;               /* NULL: over, a look-up is still under way */
	bool looking, retried, retry_fresh;
	bool may_wake;                   /* one try to wake a paused sandbox (C-9) */
	bool cors;                       /* a page of another origin asks */
	const struct route *route;
	char sandbox[64];
	char req_id[API_REQ_ID_MAX + 1];
	struct api_route via;            /* of the current attempt */
	bool routed;
	int node_status;                 /* of an answer of the node itself, that was swallowed */
	char refusal[16], node_error[40];
	int64_t start_ms, routed_ms;
};

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

static int by_host(const struct api *a, const char *host, struct data_target *ret)
{
	size_t n = host ? strcspn(host, ":") : 0;
	const char *dot = n ? memchr(host, '.', n) : NULL, *dash;
	size_t domain_len = strlen(a->domain_host);

	if (!dot || n - (size_t)(dot - host) - 1 != domain_len ||
	    strncasecmp(dot + 1, a->domain_host, domain_len) != 0)
		return 0;
	dash = memchr(host, '-', (size_t)(dot - host));
	if (!dash || (size_t)(dot - dash) - 1 >= sizeof(ret->id) ||
	    str_to_u64_n(host, (size_t)(dash - host), 65535, &ret->port) < 0 || ret->port == 0)
		return 0;
	memcpy(ret->id, dash + 1, (size_t)(dot - dash) - 1);
	ret->id[dot - dash - 1] = '\0';
	return 1;
}

int data_target_of(struct api *a, const struct http_head *h, struct data_target *ret, struct err *e)
{
	int r;

	*ret = (struct data_target){ 0 };
	r = by_header(h, ret, e);
	return r != 0 ? r : by_host(a, h->host, ret);
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

/* ---- answers of our own ---- */

struct answer { int status; bool retry; char body[512]; };

static void gone_answer(const char *sandbox, struct answer *a)
{
	/* Word for word what E2B's clients look for. IDs that are none are not echoed. */
	a->status = 502;
	a->retry = false;
	str_format(a->body, sizeof(a->body),
		   "{\"sandboxId\":\"%s\",\"message\":\"The sandbox was not found\",\"code\":502}",
		   id_sandbox_ok(sandbox) ? sandbox : "");
}

static void plain_answer(int status, const char *message, struct answer *a)
{
	a->status = status;
	a->retry = status == 503 || status == 429;
	str_format(a->body, sizeof(a->body), "{\"code\":%d,\"message\":\"%s\"}", status, message);
}

static void reply(struct stream *s, const struct answer *a)
{
	struct http_field extra[3 + CORS_FIELDS_MAX] = {
		{ "X-Request-Id", s->req_id },
		{ a->retry ? "Retry-After" : "Should-Retry", a->retry ? "1" : "false" },
	};

	if (s->cors)
		memcpy(extra + 2, cors_fields, sizeof(cors_fields));
	forward_reply(s->f, a->status, extra, "application/json", a->body, strlen(a->body));
}

static void reply_gone(struct stream *s)
{
	struct answer a;

	gone_answer(s->sandbox, &a);
	reply(s, &a);
}

static void reply_err(struct stream *s, const struct err *e)
{
	struct answer a;

	if (e->num == -ENOENT) {
		reply_gone(s);
		return;
	}
	log_warn("no route", F_REQ(s->req_id), F_STR("sandbox", s->sandbox), F_ERR(e));
	plain_answer(503, "The server cannot reach the sandbox now.", &a);
	reply(s, &a);
}

/* What node-api itself said. */
static void reply_node_error(struct stream *s)
{
	static const struct { const char *code; int status; const char *message; } rows[] = {
		{ "limit", 429, "Too many requests of this sandbox are open." },
		{ "guest-lost", 502, "The sandbox ended the connection without an answer." },
		{ "guest-protocol", 502, "The sandbox did not answer in HTTP." },
		{ "guest-timeout", 504, "The sandbox did not answer in time." },
		{ "malformed", 400, "The framing of the request's body is malformed." },
		{ "not-found", 404, "There is no such path." },
		{ "timeout", 504, "The node did not answer in time." },
	};
	struct answer a;

	plain_answer(503, "The node cannot serve the sandbox now.", &a);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (str_eq(rows[i].code, s->node_error))
			plain_answer(rows[i].status, rows[i].message, &a);
	reply(s, &a);
}

/* ---- heads ---- */

static bool skip_request_field(const char *name, void *arg)
{
	static const char *const names[] = { "X-API-Key", "X-Access-Token", "X-Request-Id",
					     "Expect" };
	const struct http_head *h = arg;

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (str_ieq(name, names[i]))
			return true;
	if (str_ieq(name, "Authorization")) {
		/*
		 * The user's name of the guest; other schemes are credentials for us. A signed
		 * address says its user, in the signature.
		 */
		const char *value = http_get(h, "Authorization");

		return !http_get(h, "X-Access-Token") || http_count(h, "Authorization") > 1 ||
		       strncasecmp(value, "Basic ", 6) != 0;
	}
	return strncasecmp(name, "Space-", 6) == 0 || strncasecmp(name, "E2b-", 4) == 0;
}

static int put_node_head(struct buf *b, const struct http_head *h, const char *capability,
			 const char *req_id)
{
	const char *proto = h->upgrade ? http_get(h, "Upgrade") : NULL;
	int r = http_put_request(b, h->method, h->target);

	/* A client that names Host as hop-by-hop would have it taken out below. */
	if (r == 0 && (!http_get(h, "Host") || http_has_token(h, "Connection", "Host")))
		r = http_put_field(b, "Host", h->host ? h->host : "sandbox");
	if (r == 0)
		r = http_put_forward(b, h, skip_request_field, (void *)h);
	if (r == 0)
		r = http_put_framing(b, h);
	if (r == 0)
		r = http_put_field(b, "Space-Op", "forward");
	if (r == 0)
		r = http_put_field(b, "Space-Request-Id", req_id);
	if (r == 0)
		r = http_put_field(b, "Space-Capability", capability);
	if (r == 0 && proto)
		r = http_put_field(b, "Upgrade", proto);
	if (r == 0 && proto)
		r = http_put_field(b, "Connection", "Upgrade");
	return r < 0 ? r : http_put_end(b);
}

static bool skip_answer_field(const char *name, void *arg)
{
	return strncasecmp(name, "Space-", 6) == 0 || str_ieq(name, "X-Request-Id") ||
	       cors_is_field(name);
}

static enum forward_head on_head(struct forward *f, const struct http_head *h, struct buf *out,
				 void *arg)
{
	struct stream *s = arg;
	const char *refusal = http_get(h, "Space-Refusal"), *error = http_get(h, "Space-Error");

	if (refusal || error) {
		s->node_status = h->status;
		str_copy(s->refusal, sizeof(s->refusal), refusal ? refusal : "");
		str_copy(s->node_error, sizeof(s->node_error), error ? error : "");
		return FORWARD_SWALLOW;
	}
	http_put_status(out, h->status);
	http_put_forward(out, h, skip_answer_field, NULL);
	http_put_field(out, "X-Request-Id", s->req_id);
	for (const struct http_field *f_cors = cors_fields; s->cors && f_cors->name; f_cors++)
		http_put_field(out, f_cors->name, f_cors->value);
	return FORWARD_PASS;
}

/* ---- attempts ---- */

static void stream_free(struct stream *s)
{
	list_del(&s->node);
	s->api->n_streams--;
	explicit_bzero(s->via.caps, sizeof(s->via.caps));
	free(s);
}

static void attempt(struct stream *s, bool fresh)
{
	char capability[CAP_TEXT_MAX];
	struct err e = { 0 };
	struct conn *up;
	struct buf head;
	int r = route_capability(s->api, &s->via, s->route->access, capability, &e);

	if (r < 0) {
		reply_err(s, &e);
		return;
	}
	buf_init(&head, HEAD_MAX);
	if (put_node_head(&head, forward_req(s->f), capability, s->req_id) < 0) {
		struct answer a;

		plain_answer(431, "The head of the request is too large.", &a);
		reply(s, &a);
	} else if (!(up = pool_get(s->api, s->via.addr, fresh, &e))) {
		reply_err(s, &e);
	} else {
		forward_start(s->f, up, buf_data(&head), buf_len(&head));
	}
	explicit_bzero((char *)buf_data(&head), buf_len(&head));
	buf_done(&head);
	explicit_bzero(capability, sizeof(capability));
}

static void on_route(void *arg, const struct api_route *r, const struct err *e);

static void on_woken(void *arg, const struct err *e)
{
	struct stream *s = arg;

	s->looking = false;
	if (!s->f) {
		stream_free(s);
		return;
	}
	if (e) {
		reply_err(s, e);
		return;
	}
	s->looking = true;
	route_get(s->api, s->sandbox, on_route, s);
}

/* A health check asks whether it runs; it is no reason to. */
static void on_asleep(struct stream *s)
{
	if (!s->may_wake) {
		reply_gone(s);
		return;
	}
	s->may_wake = false;
	s->looking = true;
	life_wake_for(s->api, s->sandbox, s->req_id, on_woken, s);
}

static void on_route(void *arg, const struct api_route *r, const struct err *e)
{
	struct stream *s = arg;

	s->looking = false;
	if (!s->f) {
		stream_free(s);
		return;
	}
	if (!r && e->num == ROUTE_ASLEEP) {
		on_asleep(s);
		return;
	}
	if (!r) {
		reply_err(s, e);
		return;
	}
	s->via = *r;
	s->routed = true;
	s->routed_ms = clock_mono_ms();
	attempt(s, s->retry_fresh);
}

static void on_refused(struct stream *s)
{
	bool may = str_eq(s->refusal, "refresh-route") && !s->retried && s->route->replay &&
		   forward_can_retry(s->f);

	log_info("refused by the node", F_REQ(s->req_id), F_STR("sandbox", s->sandbox),
		 F_STR("refusal", s->refusal), F_UINT("generation", s->via.id.generation),
		 F_INT("retry", may));
	if (!may) {
		if (str_eq(s->refusal, "refresh-route"))
			route_drop(s->api, s->sandbox);
		reply_gone(s);
		return;
	}
	s->retried = true;
	s->looking = true;
	route_refresh(s->api, &s->via.id, on_route, s);
}

/*
 * A failure of the transport is no statement about identity: reads are tried once more, over a new
 * connection (V-1).
 */
static void on_lost(struct stream *s, enum forward_why why)
{
	struct answer a;

	if (why == FORWARD_UPSTREAM_GONE && !s->retried && s->route->replay &&
	    s->route->access == ID_ACCESS_READ && forward_can_retry(s->f)) {
		s->retried = s->retry_fresh = true;
		attempt(s, true);
		return;
	}
	plain_answer(why == FORWARD_TIMEOUT ? 504 : 503,
		     why == FORWARD_TIMEOUT ? "The sandbox did not answer in time."
					    : "The node cannot be reached now.",
		     &a);
	reply(s, &a);
}

static void on_failed(struct forward *f, enum forward_why why, void *arg)
{
	struct stream *s = arg;
	struct answer a;

	if (why == FORWARD_SWALLOWED && s->refusal[0]) {
		on_refused(s);
	} else if (why == FORWARD_SWALLOWED) {
		reply_node_error(s);
	} else if (why == FORWARD_BODY_BAD || why == FORWARD_BODY_STALLED) {
		plain_answer(why == FORWARD_BODY_BAD ? 400 : 408,
			     why == FORWARD_BODY_BAD ? "The framing of the body is malformed."
						     : "The body did not arrive in time.",
			     &a);
		reply(s, &a);
	} else {
		on_lost(s, why);
	}
}

static void on_released(struct forward *f, struct conn *idle, void *arg)
{
	struct stream *s = arg;

	if (idle)
		pool_put(s->api, s->via.addr, idle);
}

static void on_end(struct forward *f, const struct forward_end *end, void *arg)
{
	struct stream *s = arg;
	const struct http_head *h = forward_req(f);
	autofree char *path = x_strndup(h->target, strcspn(h->target, "?"));

	log_info("data request", F_REQ(s->req_id), F_STR("sandbox", s->sandbox),
		 F_UINT("generation", s->via.id.generation), F_STR("method", h->method),
		 F_STR("path", path), F_INT("status", end->status),
		 F_STR("end", forward_why_names[end->why]), F_UINT("in", end->in_bytes),
		 F_UINT("out", end->out_bytes), F_INT("ms", clock_mono_ms() - s->start_ms));
	if (end->client && !s->api->stopping)
		http_server_return(s->api->http, end->client);
	else
		conn_free(end->client);
	s->f = NULL;
	if (!s->looking || s->api->stopping)
		stream_free(s);
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

static void start_stream(struct call *c, const struct data_target *t, const struct route *route)
{
	struct api *a = c->api;
	struct stream *s = x_alloc(sizeof(*s));
	const struct forward_conf fc = {
		.loop = a->loop,
		.replay = route->replay,
		.connect_timeout_ms = CONNECT_TIMEOUT_MS,
		.head_timeout_ms = HEAD_TIMEOUT_MS,
		.stall_timeout_ms = STALL_TIMEOUT_MS,
		.head = on_head,
		.released = on_released,
		.failed = on_failed,
		.end = on_end,
		.arg = s,
	};
	struct http_head h;
	struct conn *client;

	s->api = a;
	s->route = route;
	s->cors = c->cors;
	s->start_ms = c->start_ms;
	str_copy(s->sandbox, sizeof(s->sandbox), t->id);
	str_copy(s->req_id, sizeof(s->req_id), c->req_id);
	client = http_req_take(c->req, &h);          /* c is gone */
	if (!client) {
		http_head_done(&h);
		free(s);
		return;
	}
	list_add_tail(&a->streams, &s->node);
	a->n_streams++;
	s->may_wake = !str_starts(h.target, "/health");
	s->f = forward_new(&fc, client, &h);
	if (!id_sandbox_ok(s->sandbox)) {
		reply_gone(s);
		return;
	}
	s->looking = true;
	route_get(a, s->sandbox, on_route, s);
}

void data_handle(struct call *c, const struct data_target *t)
{
	const struct http_head *h = http_req_head(c->req);
	const struct route *route = routes_find(h->method, h->target);
	struct data_target target = *t;
	struct err e = { 0 };

	c->cors = target.port == ROUTES_CONTROL_PORT && !route->host_only && http_get(h, "Origin");
	target.id[strcspn(target.id, "-")] = '\0';       /* "<id>-<client>", an old form */
	if (str_eq(h->method, "CONNECT"))
		err_set(&e, -EINVAL, "CONNECT is not served.");
	else if (target.port != ROUTES_CONTROL_PORT)
		err_set_code(&e, -ENOSYS, "not-built-yet",
			     "Ports of a sandbox cannot be reached yet.");
	else if (route->host_only)
		err_set(&e, -ENOENT, "There is no such path.");
	else if (c->api->n_streams >= API_STREAMS_MAX)
		err_set(&e, -EUSERS, "Too many requests are open.");
	else
		check_access(c, &target, h, &e);
	if (e.num < 0)
		call_error(c, &e);
	else
		start_stream(c, &target, route);
}

void data_cut(struct api *a, const char *sandbox, uint64_t generation)
{
	LIST_FOR_SAFE(&a->streams, s, struct stream, node)
		if (!s->f && !sandbox)
			stream_free(s);                  /* the program ends: its look-up was dropped */
		else if (s->f && (!sandbox || (s->routed && str_eq(s->sandbox, sandbox) &&
					       s->via.id.generation <= generation)))
			forward_cut(s->f);
}
