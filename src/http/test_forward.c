/*
 * forward over real sockets: the test plays the client and the upstream server, the loop runs
 * between their moves.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "http/forward.h"

#define WAIT_MS 60000
#define HEAD_UP "POST /up HTTP/1.1\r\nHost: guest\r\n"

struct rig {
	struct loop *loop;
	struct forward *f;
	struct conn *client;
	int cfd, ufd;                     /* the test's ends */
	int fd;                           /* forward's end of the client, to look at */
	struct buf to_client, to_up;      /* what arrived there */
	bool client_eof, up_eof;
	int client_errno;
	unsigned released, failed;
	bool up_idle;
	enum forward_why why;
	bool ended;
	struct forward_end end;
	int swallow_status;
	const char *retry_head;           /* start again with this when an attempt failed and it can be */
	int reply_status;
};

static void on_released(struct forward *f, struct conn *idle, void *arg)
{
	struct rig *g = arg;

	g->released++;
	g->up_idle = idle != NULL;
	conn_free(idle);
}

static void unused(struct conn *c, enum conn_event ev, void *arg)
{
}

static void attach_up(struct rig *g, const char *head)
{
	int sv[2];

	assert_return_code(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv),
			   errno);
	fd_close(g->ufd);
	g->ufd = sv[1];
	g->up_eof = false;
	buf_clear(&g->to_up);
	forward_start(g->f,
		      conn_new(g->loop, sv[0], FORWARD_BUFFER_BYTES, FORWARD_BUFFER_BYTES, unused,
			       NULL),
		      head, strlen(head));
}

static void on_failed(struct forward *f, enum forward_why why, void *arg)
{
	struct rig *g = arg;

	g->failed++;
	g->why = why;
	if (g->retry_head && forward_can_retry(f))
		attach_up(g, TAKE(g->retry_head));
	else
		forward_reply(f, g->reply_status ? g->reply_status : 502, NULL, "text/plain",
			      "sorry", 5);
}

static void on_end(struct forward *f, const struct forward_end *end, void *arg)
{
	struct rig *g = arg;

	assert_false(g->ended);
	g->ended = true;
	g->end = *end;
	g->f = NULL;
}

static enum forward_head on_head(struct forward *f, const struct http_head *h, struct buf *out,
				 void *arg)
{
	struct rig *g = arg;

	if (h->status == g->swallow_status)
		return FORWARD_SWALLOW;
	http_put_status(out, h->status);
	http_put_forward(out, h, NULL, NULL);
	return FORWARD_PASS;
}

static struct forward_conf conf_of(struct rig *g)
{
	return (struct forward_conf) { .loop = g->loop,
				       .replay = true,
				       .connect_timeout_ms = WAIT_MS,
				       .head_timeout_ms = WAIT_MS,
				       .stall_timeout_ms = WAIT_MS,
				       .head = on_head,
				       .released = on_released,
				       .failed = on_failed,
				       .end = on_end,
				       .arg = g };
}

/* A connected pair; tcp so that resets can be seen. */
static void pair(bool tcp, int sv[2])
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(a);
	int ln;

	if (!tcp) {
		assert_return_code(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), errno);
		return;
	}
	ln = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_return_code(bind(ln, (struct sockaddr *)&a, sizeof(a)), errno);
	assert_return_code(listen(ln, 1), errno);
	assert_return_code(getsockname(ln, (struct sockaddr *)&a, &n), errno);
	sv[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_return_code(connect(sv[0], (struct sockaddr *)&a, sizeof(a)), errno);
	sv[1] = accept4(ln, NULL, NULL, SOCK_CLOEXEC);
	assert_return_code(sv[1], errno);
	close(ln);
}

static void rig_begin(struct rig *g, const struct forward_conf *c, bool tcp, const char *req_head)
{
	struct http_head h;
	enum http_error err;
	int sv[2];

	pair(tcp, sv);
	g->cfd = sv[0];
	g->fd = sv[1];
	g->ufd = -1;
	fd_set_nonblock(g->cfd, true);
	buf_init(&g->to_client, 256 << 20);
	buf_init(&g->to_up, 256 << 20);
	assert_true(http_parse_request(req_head, strlen(req_head), &h, &err) > 0);
	g->f = forward_new(c, conn_new(g->loop, sv[1], 65536, 16 << 20, unused, NULL), &h);
}

static void rig_open(struct rig *g, bool tcp, const char *req_head)
{
	struct forward_conf c;

	*g = (struct rig){ .loop = loop_new() };
	c = conf_of(g);
	rig_begin(g, &c, tcp, req_head);
}

static void rig_done(struct rig *g)
{
	if (g->f)
		forward_cut(g->f);
	for (int i = 0; i < 4; i++)
		loop_turn(g->loop, 0);
	assert_true(g->ended);
	conn_free(g->end.client);
	loop_turn(g->loop, 0);
	loop_free(g->loop);
	fd_close(g->cfd);
	fd_close(g->ufd);
	buf_done(&g->to_client);
	buf_done(&g->to_up);
}

