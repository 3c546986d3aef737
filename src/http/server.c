/*
 * Theory of operation.
 *
 * One `struct peer` per connection, in one of the states below; at most one `struct http_req` at a
 * time. A pipelined request waits in the input buffer until the answer before it has been written,
 * so memory per connection is bounded by HTTP_IN_MAX, HTTP_ANSWER_MAX and one body of
 * conf.max_body.
 *
 *	IDLE -> HEAD -> HANDLE -> WRITE -> [DRAIN] -> IDLE
 *	                  |  ^      |
 *	                  v  |      v
 *	                 BODY     LINGER -> closed
 *
 * peer_run() is the only driver: it calls the step of the current state as long as that makes
 * progress. The handler is called from a step and may answer, take the connection or free the
 * server inside of it; these calls change the state and return, and the loop in peer_run() goes on.
 * A peer that dies meanwhile is marked `dead` and freed when the outermost peer_run() leaves
 * (`busy`), so no step ever touches freed memory.
 *
 * Closing after an error lingers: the answer is written, our side is shut, and what the client
 * still sends is thrown away for HTTP_LINGER_MS. Without that the kernel would answer the unread
 * bytes with a reset and the client would never see the answer (RFC 9112 9.6).
 *
 * Time: IDLE, BODY, WRITE and DRAIN have the idle time-out (again when something came; in WRITE,
 * when something was taken), HEAD one deadline from its first byte, HANDLE none: there the handler
 * is responsible.
 */
#include "http/server.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/list.h"
#include "base/str.h"

#define ANSWER_HEAD_MAX (64 << 10)
#define ERROR_BODY_MAX 4096
#define DATE_LEN 30
#define TURN_AWAY_READS 16
#define UNSENT_BYTES 131072

enum peer_state {
	PEER_IDLE,
	PEER_HEAD,
	PEER_HANDLE,
	PEER_BODY,
	PEER_WRITE,
	PEER_DRAIN,
	PEER_LINGER,
	PEER_STATE_COUNT
};

typedef void body_fn(struct http_req *r, const char *body, size_t len, void *arg);

struct http_req {
	struct peer *peer;
	struct http_head head;
	void *user;
	struct buf body;
	body_fn *body_fn;
	void *body_arg;
	bool gone;                  /* conf.gone was called */
};

struct peer {
	struct list node;           /* of server->peers; the longest idle one before the others */
	struct http_server *server;
	struct conn *conn;          /* NULL: the connection died and a request is still owed its answer */
	struct http_req *req;
	enum peer_state state;
	struct http_dec dec;        /* of the current request's body */
	size_t thrown_bytes;        /* in DRAIN and LINGER */
	size_t unsent;              /* in WRITE: as the time-out began */
	bool body_done, close, dead;
	unsigned busy;
};

struct http_server {
	struct loop *loop;
	struct http_server_conf conf;
	struct list peers;
	size_t n_peers;
	time_t date_s;
	char date[DATE_LEN];
};

static void peer_run(struct peer *p);

/* ---- life of a peer ---- */

static void peer_set_state(struct peer *p, enum peer_state state)
{
	const struct http_server_conf *c = &p->server->conf;
	const int64_t timeout_ms[PEER_STATE_COUNT] = {
		[PEER_IDLE] = c->idle_timeout_ms,  [PEER_HEAD] = c->head_timeout_ms,
		[PEER_BODY] = c->idle_timeout_ms,  [PEER_WRITE] = c->idle_timeout_ms,
		[PEER_DRAIN] = c->idle_timeout_ms, [PEER_LINGER] = HTTP_LINGER_MS,
	};

	p->state = state;
	p->thrown_bytes = 0;
	p->unsent = p->conn ? conn_out_len(p->conn) : 0;
	if (state == PEER_IDLE) {
		list_del(&p->node);
		list_add_tail(&p->server->peers, &p->node);
	}
	if (p->conn)
		conn_set_timeout(p->conn, timeout_ms[state]);
}

static void req_free(struct http_req *r)
{
	struct peer *p = r->peer;

	if (p->server->conf.end)
		p->server->conf.end(r, p->server->conf.arg);
	p->req = NULL;
	http_head_done(&r->head);
	buf_done(&r->body);
	free(r);
}

/*
 * Takes the peer off its server; the memory goes when no step is running. The conn must be gone or
 * handed over.
 */
static void peer_drop(struct peer *p)
{
	if (p->req)
		req_free(p->req);
	list_del(&p->node);
	p->server->n_peers--;
	p->dead = true;
	if (p->busy == 0)
		free(p);
}

