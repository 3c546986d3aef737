/* Dispatch, answers, the life of the program's one object. */
#include "api/api.h"
#include "api/problem.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "api/cors.h"
#include "api/front.h"
#include "api/host.h"
#include "api/metrics.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "json/text.h"
#include "api/pages.h"
#include "api/terminal.h"
#include "ops/signer.h"
#include "routes/routes.h"

#define HEAD_TIMEOUT_MS 10000
#define IDLE_TIMEOUT_MS 120000
#define REQ_ID_CHARS "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-"

/* ---- request IDs, answers ---- */

/* The client's if it is sane, else a new one. */
static void req_id_of(const struct http_head *h, char dst[API_REQ_ID_MAX + 1])
{
	const char *given = http_get(h, "X-Request-Id");

	if (given && http_count(h, "X-Request-Id") == 1 &&
	    str_is(given, 1, API_REQ_ID_MAX, REQ_ID_CHARS))
		str_copy(dst, API_REQ_ID_MAX + 1, given);
	else
		str_random_hex(dst, 8);
}

/* E2B's form of an error: its words have "_" where ours have "-". */
static char *error_json(int status, const struct err *e)
{
	char word[ERR_CODE_MAX], text[ERR_TEXT_MAX];
	size_t n;
	json_t *o;
	char *s;

	str_copy(word, sizeof(word), err_code(e));
	for (char *p = word; *p; p++)
		if (*p == '-')
			*p = '_';
	str_copy(text, sizeof(text), e->text[0] ? e->text : http_reason(status));
	for (n = strlen(text); n > 0 && !str_utf8_ok(text, n); n--)
		text[n - 1] = '\0';
	o = json_pack("{s:i,s:s,s:s}", "code", status, "message", text, "error_code", word);
	s = json_text(o);
	json_decref(o);
	return s ? s : x_strdup("{}");
}

/*
 * Clients of E2B repeat 429 with Retry-After, newer ones also 502, 503 and 504 by themselves, and
 * Should-Retry overrules that. It is said where waiting changes nothing; a conflict (409) can pass.
 */
static const char *retry_field(int status, const char **ret_value)
{
	bool wait = status == 503 || status == 429;

	*ret_value = wait ? "1" : "false";
	return wait ? "Retry-After" : status == 409 || status == 504 ? NULL : "Should-Retry";
}

static void refuse(struct call *c, int status, const struct err *e, const char *allow)
{
	const char *retry, *name = allow ? NULL : retry_field(status, &retry);
	struct http_field extra[5 + CORS_FIELDS_MAX] = { { "X-Request-Id", c->req_id } };
	unsigned n = 1;
	const struct http_head *h = http_req_head(c->req);
	autofree char *path = x_strndup(h->target, strcspn(h->target, "?")), *body = NULL;

	if (allow)
		extra[n++] = (struct http_field){ "Allow", allow };
	else if (name)
		extra[n++] = (struct http_field){ name, retry };
	if (status == 426 && c->route && (c->route->flags & CONTROL_TUNNEL)) {
		extra[n++] = (struct http_field){ "Upgrade", ROUTES_TUNNEL };
	} else if (status == 426) {              /* RFC 6455 4.4 */
		extra[n++] = (struct http_field){ "Upgrade", "websocket" };
		extra[n++] = (struct http_field){ "Sec-WebSocket-Version", "13" };
	}
	if (c->cors)
		memcpy(extra + n, cors_fields, sizeof(cors_fields));
	log_info("request refused", F_REQ(c->req_id), F_STR("tenant", c->tenant),
		 F_STR("method", h->method), F_STR("path", path), F_INT("status", status), F_ERR(e),
		 F_INT("ms", clock_mono_ms() - c->start_ms));
	body = c->problem ? problem_json(status, err_code(e), e->text, c->req_id)
			  : error_json(status, e);
	http_req_answer(c->req, status, extra, c->problem ? PROBLEM_TYPE : "application/json", body,
			strlen(body));
}

void call_error(struct call *c, const struct err *e)
{
	refuse(c, err_http_status(e), e, NULL);
}

static void refuse_method(struct call *c)
{
	char allow[64];
	struct err e = { 0 };

	control_allow(http_req_head(c->req)->target, allow, sizeof(allow));
	err_set_code(&e, -EOPNOTSUPP, "method-not-allowed", "This path does not know this method.");
	refuse(c, 405, &e, allow);
}

/* HTTP/2 by prior knowledge (RFC 9113 3.3): its preface begins like a request. */
static bool is_h2c(const struct http_refusal *f)
{
	static const char preface[] = "PRI * HTTP/2";

	return !f->req && f->seen_len >= sizeof(preface) - 1 &&
	       memcmp(f->seen, preface, sizeof(preface) - 1) == 0;
}