static void collect(int fd, struct buf *b, bool *eof, int *error)
{
	ssize_t r;

	if (fd < 0 || *eof)
		return;
	do {
		r = buf_read_fd(b, fd, 65536);
	} while (r > 0);
	if (r == 0)
		*eof = true;
	else if (r != -EAGAIN) {
		*eof = true;
		if (error)
			*error = (int)-r;
	}
}

static void turn(struct rig *g)
{
	loop_turn(g->loop, 1);
	collect(g->cfd, &g->to_client, &g->client_eof, &g->client_errno);
	collect(g->ufd, &g->to_up, &g->up_eof, NULL);
}

#define WAIT(g, cond) do { \
	int64_t until_ = clock_mono_ms() + WAIT_MS; \
	while (!(cond)) { \
		turn(g); \
		if (clock_mono_ms() > until_) \
			fail_msg("waited in vain for: %s", #cond); \
	} \
} while (0)

static void put(int fd, const char *s)
{
	assert_int_equal(fd_write_all(fd, s, strlen(s), WAIT_MS), 0);
}

static bool has(struct buf *b, const char *want)
{
	return buf_len(b) >= strlen(want) && memmem(buf_data(b), buf_len(b), want, strlen(want));
}

static void assert_buf(struct buf *b, const char *want)
{
	if (buf_len(b) != strlen(want) || memcmp(buf_data(b), want, buf_len(b)) != 0)
		fail_msg("got \"%.*s\", wanted \"%s\"", (int)buf_len(b), buf_data(b), want);
}

#define REQ_CHUNKED "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
#define BODY_CHUNKED "5\r\nhello\r\n1;x=y\r\n!\r\n0\r\nT: v\r\n\r\n"
#define NEXT "GET /next HTTP/1.1\r\nHost: a\r\n\r\n"
#define UP_CHUNKED HEAD_UP "Transfer-Encoding: chunked\r\n\r\n"
#define ANSWER "HTTP/1.1 200 OK\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"

/* Both messages torn at every offset; what follows the request stays with the client's conn. */
static void test_torn(void **state)
{
	size_t n_in = strlen(BODY_CHUNKED NEXT), n_out = strlen(ANSWER);

	for (size_t cut = 0; cut <= (n_in > n_out ? n_in : n_out); cut++) {
		size_t ci = cut < n_in ? cut : n_in, co = cut < n_out ? cut : n_out;
		struct rig g;

		rig_open(&g, false, REQ_CHUNKED);
		attach_up(&g, UP_CHUNKED);
		assert_int_equal(fd_write_all(g.cfd, BODY_CHUNKED NEXT, ci, WAIT_MS), 0);
		for (int i = 0; i < 3; i++)
			turn(&g);
		put(g.cfd, BODY_CHUNKED NEXT + ci);
		WAIT(&g, buf_len(&g.to_up) >= strlen(UP_CHUNKED BODY_CHUNKED));
		assert_int_equal(fd_write_all(g.ufd, ANSWER, co, WAIT_MS), 0);
		for (int i = 0; i < 3; i++)
			turn(&g);
		put(g.ufd, ANSWER + co);
		WAIT(&g, g.ended);
		assert_int_equal(g.end.why, FORWARD_OK);
		assert_int_equal(g.end.status, 200);
		assert_true(g.up_idle);
		assert_buf(&g.to_up, UP_CHUNKED BODY_CHUNKED);
		assert_non_null(g.end.client);
		WAIT(&g, buf_len(conn_in(g.end.client)) >= strlen(NEXT));
		assert_buf(conn_in(g.end.client), NEXT);
		assert_buf(&g.to_client, ANSWER);
		rig_done(&g);
	}
}