static void peer_close(struct peer *p)
{
	if (p->conn)
		conn_free(TAKE(p->conn));
	peer_drop(p);
}

static void peer_gone(struct peer *p)
{
	struct http_req *r = p->req;

	if (r->gone)
		return;
	r->gone = true;
	p->close = true;
	if (p->server->conf.gone)
		p->server->conf.gone(r, p->server->conf.arg);
}

/* ---- answers ---- */

static const char *server_date(struct http_server *s)
{
	time_t now = clock_wall_ms() / 1000;
	struct tm tm;

	if (now != s->date_s) {
		static const char days[] = "SunMonTueWedThuFriSat";
		static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
		gmtime_r(&now, &tm);
		str_format(s->date, sizeof(s->date), "%.3s, %02d %.3s %d %02d:%02d:%02d GMT",
			   days + 3 * tm.tm_wday, tm.tm_mday, months + 3 * tm.tm_mon,
			   1900 + tm.tm_year, tm.tm_hour, tm.tm_min, tm.tm_sec);
		s->date_s = now;
	}
	return s->date;
}

static bool has_body(int status)
{
	return status >= 200 && status != 204 && status != 304;
}

struct answer {
	int status;
	const struct http_field *extra;
	const char *content_type;
	const void *body;
	size_t len;
};

static int put_answer_head(struct peer *p, struct buf *b, const struct answer *a, bool http10)
{
	int r = http_put_status(b, a->status);

	if (r == 0)
		r = http_put_field(b, "Date", server_date(p->server));
	if (r == 0 && a->content_type)
		r = http_put_field(b, "Content-Type", a->content_type);
	if (r == 0 && has_body(a->status))
		r = http_put_fieldf(b, "Content-Length", "%zu", a->len);
	for (const struct http_field *f = a->extra; r == 0 && f && f->name; f++)
		r = http_put_field(b, f->name, f->value);
	if (r == 0 && p->close)
		r = http_put_field(b, "Connection", "close");
	else if (r == 0 && http10)
		r = http_put_field(b, "Connection", "keep-alive");
	return r == 0 ? http_put_end(b) : r;
}

static void peer_write(struct peer *p, const struct answer *a, const struct http_head *h)
{
	static const struct answer failed = { .status = 500 };
	bool http10 = h && h->minor == 0, head_only = h && str_eq(h->method, "HEAD");
	struct buf b;

	buf_init(&b, ANSWER_HEAD_MAX);
	if (put_answer_head(p, &b, a, http10) != 0 ||
	    buf_len(&b) + a->len > buf_room(conn_out(p->conn))) {
		a = &failed;
		p->close = true;
		buf_clear(&b);
		put_answer_head(p, &b, a, http10);
	}
	buf_put(conn_out(p->conn), buf_data(&b), buf_len(&b));
	if (a->len > 0 && has_body(a->status) && !head_only)
		buf_put(conn_out(p->conn), a->body, a->len);
	buf_done(&b);
	peer_set_state(p, PEER_WRITE);
	conn_flush(p->conn);
}

/* {"code":N,"message":"..."}; what is not printable ASCII in the message is escaped. */
static void error_json(struct buf *b, int status, const char *message)
{
	buf_putf(b, "{\"code\":%d,\"message\":\"", status);
	bool utf8 = str_utf8_ok(message, strlen(message));
	for (const char *s = message; *s && buf_room(b) > 16; s++) {
		unsigned char c = (unsigned char)*s;
		if (c == '"' || c == '\\')
			buf_putf(b, "\\%c", c);
		else if (c < 0x20 || c == 0x7f)
			buf_putf(b, "\\u%04x", c);
		else if (c >= 0x80 && !utf8)
			buf_puts(b, "?");
		else
			buf_put(b, s, 1);
	}
	buf_puts(b, "\"}");
}

