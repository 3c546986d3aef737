/*
 * Theory of operation.
 *
 *	take the connection -> route_get -> [may this client?] -> forward_start -+-> the guest's answer
 *	                          ^                                            |
 *	                          |                                            +-> 421 refresh-route, once, if it may be sent
 *	                     route_refresh <-----------------------------------'   again and the body is still there (V-2)
 *	                                                                       +-> 421 deny, or again: gone
 *
 * Where the look-up finds a paused sandbox that requests may wake (C-9), it is woken and looked up
 * again, once; whoever may not reach a port does not wake it.
 *
 * Four kinds of it, one table (kinds[]): what the node is asked for, what is taken out of the head,
 * and how an answer of our own is said: in E2B's form, as a problem under /v1, or to the requests on
 * an HTTP/2 connection that was to be a tunnel (h2_refuse.h).
 *
 * Only node-api can say Space-Refusal or Space-Error: it takes Space-* out of what a guest says.
 * They go no further than here. A stream is bound to the generation that admitted it; data_cut ends
 * those of a retired one as soon as this process knows (the node ends them too).
 *
 * The stream is freed when its forward has ended, no look-up is under way for it and its refusal
 * was said.
 */
#include "api/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include "api/cors.h"
#include "api/problem.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "http/forward.h"
#include "http/h2_refuse.h"

#define CONNECT_TIMEOUT_MS 5000
#define HEAD_TIMEOUT_MS 610000               /* a little more than node-api's, which can say what went wrong */
#define STALL_TIMEOUT_MS 600000
#define HEAD_MAX (2 * HTTP_HEAD_MAX)

struct stream {
	struct list node;
	struct api *api;
	struct stream_ask ask;
	struct forward *f;               /* NULL: over; a look-up is still under way, or */
	struct h2_refuse *refusing;
	const struct word *word;         /* what it says */
	bool looking, retried, retry_fresh;
	bool may_wake;                   /* one try to wake a paused sandbox (C-9) */
	bool cors;                       /* a page of another origin asks */
	char req_id[API_REQ_ID_MAX + 1];
	struct api_route via;            /* of the current attempt */
	bool routed;
	int node_status;                 /* of an answer of the node itself, that was swallowed */
	char refusal[16], node_error[40];
	int64_t start_ms, routed_ms;
};

/* ---- what we say ourselves ---- */

struct word {
	const char *code;                /* of node-api, or ours */
	int status;
	const char *problem;             /* the machine word under /v1; NULL = code */
	const char *message;
};

static const struct word words[] = {
	/* node-api's */
	{ "limit", 429, "limit-reached", "Too many requests of this sandbox are open." },
	{ "guest-lost", 502, NULL, "The sandbox ended the connection without an answer." },
	{ "guest-protocol", 502, NULL, "The sandbox did not answer in HTTP." },
	{ "guest-timeout", 504, NULL, "The sandbox did not answer in time." },
	{ "port-closed", 502, NULL, "The sandbox is running but port is not open" },
	{ "port-timeout", 504, NULL, "The sandbox's network did not answer in time." },
	{ "gateway-lost", 503, NULL, "The sandbox's network gateway is being started again." },
	{ "gateway-away", 503, NULL, "The sandbox's network gateway is being started again." },
	{ "malformed", 400, NULL, "The framing of the request's body is malformed." },
	{ "not-found", 404, NULL, "There is no such path." },
	{ "timeout", 504, NULL, "The node did not answer in time." },
	/* ours */
	{ "node-away", 503, "node-unreachable", "The node cannot serve the sandbox now." },
	{ "no-route", 503, "node-unreachable", "The server cannot reach the sandbox now." },
	{ "node-lost", 503, "node-unreachable", "The node cannot be reached now." },
	{ "no-answer", 504, "timeout", "The sandbox did not answer in time." },
	{ "head-too-large", 431, NULL, "The head of the request is too large." },
	{ "body-late", 408, "request-timeout", "The body did not arrive in time." },
	{ "token-missing", 403, NULL,
	  "The ports of this sandbox want its traffic token, in the field E2B-Traffic-Access-Token." },
	{ "token-wrong", 403, NULL, "The traffic token in E2B-Traffic-Access-Token is wrong." },
	/* Word for word what E2B's clients look for. */
	{ "gone", 502, NULL, "The sandbox was not found" },
};

static const struct word *word_of(const char *code)
{
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (str_eq(words[i].code, code))
			return &words[i];
	return word_of("node-away");
}

