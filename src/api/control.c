/* The control routes: which there are, and what happens between a request and its worker. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "api/api.h"
#include "api/query.h"
#include "api/terminal.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"

#define B CONTROL_BODY
#define S CONTROL_SLOW
#define ONCE CONTROL_ONCE
#define OPEN CONTROL_OPEN

#define ONCE_KEY_CHARS "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-"

const struct control_route control_routes[] = {
	{ "POST", "/v2/sandboxes", B | S | ONCE, run_create_v2 },
	{ "POST", "/sandboxes", B | S | ONCE, run_create_v1 },
	{ "GET", "/v2/sandboxes", 0, run_list_v2 },
	{ "GET", "/sandboxes", 0, run_list_v1 },
	{ "GET", "/sandboxes/metrics", S, run_metrics_many },
	{ "GET", "/sandboxes/{id}", 0, run_get },
	{ "DELETE", "/sandboxes/{id}", S, run_delete },
	{ "POST", "/v2/sandboxes/{id}/connect", B | S, run_connect },
	{ "POST", "/sandboxes/{id}/connect", B | S, run_connect },
	{ "POST", "/sandboxes/{id}/resume", B | S, run_resume },
	{ "POST", "/sandboxes/{id}/pause", B | S, run_pause },
	{ "POST", "/sandboxes/{id}/timeout", B | S, run_timeout },
	{ "POST", "/sandboxes/{id}/refreshes", B | S, run_refreshes },
	{ "GET", "/sandboxes/{id}/metrics", S, run_metrics },
	{ "GET", "/sandboxes/{id}/logs", S, run_logs_v1 },
	{ "GET", "/v2/sandboxes/{id}/logs", S, run_logs_v2 },

	{ "GET", "/v1/openapi.json", OPEN, run_v1_document },
	{ "GET", "/v1/problems/{code}", OPEN, run_v1_problem },
	{ "GET", "/v1/version", 0, run_v1_version },
	{ "GET", "/v1/sandboxes", 0, run_v1_list, list_params },
	{ "POST", "/v1/sandboxes", B | S | ONCE, run_v1_create },
	{ "GET", "/v1/sandboxes/{id}", 0, run_v1_get },
	{ "DELETE", "/v1/sandboxes/{id}", S, run_delete },
	{ "POST", "/v1/sandboxes/{id}/stop", B | S, run_v1_stop },
	{ "POST", "/v1/sandboxes/{id}/start", B | S, run_v1_start },
	{ "POST", "/v1/sandboxes/{id}/pause", B | S, run_v1_pause },
	{ "POST", "/v1/sandboxes/{id}/resume", B | S, run_v1_resume },
	{ "POST", "/v1/sandboxes/{id}/connect", B | S, run_v1_connect },
	{ "POST", "/v1/sandboxes/{id}/timeout", B | S, run_v1_timeout },
	{ "GET", "/v1/sandboxes/{id}/logs", S, run_v1_logs },
	{ "GET", "/v1/sandboxes/{id}/metrics", S, run_v1_metrics },
	{ "GET", "/v1/sandboxes/{id}/terminal", CONTROL_TERMINAL, NULL,
	  terminal_params },
	{ "POST", "/v1/sandboxes/{id}/terminal-tickets", B, run_v1_terminal_ticket },
	{ "GET", "/v1/sandboxes/{id}/ports/{port}/tunnel", CONTROL_TUNNEL, NULL },
	{ "GET", "/v1/sandboxes/{id}/net/log", S, run_v1_net_log, net_log_params },
	{ "GET", "/v1/sandboxes/{id}/net/stats", S, run_v1_net_stats },

	/*
	 * E2B's API as far as its clients know it, not built yet: 501. "{...}" is any one segment, a
	 * final "*" any rest.
	 */
	{ "PUT", "/sandboxes/{id}/network", 0, NULL },
	{ "POST", "/sandboxes/{id}/fork", 0, NULL },
	{ "POST", "/sandboxes/{id}/snapshots", 0, NULL },
	{ "GET", "/snapshots", 0, NULL },
	{ NULL, "/templates", 0, NULL },
	{ NULL, "/templates/*", 0, NULL },
	{ NULL, "/v2/templates", 0, NULL },
	{ NULL, "/v2/templates/*", 0, NULL },
	{ NULL, "/v3/templates", 0, NULL },
	{ NULL, "/volumes", 0, NULL },
	{ NULL, "/volumes/*", 0, NULL },
	{ NULL, "/volumecontent/*", 0, NULL },
	{ NULL, "/secrets", 0, NULL },
	{ NULL, "/secrets/*", 0, NULL },
	{ NULL, "/teams", 0, NULL },
	{ NULL, "/teams/*", 0, NULL },
	{ NULL, "/api-keys", 0, NULL },
	{ NULL, "/api-keys/*", 0, NULL },
	{ NULL, "/access-tokens", 0, NULL },
	{ NULL, "/access-tokens/*", 0, NULL },
	{ NULL, "/nodes", 0, NULL },
	{ NULL, "/nodes/*", 0, NULL },
	{ NULL, "/admin/*", 0, NULL },
	{ NULL, "/events/*", 0, NULL },
};
const size_t control_routes_len = ARRAY_LEN(control_routes);