/* For what goes wrong before there is a request, or while its body is read: answers and closes. */
static void peer_refuse(struct peer *p, int status, const char *message)
{
	const struct http_server_conf *c = &p->server->conf;
	struct buf b;
	struct http_refusal f = { .req = p->req,
				  .status = status,
				  .message = message,
				  .body = &b,
				  .content_type = "application/json" };

	buf_init(&b, ERROR_BODY_MAX);
	if (!p->req) {
		f.seen = buf_data(conn_in(p->conn));
		f.seen_len = buf_len(conn_in(p->conn));
	}
	if (c->refuse)
		c->refuse(&f, c->arg);
	if (buf_len(&b) == 0)
		error_json(&b, status, message);
	const struct http_field extra[] = {
		{ f.request_id[0] ? "X-Request-Id" : NULL, f.request_id },
		{ NULL, NULL },
	};
	p->close = true;
	peer_write(p,
		   &(struct answer) { .status = status,
				      .extra = extra,
				      .content_type = f.content_type,
				      .body = buf_data(&b),
				      .len = buf_len(&b) },
		   p->req ? &p->req->head : NULL);
	buf_done(&b);
	if (p->req)
		req_free(p->req);
}

/* After an answer: may the connection be used again? */
static bool reusable(const struct peer *p, const struct http_head *h)
{
	if (!h->keep_alive || p->close || conn_eof(p->conn))
		return false;
	if (p->body_done)
		return true;
	/*
	 * A client that waits for 100 Continue may send its body or not: nobody knows where the
	 * next request begins.
	 */
	return !h->expect_continue &&
	       !(h->body == HTTP_BODY_LENGTH && p->dec.left > HTTP_DRAIN_MAX);
}

/* ---- steps: true = call the next one ---- */

static bool step_head(struct peer *p)
{
	struct buf *in = conn_in(p->conn);
	struct http_head h;
	enum http_error err;

	if (buf_len(in) == 0) {
		if (conn_eof(p->conn))
			peer_close(p);
		else if (p->state != PEER_IDLE)
			peer_set_state(p, PEER_IDLE);
		return false;
	}
	ssize_t len = http_parse_request(buf_data(in), buf_len(in), &h, &err);
	if (len < 0) {
		peer_refuse(p, http_error_status(err), http_error_text(err));
		return true;
	}
	if (len == 0) {
		if (conn_eof(p->conn))
			peer_close(p);
		else if (p->state == PEER_IDLE)
			peer_set_state(p, PEER_HEAD);
		return false;
	}
	buf_consume(in, (size_t)len);
	p->req = x_alloc(sizeof(*p->req));
	p->req->peer = p;
	p->req->head = h;
	http_dec_init(&p->dec, &h, UINT64_MAX);
	p->body_done = h.body == HTTP_BODY_NONE || (h.body == HTTP_BODY_LENGTH && h.length == 0);
	peer_set_state(p, PEER_HANDLE);
	p->server->conf.handle(p->req, p->server->conf.arg);
	return true;
}

static bool step_handle(struct peer *p)
{
	return false;
}

static void body_ready(struct peer *p)
{
	struct http_req *r = p->req;
	body_fn *fn = r->body_fn;
	size_t len = buf_len(&r->body);

	p->body_done = true;
	buf_put(&r->body, "", 1);
	struct buf body = r->body;          /* r may be gone after fn */
	buf_init(&r->body, 0);
	peer_set_state(p, PEER_HANDLE);
	fn(r, buf_data(&body), len, r->body_arg);
	buf_done(&body);
}

static bool step_body(struct peer *p)
{
	struct buf *in = conn_in(p->conn);
	enum http_error err = HTTP_BODY_CUT;
	size_t used, n;
	const char *data;
	int r;

	do {
		r = http_dec_feed(&p->dec, buf_data(in), buf_len(in), &used, &data, &n, &err);
		if (r >= 0 && n > 0)
			buf_put(&p->req->body, data, n);
		buf_consume(in, used);
	} while (r == 0 && used > 0);
	if (r == 0 && conn_eof(p->conn)) {
		err = HTTP_BODY_CUT;
		r = -EBADMSG;
	}
	if (r < 0)
		peer_refuse(p, http_error_status(err), http_error_text(err));
	else if (r == 1)
		body_ready(p);
	return r != 0;
}

static bool step_write(struct peer *p)
{
	if (conn_out_len(p->conn) > 0)
		return false;
	if (p->close) {
		conn_shutdown_write(p->conn);
		peer_set_state(p, PEER_LINGER);
	} else {
		peer_set_state(p, p->body_done ? PEER_IDLE : PEER_DRAIN);
	}
	return true;
}

static bool step_drain(struct peer *p)
{
	struct buf *in = conn_in(p->conn);
	enum http_error err;
	size_t used;
	int r = http_dec_skip(&p->dec, buf_data(in), buf_len(in), &used, &err);

	p->thrown_bytes += used;
	buf_consume(in, used);
	if (r < 0 || p->thrown_bytes > HTTP_DRAIN_MAX || (r == 0 && conn_eof(p->conn))) {
		peer_close(p);
		return false;
	}
	if (r == 1)
		peer_set_state(p, PEER_IDLE);
	return r == 1;
}

