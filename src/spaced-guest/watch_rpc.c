#include "spaced-guest/watch_rpc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "spaced-guest/paths.h"
#include "spaced-guest/watch.h"

#define EVENT_HEAD "{\"filesystem\":"
#define EVENT_TAIL "}"
#define FRAMING 64                               /* of an event on the stream, at most */
#define START "{\"start\":{}}"
#define KEEPALIVE "{\"keepalive\":{}}"
#define ID_BYTES 8

_Static_assert(WATCH_EVENT_MAX + FRAMING + sizeof(EVENT_HEAD EVENT_TAIL) < REQ_STREAM_MAX - 64,
	       "an event fits into an empty stream");

/* User, message, path; false = answered. */
static bool begin(struct req *r, const char *body, size_t n, struct user *u, char **ret_path,
		  struct watch_options *ret_o)
{
	struct path_req q = { 0 };
	struct err e = { 0 };
	int ret;

	if (req_user(r, u, &e) < 0) {
		connect_fail(r, CONNECT_UNAUTHENTICATED, "%s", e.text);
		return false;
	}
	ret = decode_watch(body, n, &q, &e);
	if (ret == 0)
		ret = path_resolve(r->a, u, q.path, ret_path, &e);
	if (ret < 0)
		connect_fail_err(r, &e);
	*ret_o = (struct watch_options){ q.recursive, q.entries, q.network };
	path_req_done(&q);
	return ret == 0;
}

/* ---- the stream ---- */

struct stream {
	struct req *r;
	struct watch *w;
	bool started;
	int64_t keepalive_ms;
	struct ev_timer keepalive, deadline;
};

static void stream_free(struct req *r)
{
	struct stream *s = r->ctx;

	ev_timer_del(&s->keepalive);
	ev_timer_del(&s->deadline);
	watch_free(s->w);
	free(s);
	r->ctx = NULL;
	r->ops = NULL;
}

static void stream_put(struct stream *s, const char *event, size_t n)
{
	struct buf b;

	buf_init(&b, n + sizeof(EVENT_HEAD EVENT_TAIL));
	buf_puts(&b, EVENT_HEAD);
	buf_put(&b, event, n);
	buf_puts(&b, EVENT_TAIL);
	connect_event(s->r, buf_data(&b), buf_len(&b));
	buf_done(&b);
}

static void stream_room(struct req *r)
{
	struct stream *s = r->ctx;
	bool put = false;
	const char *event;
	size_t n;

	if (watch_state(s->w) == WATCH_SCANNING)
		return;
	if (!s->started && watch_state(s->w) == WATCH_RUNNING) {
		s->started = put = true;
		connect_begin(r);
		connect_event(r, START, strlen(START));
	}
	while (watch_peek(s->w, &event, &n) &&
	       req_room(r) > n + FRAMING + sizeof(EVENT_HEAD EVENT_TAIL)) {
		stream_put(s, event, n);
		watch_pop(s->w);
		put = true;
	}
	if (watch_state(s->w) == WATCH_ENDED && !watch_peek(s->w, &event, &n)) {
		connect_end_error(r, watch_end_code(s->w), "%s", watch_end_text(s->w));
		stream_free(r);
	} else if (put) {
		ev_timer_set(r->a->ev, &s->keepalive, s->keepalive_ms);
	}
}

static const struct req_ops stream_ops = { .room = stream_room, .gone = stream_free };

static void on_keepalive(struct ev_timer *t)
{
	struct stream *s = CONTAINER_OF(t, struct stream, keepalive);

	if (req_room(s->r) > strlen(KEEPALIVE) + FRAMING)
		connect_event(s->r, KEEPALIVE, strlen(KEEPALIVE));
	ev_timer_set(s->r->a->ev, t, s->keepalive_ms);
}

static void on_deadline(struct ev_timer *t)
{
	struct stream *s = CONTAINER_OF(t, struct stream, deadline);
	struct req *r = s->r;

	connect_end_error(r, CONNECT_DEADLINE_EXCEEDED, "the time for the watch is over");
	stream_free(r);
}

void watch_dir(struct req *r, const char *body, size_t n)
{
	autofree char *path = NULL;
	struct watch_options o;
	struct err e = { 0 };
	struct stream *s;
	struct watch *w;
	struct user u;
	int64_t timeout;

	if (!connect_stream(r, body, n, &body, &n) || !begin(r, body, n, &u, &path, &o))
		return;
	if (watch_new(r->a, &u, path, &o, NULL, NULL, &w, &e) < 0) {
		connect_fail_err(r, &e);
		return;
	}
	s = x_alloc(sizeof(*s));
	s->r = r;
	s->w = w;
	s->keepalive_ms = connect_keepalive_ms(r);
	ev_timer_init(&s->keepalive, on_keepalive);
	ev_timer_init(&s->deadline, on_deadline);
	timeout = connect_timeout_ms(r);
	if (timeout > 0)
		ev_timer_set(r->a->ev, &s->deadline, timeout);
	r->ctx = s;
	r->ops = &stream_ops;
}