/* ---- matching ---- */

/* *ret_id: the first of the pattern's segments in braces; NULL before. */
static bool match(const char *pattern, const char *path, size_t n, const char **ret_id,
		  size_t *ret_id_len)
{
	const char *end = path + n;

	while (*pattern) {
		if (pattern[0] == '*')
			return true;
		if (pattern[0] == '{') {
			const char *slash = memchr(path, '/', (size_t)(end - path));

			size_t len = (size_t)((slash ? slash : end) - path);

			if (len == 0)
				return false;
			if (!*ret_id) {
				*ret_id = path;
				*ret_id_len = len;
			}
			path += len;
			pattern = strchr(pattern, '}') + 1;
		} else if (path == end || *path++ != *pattern++) {
			return false;
		}
	}
	return path == end;
}

/*
 * An ID as clients send it: to E2B's routes maybe "<id>-<client>" (an old form: the suffix is
 * dropped). What is no ID at all becomes "", which no sandbox has: the answer is the same as for
 * one that does not exist.
 */
static void take_id(const char *p, size_t n, bool suffix, char id[ID_SANDBOX_LEN + 1])
{
	const char *dash = suffix ? memchr(p, '-', n) : NULL;

	if (dash)
		n = (size_t)(dash - p);
	id[0] = '\0';
	if (n != ID_SANDBOX_LEN)
		return;
	memcpy(id, p, n);
	id[n] = '\0';
	if (!id_sandbox_ok(id))
		id[0] = '\0';
}

const struct control_route *control_find(const char *method, const char *target,
					 char id[ID_SANDBOX_LEN + 1], bool *ret_method_wrong)
{
	size_t n = strcspn(target, "?#");

	*ret_method_wrong = false;
	id[0] = '\0';
	for (size_t i = 0; i < control_routes_len; i++) {
		const struct control_route *r = &control_routes[i];
		const char *p = NULL;
		size_t len = 0;

		if (!match(r->path, target, n, &p, &len))
			continue;
		if (r->method && !str_eq(r->method, method)) {
			*ret_method_wrong = true;
			continue;
		}
		if (p)
			take_id(p, len, !str_starts(r->path, "/v1/"), id);
		*ret_method_wrong = false;
		return r;
	}
	return NULL;
}

void control_allow(const char *target, char *dst, size_t size)
{
	size_t n = strcspn(target, "?#"), used = 0, len;

	dst[0] = '\0';
	for (size_t i = 0; i < control_routes_len; i++) {
		const struct control_route *r = &control_routes[i];
		const char *p = NULL;

		if (!r->method || !match(r->path, target, n, &p, &len))
			continue;
		str_format(dst + used, size - used, "%s%s", used ? ", " : "", r->method);
		used = strlen(dst);
	}
}

/*
 * Under /v1 nothing of a request is ignored: no parameter that the route does not know, no body
 * that is declared as something else than JSON.
 */
static int check_v1(struct call *c, struct err *e)
{
	const struct http_head *h = http_req_head(c->req);
	const char *type = http_get(h, "Content-Type");
	size_t n = type ? strcspn(type, "; \t") : 0;
	static const char *const none[] = { NULL };
	int r = query_only(c->target, c->route->query ? c->route->query : none, e);

	if (r < 0 || !(c->route->flags & CONTROL_BODY) || !type)
		return r;
	if (n != strlen("application/json") || strncasecmp(type, "application/json", n) != 0)
		return err_set(e, -EMEDIUMTYPE, "The body is declared as \"%.100s\".", type);
	return 0;
}

/* ---- from the request to its worker and back ---- */

static void work_run(void *arg)
{
	struct call *c = arg;
	struct store *s = api_store(c->api, &c->err);

	if (s)
		c->route->run(c, s);
}