static bool step_linger(struct peer *p)
{
	struct buf *in = conn_in(p->conn);

	p->thrown_bytes += buf_len(in);
	buf_consume(in, buf_len(in));
	if (conn_eof(p->conn) || p->thrown_bytes > HTTP_LINGER_MAX)
		peer_close(p);
	return false;
}

static bool (*const steps[PEER_STATE_COUNT])(struct peer *p) = {
	[PEER_IDLE] = step_head,     [PEER_HEAD] = step_head,	[PEER_HANDLE] = step_handle,
	[PEER_BODY] = step_body,     [PEER_WRITE] = step_write, [PEER_DRAIN] = step_drain,
	[PEER_LINGER] = step_linger,
};

static void peer_run(struct peer *p)
{
	if (p->busy > 0)
		return;
	p->busy++;
	while (!p->dead && p->conn && steps[p->state](p))
		;
	p->busy--;
	if (p->dead)
		free(p);
}

/* ---- events ---- */

static void on_error(struct peer *p)
{
	if (p->state != PEER_HANDLE) {
		peer_close(p);
		return;
	}
	conn_free(TAKE(p->conn));
	p->busy++;
	peer_gone(p);
	p->busy--;
	if (p->dead)
		free(p);
}

static void on_timeout(struct peer *p)
{
	if (p->state == PEER_HEAD || p->state == PEER_BODY) {
		peer_refuse(p, 408, "The request did not arrive in time.");
		peer_run(p);
	} else if (p->state == PEER_WRITE && conn_out_len(p->conn) < p->unsent) {
		peer_set_state(p, PEER_WRITE);
	} else if (p->state != PEER_HANDLE) {
		peer_close(p);
	}
}

static void on_eof(struct peer *p)
{
	if (p->state == PEER_HANDLE) {
		p->busy++;
		peer_gone(p);
		p->busy--;
		if (p->dead) {
			free(p);
			return;
		}
	}
	peer_run(p);
}

static void on_event(struct conn *c, enum conn_event ev, void *arg)
{
	struct peer *p = arg;

	switch (ev) {
	case CONN_ERROR:
		on_error(p);
		break;
	case CONN_TIMEOUT:
		on_timeout(p);
		break;
	case CONN_EOF:
		on_eof(p);
		break;
	case CONN_DATA:
	case CONN_DRAINED:
	case CONN_CONNECTED:
		if (p->state == PEER_BODY || p->state == PEER_DRAIN)
			conn_set_timeout(c, p->server->conf.idle_timeout_ms);
		peer_run(p);
		break;
	case CONN_LEFT:
		break;                   /* the answer is tried all the same */
	}
}

/* ---- interface ---- */

struct http_server *http_server_new(struct loop *l, const struct http_server_conf *c)
{
	struct http_server *s = x_alloc(sizeof(*s));

	assert(c->handle && c->max_conns > 0);
	s->loop = l;
	s->conf = *c;
	s->date_s = -1;
	list_init(&s->peers);
	return s;
}

void http_server_free(struct http_server *s)
{
	if (!s)
		return;
	while (!list_empty(&s->peers))
		peer_close(CONTAINER_OF(s->peers.next, struct peer, node));
	free(s);
}

size_t http_server_conns(const struct http_server *s)
{
	return s->n_peers;
}

static struct peer *peer_new(struct http_server *s)
{
	struct peer *p = x_alloc(sizeof(*p));

	p->server = s;
	list_add_tail(&s->peers, &p->node);
	s->n_peers++;
	return p;
}

/*
 * Without waiting: the answer fits into any socket buffer; what the client sent already is read so
 * that close resets nothing.
 */
