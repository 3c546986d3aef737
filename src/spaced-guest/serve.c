#include "spaced-guest/serve.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/str.h"
#include "spaced-guest/files.h"
#include "spaced-guest/fsrpc.h"
#include "spaced-guest/gunzip.h"
#include "spaced-guest/init.h"
#include "spaced-guest/metrics.h"
#include "spaced-guest/process.h"
#include "spaced-guest/text.h"
#include "spaced-guest/watch_rpc.h"

#define CHUNK_FRAMING 32                         /* bytes around a chunk, at most */
#define SMALL_BODY REQ_SMALL

static void health(struct req *r, const char *body, size_t n)
{
	req_answer(r, 204, NULL, NULL, 0);
}

static void envs(struct req *r, const char *body, size_t n)
{
	json_t *o = json_object();
	autofree char *text = NULL;
	struct envs global;

	process_global_envs(r->a, &global);
	for (size_t i = 0; i < global.n; i++) {
		char *value = strchr(global.v[i], '=');

		*value++ = '\0';
		json_object_set_new(o, global.v[i], json_string(value));
	}
	envs_done(&global);
	text = json_dumps(o, JSON_COMPACT);
	json_decref(o);
	req_answer(r, 200, "application/json", text, text ? strlen(text) : 0);
}

#define RPC(service, method, limit, fn)                                                            \
	{                                                                                          \
		"POST", "/" service "/" method, ROUTE_DATA, limit, fn, NULL                        \
	}

static const struct route routes[] = {
	{ "GET", "/health", ROUTE_DATA | ROUTE_CONTROL | ROUTE_OPEN | ROUTE_QUIET, 1, health,
	  NULL },
	{ "POST", "/init", ROUTE_CONTROL | ROUTE_OPEN, 1 << 20, init_handle, NULL },
	{ "POST", "/prepare", ROUTE_CONTROL | ROUTE_OPEN, SMALL_BODY, prepare_handle, NULL },
	{ "POST", "/shutdown", ROUTE_CONTROL | ROUTE_OPEN, SMALL_BODY, shutdown_handle, NULL },
	{ "GET", "/activity", ROUTE_CONTROL, 1, activity_handle, NULL },
	{ "GET", "/metrics", ROUTE_DATA | ROUTE_CONTROL | ROUTE_QUIET, 1, metrics_handle, NULL },
	{ "GET", "/envs", ROUTE_DATA | ROUTE_QUIET, 1, envs, NULL },
	{ "GET", "/files", ROUTE_DATA, 1, files_get, NULL },
	{ "POST", "/files", ROUTE_DATA, 0, NULL, files_post },
	{ "POST", "/files/compose", ROUTE_DATA, SMALL_BODY, files_compose, NULL },
	RPC("process.Process", "Start", DECODE_BODY_MAX, process_start),
	RPC("process.Process", "Connect", SMALL_BODY, process_connect),
	RPC("process.Process", "List", SMALL_BODY, process_list),
	RPC("process.Process", "SendInput", DECODE_BODY_MAX, process_send_input),
	{ "POST", "/process.Process/StreamInput", ROUTE_DATA, 0, NULL, process_stream_input },
	RPC("process.Process", "CloseStdin", SMALL_BODY, process_close_stdin),
	RPC("process.Process", "SendSignal", SMALL_BODY, process_send_signal),
	RPC("process.Process", "Update", SMALL_BODY, process_update),
	RPC("filesystem.Filesystem", "ListDir", SMALL_BODY, fsrpc_list_dir),
	RPC("filesystem.Filesystem", "Stat", SMALL_BODY, fsrpc_stat),
	RPC("filesystem.Filesystem", "MakeDir", SMALL_BODY, fsrpc_make_dir),
	RPC("filesystem.Filesystem", "Move", SMALL_BODY, fsrpc_move),
	RPC("filesystem.Filesystem", "Remove", SMALL_BODY, fsrpc_remove),
	RPC("filesystem.Filesystem", "WatchDir", SMALL_BODY, watch_dir),
	RPC("filesystem.Filesystem", "CreateWatcher", SMALL_BODY, watch_create),
	RPC("filesystem.Filesystem", "GetWatcherEvents", SMALL_BODY, watch_events),
	RPC("filesystem.Filesystem", "RemoveWatcher", SMALL_BODY, watch_remove),
};

/* ---- life of a request ---- */

static struct req *req_new(struct agent *a, struct mux *m, const struct mux_event *e)
{
	struct req *r = x_alloc(sizeof(*r));

	r->a = a;
	r->mux = m;
	r->stream = e->stream;
	r->control = e->control;
	buf_init(&r->in, DECODE_BODY_MAX + HTTP_HEAD_MAX);
	buf_init(&r->out, REQ_ANSWER_MAX);
	list_add_tail(&a->reqs, &r->node);
	mux_set_user(m, e->stream, r);
	return r;
}