/* ---- polled watchers ---- */

struct watcher {
	struct list node;                        /* in watches.polled, with an id */
	struct req *r;                           /* CreateWatcher, until it is answered */
	struct agent *a;
	struct watch *w;
	char id[2 + 2 * ID_BYTES];
	struct ev_timer idle;
};

static void watcher_free(struct watcher *p)
{
	list_del(&p->node);
	ev_timer_del(&p->idle);
	watch_free(p->w);
	free(p);
}

static void create_gone(struct req *r)
{
	watcher_free(r->ctx);
}

static const struct req_ops create_ops = { .gone = create_gone };

static void on_idle(struct ev_timer *t)
{
	watcher_free(CONTAINER_OF(t, struct watcher, idle));
}

/* All folders are watched, or it cannot be done. */
static void on_ready(struct watch *w, void *arg)
{
	struct watcher *p = arg;
	struct req *r = p->r;
	char answer[64];

	r->ops = NULL;
	r->ctx = NULL;
	p->r = NULL;
	if (watch_state(w) == WATCH_ENDED) {
		connect_fail(r, watch_end_code(w), "%s", watch_end_text(w));
		watcher_free(p);
		return;
	}
	p->id[0] = 'w';
	str_random_hex(p->id + 1, ID_BYTES);
	list_add_tail(&p->a->watches->polled, &p->node);
	ev_timer_set(p->a->ev, &p->idle, WATCHER_IDLE_MS);
	str_format(answer, sizeof(answer), "{\"watcherId\":\"%s\"}", p->id);
	connect_answer(r, answer);
}

void watch_create(struct req *r, const char *body, size_t n)
{
	autofree char *path = NULL;
	struct watch_options o;
	struct err e = { 0 };
	struct watcher *p;
	struct user u;

	if (!connect_unary(r) || !begin(r, body, n, &u, &path, &o))
		return;
	p = x_alloc(sizeof(*p));
	list_init(&p->node);
	ev_timer_init(&p->idle, on_idle);
	p->r = r;
	p->a = r->a;
	if (watch_new(r->a, &u, path, &o, on_ready, p, &p->w, &e) < 0) {
		connect_fail_err(r, &e);
		watcher_free(p);
		return;
	}
	r->ctx = p;
	r->ops = &create_ops;
}

/* The watcher that the message names; NULL = answered. */
static struct watcher *find(struct req *r, const char *body, size_t n)
{
	struct watcher_req q = { 0 };
	struct err e = { 0 };

	if (!connect_unary(r))
		return NULL;
	if (decode_watcher(body, n, &q, &e) < 0) {
		connect_fail_err(r, &e);
		return NULL;
	}
	LIST_FOR(&r->a->watches->polled, p, struct watcher, node)
		if (str_eq(p->id, q.id))
			return p;
	connect_fail(r, CONNECT_NOT_FOUND, "watcher with id '%s' not found", q.id);
	return NULL;
}

void watch_events(struct req *r, const char *body, size_t n)
{
	struct watcher *p = find(r, body, n);
	const char *event;
	bool first = true;
	struct buf b;

	if (!p)
		return;
	ev_timer_set(r->a->ev, &p->idle, WATCHER_IDLE_MS);
	if (req_crowded(r)) {
		connect_fail(r, CONNECT_RESOURCE_EXHAUSTED, REQ_CROWDED_TEXT);
		return;
	}
	watch_catch_up(p->w);
	if (watch_state(p->w) == WATCH_ENDED && !watch_peek(p->w, &event, &n)) {
		connect_fail(r, watch_end_code(p->w), "%s", watch_end_text(p->w));
		return;
	}
	buf_init(&b, REQ_ANSWER_MAX / 2);
	buf_puts(&b, "{\"events\":[");
	while (watch_peek(p->w, &event, &n) && buf_room(&b) > n + FRAMING) {
		buf_puts(&b, first ? "" : ",");
		first = false;
		buf_put(&b, event, n);
		watch_pop(p->w);
	}
	buf_puts(&b, "]}");
	connect_answer_buf(r, &b);
}

void watch_remove(struct req *r, const char *body, size_t n)
{
	struct watcher *p = find(r, body, n);

	if (!p)
		return;
	watcher_free(p);
	connect_answer(r, "{}");
}

void watch_rpc_done(struct agent *a)
{
	LIST_FOR_SAFE(&a->watches->polled, p, struct watcher, node)
		watcher_free(p);
}