/* RFC 8288: the same request with the token of the next page. */
static char *next_link(const struct call *c)
{
	size_t path = strcspn(c->target, "?");
	struct buf b;

	buf_init(&b, HTTP_HEAD_MAX);
	buf_putf(&b, "<%.*s?nextToken=%s", (int)path, c->target, c->next);
	for (const char *p = c->target + path; *p;) {
		size_t n = strcspn(++p, "&");

		if (n > 0 && !str_starts(p, "nextToken="))
			buf_putf(&b, "&%.*s", (int)n, p);
		p += n;
	}
	buf_puts(&b, ">; rel=\"next\"");
	return buf_take_str(&b);
}

static void answer(struct call *c)
{
	const char *path = c->route->path;
	autofree char *link = c->next[0] && c->problem ? next_link(c) : NULL,
		      *made = c->status == 201 && c->problem ? x_asprintf("%s/%s", path, c->id)
							     : NULL;
	const struct http_field extra[] = {
		{ "X-Request-Id", c->req_id },
		{ made		   ? "Location"
		  : c->next[0] ? "X-Next-Token"
				   : NULL,
		  made ? made : c->next },
		{ link ? "Link" : NULL, link },
		{ NULL, NULL },
	};
	const struct http_head *h = http_req_head(c->req);

	log_info("control request", F_REQ(c->req_id), F_STR("tenant", c->tenant),
		 F_STR("method", h->method), F_STR("path", c->route->path), F_STR("sandbox", c->id),
		 F_INT("status", c->status), F_INT("ms", clock_mono_ms() - c->start_ms));
	http_req_answer(c->req, c->status, extra,
			!c->text  ? NULL
			: c->type ? c->type
				  : "application/json",
			c->text, c->text ? strlen(c->text) : 0);
}

static void work_done(void *arg)
{
	struct call *c = arg;

	key_signer_done(&c->signer);
	if (c->retired) {
		route_drop(c->api, c->id);
		data_cut(c->api, c->id, c->retired);
	}
	if (c->finish)
		c->finish(c);
	if (c->status == 0)
		call_error(c, &c->err);
	else
		answer(c);
}

/*
 * Requests that change one sandbox queue behind each other here; across processes the operations in
 * the database do that.
 */
static void start_work(struct call *c)
{
	struct api *a = c->api;
	bool slow = c->route->flags & CONTROL_SLOW,
	     change = slow && !str_eq(c->route->method, "GET");
	const struct key_signer *k = keys_signer(a);
	struct err e = { 0 };
	int r;

	c->signer_ok = k != NULL;
	if (k)
		c->signer = *k;
	r = work_add(slow ? a->slow : a->quick, change && c->id[0] ? c->id : NULL, work_run,
		     work_done, c);
	if (r < 0) {
		key_signer_done(&c->signer);
		err_set(&e, r, "Too many requests wait.");
		call_error(c, &e);
	}
}

static void on_body(struct http_req *r, const char *body, size_t len, void *arg)
{
	struct call *c = arg;

	c->body = x_alloc(len + 1);
	memcpy(c->body, body, len);
	c->body_len = len;
	start_work(c);
}

static void on_authorised(struct call *c)
{
	struct err e = { 0 };

	if (c->problem && check_v1(c, &e) < 0) {
		call_error(c, &e);
	} else if (!c->route->run) {
		err_set_code(&e, -ENOSYS, "not-built-yet",
			     "This part of E2B's API is not built yet: %s.", c->route->path);
		call_error(c, &e);
	} else if (c->route->flags & CONTROL_BODY) {
		http_req_read_body(c->req, on_body, c);
	} else {
		start_work(c);
	}
}

static int take_once_key(struct call *c, struct err *e)
{
	const struct http_head *h = http_req_head(c->req);
	const char *key = http_get(h, "Idempotency-Key");

	if (!(c->route->flags & CONTROL_ONCE) || !key)
		return 0;
	if (http_count(h, "Idempotency-Key") != 1 ||
	    !str_is(key, 1, API_ONCE_KEY_MAX, ONCE_KEY_CHARS))
		return err_set_code(e, -EINVAL, "idempotency-key-malformed",
				    "An Idempotency-Key is 1 to %d letters, digits, - and _.",
				    API_ONCE_KEY_MAX);
	return str_copy(c->once_key, sizeof(c->once_key), key);
}

void control_handle(struct call *c)
{
	struct err e = { 0 };

	c->target = x_strdup(http_req_head(c->req)->target);
	if (c->route->flags & CONTROL_TERMINAL) {
		terminal_handle(c);
	} else if (c->route->flags & CONTROL_TUNNEL) {
		tunnel_handle(c);
	} else if (c->route->flags & CONTROL_OPEN) {
		if (check_v1(c, &c->err) == 0)
			c->route->run(c, NULL);
		work_done(c);
	} else if (take_once_key(c, &e) < 0) {
		call_error(c, &e);
	} else {
		auth_check(c, on_authorised);
	}
}