static void req_free(struct req *r)
{
	if (r->ops && r->ops->gone)
		r->ops->gone(r);
	if (r->counts)
		activity_close(r->a);
	mux_set_user(r->mux, r->stream, NULL);
	list_del(&r->node);
	if (r->has_head)
		http_head_done(&r->head);
	buf_done(&r->in);
	buf_done(&r->out);
	free(r);
}

void req_cut(struct req *r)
{
	mux_rst(r->mux, r->stream);
	req_free(r);
}

/* ---- answers ---- */

void req_start(struct req *r, int status, const char *content_type, const struct http_field *fields,
	       int64_t length)
{
	assert(!r->answered);
	r->answered = true;
	r->chunked = length < 0;
	http_put_status(&r->out, status);
	if (content_type)
		http_put_field(&r->out, "Content-Type", content_type);
	for (; fields && fields->name; fields++)
		http_put_field(&r->out, fields->name, fields->value);
	if (r->id[0])
		http_put_field(&r->out, "X-Request-Id", r->id);
	if (r->chunked)
		http_put_field(&r->out, "Transfer-Encoding", "chunked");
	else if (status != 204 && status != 304)
		http_put_fieldf(&r->out, "Content-Length", "%lld", (long long)length);
	http_put_end(&r->out);
}

size_t req_room(const struct req *r)
{
	size_t used = buf_len(&r->out) + CHUNK_FRAMING;

	return used < REQ_STREAM_MAX ? REQ_STREAM_MAX - used : 0;
}

void req_put(struct req *r, const void *p, size_t n)
{
	if (n == 0 || r->no_body)
		return;
	if (r->chunked)
		http_put_chunk(&r->out, p, n);
	else
		buf_put(&r->out, p, n);
}

void req_finish(struct req *r)
{
	if (r->finished)
		return;
	if (r->chunked && !r->no_body)
		http_put_chunk(&r->out, NULL, 0);
	r->finished = true;
	r->state = REQ_DRAIN;
	buf_done(&r->in);
	req_hold(r, false);
}

void req_hold(struct req *r, bool on)
{
	r->held = on;
	if (!on && r->owed)
		mux_taken(r->mux, r->stream, r->owed);
	if (!on)
		r->owed = 0;
}

bool req_crowded(const struct req *r)
{
	size_t n = procs_input_bytes(r->a->procs);

	LIST_FOR(&r->a->reqs, other, struct req, node)
		n += buf_held(&other->in) + buf_held(&other->out) + other->extra;
	return n > REQS_HELD_MAX;
}

void req_answer(struct req *r, int status, const char *content_type, const void *p, size_t n)
{
	if (r->answered)
		return;
	if (n > REQ_ANSWER_MAX / 2) {
		req_error(r, 500, "the answer is too large");
		return;
	}
	req_start(r, status, content_type, NULL, (int64_t)n);
	req_put(r, p, n);
	req_finish(r);
}

void req_answer_buf(struct req *r, int status, const char *content_type, struct buf *b)
{
	req_answer(r, status, content_type, buf_data(b), buf_len(b));
	buf_done(b);
}

void req_error(struct req *r, int status, const char *fmt, ...)
{
	static struct log_limit limit;
	struct buf b;
	char msg[ERR_TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	if (status >= 500 && log_limit_ok(&limit, 60))
		log_warn("request failed", F_REQ(r->id), F_INT("status", status),
			 F_STR("error", msg));
	buf_init(&b, 8 * ERR_TEXT_MAX);
	buf_putf(&b, "{\"code\":%d,", status);
	text_member(&b, "message", msg);
	buf_puts(&b, "}");
	req_answer_buf(r, status, "application/json", &b);
}

/* ---- who asks ---- */

static int basic_user(const char *value, char *dst, size_t size)
{
	char text[256];
	size_t n;
	char *colon;

	if (strncasecmp(value, "Basic ", 6) != 0)
		return 0;
	value += 6;
	if (str_unb64(text, sizeof(text) - 1, value, strlen(value), &n) < 0)
		return -EINVAL;
	text[n] = '\0';
	colon = strchr(text, ':');
	if (!colon || strlen(text) != n)
		return -EINVAL;
	*colon = '\0';
	return str_copy(dst, size, text);
}

int req_user(struct req *r, struct user *ret, struct err *e)
{
	autofree char *query = NULL;
	char name[USERS_NAME_MAX] = "";
	const char *auth = http_get(&r->head, "Authorization");

	if (http_query_get(r->head.target, "username", &query) < 0)
		return err_set(e, -EINVAL, "the query is malformed");
	if (query && *query) {
		if (str_copy(name, sizeof(name), query) < 0)
			return err_set(e, -ENOENT, "invalid username");
	} else if (auth && basic_user(auth, name, sizeof(name)) < 0) {
		return err_set(e, -EINVAL, "the Authorization field is malformed");
	}
	if (!name[0])
		str_copy(name, sizeof(name), r->a->default_user);
	if (user_find(name, ret) < 0)
		return err_set(e, -ENOENT, "invalid username: '%s'", name);
	return 0;
}

static bool token_ok(struct req *r)
{
	const char *t = http_get(&r->head, "X-Access-Token");

	return t && r->a->token.n && strlen(t) == r->a->token.n &&
	       secret_eq(&r->a->token, t, strlen(t));
}

/* ---- input ---- */

static const struct route *find_route(struct req *r, const char *path, bool *ret_path_known)
{
	for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
		if (!(routes[i].flags & (r->control ? ROUTE_CONTROL : ROUTE_DATA)) ||
		    !str_eq(routes[i].path, path))
			continue;
		*ret_path_known = true;
		if (str_eq(routes[i].method, r->no_body ? "GET" : r->head.method))
			return &routes[i];
	}
	return NULL;
}