static void turn_away(int fd)
{
	static const char text[] =
		"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 51\r\n"
		"Connection: close\r\n\r\n{\"code\":503,\"message\":\"Too many open connections.\"}";
	char junk[4096];

	static_assert(sizeof("{\"code\":503,\"message\":\"Too many open connections.\"}") - 1 == 51,
		      "Content-Length");
	for (int i = 0; i < TURN_AWAY_READS &&
			recv(fd, junk, sizeof(junk), MSG_DONTWAIT) == (ssize_t)sizeof(junk);
	     i++)
		;
	if (send(fd, text, sizeof(text) - 1, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		shutdown(fd, SHUT_WR);
	fd_close(fd);
}

/*
 * Clients keep connections for what may come, as many as they like: those make room for who asks
 * now. Not one on which something has just come.
 */
static bool make_room(struct http_server *s)
{
	LIST_FOR(&s->peers, p, struct peer, node) {
		char c;

		if (p->state != PEER_IDLE || p->busy > 0 ||
		    recv(conn_fd(p->conn), &c, 1, MSG_PEEK | MSG_DONTWAIT) >= 0)
			continue;
		peer_close(p);
		return true;
	}
	return false;
}

void http_server_accept(struct http_server *s, int fd)
{
	static const int on = 1, unsent = UNSENT_BYTES;

	if (s->n_peers >= s->conf.max_conns && !make_room(s)) {
		turn_away(fd);
		return;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));      /* not a TCP socket: no harm */
	/*
	 * A client that does not read must not fill the kernel's buffers, which grow to megabytes
	 * each.
	 */
	setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
	struct peer *p = peer_new(s);
	p->conn =
		conn_new(s->loop, fd, HTTP_IN_MAX, HTTP_ANSWER_MAX + ANSWER_HEAD_MAX, on_event, p);
	peer_set_state(p, PEER_IDLE);
}

void http_server_return(struct http_server *s, struct conn *c)
{
	struct peer *p = peer_new(s);

	p->conn = c;
	conn_set_fn(c, on_event, p);
	/* Its error may have been told to the taker, and is told once. */
	if (conn_error(c)) {
		peer_close(p);
		return;
	}
	conn_pause(c, false);
	peer_set_state(p, PEER_WRITE);          /* what the taker queued goes out before the next request is looked at */
	if (conn_out_len(c) > 0)
		return;
	peer_set_state(p, PEER_IDLE);
	if (buf_len(conn_in(c)) > 0)
		conn_kick(c);
	else if (conn_eof(c))
		peer_close(p);
}

struct http_head *http_req_head(struct http_req *r)
{
	return &r->head;
}

void *http_req_user(struct http_req *r)
{
	return r->user;
}

void http_req_set_user(struct http_req *r, void *user)
{
	r->user = user;
}

int http_req_fd(const struct http_req *r)
{
	return r->peer->conn ? conn_fd(r->peer->conn) : -1;
}

void http_req_read_body(struct http_req *r, body_fn *fn, void *arg)
{
	struct peer *p = r->peer;

	assert(p->state == PEER_HANDLE && !r->body_fn);
	if (!p->conn) {
		peer_drop(p);
		return;
	}
	r->body_fn = fn;
	r->body_arg = arg;
	http_dec_init(&p->dec, &r->head, p->server->conf.max_body);
	buf_init(&r->body, p->server->conf.max_body + 1);
	peer_set_state(p, PEER_BODY);
	if (r->head.expect_continue && buf_len(conn_in(p->conn)) == 0 &&
	    !(r->head.body == HTTP_BODY_LENGTH && r->head.length > p->server->conf.max_body))
		conn_write(p->conn, "HTTP/1.1 100 Continue\r\n\r\n", 25);
	peer_run(p);
}

void http_req_answer(struct http_req *r, int status, const struct http_field *extra,
		     const char *content_type, const void *body, size_t len)
{
	struct peer *p = r->peer;

	assert(p->state == PEER_HANDLE && status >= 200);
	if (!p->conn) {
		peer_drop(p);
		return;
	}
	p->close = !reusable(p, &r->head);
	peer_write(p, &(struct answer){ status, extra, content_type, body, len }, &r->head);
	req_free(r);
	peer_run(p);
}

void http_req_error(struct http_req *r, int status, const struct http_field *extra,
		    const char *message)
{
	struct buf b;

	buf_init(&b, ERROR_BODY_MAX);
	error_json(&b, status, message);
	http_req_answer(r, status, extra, "application/json", buf_data(&b), buf_len(&b));
	buf_done(&b);
}

static void taken(struct conn *c, enum conn_event ev, void *arg)
{
}

struct conn *http_req_take(struct http_req *r, struct http_head *ret_head)
{
	struct peer *p = r->peer;
	struct conn *c = TAKE(p->conn);

	assert(p->state == PEER_HANDLE && !r->body_fn);
	if (c) {
		conn_set_timeout(c, 0);
		conn_set_fn(c, taken, NULL);
	}
	*ret_head = r->head;
	r->head = (struct http_head){ 0 };
	peer_drop(p);
	return c;
}