/* E2B's forms (facts: e2b-protocol, 2). IDs that are none are not echoed. */
static char *e2b_body(const struct stream *s, const struct word *w)
{
	const char *id = id_sandbox_ok(s->ask.sandbox) ? s->ask.sandbox : "";

	if (str_eq(w->code, "gone") || w->status == 403)
		return x_asprintf("{\"sandboxId\":\"%s\",\"message\":\"%s\",\"code\":%d}", id,
				  w->message, w->status);
	if (str_eq(w->code, "port-closed"))
		return x_asprintf("{\"sandboxId\":\"%s\",\"message\":\"%s\",\"port\":%u,\"code\":%d}",
				  id, w->message, s->ask.port, w->status);
	return x_asprintf("{\"code\":%d,\"message\":\"%s\"}", w->status, w->message);
}

static void reply_json(struct stream *s, const struct word *w)
{
	bool retry = w->status == 503 || w->status == 429;
	autofree char *body = e2b_body(s, w);
	struct http_field extra[3 + CORS_FIELDS_MAX] = {
		{ "X-Request-Id", s->req_id },
		{ retry ? "Retry-After" : "Should-Retry", retry ? "1" : "false" },
	};

	if (s->cors)
		memcpy(extra + 2, cors_fields, sizeof(cors_fields));
	forward_reply(s->f, w->status, extra, "application/json", body, strlen(body));
}

/* /v1 tells neither tenants nor reasons apart where there is nothing for the caller. */
static void reply_problem(struct stream *s, const struct word *w)
{
	bool gone = str_eq(w->code, "gone");
	int status = gone ? 404 : w->status;
	const struct http_field extra[] = { { "X-Request-Id", s->req_id }, { NULL, NULL } };
	autofree char *body = problem_json(status,
					   gone	       ? "sandbox-not-found"
					   : w->problem ? w->problem
							: w->code,
					   gone ? "The sandbox was not found." : w->message,
					   s->req_id);

	forward_reply(s->f, status, extra, PROBLEM_TYPE, body, strlen(body));
}

/* Said when the forward has let go of the client (on_end). */
static void reply_h2(struct stream *s, const struct word *w)
{
	s->word = w;
	forward_leave(s->f, w->status);
}

static const struct {
	enum id_protocol protocol;       /* of the port's capability */
	void (*reply)(struct stream *s, const struct word *w);
} kinds[STREAM_KIND_COUNT] = {
	[STREAM_CONTROL] = { ID_PROTOCOL_NONE, reply_json },
	[STREAM_PORT] = { ID_PROTOCOL_HTTP, reply_json },
	[STREAM_TUNNEL] = { ID_PROTOCOL_TCP, reply_problem },
	[STREAM_H2] = { ID_PROTOCOL_H2, reply_h2 },
};

static bool is_raw(const struct stream *s)
{
	return s->ask.kind == STREAM_TUNNEL || s->ask.kind == STREAM_H2;
}

static void reply(struct stream *s, const char *code)
{
	kinds[s->ask.kind].reply(s, word_of(code));
}

static void reply_err(struct stream *s, const struct err *e)
{
	if (e->num == -ENOENT) {
		reply(s, "gone");
		return;
	}
	log_warn("no route", F_REQ(s->req_id), F_STR("sandbox", s->ask.sandbox), F_ERR(e));
	reply(s, "no-route");
}

/* ---- heads ---- */

static bool is_space(const char *name, void *arg)
{
	return strncasecmp(name, "Space-", 6) == 0;
}