/* The checks before a handler sees the request; true = go on. */
static bool admit(struct req *r, const char *path, bool path_known)
{
	if (!r->control && !r->a->ready) {
		req_error(r, 503, "the sandbox is starting");
		return false;
	}
	if (!r->control && !(r->route && (r->route->flags & ROUTE_OPEN)) && !token_ok(r)) {
		req_error(r, 401, "the access token is missing or wrong");
		return false;
	}
	if (r->route)
		return true;
	if (path_known)
		req_error(r, 405, "this path does not know the method %s", r->head.method);
	else if (str_starts(path, "/process.Process/") ||
		 str_starts(path, "/filesystem.Filesystem/"))
		connect_fail(r, CONNECT_UNIMPLEMENTED, "%s is not available in this version",
			     path + 1);
	else
		req_error(r, 404, "there is no such path");
	return false;
}

static void on_head(struct req *r)
{
	const char *id = http_get(&r->head, "X-Request-Id");
	autofree char *path = NULL;
	bool known = false;

	r->no_body = str_eq(r->head.method, "HEAD");
	if (id && str_is(id, 1, REQ_ID_MAX,
			 "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."))
		str_copy(r->id, sizeof(r->id), id);
	r->state = REQ_BODY;
	http_dec_init(&r->dec, &r->head, UINT64_MAX);
	if (http_target_path(r->head.target, &path) < 0) {
		req_error(r, 400, "the target must be a path");
		return;
	}
	r->route = find_route(r, path, &known);
	if (!admit(r, path, known))
		return;
	r->counts = !r->control && !(r->route->flags & ROUTE_QUIET);
	if (r->counts)
		activity_open(r->a);
	if (r->route->body_max)
		http_dec_init(&r->dec, &r->head, r->route->body_max);
	if (r->head.expect_continue) {
		http_put_status(&r->out, 100);
		http_put_end(&r->out);
	}
	if (r->route->begin)
		r->route->begin(r);
}

static int put_inflated(void *arg, const char *p, size_t n)
{
	return buf_put(arg, p, n);
}

/*
 * A whole body may come as gzip, if what is inside is no longer than a plain one. False = answered.
 */
static bool inflate_body(struct req *r)
{
	const char *encoding = http_get(&r->head, "Content-Encoding");
	struct gunzip *g;
	struct buf plain;
	int ret;

	if (!encoding || str_ieq(encoding, "identity"))
		return true;
	if (!str_ieq(encoding, "gzip")) {
		req_error(r, 415, "the content encoding must be gzip or identity");
		return false;
	}
	g = gunzip_new();
	buf_init(&plain, r->route->body_max);
	ret = gunzip_feed(g, buf_data(&r->in), buf_len(&r->in), put_inflated, &plain);
	if (ret == -ENOBUFS)
		req_error(r, 413, "the body is too large");
	else if (ret < 0 || !gunzip_complete(g))
		req_error(r, 400, "the body is no gzip data");
	gunzip_free(g);
	if (r->answered) {
		buf_done(&plain);
		return false;
	}
	buf_done(&r->in);
	r->in = plain;
	r->in.max++;                             /* for the NUL behind it */
	return true;
}

static void body_done(struct req *r)
{
	r->state = REQ_WAIT;
	if (r->ops && r->ops->body_end) {
		r->ops->body_end(r);
	} else if (r->route->whole && inflate_body(r)) {
		buf_put(&r->in, "", 1);
		r->route->whole(r, buf_data(&r->in), buf_len(&r->in) - 1);
		if (r->state == REQ_WAIT)
			buf_done(&r->in);
	}
}