static void refuse_h2c(struct http_refusal *f)
{
	struct err e = { 0 };
	autofree char *body = NULL;

	err_set_code(&e, -EPROTONOSUPPORT, "http-version",
		     "HTTP/2 is spoken to the ports of sandboxes, over TLS, where it is the one "
		     "protocol that the client offers (ALPN h2); here it is HTTP/1.1.");
	body = error_json(f->status, &e);
	buf_puts(f->body, body);
}

/* What the HTTP server refuses by itself: E2B's form, under /v1 a problem. */
static void on_refuse(struct http_refusal *f, void *arg)
{
	const struct call *c = f->req ? http_req_user(f->req) : NULL;
	const char *target = memchr(f->seen ? f->seen : "", ' ', f->seen_len);
	autofree char *body = NULL;

	if (c)
		str_copy(f->request_id, sizeof(f->request_id), c->req_id);
	else
		str_random_hex(f->request_id, 8);
	log_info("request refused", F_REQ(f->request_id), F_STR("tenant", c ? c->tenant : ""),
		 F_INT("status", f->status), F_STR("error", f->message));
	if (is_h2c(f)) {
		refuse_h2c(f);
		return;
	}
	if (c ? !c->problem
	      : !target || !problem_path(target + 1,
					 f->seen_len - (size_t)(target + 1 - f->seen)))
		return;
	body = problem_json(f->status, problem_http_code(f->status), f->message, f->request_id);
	buf_puts(f->body, body);
	f->content_type = PROBLEM_TYPE;
}

void call_json(struct call *c, int status, json_t *v)
{
	c->text = json_text(v);
	json_decref(v);
	if (c->text)
		c->status = status;
	else
		err_set(&c->err, -EIO, "The answer cannot be written as JSON.");
}

void call_free(struct call *c)
{
	if (!c)
		return;
	key_signer_done(&c->signer);
	free(c->target);
	free(c->body);
	free(c->text);
	free(c->found);
	free(c);
}

/* ---- dispatch ---- */

static void own_health(struct call *c)
{
	static const char body[] = "{\"status\":\"ok\"}";
	const struct http_field extra[] = { { "X-Request-Id", c->req_id }, { NULL, NULL } };

	http_req_answer(c->req, 200, extra, "application/json", body, sizeof(body) - 1);
}

/*
 * The Python SDK up to 2.15 puts the routing headers on its control calls, too (connect). The agent
 * in the sandbox has no such paths and wants no such key, so nothing of its is taken away.
 */
static bool control_with_headers(struct call *c, const struct http_head *h,
				 const struct data_target *t)
{
	bool method_wrong;

	return host_parse(h->host, c->api->domain_host).kind == HOST_API &&
	       t->port == ROUTES_CONTROL_PORT && http_get(h, "E2b-Sandbox-Id") &&
	       http_get(h, "X-API-Key") && !http_get(h, "X-Access-Token") &&
	       control_find(h->method, h->target, c->id, &method_wrong);
}

static void dispatch(struct call *c)
{
	const struct http_head *h = http_req_head(c->req);
	struct data_target t;
	struct err e = { 0 };
	bool method_wrong;
	int r = c->api->stopping ? err_set(&e, -EAGAIN, "The server is being stopped; try again.")
				 : front_check(c, h, &e);

	if (r == 0)
		r = data_target_of(c->api, h, &t, &e);
	if (r < 0) {
		call_error(c, &e);
		return;
	}
	if (cors_is_preflight(h) && !routes_find(h->method, h->target)->host_only &&
	    (r == 1 ? t.port == ROUTES_CONTROL_PORT : routes_known(h->target))) {
		cors_answer(c->req, c->req_id);
		return;
	}
	if (r == 1 && !control_with_headers(c, h, &t)) {
		data_handle(c, &t);
		return;
	}
	c->problem = problem_path(h->target, strlen(h->target));
	c->route = control_find(h->method, h->target, c->id, &method_wrong);
	if (c->route) {
		control_handle(c);
	} else if (method_wrong) {
		refuse_method(c);
	} else if (!c->problem && data_target_by_token(h, &t) == 1) {
		data_handle(c, &t);
	} else if (signed_handle(c)) {
		return;
	} else if ((str_eq(h->method, "GET") || str_eq(h->method, "HEAD")) &&
		   str_eq(h->target, "/health")) {
		own_health(c);
	} else if (pages_handle(c)) {
		return;
	} else if (routes_known(h->target)) {
		err_set(&e, -ENOKEY,
			"The request names no sandbox: it needs E2b-Sandbox-Id and "
			"E2b-Sandbox-Port, a host, an access token or a signature.");
		c->cors = http_get(h, "Origin") != NULL;
		call_error(c, &e);
	} else {
		err_set_code(&e, -ENOENT, "no-such-route", "There is no such path.");
		call_error(c, &e);
	}
}