/* Of every kind: what is said to us, or between us and the node. */
static bool is_ours(const char *name)
{
	static const char *const names[] = { "X-API-Key", "X-Access-Token",
					     "E2B-Traffic-Access-Token", "Expect" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (str_ieq(name, names[i]))
			return true;
	return is_space(name, NULL) || strncasecmp(name, "E2b-Sandbox-", 12) == 0;
}

/* A guest's server gets what its client says, Authorization and cookies among it. */
static bool skip_port_field(const char *name, void *arg)
{
	return is_ours(name) || str_ieq(name, "HTTP2-Settings");
}

static bool skip_control_field(const char *name, void *arg)
{
	const struct http_head *h = arg;

	if (is_ours(name) || str_ieq(name, "X-Request-Id"))
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
	return strncasecmp(name, "E2b-", 4) == 0;
}

/*
 * What the guest shall switch to. h2c is not offered to it: HTTP/2 is a tunnel, with a lease of its
 * own, and a server may pass over an upgrade (RFC 9110 7.8).
 */
static const char *upgrade_of(const struct stream *s, const struct http_head *h)
{
	if (!h->upgrade || (s->ask.kind == STREAM_PORT && http_has_token(h, "Upgrade", "h2c")))
		return NULL;
	return http_get(h, "Upgrade");
}

static int put_client_head(struct buf *b, const struct stream *s, const struct http_head *h)
{
	int r = http_put_request(b, h->method, h->target);

	/* A client that names Host as hop-by-hop would have it taken out below. */
	if (r == 0 && (!http_get(h, "Host") || http_has_token(h, "Connection", "Host")))
		r = http_put_field(b, "Host", h->host ? h->host : "sandbox");
	if (r == 0)
		r = http_put_forward(b, h,
				     s->ask.kind == STREAM_PORT ? skip_port_field
								: skip_control_field,
				     (void *)h);
	return r == 0 ? http_put_framing(b, h) : r;
}

static int put_tunnel_head(struct buf *b, const struct stream *s)
{
	int r = http_put_request(b, "GET", "/");

	if (r == 0)
		r = http_put_field(b, "Host", "sandbox");
	return r == 0 ? http_put_field(b, "Space-Tunnel",
				       id_protocol_names[kinds[s->ask.kind].protocol])
		      : r;
}

static int put_node_head(struct buf *b, const struct stream *s, const char *capability)
{
	const struct http_head *h = forward_req(s->f);
	const char *proto = is_raw(s) ? ROUTES_TUNNEL : upgrade_of(s, h);
	bool control = s->ask.kind == STREAM_CONTROL;
	int r = is_raw(s) ? put_tunnel_head(b, s) : put_client_head(b, s, h);

	if (r == 0)
		r = http_put_field(b, "Space-Op", control ? "forward" : "port");
	if (r == 0 && !control)
		r = http_put_fieldf(b, "Space-Port", "%u", s->ask.port);
	if (r == 0)
		r = http_put_field(b, "Space-Request-Id", s->req_id);
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
	return is_space(name, arg) || str_ieq(name, "X-Request-Id") || cors_is_field(name);
}

/* A guest's server says what it likes, about origins too: its pages have an origin of their own. */
static void put_answer(struct stream *s, const struct http_head *h, struct buf *out)
{
	http_put_status(out, h->status);
	if (s->ask.kind == STREAM_PORT) {
		http_put_forward(out, h, is_space, NULL);
		return;
	}
	http_put_forward(out, h, skip_answer_field, NULL);
	http_put_field(out, "X-Request-Id", s->req_id);
	for (const struct http_field *f = cors_fields; s->cors && f->name; f++)
		http_put_field(out, f->name, f->value);
}

static enum forward_head on_head(struct forward *f, const struct http_head *h, struct buf *out,
				 void *arg)
{
	struct stream *s = arg;
	const char *refusal = http_get(h, "Space-Refusal"), *error = http_get(h, "Space-Error");

	/* Whoever asked for a tunnel gets one, or our word. */
	if (is_raw(s) && !refusal && !error && h->status != 101)
		error = "node-away";
	if (refusal || error) {
		s->node_status = h->status;
		str_copy(s->refusal, sizeof(s->refusal), refusal ? refusal : "");
		str_copy(s->node_error, sizeof(s->node_error), error ? error : "");
		return FORWARD_SWALLOW;
	}
	put_answer(s, h, out);
	return FORWARD_PASS;
}

/* ---- attempts ---- */

static void stream_free(struct stream *s)
{
	list_del(&s->node);
	s->api->n_streams--;
	h2_refuse_free(s->refusing);
	explicit_bzero(s->via.caps, sizeof(s->via.caps));
	free(s);
}

static int capability_of(struct stream *s, char dst[CAP_TEXT_MAX], struct err *e)
{
	if (s->ask.kind == STREAM_CONTROL)
		return route_capability(s->api, &s->via, s->ask.route->access, dst, e);
	return route_port_capability(s->api, &s->via, s->ask.port, kinds[s->ask.kind].protocol,
				     dst, e);
}

static void attempt(struct stream *s, bool fresh)
{
	char capability[CAP_TEXT_MAX];
	struct err e = { 0 };
	struct conn *up;
	struct buf head;

	if (capability_of(s, capability, &e) < 0) {
		reply_err(s, &e);
		return;
	}
	buf_init(&head, HEAD_MAX);
	if (put_node_head(&head, s, capability) < 0)
		reply(s, "head-too-large");
	else if (!(up = pool_get(s->api, s->via.addr, fresh, &e)))
		reply_err(s, &e);
	else
		forward_start(s->f, up, buf_data(&head), buf_len(&head));
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
	route_get(s->api, s->ask.sandbox, on_route, s);
}

/* A health check asks whether it runs; it is no reason to. */
static void on_asleep(struct stream *s)
{
	if (!s->may_wake) {
		reply(s, "gone");
		return;
	}
	s->may_wake = false;
	s->looking = true;
	life_wake_for(s->api, s->ask.sandbox, s->req_id, on_woken, s);
}

/* What could not be decided before the row was read. NULL: he may; else what is said. */
static const char *refused_by(const struct stream *s, const struct api_route *r)
{
	const struct stream_ask *a = &s->ask;

	if (a->kind == STREAM_TUNNEL && a->tenant[0] && !str_eq(a->tenant, r->id.tenant))
		return "gone";
	if (a->kind == STREAM_PORT && !r->public_traffic && !a->token_ok)
		return a->token_given ? "token-wrong" : "token-missing";
	return a->kind == STREAM_H2 && !r->public_traffic ? "token-missing" : NULL;
}

static void on_route(void *arg, const struct api_route *r, const struct err *e)
{
	struct stream *s = arg;

	s->looking = false;
	if (!s->f) {
		stream_free(s);
		return;
	}
	if (r && refused_by(s, r)) {
		reply(s, refused_by(s, r));
		return;
	}
	if (e && e->num == ROUTE_ASLEEP) {
		on_asleep(s);
		return;
	}
	if (e) {
		reply_err(s, e);
		return;
	}
	s->via = *r;
	s->routed = true;
	s->routed_ms = clock_mono_ms();
	attempt(s, s->retry_fresh);
}

/* A refusal comes before a byte reaches a port, whatever the method is. */
static bool may_replay(const struct stream *s)
{
	return s->ask.kind != STREAM_CONTROL || s->ask.route->replay;
}

static void on_refused(struct stream *s)
{
	bool may = str_eq(s->refusal, "refresh-route") && !s->retried && may_replay(s) &&
		   forward_can_retry(s->f);

	log_info("refused by the node", F_REQ(s->req_id), F_STR("sandbox", s->ask.sandbox),
		 F_STR("refusal", s->refusal), F_UINT("generation", s->via.id.generation),
		 F_INT("retry", may));
	if (!may) {
		if (str_eq(s->refusal, "refresh-route"))
			route_drop(s->api, s->ask.sandbox);
		reply(s, "gone");
		return;
	}
	s->retried = true;
	s->looking = true;
	route_refresh(s->api, &s->via.id, on_route, s);
}

/* May have been done already, and may be done once more. */
static bool is_read(const struct stream *s)
{
	const char *method = forward_req(s->f)->method;

	if (s->ask.kind == STREAM_CONTROL)
		return s->ask.route->replay && s->ask.route->access == ID_ACCESS_READ;
	return s->ask.kind == STREAM_PORT && !forward_req(s->f)->upgrade &&
	       (str_eq(method, "GET") || str_eq(method, "HEAD"));
}

/*
 * A failure of the transport is no statement about identity: reads are tried once more, over a new
 * connection (V-1).
 */
static void on_lost(struct stream *s, enum forward_why why)
{
	if (why == FORWARD_UPSTREAM_GONE && !s->retried && is_read(s) && forward_can_retry(s->f)) {
		s->retried = s->retry_fresh = true;
		attempt(s, true);
		return;
	}
	reply(s, why == FORWARD_TIMEOUT ? "no-answer" : "node-lost");
}

static void on_failed(struct forward *f, enum forward_why why, void *arg)
{
	struct stream *s = arg;

	if (why == FORWARD_SWALLOWED && s->refusal[0])
		on_refused(s);
	else if (why == FORWARD_SWALLOWED)
		reply(s, s->node_error);
	else if (why == FORWARD_BODY_BAD || why == FORWARD_BODY_STALLED)
		reply(s, why == FORWARD_BODY_BAD ? "malformed" : "body-late");
	else
		on_lost(s, why);
}

static void on_released(struct forward *f, struct conn *idle, void *arg)
{
	struct stream *s = arg;

	if (idle)
		pool_put(s->api, s->via.addr, idle);
}

static void on_refused_all(void *arg)
{
	struct stream *s = arg;

	s->refusing = NULL;
	stream_free(s);
}

static void on_end(struct forward *f, const struct forward_end *end, void *arg)
{
	struct stream *s = arg;
	const struct http_head *h = forward_req(f);
	autofree char *path = x_strndup(h->target, strcspn(h->target, "?"));

	log_info("data request", F_REQ(s->req_id), F_STR("sandbox", s->ask.sandbox),
		 F_UINT("port", s->ask.port), F_UINT("generation", s->via.id.generation),
		 F_STR("method", h->method), F_STR("path", path), F_INT("status", end->status),
		 F_STR("end", forward_why_names[end->why]), F_UINT("in", end->in_bytes),
		 F_UINT("out", end->out_bytes), F_INT("ms", clock_mono_ms() - s->start_ms));
	s->f = NULL;
	if (end->client && s->word && !s->api->stopping) {
		s->refusing = h2_refuse_new(end->client, s->word->status, s->word->message,
					    on_refused_all, s);
		return;
	}
	if (end->client && !s->api->stopping)
		http_server_return(s->api->http, end->client);
	else
		conn_free(end->client);
	if (!s->looking || s->api->stopping)
		stream_free(s);
}

/* ---- interface ---- */

static void start(struct stream *s, struct conn *client, struct http_head *h)
{
	const struct forward_conf fc = {
		.loop = s->api->loop,
		.replay = may_replay(s),
		.silent = s->ask.kind == STREAM_H2,
		/* node-api ends in order by shutdown(2) alone: a tunnel that it closes was cut. */
		.closed_is_broken = true,
		.connect_timeout_ms = CONNECT_TIMEOUT_MS,
		.head_timeout_ms = HEAD_TIMEOUT_MS,
		.stall_timeout_ms = STALL_TIMEOUT_MS,
		.head = on_head,
		.released = on_released,
		.failed = on_failed,
		.end = on_end,
		.arg = s,
	};

	list_add_tail(&s->api->streams, &s->node);
	s->api->n_streams++;
	s->may_wake = s->ask.kind != STREAM_CONTROL || !str_starts(h->target, "/health");
	s->f = forward_new(&fc, client, h);
	if (!id_sandbox_ok(s->ask.sandbox)) {
		reply(s, "gone");
		return;
	}
	s->looking = true;
	route_get(s->api, s->ask.sandbox, on_route, s);
}

void stream_start(struct call *c, const struct stream_ask *ask)
{
	struct stream *s = x_alloc(sizeof(*s));
	struct http_head h;
	struct conn *client;

	s->api = c->api;
	s->ask = *ask;
	s->cors = c->cors;
	s->start_ms = c->start_ms;
	str_copy(s->req_id, sizeof(s->req_id), c->req_id);
	client = http_req_take(c->req, &h);          /* c is gone */
	if (!client) {
		http_head_done(&h);
		free(s);
		return;
	}
	start(s, client, &h);
}

static void nothing(struct conn *c, enum conn_event ev, void *arg)
{
}

void stream_start_h2(struct api *a, int fd, const struct stream_ask *ask)
{
	static const char text[] = "GET / HTTP/1.1\r\nHost: sandbox\r\nConnection: Upgrade\r\n"
				   "Upgrade: " ROUTES_TUNNEL "\r\n\r\n";
	struct stream *s;
	enum http_error err;
	struct http_head h;

	if (http_parse_request(text, sizeof(text) - 1, &h, &err) <= 0) {
		fd_close(fd);
		return;
	}
	s = x_alloc(sizeof(*s));
	s->api = a;
	s->ask = *ask;
	s->start_ms = clock_mono_ms();
	str_random_hex(s->req_id, 8);
	start(s, conn_new(a->loop, fd, HTTP_IN_MAX, FORWARD_BUFFER_BYTES, nothing, NULL), &h);
}

void data_cut(struct api *a, const char *sandbox, uint64_t generation)
{
	LIST_FOR_SAFE(&a->streams, s, struct stream, node)
		if (!s->f && !sandbox)
			stream_free(s);                  /* the program ends: a look-up was dropped */
		else if (s->f && (!sandbox || (s->routed && str_eq(s->ask.sandbox, sandbox) &&
					       s->via.id.generation <= generation)))
			forward_cut(s->f);
}