static void on_body(struct req *r, const char *p, size_t n)
{
	while (r->state == REQ_BODY) {
		enum http_error he;
		const char *data;
		size_t used, len;
		int done = http_dec_feed(&r->dec, p, n, &used, &data, &len, &he);

		if (done < 0) {
			req_error(r, http_error_status(he), "%s", http_error_text(he));
			return;
		}
		if (len && r->ops && r->ops->body) {
			if (r->ops->body(r, data, len) < 0)
				return;
		} else if (buf_len(&r->in) + len > REQ_SMALL && req_crowded(r)) {
			connect_fail(r, CONNECT_RESOURCE_EXHAUSTED, REQ_CROWDED_TEXT);
			return;
		} else if (len && buf_put(&r->in, data, len) < 0) {
			req_error(r, 413, "the body is too large");
			return;
		}
		p += used;
		n -= used;
		if (done)
			body_done(r);
		else if (n == 0)
			return;
	}
}

static void on_data(struct req *r, const char *p, size_t n)
{
	enum http_error he = HTTP_OK;
	struct buf early;
	ssize_t len;

	if (r->state == REQ_BODY) {
		on_body(r, p, n);
		return;
	}
	if (r->state != REQ_HEAD)
		return;
	buf_put(&r->in, p, n);
	len = http_parse_request(buf_data(&r->in), buf_len(&r->in), &r->head, &he);
	if (len == 0)
		return;
	if (len < 0) {
		req_error(r, http_error_status(he), "%s", http_error_text(he));
		return;
	}
	r->has_head = true;
	buf_consume(&r->in, (size_t)len);
	/*
	 * What came with the head is fed as the rest will be; r->in collects the decoded body from
	 * here on.
	 */
	early = r->in;
	buf_init(&r->in, DECODE_BODY_MAX + 1);
	on_head(r);
	on_body(r, buf_data(&early), buf_len(&early));
	buf_done(&early);
}

static void on_end(struct req *r)
{
	if (r->ended) {
		req_free(r);
		return;
	}
	if (r->state == REQ_HEAD || r->state == REQ_BODY)
		req_error(r, 400, "the request was cut short");
}

void serve_event(struct agent *a, struct mux *m, struct mux_event *e)
{
	struct req *r = e->user;

	switch (e->type) {
	case MUX_EV_READY:
		init_epoch(a, &e->epoch);
		break;
	case MUX_EV_OPEN:
		req_new(a, m, e);
		break;
	case MUX_EV_DATA:
		if (r)
			on_data(r, (const char *)e->data, e->len);
		r = mux_user(m, e->stream);      /* NULL: the handler cut it */
		if (r && r->held)
			r->owed += e->len;
		else
			mux_taken(m, e->stream, e->len);
		break;
	case MUX_EV_END:
		if (r)
			on_end(r);
		break;
	case MUX_EV_RST:
		if (r)
			req_free(r);
		break;
	case MUX_EV_CREDIT:
		break;
	}
}

/* ---- output ---- */

static bool pump_one(struct req *r)
{
	bool moved = false;
	size_t n;

	while (buf_len(&r->out) && (n = mux_can_send(r->mux, r->stream)) > 0) {
		if (n > buf_len(&r->out))
			n = buf_len(&r->out);
		mux_send(r->mux, r->stream, buf_data(&r->out), n);
		buf_consume(&r->out, n);
		moved = true;
	}
	if (r->finished && !r->ended && buf_len(&r->out) == 0) {
		r->ended = true;
		mux_end(r->mux, r->stream);
		/*
		 * The other side had ended before: the stream is forgotten, and so is the request.
		 */
		if (!mux_user(r->mux, r->stream))
			req_free(r);
		return true;
	}
	if (!r->finished && r->ops && r->ops->room && buf_len(&r->out) < REQ_STREAM_MAX / 2) {
		size_t before = buf_len(&r->out) + buf_len(mux_out(r->mux));
		uint32_t stream = r->stream;
		struct mux *m = r->mux;

		r->ops->room(r);
		if (!mux_user(m, stream))        /* the handler cut it */
			return true;
		moved |= r->finished || r->again || before != buf_len(&r->out) + buf_len(mux_out(m));
	}
	return moved;
}

/* Each request once, in turns: the first one becomes the last. */
bool serve_pump(struct agent *a)
{
	bool moved = false;

	LIST_FOR_SAFE(&a->reqs, r, struct req, node)
		moved |= pump_one(r);
	if (moved && !list_empty(&a->reqs)) {
		struct list *first = a->reqs.next;

		list_del(first);
		list_add_tail(&a->reqs, first);
	}
	return moved;
}