static void on_request(struct http_req *r, void *arg)
{
	struct call *c = x_alloc(sizeof(*c));

	c->api = arg;
	c->req = r;
	c->start_ms = clock_mono_ms();
	http_req_set_user(r, c);
	req_id_of(http_req_head(r), c->req_id);
	dispatch(c);
}

static void on_req_end(struct http_req *r, void *arg)
{
	call_free(http_req_user(r));
}

/* ---- database handles ---- */

struct store *api_store(struct api *a, struct err *e)
{
	return ops_thread_store(a->store_url, e);
}

/* At the start and not at the first request of each thread: what we hold is the same from then on. */
static void open_store(void *arg)
{
	struct api *a = arg;
	struct err e = { 0 };

	if (!api_store(a, &e))
		log_warn("the database was not opened ahead", F_ERR(&e));
}

/* ---- life ---- */

static int set_strings(struct api *a, const struct api_conf *c)
{
	char rnd[17];
	int r = str_copy(a->store_url, sizeof(a->store_url), c->store_url);

	if (r == 0)
		r = str_copy(a->keys_dir, sizeof(a->keys_dir), c->keys_dir);
	if (r == 0)
		r = str_copy(a->root_pub, sizeof(a->root_pub), c->root_pub);
	if (r == 0)
		r = str_copy(a->domain, sizeof(a->domain), c->domain);
	if (r == 0)
		r = str_copy(a->origins, sizeof(a->origins), c->origins ? c->origins : "");
	str_copy(a->domain_host, sizeof(a->domain_host), a->domain);
	a->domain_host[strcspn(a->domain_host, ":")] = '\0';
	if (r == 0)
		r = str_random_hex(rnd, 8);
	if (r == 0)
		r = c->claimer ? str_copy(a->claimer, sizeof(a->claimer), c->claimer)
			       : str_format(a->claimer, sizeof(a->claimer), "space-api.%d.%s",
					    (int)getpid(), rnd);
	return r;
}

struct api *api_new(struct loop *l, const struct api_conf *c, struct err *e)
{
	struct api *a = x_alloc(sizeof(*a));
	const struct http_server_conf sc = {
		.head_timeout_ms = HEAD_TIMEOUT_MS,
		.idle_timeout_ms = IDLE_TIMEOUT_MS,
		.max_conns = API_CONNS_MAX,
		.max_body = API_BODY_MAX,
		.handle = on_request,
		.end = on_req_end,
		.refuse = on_refuse,
		.arg = a,
	};
	int r = set_strings(a, c);

	if (r < 0 || key_init() < 0) {
		err_set(e, r < 0 ? r : -EIO,
			"A setting is too long, or there are no random numbers.");
		free(a);
		return NULL;
	}
	a->loop = l;
	list_init(&a->streams);
	list_init(&a->terminals);
	list_init(&a->pool);
	a->auth = map_new(API_AUTH_ENTRIES_MAX);
	a->routes = map_new(API_ROUTES_MAX);
	a->metrics = metrics_kept_new();
	a->signed_known = map_new(SIGNED_KNOWN_MAX);
	a->quick = work_new_begin(l, API_QUICK_THREADS, open_store, a);
	a->slow = work_new_begin(l, API_SLOW_THREADS, open_store, a);
	a->http = http_server_new(l, &sc);
	a->keys = keys_new(a, e);
	a->front = a->keys && c->tls_pem ? front_new(a, c->tls_pem, e) : NULL;
	if (!a->keys || (c->tls_pem && !a->front)) {
		api_free(a);
		return NULL;
	}
	return a;
}

void api_free(struct api *a)
{
	if (!a)
		return;
	a->stopping = true;
	work_stop(a->slow);
	work_stop(a->quick);
	terminal_clear(a);
	data_cut(a, NULL, UINT64_MAX);
	front_free(a->front);
	while (!list_empty(&a->streams))
		loop_turn(a->loop, 0);
	http_server_free(a->http);
	pool_clear(a);
	keys_free(a->keys);
	auth_clear(a);
	route_clear(a);
	metrics_kept_free(a->metrics);
	signed_clear(a);
	work_free(a->slow);
	work_free(a->quick);
	free(a);
}

void api_accept(struct api *a, int fd)
{
	http_server_accept(a->http, fd);
}

void api_accept_tls(struct api *a, int fd)
{
	front_accept(a->front, fd);
}