static void test_bodyless(void **state)
{
	static const struct { const char *req, *answer, *client;
	} rows[] = {
		{ "HEAD /f HTTP/1.1\r\nHost: a\r\n\r\n",
		  "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n",
		  "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n" },
		{ "GET /f HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n",
		  "HTTP/1.1 204 No Content\r\n\r\n" },
		{ "GET /f HTTP/1.1\r\nHost: a\r\n\r\n",
		  "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n",
		  "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n" },
		{ "GET /f HTTP/1.1\r\nHost: a\r\n\r\n",
		  "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		  "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" },
		{ "GET /f HTTP/1.1\r\nHost: a\r\n\r\n",
		  "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
		  "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n" },
		{ "GET /f HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
		  "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nz",
		  "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\nz" },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct rig g;

		rig_open(&g, false, rows[i].req);
		attach_up(&g, "GET /f HTTP/1.1\r\nHost: g\r\n\r\n");
		put(g.ufd, rows[i].answer);
		WAIT(&g, g.ended);
		assert_non_null(g.end.client);
		assert_true(g.up_idle);
		turn(&g);
		assert_buf(&g.to_client, rows[i].client);
		rig_done(&g);
	}
}

static void test_until_close(void **state)
{
	struct rig g;

	rig_open(&g, false, "GET /f HTTP/1.1\r\nHost: a\r\n\r\n");
	attach_up(&g, "GET /f HTTP/1.1\r\nHost: g\r\n\r\n");
	put(g.ufd, "HTTP/1.0 200 OK\r\n\r\nall of it");
	WAIT(&g, has(&g.to_client, "all of it"));
	assert_false(g.ended);
	shutdown(g.ufd, SHUT_WR);
	WAIT(&g, g.ended);
	assert_false(g.up_idle);
	assert_non_null(g.end.client);
	turn(&g);
	assert_true(
		has(&g.to_client, "Transfer-Encoding: chunked\r\n\r\n9\r\nall of it\r\n0\r\n\r\n"));
	rig_done(&g);

	rig_open(&g, false, "GET /f HTTP/1.0\r\n\r\n");
	attach_up(&g, "GET /f HTTP/1.1\r\nHost: g\r\n\r\n");
	put(g.ufd, ANSWER);
	WAIT(&g, g.client_eof);
	assert_buf(&g.to_client, "HTTP/1.1 200 OK\r\nX-A: b\r\nConnection: close\r\n\r\nabc");
	shutdown(g.cfd, SHUT_WR);
	WAIT(&g, g.ended);
	assert_null(g.end.client);
	rig_done(&g);
}

static void test_rechunk(void **state)
{
	struct forward_conf c;
	struct rig g = { .loop = loop_new() };

	c = conf_of(&g);
	c.rechunk = true;
	rig_begin(&g, &c, false, "GET /f HTTP/1.1\r\nHost: a\r\n\r\n");
	attach_up(&g, "GET /f HTTP/1.1\r\nHost: g\r\n\r\n");
	put(g.ufd,
	    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nxy\r\n0\r\nSpace-Refusal: deny\r\n\r\n");
	WAIT(&g, g.ended);
	turn(&g);
	assert_true(g.up_idle);
	assert_buf(&g.to_client,
		   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nxy\r\n0\r\n\r\n");
	rig_done(&g);
}

static void test_expect(void **state)
{
	struct rig g;

	rig_open(&g, false,
		 "PUT /f HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
	attach_up(&g, "PUT /f HTTP/1.1\r\nHost: g\r\nContent-Length: 3\r\n\r\n");
	WAIT(&g, buf_len(&g.to_client) > 0);
	assert_buf(&g.to_client, "HTTP/1.1 100 Continue\r\n\r\n");
	put(g.cfd, "abc");
	WAIT(&g, has(&g.to_up, "\r\n\r\nabc"));
	put(g.ufd, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n");
	WAIT(&g, g.ended);
	turn(&g);
	assert_buf(&g.to_client, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n");
	assert_non_null(g.end.client);
	rig_done(&g);
}

static void test_upgrade(void **state)
{
	struct rig g;

	rig_open(
		&g, false,
		"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
	attach_up(
		&g,
		"GET /ws HTTP/1.1\r\nHost: g\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
	put(g.cfd, "early");
	put(g.ufd,
	    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nfirst");
	WAIT(&g, has(&g.to_up, "\r\n\r\nearly") && has(&g.to_client, "\r\n\r\nfirst"));
	assert_true(has(
		&g.to_client,
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"));
	shutdown(g.cfd, SHUT_WR);
	WAIT(&g, g.up_eof);
	put(g.ufd, "last words");
	WAIT(&g, has(&g.to_client, "last words"));
	assert_false(g.ended);
	shutdown(g.ufd, SHUT_WR);
	WAIT(&g, g.ended && g.client_eof);
	assert_int_equal(g.end.why, FORWARD_OK);
	assert_null(g.end.client);
	rig_done(&g);

	/* Nobody asked for a tunnel. */
	rig_open(&g, false, "GET /ws HTTP/1.1\r\nHost: a\r\n\r\n");
	attach_up(&g, "GET /ws HTTP/1.1\r\nHost: g\r\n\r\n");
	put(g.ufd,
	    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
	WAIT(&g, g.ended);
	assert_int_equal(g.why, FORWARD_UPSTREAM_BAD);
	assert_int_equal(g.end.status, 502);
	rig_done(&g);

	/* Refused: an ordinary answer, and what follows is the next request. */
	rig_open(
		&g, false,
		"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
	attach_up(
		&g,
		"GET /ws HTTP/1.1\r\nHost: g\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
	put(g.cfd, NEXT);
	put(g.ufd, "HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno");
	WAIT(&g, g.ended);
	assert_non_null(g.end.client);
	assert_buf(
		&g.to_up,
		"GET /ws HTTP/1.1\r\nHost: g\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
	rig_done(&g);
}

/*
 * An upstream that speaks no HTTP. And whose end is in order by shutdown(2) alone: closed
 * altogether it broke, and over TCP the client sees a reset.
 */
static void test_raw_tunnel(void **state)
{
	for (int closed = 0; closed < 4; closed++) {
		struct forward_conf c;
		struct rig g = { .loop = loop_new() };
		int sv[2];

		c = conf_of(&g);
		c.closed_is_broken = closed & 1;
		rig_begin(&g, &c, true,
			  "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n");
		pair(false, sv);
		g.ufd = sv[1];
		fd_set_nonblock(g.ufd, true);
		put(g.ufd, "first");
		put(g.cfd, "early");
		forward_tunnel(g.f, conn_new(g.loop, sv[0], FORWARD_BUFFER_BYTES,
					     FORWARD_BUFFER_BYTES, unused, NULL));
		WAIT(&g, has(&g.to_up, "early") && has(&g.to_client, "\r\n\r\nfirst"));
		assert_buf(&g.to_up, "early");
		assert_buf(&g.to_client,
			   "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\nfirst");
		put(g.ufd, "last");
		WAIT(&g, has(&g.to_client, "firstlast"));
		if (closed < 2)
			close(TAKE_FD(g.ufd));
		else
			shutdown(g.ufd, SHUT_WR);
		WAIT(&g, g.client_eof);
		assert_int_equal(g.client_errno, closed == 1 ? ECONNRESET : 0);
		/* After an end in order the other way goes on. */
		if (closed >= 2) {
			put(g.cfd, "still");
			WAIT(&g, has(&g.to_up, "earlystill"));
		}
		close(TAKE_FD(g.cfd));
		WAIT(&g, g.ended);
		assert_int_equal(g.end.status, 101);
		assert_int_equal(g.end.why, closed == 1 ? FORWARD_UPSTREAM_GONE : FORWARD_OK);
		rig_done(&g);
	}
}

/* Until forward reads no more: something stays in the kernel, in front of the client's end. */
static void stuff(struct rig *g)
{
	static const char piece[4096];
	int waits = 0;

	while (waits == 0) {
		assert_int_equal(send(g->cfd, piece, sizeof(piece), MSG_NOSIGNAL), sizeof(piece));
		for (int i = 0; i < 3; i++)
			loop_turn(g->loop, 0);
		assert_return_code(ioctl(g->fd, FIONREAD, &waits), errno);
	}
}

/* The upstream takes nothing meanwhile. */
static void await_end(struct rig *g)
{
	int64_t until = clock_mono_ms() + WAIT_MS;

	while (!g->ended) {
		assert_true(clock_mono_ms() < until);
		loop_turn(g->loop, 100);
	}
}

/* A client that leaves while the upstream takes nothing holds nothing. */
static void test_left_unread(void **state)
{
	for (int tcp = 0; tcp < 2; tcp++) {
		struct rig g;

		rig_open(&g, tcp, "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n");
		attach_up(&g, HEAD_UP "Content-Length: 99999999\r\n\r\n");
		stuff(&g);
		assert_false(g.ended);
		close(TAKE_FD(g.cfd));
		await_end(&g);
		assert_int_equal(g.end.why, FORWARD_CLIENT_GONE);
		assert_int_equal(g.released, 1);
		rig_done(&g);
	}
}

enum leaving { CLOSES, RESETS, HALF_CLOSES };

/*
 * The same in a tunnel. A cut is one for the upstream, too: it is closed altogether, not shut. What
 * only ended may still be taken by the upstream, but not for ever.
 */
static void leave_tunnel(enum leaving how, bool tcp, bool unread, enum forward_why why)
{
	struct linger now = { .l_onoff = 1 };
	struct rig g = { .loop = loop_new() };
	struct forward_conf c = conf_of(&g);
	struct pollfd p;
	int sv[2];

	c.closed_is_broken = true;
	c.stall_timeout_ms = 200;
	rig_begin(&g, &c, tcp,
		  "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n");
	pair(false, sv);
	g.ufd = sv[1];
	forward_tunnel(g.f, conn_new(g.loop, sv[0], FORWARD_BUFFER_BYTES, FORWARD_BUFFER_BYTES,
				     unused, NULL));
	if (unread)
		stuff(&g);
	else
		put(g.cfd, "some");
	if (how == RESETS)
		setsockopt(g.cfd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	if (how == HALF_CLOSES)
		shutdown(g.cfd, SHUT_WR);
	else
		close(TAKE_FD(g.cfd));
	await_end(&g);
	assert_int_equal(g.end.why, why);
	p = (struct pollfd){ .fd = g.ufd };
	assert_int_equal(poll(&p, 1, 0), 1);
	assert_true(p.revents & POLLHUP);
	rig_done(&g);
}

static void test_left_tunnel(void **state)
{
	leave_tunnel(CLOSES, false, false, FORWARD_CLIENT_GONE);
	leave_tunnel(CLOSES, false, true, FORWARD_CLIENT_GONE);
	leave_tunnel(RESETS, true, false, FORWARD_CLIENT_GONE);
	leave_tunnel(RESETS, true, true, FORWARD_CLIENT_GONE);
	leave_tunnel(HALF_CLOSES, true, true, FORWARD_TIMEOUT);
	leave_tunnel(HALF_CLOSES, false, true, FORWARD_TIMEOUT);
}

/*
 * Bytes behind an answer belong to nobody: the client never sees them and the connection is not
 * used again.
 */
static void test_smuggled_answer(void **state)
{
	struct rig g;

	rig_open(&g, false, "GET /f HTTP/1.1\r\nHost: a\r\n\r\n");
	attach_up(&g, "GET /f HTTP/1.1\r\nHost: g\r\n\r\n");
	put(g.ufd,
	    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
	WAIT(&g, g.ended);
	turn(&g);
	assert_buf(&g.to_client, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	assert_false(g.up_idle);
	rig_done(&g);
}

static void test_bad_messages(void **state)
{
	static const char *const answers[] = {
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\nContent-Length: 2\n\nab",
		"nonsense\r\n\r\n",
		"HTTP/1.1 99 X\r\n\r\n",
	};
	static const char *const bodies[] = { "x\r\n", "5\nhello\n", "5\r\nhelloX\r\n", "-1\r\n",
					      "11111111111111111\r\n" };

	for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
		struct rig g;

		rig_open(&g, false, "GET /f HTTP/1.1\r\nHost: a\r\n\r\n");
		attach_up(&g, "GET /f HTTP/1.1\r\nHost: g\r\n\r\n");
		put(g.ufd, answers[i]);
		WAIT(&g, g.ended);
		assert_int_equal(g.why, FORWARD_UPSTREAM_BAD);
		assert_int_equal(g.end.status, 502);
		assert_non_null(g.end.client);
		rig_done(&g);
	}
	for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
		struct rig g;

		rig_open(&g, false, REQ_CHUNKED);
		g.reply_status = 400;
		attach_up(&g, UP_CHUNKED);
		put(g.cfd, "3\r\nabc\r\n");
		WAIT(&g, has(&g.to_up, "abc"));
		put(g.cfd, bodies[i]);
		put(g.cfd, NEXT);
		WAIT(&g, g.failed && g.client_eof);
		assert_int_equal(g.why, FORWARD_BODY_BAD);
		assert_true(has(&g.to_client, "400 Bad Request"));
		assert_true(has(&g.to_client, "Connection: close"));
		WAIT(&g, g.up_eof);
		assert_false(has(&g.to_up, "GET /next"));
		shutdown(g.cfd, SHUT_WR);
		WAIT(&g, g.ended);
		assert_null(g.end.client);
		rig_done(&g);
	}
}

static void test_early_answer(void **state)
{
	struct rig g;

	/* The rest is small: drained, and the connection lives on. */
	rig_open(&g, false, "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n");
	attach_up(&g, HEAD_UP "Content-Length: 10\r\n\r\n");
	put(g.cfd, "01234");
	WAIT(&g, has(&g.to_up, "01234"));
	put(g.ufd, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno");
	WAIT(&g, has(&g.to_client, "\r\n\r\nno") && g.released);
	assert_false(g.ended);
	assert_false(g.up_idle);
	put(g.cfd, "56789" NEXT);
	WAIT(&g, g.ended);
	assert_non_null(g.end.client);
	assert_buf(conn_in(g.end.client), NEXT);
	rig_done(&g);

	/* It is not: the answer arrives, then the connection ends. */
	rig_open(&g, true, "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n");
	attach_up(&g, HEAD_UP "Content-Length: 1000000000\r\n\r\n");
	put(g.ufd, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno");
	shutdown(g.ufd, SHUT_WR);
	for (int64_t until = clock_mono_ms() + WAIT_MS; !g.client_eof && clock_mono_ms() < until;) {
		char junk[65536] = "";

		if (send(g.cfd, junk, sizeof(junk), MSG_NOSIGNAL) < 0 && errno != EAGAIN)
			break;
		turn(&g);
	}
	assert_true(has(&g.to_client, "HTTP/1.1 413"));
	assert_true(has(&g.to_client, "\r\n\r\nno"));
	shutdown(g.cfd, SHUT_WR);
	WAIT(&g, g.ended);
	assert_null(g.end.client);
	rig_done(&g);

	/*
	 * The upstream answers and closes while bytes for it are on their way: its answer is not
	 * lost.
	 */
	rig_open(&g, false, "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n");
	attach_up(&g, HEAD_UP "Content-Length: 200000\r\n\r\n");
	put(g.cfd, "part");
	for (int i = 0; i < 3; i++)
		loop_turn(g.loop, 1);
	put(g.ufd, "HTTP/1.1 507 Insufficient Storage\r\nContent-Length: 2\r\n\r\nno");
	fd_close(TAKE_FD(g.ufd));
	put(g.cfd, "more");
	WAIT(&g, has(&g.to_client, "507 Insufficient Storage"));
	WAIT(&g, has(&g.to_client, "\r\n\r\nno"));
	rig_done(&g);
}

static bool acked(const struct rig *g)
{
	struct tcp_info i;
	socklen_t n = sizeof(i);

	return getsockopt(g->fd, IPPROTO_TCP, TCP_INFO, &i, &n) == 0 && i.tcpi_unacked == 0;
}

/*
 * What goes to a client that does not read is cut with a reset; an answer without framing, too,
 * even when nothing is on its way.
 */
static void test_cut_resets(void **state)
{
	struct rig g;

	for (int i = 0; i < 2; i++) {
		rig_open(&g, true, i ? "POST /f HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"
				     : "POST /f HTTP/1.0\r\nContent-Length: 1\r\n\r\n");
		put(g.cfd, "x");
		attach_up(&g, "GET /f HTTP/1.1\r\nHost: g\r\n\r\n");
		put(g.ufd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
		WAIT(&g, has(&g.to_client, "hello") && acked(&g));
		if (i) {
			int small = 1;
			char block[4100];

			assert_return_code(setsockopt(g.cfd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), errno);
			memset(block, 'x', sizeof(block));
			memcpy(block, "1000\r\n", 6);
			for (int k = 0; k < 64; k++) {
				char head[] = "1000\r\n";

				if (write(g.ufd, head, 6) != 6 || write(g.ufd, block, 4096) != 4096 ||
				    write(g.ufd, "\r\n", 2) != 2)
					break;
				loop_turn(g.loop, 0);
			}
			assert_false(acked(&g));
		}
		forward_cut(g.f);
		WAIT(&g, g.ended && g.client_eof);
		assert_int_equal(g.client_errno, ECONNRESET);
		rig_done(&g);
	}
}

static void test_cut_answer(void **state)
{
	static const char *const rests[] = {
		"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npartial",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
	};

	for (size_t i = 0; i < ARRAY_LEN(rests); i++) {
		for (int tcp = 0; tcp < 3; tcp++) {
			bool sized = tcp == 2;
			struct rig g;

			rig_open(&g, tcp, sized ? "POST /f HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"
						: "GET /f HTTP/1.1\r\nHost: a\r\n\r\n");
			if (sized)
				put(g.cfd, "x");
			attach_up(&g, "GET /f HTTP/1.1\r\nHost: g\r\n\r\n");
			put(g.ufd, rests[i]);
			WAIT(&g, has(&g.to_client, i ? "hello" : "partial") && (!tcp || acked(&g)));
			fd_close(TAKE_FD(g.ufd));
			WAIT(&g, g.ended && g.client_eof);
			assert_int_equal(g.end.why, FORWARD_UPSTREAM_GONE);
			assert_null(g.end.client);
			assert_int_equal(g.client_errno, tcp && !sized ? ECONNRESET : 0);
			assert_false(has(&g.to_client, "\r\n0\r\n\r\n"));
			rig_done(&g);
		}
	}

	/* A request that the upstream never answers. */
	struct rig g;

	rig_open(&g, false, "GET /f HTTP/1.1\r\nHost: a\r\n\r\n");
	attach_up(&g, "GET /f HTTP/1.1\r\nHost: g\r\n\r\n");
	put(g.ufd, "HTTP/1.1 200 O");
	fd_close(TAKE_FD(g.ufd));
	WAIT(&g, g.ended);
	assert_int_equal(g.why, FORWARD_UPSTREAM_GONE);
	assert_int_equal(g.end.status, 502);
	rig_done(&g);
}

static void test_cut_from_outside(void **state)
{
	struct rig g;

	rig_open(&g, true, "GET /f HTTP/1.1\r\nHost: a\r\n\r\n");
	attach_up(&g, "GET /f HTTP/1.1\r\nHost: g\r\n\r\n");
	put(g.ufd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
	WAIT(&g, has(&g.to_client, "hello") && acked(&g));
	put(g.ufd, "6\r\nsecret\r\n");
	forward_cut(g.f);
	WAIT(&g, g.ended && g.client_eof && g.up_eof);
	assert_int_equal(g.end.why, FORWARD_CUT);
	assert_int_equal(g.client_errno, ECONNRESET);
	assert_false(has(&g.to_client, "secret"));
	assert_int_equal(g.released, 1);
	rig_done(&g);
}

static void test_client_gone(void **state)
{
	struct rig g;

	/* before anything was started, within the body, and while the answer is awaited */
	for (int when = 0; when < 3; when++) {
		rig_open(&g, true, "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
		if (when > 0) {
			attach_up(&g, HEAD_UP "Content-Length: 5\r\n\r\n");
			put(g.cfd, when == 1 ? "01" : "01234");
			WAIT(&g, has(&g.to_up, "01"));
		}
		fd_close(TAKE_FD(g.cfd));
		WAIT(&g, g.ended && (when == 0 || g.up_eof));
		assert_int_equal(g.end.why, FORWARD_CLIENT_GONE);
		assert_int_equal(g.released, when > 0);
		rig_done(&g);
	}
}

static void test_retry(void **state)
{
	struct rig g;

	/* Refused after some of the body was sent: the second attempt gets all of it. */
	rig_open(&g, false, REQ_CHUNKED);
	g.swallow_status = 421;
	g.retry_head = "POST /second HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n";
	attach_up(&g, UP_CHUNKED);
	put(g.cfd, "5\r\nhel");
	WAIT(&g, has(&g.to_up, "hel"));
	put(g.ufd,
	    "HTTP/1.1 421 Misdirected Request\r\nSpace-Refusal: refresh-route\r\nContent-Length: 2\r\n\r\nxx");
	WAIT(&g, g.failed == 1 && has(&g.to_up, "/second"));
	assert_int_equal(g.why, FORWARD_SWALLOWED);
	put(g.cfd, "lo\r\n0\r\n\r\n");
	WAIT(&g, has(&g.to_up, "\r\n\r\n5\r\nhello\r\n0\r\n\r\n"));
	put(g.ufd, ANSWER);
	WAIT(&g, g.ended);
	turn(&g);
	assert_buf(&g.to_client, ANSWER);
	assert_int_equal(g.released, 2);
	assert_int_equal(g.end.in_bytes, 15);
	assert_true(g.up_idle);
	assert_non_null(g.end.client);
	rig_done(&g);

	/* Too much was sent to be kept. */
	rig_open(&g, false, "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 70000\r\n\r\n");
	g.swallow_status = 421;
	g.retry_head = UP_CHUNKED;
	attach_up(&g, HEAD_UP "Content-Length: 70000\r\n\r\n");
	char *body = x_alloc(70001);
	memset(body, 'b', 70000);
	put(g.cfd, body);
	free(body);
	WAIT(&g, buf_len(&g.to_up) > 70000);
	put(g.ufd, "HTTP/1.1 421 Misdirected Request\r\nContent-Length: 0\r\n\r\n");
	WAIT(&g, g.ended);
	assert_non_null(g.retry_head);
	assert_int_equal(g.end.status, 502);
	assert_non_null(g.end.client);
	rig_done(&g);
}

static void test_timeouts(void **state)
{
	struct forward_conf c;
	struct rig g = { .loop = loop_new() };

	c = conf_of(&g);
	c.head_timeout_ms = 30;
	rig_begin(&g, &c, false, "GET /f HTTP/1.1\r\nHost: a\r\n\r\n");
	g.reply_status = 504;
	attach_up(&g, "GET /f HTTP/1.1\r\nHost: g\r\n\r\n");
	WAIT(&g, g.ended);
	assert_int_equal(g.why, FORWARD_TIMEOUT);
	assert_int_equal(g.end.status, 504);
	assert_non_null(g.end.client);
	rig_done(&g);

	g = (struct rig){ .loop = loop_new() };
	c = conf_of(&g);
	c.stall_timeout_ms = 30;
	rig_begin(&g, &c, false, "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
	g.reply_status = 408;
	attach_up(&g, HEAD_UP "Content-Length: 5\r\n\r\n");
	put(g.cfd, "01");
	WAIT(&g, has(&g.to_client, "408 Request Timeout") && g.client_eof);
	assert_int_equal(g.why, FORWARD_BODY_STALLED);
	shutdown(g.cfd, SHUT_WR);
	WAIT(&g, g.ended);
	assert_null(g.end.client);
	rig_done(&g);
}

/* ---- big bodies ---- */

#define BIG (64 << 20)
#define PIECE 65536

static void fill(char *p, size_t n, size_t at)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (char)((at + i) * 2654435761u >> 13);
}

/* Moves BIG bytes from one end to the other through f; returns MB/s. */
static double big(struct rig *g, int from, int to, size_t skip)
{
	static char src[PIECE], got[PIECE], want[PIECE];
	size_t sent = 0, part = 0, seen = 0;
	int64_t begin = clock_mono_ms(), until = begin + 2 * WAIT_MS;

	while (seen < BIG && clock_mono_ms() < until) {
		ssize_t r;

		if (sent < BIG) {
			if (part == 0)
				fill(src, PIECE, sent);
			r = send(from, src + part, PIECE - part, MSG_DONTWAIT | MSG_NOSIGNAL);
			if (r > 0) {
				part = (part + (size_t)r) % PIECE;
				sent += (size_t)r;
			}
		}
		loop_turn(g->loop, 0);
		while ((r = recv(to, got, sizeof(got), MSG_DONTWAIT)) > 0) {
			size_t n = (size_t)r, drop = skip < n ? skip : n;

			skip -= drop;
			n -= drop;
			fill(want, n, seen);
			assert_memory_equal(got + drop, want, n);
			seen += n;
		}
	}
	assert_int_equal(seen, BIG);
	return BIG / 1048576.0 * 1000 / (double)(clock_mono_ms() - begin + 1);
}

static void test_big(void **state)
{
	char head[200];
	struct rig g;

	str_format(head, sizeof(head), "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n",
		   BIG);
	rig_open(&g, true, head);
	attach_up(&g, HEAD_UP "\r\n");
	double up = big(&g, g.cfd, g.ufd, strlen(HEAD_UP "\r\n"));
	str_format(head, sizeof(head), "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", BIG);
	put(g.ufd, head);
	double down = big(&g, g.ufd, g.cfd, strlen(head));
	WAIT(&g, g.ended);
	assert_non_null(g.end.client);
	assert_true(g.up_idle);
	assert_int_equal(g.end.in_bytes, BIG);
	assert_int_equal(g.end.out_bytes, BIG);
	print_message("forward: %.0f MB/s to the upstream, %.0f MB/s back\n", up, down);
	rig_done(&g);
}

/* How much a writer gets rid of while nobody reads. */
static size_t push(struct rig *g, int fd, bool chunks)
{
	static char junk[4096];
	size_t sent = 0;
	int64_t until = clock_mono_ms() + WAIT_MS;
	char line[4096 + 16];
	size_t n = sizeof(junk);
	const char *p = junk;

	if (chunks) {
		str_format(line, sizeof(line), "1000\r\n");
		memset(line + 6, 'x', 4096);
		memcpy(line + 6 + 4096, "\r\n", 2);
		p = line;
		n = 6 + 4096 + 2;
	}
	for (int idle = 0; idle < 50 && clock_mono_ms() < until;) {
		struct pollfd pf = { .fd = fd, .events = POLLOUT };

		loop_turn(g->loop, 0);
		if (poll(&pf, 1, 1) == 1 && sent < (64 << 20)) {
			ssize_t r = send(fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);

			if (r > 0) {
				sent += (size_t)r;
				idle = 0;
				if (chunks && (size_t)r < n)
					break;
				continue;
			}
		}
		idle++;
	}
	return sent;
}

static void test_slow_reader(void **state)
{
	struct rig g;

	for (int rechunk = 0; rechunk < 2; rechunk++) {
		struct forward_conf c;

		g = (struct rig){ .loop = loop_new() };
		c = conf_of(&g);
		c.rechunk = rechunk;
		rig_begin(&g, &c, false, "GET /f HTTP/1.1\r\nHost: a\r\n\r\n");
		attach_up(&g, "GET /f HTTP/1.1\r\nHost: g\r\n\r\n");
		put(g.ufd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
		/* two sockets' buffers and two of ours */
		assert_in_range(push(&g, g.ufd, true), 1, 1 << 20);
		rig_done(&g);
	}
	rig_open(&g, false, "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n");
	attach_up(&g, HEAD_UP "Content-Length: 1000000000\r\n\r\n");
	assert_in_range(push(&g, g.cfd, false), 1, 1 << 20);
	rig_done(&g);
	rig_open(&g, false,
		 "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
	attach_up(&g, "GET /ws HTTP/1.1\r\nHost: g\r\n\r\n");
	put(g.ufd, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
	assert_in_range(push(&g, g.ufd, false), 1, 1 << 20);
	assert_in_range(push(&g, g.cfd, false), 1, 1 << 20);
	rig_done(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_torn),
		cmocka_unit_test(test_bodyless),
		cmocka_unit_test(test_until_close),
		cmocka_unit_test(test_rechunk),
		cmocka_unit_test(test_expect),
		cmocka_unit_test(test_upgrade),
		cmocka_unit_test(test_raw_tunnel),
		cmocka_unit_test(test_left_unread),
		cmocka_unit_test(test_left_tunnel),
		cmocka_unit_test(test_smuggled_answer),
		cmocka_unit_test(test_bad_messages),
		cmocka_unit_test(test_early_answer),
		cmocka_unit_test(test_cut_answer),
		cmocka_unit_test(test_cut_resets),
		cmocka_unit_test(test_cut_from_outside),
		cmocka_unit_test(test_client_gone),
		cmocka_unit_test(test_retry),
		cmocka_unit_test(test_timeouts),
		cmocka_unit_test(test_big),
		cmocka_unit_test(test_slow_reader),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
