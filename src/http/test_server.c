/*
 * The server over socket pairs: the test is the client, the loop is turned until what is waited for
 * has come.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "http/server.h"

#define DEADLINE_MS 60000
#define MAX_CONNS 3
#define MAX_BODY 1000
#define BIG_BYTES (4 << 20)

struct env {
	struct loop *loop;
	struct http_server *server;
	int fd;                         /* the client's end */
	struct buf got;
	bool eof;
	struct http_req *held;
	unsigned n_handled, n_gone, n_end, n_body;
	struct conn *taken;
	struct http_head taken_head;
};

static const char ok[] = "HTTP/1.1 200 OK\r\n";

static void echo(struct http_req *r, const char *body, size_t len, void *arg)
{
	struct env *env = arg;

	env->n_body++;
	assert_int_equal(body[len], 0);
	http_req_answer(r, 200, NULL, "text/plain", body, len);
}

static void on_big(struct http_req *r, struct env *env)
{
	autofree char *body = x_alloc(BIG_BYTES);

	memset(body, 'b', BIG_BYTES);
	http_req_answer(r, 200, NULL, NULL, body, BIG_BYTES);
}

static void on_hello(struct http_req *r, struct env *env)
{
	http_req_answer(r, 200, (const struct http_field[]) { { "X-A", "1" }, { 0 } }, "text/plain",
			"hello", 5);
}

static void on_echo(struct http_req *r, struct env *env)
{
	http_req_read_body(r, echo, env);
}

static void on_hold(struct http_req *r, struct env *env)
{
	http_req_set_user(r, env);
	env->held = r;
}

static void on_take(struct http_req *r, struct env *env)
{
	env->taken = http_req_take(r, &env->taken_head);
}

static void on_bad_field(struct http_req *r, struct env *env)
{
	http_req_answer(r, 200, (const struct http_field[]) { { "X-A", "1\r\nX-B: 2" }, { 0 } },
			NULL, "x", 1);
}

static void on_error(struct http_req *r, struct env *env)
{
	http_req_error(r, 404, NULL, "no \"such\"\n\xff");
}

static void on_empty(struct http_req *r, struct env *env)
{
	http_req_answer(r, 204, NULL, NULL, NULL, 0);
}

static void on_free_server(struct http_req *r, struct env *env)
{
	http_server_free(TAKE(env->server));
}

static const struct {
	const char *target;
	void (*fn)(struct http_req *r, struct env *env);
} routes[] = {
	{ "/big", on_big },	{ "/hello", on_hello }, { "/echo", on_echo },
	{ "/hold", on_hold },	{ "/take", on_take },	{ "/bad-field", on_bad_field },
	{ "/error", on_error }, { "/empty", on_empty }, { "/free-server", on_free_server },
};

static void handle(struct http_req *r, void *arg)
{
	struct env *env = arg;

	env->n_handled++;
	for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
		if (str_eq(routes[i].target, http_req_head(r)->target)) {
			routes[i].fn(r, env);
			return;
		}
	}
	fail_msg("unexpected target %s", http_req_head(r)->target);
}

static void gone(struct http_req *r, void *arg)
{
	((struct env *)arg)->n_gone++;
}

static void end(struct http_req *r, void *arg)
{
	((struct env *)arg)->n_end++;
}

static int connect_env(struct env *env)
{
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair),
			 0);
	http_server_accept(env->server, pair[1]);
	return pair[0];
}

static int setup_with(void **state, int head_timeout_ms, int idle_timeout_ms)
{
	struct env *env = x_alloc(sizeof(*env));

	env->loop = loop_new();
	env->server =
		http_server_new(env->loop,
				&(struct http_server_conf) { .head_timeout_ms = head_timeout_ms,
							     .idle_timeout_ms = idle_timeout_ms,
							     .max_conns = MAX_CONNS,
							     .max_body = MAX_BODY,
							     .handle = handle,
							     .gone = gone,
							     .end = end,
							     .arg = env });
	buf_init(&env->got, 2 * BIG_BYTES);
	env->fd = connect_env(env);
	*state = env;
	return 0;
}

static int setup(void **state)
{
	return setup_with(state, DEADLINE_MS, DEADLINE_MS);
}

static int setup_hasty(void **state)
{
	return setup_with(state, 50, 50);
}

/* For a reader who takes a piece each PIECE_MS. */
#define PIECE_MS 20
#define STALL_MS (20 * PIECE_MS)
static int setup_steady(void **state)
{
	return setup_with(state, DEADLINE_MS, STALL_MS);
}

/* A short head time-out beside a long idle one. */
static int setup_slow(void **state)
{
	return setup_with(state, 100, DEADLINE_MS);
}

static int teardown(void **state)
{
	struct env *env = *state;

	http_server_free(env->server);
	conn_free(env->taken);
	http_head_done(&env->taken_head);
	loop_free(env->loop);
	fd_close(env->fd);
	buf_done(&env->got);
	free(env);
	return 0;
}

static void pump(struct env *env)
{
	loop_turn(env->loop, 5);
	for (ssize_t n = 1; n > 0 && !env->eof;) {
		n = buf_read_fd(&env->got, env->fd, 65536);
		env->eof = n == 0 || n == -ECONNRESET;
	}
}

#define PUMP_UNTIL(env, what)                                                                      \
	do {                                                                                       \
		for (int64_t end_ms_ = clock_mono_ms() + DEADLINE_MS; !(what);) {                  \
			pump(env);                                                                 \
			if (clock_mono_ms() > end_ms_)                                             \
				fail_msg("%s: not in time; got: %.*s", #what,                      \
					 (int)buf_len(&(env)->got), buf_data(&(env)->got));        \
		}                                                                                  \
	} while (0)

static void say_n(struct env *env, const char *p, size_t n)
{
	for (int64_t end_ms = clock_mono_ms() + DEADLINE_MS; n > 0;) {
		ssize_t r = send(env->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (r > 0) {
			p += r;
			n -= (size_t)r;
		} else {
			assert_int_equal(errno, EAGAIN);
			pump(env);
		}
		assert_true(clock_mono_ms() < end_ms);
	}
}

static void say(struct env *env, const char *text)
{
	say_n(env, text, strlen(text));
}

static bool has(const struct env *env, const char *text)
{
	return memmem(buf_data(&env->got), buf_len(&env->got), text, strlen(text)) != NULL;
}

/* How often `text` was received. */
static unsigned count(const struct env *env, const char *text)
{
	const char *p = buf_data(&env->got), *stop = p + buf_len(&env->got);
	unsigned n = 0;

	while ((p = memmem(p, (size_t)(stop - p), text, strlen(text)))) {
		n++;
		p += strlen(text);
	}
	return n;
}

#define GET(target) "GET " target " HTTP/1.1\r\nHost: a\r\n\r\n"
#define POST(target, fields, body) "POST " target " HTTP/1.1\r\nHost: a\r\n" fields "\r\n" body

static void test_keep_alive(void **state)
{
	struct env *env = *state;

	for (unsigned i = 1; i <= 3; i++) {
		say(env, GET("/hello"));
		PUMP_UNTIL(env, count(env, "\r\n\r\nhello") == i);
	}
	assert_true(has(env, "Content-Type: text/plain\r\nContent-Length: 5\r\nX-A: 1\r\n\r\n"));
	assert_true(has(env, "\r\nDate: ") && has(env, " GMT\r\n"));
	assert_false(has(env, "Connection:"));
	assert_false(env->eof);
	assert_int_equal(http_server_conns(env->server), 1);
	say(env, "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
	PUMP_UNTIL(env, env->eof);
	assert_int_equal(count(env, "Connection: close\r\n"), 1);
	assert_int_equal(count(env, ok), 4);
	assert_int_equal(env->n_end, 4);
	fd_close(TAKE_FD(env->fd));
	for (int64_t end_ms = clock_mono_ms() + DEADLINE_MS; http_server_conns(env->server) > 0;) {
		loop_turn(env->loop, 5);
		assert_true(clock_mono_ms() < end_ms);
	}
}

static void test_http10(void **state)
{
	struct env *env = *state;

	say(env, "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
	PUMP_UNTIL(env, has(env, "hello"));
	assert_true(has(env, "Connection: keep-alive\r\n"));
	say(env, "GET /hello HTTP/1.0\r\n\r\n");
	PUMP_UNTIL(env, env->eof);
	assert_true(has(env, "Connection: close\r\n"));
	assert_int_equal(count(env, ok), 2);
}

static void test_pipelining(void **state)
{
	struct env *env = *state;

	/*
	 * In one piece, the held one in the middle: what follows it must wait, and the order of the
	 * answers hold.
	 */
	say(env, GET("/hello") POST("/echo", "Content-Length: 3\r\n", "abc") GET("/hold")
			 POST("/echo", "Transfer-Encoding: chunked\r\n", "2\r\nde\r\n0\r\n\r\n")
				 GET("/hello"));
	PUMP_UNTIL(env, env->held);
	pump(env);
	assert_int_equal(env->n_handled, 3);
	http_req_answer(TAKE(env->held), 200, NULL, NULL, "held", 4);
	PUMP_UNTIL(env, count(env, "hello") == 2);
	const char *p = buf_data(&env->got);
	static const char *const order[] = { "\r\n\r\nhello", "\r\n\r\nabc", "\r\n\r\nheld",
					     "\r\n\r\nde", "\r\n\r\nhello" };
	for (size_t i = 0; i < ARRAY_LEN(order); i++) {
		p = memmem(p, (size_t)(buf_data(&env->got) + buf_len(&env->got) - p), order[i],
			   strlen(order[i]));
		assert_non_null(p);
	}
	assert_int_equal(env->n_gone, 0);
}

static void test_deep_pipeline(void **state)
{
	struct env *env = *state;

	for (unsigned i = 0; i < 5000; i++)
		say(env, GET("/hello"));
	PUMP_UNTIL(env, count(env, "\r\n\r\nhello") == 5000);
}

static void test_byte_by_byte(void **state)
{
	struct env *env = *state;
	static const char text[] = POST("/echo", "Transfer-Encoding: chunked\r\n",
					"3\r\nabc\r\n2;x\r\nde\r\n0\r\nT: 1\r\n\r\n") GET("/hello");

	for (size_t i = 0; i < sizeof(text) - 1; i++) {
		say_n(env, text + i, 1);
		loop_turn(env->loop, 0);
	}
	PUMP_UNTIL(env, has(env, "\r\n\r\nhello"));
	assert_true(has(env, "\r\n\r\nabcde"));
}

static void test_head_timeout(void **state)
{
	struct env *env = *state;
	int64_t start_ms = clock_mono_ms();

	/* Steady drops do not help: the deadline is for the whole head. */
	say(env, "GET /hello HTTP/1.1\r\nHost: a\r\nA: ");
	while (!env->eof && clock_mono_ms() - start_ms < DEADLINE_MS) {
		send(env->fd, "a", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		pump(env);
	}
	assert_true(env->eof);
	assert_true(clock_mono_ms() - start_ms >= 90);
	assert_true(has(env, "HTTP/1.1 408 "));
	assert_true(has(env, "Connection: close\r\n"));
	assert_int_equal(env->n_handled, 0);
}

static void test_idle_timeout(void **state)
{
	struct env *env = *state;

	PUMP_UNTIL(env, env->eof);
	assert_int_equal(buf_len(&env->got), 0);
	assert_int_equal(http_server_conns(env->server), 0);
}

static void test_body_timeout(void **state)
{
	struct env *env = *state;

	say(env, POST("/echo", "Content-Length: 3\r\n", "ab"));
	PUMP_UNTIL(env, env->eof);
	assert_true(has(env, "HTTP/1.1 408 "));
	assert_int_equal(env->n_body, 0);
	assert_int_equal(env->n_end, 1);
}

static void test_reader_stalls(void **state)
{
	struct env *env = *state;

	/* Nobody reads the answer: the connection is given up, not kept for ever. */
	say(env, GET("/big"));
	for (int64_t end_ms = clock_mono_ms() + DEADLINE_MS;
	     env->n_handled == 0 || http_server_conns(env->server) > 0;) {
		loop_turn(env->loop, 5);
		assert_true(clock_mono_ms() < end_ms);
	}
}

/* Nor because it sends something now and then. */
static void test_reader_stalls_and_sends(void **state)
{
	struct env *env = *state;
	int64_t next_ms = 0;

	say(env, GET("/big"));
	for (int64_t end_ms = clock_mono_ms() + DEADLINE_MS;
	     env->n_handled == 0 || http_server_conns(env->server) > 0;) {
		if (clock_mono_ms() >= next_ms) {
			send(env->fd, "G", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
			next_ms = clock_mono_ms() + 10;
		}
		loop_turn(env->loop, 5);
		assert_true(clock_mono_ms() < end_ms);
	}
}

/* Returns the longest time between two pieces. */
static int64_t read_slowly(struct env *env)
{
	int64_t last_ms = clock_mono_ms(), longest = 0;

	while (!env->eof && buf_len(&env->got) < BIG_BYTES) {
		ssize_t n = buf_read_fd(&env->got, env->fd, BIG_BYTES / 60);
		int64_t took;

		env->eof = n == 0 || n == -ECONNRESET;
		do {
			loop_turn(env->loop, 5);
			took = clock_mono_ms() - last_ms;
		} while (took < PIECE_MS);
		longest = took > longest ? took : longest;
		last_ms += took;
	}
	return longest;
}

/*
 * Slow is not stalled: an answer may take many times as long as a piece of it. Where this test
 * itself stood still, as on a machine with much to do, it begins anew.
 */
static void test_slow_reader(void **state)
{
	struct env *env = *state;
	int64_t end_ms = clock_mono_ms() + DEADLINE_MS, start_ms;

	for (;;) {
		start_ms = clock_mono_ms();
		say(env, GET("/big"));
		if (read_slowly(env) < STALL_MS / 2 || buf_len(&env->got) >= BIG_BYTES ||
		    clock_mono_ms() > end_ms)
			break;
		fd_close(env->fd);
		env->fd = connect_env(env);
		env->eof = false;
		buf_consume(&env->got, buf_len(&env->got));
	}
	assert_true(buf_len(&env->got) >= BIG_BYTES);
	assert_true(clock_mono_ms() - start_ms > 2 * STALL_MS);
}

/* Those that are idle give way, the longest idle one first; one that has just asked does not. */
static void test_idle_gives_way(void **state)
{
	struct env *env = *state;
	int more[MAX_CONNS], first = env->fd;

	for (unsigned i = 0; i < MAX_CONNS - 1; i++)
		more[i] = connect_env(env);
	/* The first was idle last, and the second asks at this moment. */
	say(env, GET("/hello"));
	PUMP_UNTIL(env, has(env, "hello"));
	env->fd = more[0];
	say(env, GET("/hello"));
	more[MAX_CONNS - 1] = connect_env(env);
	assert_int_equal(http_server_conns(env->server), MAX_CONNS);
	for (unsigned i = 0; i < 4; i++) {
		const int fds[] = { first, more[0], more[MAX_CONNS - 1], more[1] };

		env->fd = fds[i];
		buf_clear(&env->got);
		if (i != 1 && i != 3)
			say(env, GET("/hello"));
		PUMP_UNTIL(env, has(env, "hello") || env->eof);
		assert_int_equal(env->eof, i == 3);
	}
	env->fd = first;
	for (unsigned i = 0; i < MAX_CONNS; i++)
		fd_close(more[i]);
}

static void test_too_many(void **state)
{
	struct env *env = *state;
	int more[MAX_CONNS];

	for (unsigned i = 0; i < MAX_CONNS; i++)
		more[i] = connect_env(env);
	assert_int_equal(http_server_conns(env->server), MAX_CONNS);
	int first = more[0];
	fd_close(TAKE_FD(env->fd));              /* it was the longest idle one and gave way */
	/* All of them begin to ask; none is idle then. */
	for (unsigned i = 0; i < MAX_CONNS; i++) {
		env->fd = more[i];
		say(env, "G");
	}
	pump(env);
	assert_int_equal(http_server_conns(env->server), MAX_CONNS);
	int late = env->fd = connect_env(env);
	PUMP_UNTIL(env, env->eof);
	assert_true(has(env, "HTTP/1.1 503 "));
	assert_true(has(env, "\r\nContent-Length: 51\r\n"));
	buf_clear(&env->got);
	env->eof = false;
	env->fd = first;
	say(env, &GET("/hello")[1]);
	PUMP_UNTIL(env, has(env, "hello"));
	for (unsigned i = 1; i < MAX_CONNS; i++)
		fd_close(more[i]);
	fd_close(late);
}

static void test_body_too_large(void **state)
{
	struct env *env = *state;

	say(env, POST("/echo", "Content-Length: 1001\r\n", ""));
	PUMP_UNTIL(env, env->eof);
	assert_true(has(env, "HTTP/1.1 413 "));
	assert_true(
		has(env, "{\"code\":413,\"message\":\"The body of the message is too large.\"}"));
	assert_int_equal(env->n_body, 0);
	assert_int_equal(env->n_end, 1);
}

static void test_chunked_too_large(void **state)
{
	struct env *env = *state;

	say(env, POST("/echo", "Transfer-Encoding: chunked\r\n", "1\r\na\r\n3e8\r\n"));
	PUMP_UNTIL(env, env->eof);
	assert_true(has(env, "HTTP/1.1 413 "));
	assert_int_equal(env->n_body, 0);
}

static void test_body_fits(void **state)
{
	struct env *env = *state;
	char body[MAX_BODY];

	memset(body, 'x', sizeof(body));
	say(env, POST("/echo", "Content-Length: 1000\r\n", ""));
	say_n(env, body, sizeof(body));
	PUMP_UNTIL(env, has(env, "xxx") && buf_data(&env->got)[buf_len(&env->got) - 1] == 'x');
	assert_true(has(env, "Content-Length: 1000\r\n\r\nx"));
	assert_int_equal(env->n_body, 1);
}

static void test_body_malformed(void **state)
{
	struct env *env = *state;

	say(env, POST("/echo", "Transfer-Encoding: chunked\r\n", "1\r\nab\r\n") GET("/hello"));
	PUMP_UNTIL(env, env->eof);
	assert_true(has(env, "HTTP/1.1 400 "));
	assert_int_equal(count(env, "HTTP/1.1"), 1);           /* once, and nothing after it is looked at */
	assert_int_equal(env->n_handled, 1);
}

static void test_body_cut(void **state)
{
	struct env *env = *state;

	say(env, POST("/echo", "Content-Length: 5\r\n", "abc"));
	shutdown(env->fd, SHUT_WR);
	PUMP_UNTIL(env, env->eof);
	assert_true(has(env, "HTTP/1.1 400 "));
	assert_int_equal(env->n_body, 0);
}

static void test_bad_head(void **state)
{
	struct env *env = *state;

	say(env, "GET / HTTP/1.1\r\n\r\n" GET("/hello"));
	PUMP_UNTIL(env, env->eof);
	assert_true(has(env, "HTTP/1.1 400 "));
	assert_true(has(env, "Connection: close\r\n"));
	assert_int_equal(count(env, "HTTP/1.1"), 1);
	assert_int_equal(env->n_handled, 0);
}

static void test_head_too_large(void **state)
{
	struct env *env = *state;

	say(env, "GET / HTTP/1.1\r\nHost: a\r\nA: ");
	for (unsigned i = 0; i < 40; i++) {
		char piece[1024];
		memset(piece, 'a', sizeof(piece));
		if (send(env->fd, piece, sizeof(piece), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
			break;
		loop_turn(env->loop, 0);
	}
	PUMP_UNTIL(env, env->eof);
	assert_true(has(env, "HTTP/1.1 431 "));
}

static void test_client_gone(void **state)
{
	struct env *env = *state;

	say(env, GET("/hold"));
	PUMP_UNTIL(env, env->held);
	fd_close(TAKE_FD(env->fd));
	for (int64_t end_ms = clock_mono_ms() + DEADLINE_MS; env->n_gone == 0;) {
		loop_turn(env->loop, 5);
		assert_true(clock_mono_ms() < end_ms);
	}
	assert_int_equal(env->n_end, 0);
	assert_ptr_equal(http_req_user(env->held), env);
	http_req_answer(TAKE(env->held), 200, NULL, NULL, "x", 1);
	for (int64_t end_ms = clock_mono_ms() + DEADLINE_MS; http_server_conns(env->server) > 0;) {
		loop_turn(env->loop, 5);
		assert_true(clock_mono_ms() < end_ms);
	}
	assert_int_equal(env->n_end, 1);
	assert_int_equal(env->n_gone, 1);
}

/* A client that shuts only its sending side still gets its answer. */
static void test_half_close(void **state)
{
	struct env *env = *state;

	say(env, GET("/hold"));
	shutdown(env->fd, SHUT_WR);
	PUMP_UNTIL(env, env->n_gone == 1);
	http_req_answer(TAKE(env->held), 200, NULL, NULL, "held", 4);
	PUMP_UNTIL(env, env->eof);
	assert_true(has(env, "\r\n\r\nheld"));
	assert_true(has(env, "Connection: close\r\n"));
}

static void test_expect_continue(void **state)
{
	struct env *env = *state;

	say(env, POST("/echo", "Content-Length: 3\r\nExpect: 100-continue\r\n", ""));
	PUMP_UNTIL(env, has(env, "HTTP/1.1 100 Continue\r\n\r\n"));
	assert_false(has(env, ok));
	say(env, "abc");
	PUMP_UNTIL(env, has(env, "\r\n\r\nabc"));
	assert_false(env->eof);
	/* Too large: refused before the body is sent. */
	buf_clear(&env->got);
	say(env, POST("/echo", "Content-Length: 2000\r\nExpect: 100-continue\r\n", ""));
	PUMP_UNTIL(env, env->eof);
	assert_true(has(env, "HTTP/1.1 413 "));
	assert_false(has(env, "HTTP/1.1 100 "));
}

/* The handler does not want the body: the client may or may not send it, so the connection ends. */
static void test_expect_unread(void **state)
{
	struct env *env = *state;

	say(env, POST("/hello", "Content-Length: 3\r\nExpect: 100-continue\r\n", ""));
	PUMP_UNTIL(env, env->eof);
	assert_true(has(env, "Connection: close\r\n"));
	assert_true(has(env, "\r\n\r\nhello"));
}

static void test_unread_body_drained(void **state)
{
	struct env *env = *state;
	autofree char *body = x_alloc(HTTP_DRAIN_MAX);

	say(env, POST("/hello", "Content-Length: 65536\r\n", ""));
	PUMP_UNTIL(env, has(env, "\r\n\r\nhello"));
	say_n(env, body, HTTP_DRAIN_MAX);
	say(env, POST("/hello", "Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n")
			 GET("/hello"));
	PUMP_UNTIL(env, count(env, "\r\n\r\nhello") == 3);
	assert_false(has(env, "Connection: close"));
	say(env, POST("/hello", "Content-Length: 65537\r\n", ""));
	PUMP_UNTIL(env, env->eof);
	assert_int_equal(count(env, "Connection: close"), 1);
}

static void test_chunked_drain_limit(void **state)
{
	struct env *env = *state;

	say(env, POST("/hello", "Transfer-Encoding: chunked\r\n", ""));
	for (unsigned i = 0; i < 40000 && !env->eof; i++) {
		if (send(env->fd, "2\r\nab\r\n", 7, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ||
		    i % 100 == 0)
			pump(env);
	}
	PUMP_UNTIL(env, env->eof);
	assert_int_equal(count(env, ok), 1);
}

static void test_big_answer(void **state)
{
	struct env *env = *state;

	say(env, GET("/big"));
	PUMP_UNTIL(env, buf_len(&env->got) > BIG_BYTES);
	const char *body = memmem(buf_data(&env->got), buf_len(&env->got), "\r\n\r\n", 4);
	PUMP_UNTIL(env, buf_data(&env->got) + buf_len(&env->got) == body + 4 + BIG_BYTES);
	say(env, GET("/hello"));
	PUMP_UNTIL(env, has(env, "hello"));
}

static void test_no_body_answers(void **state)
{
	struct env *env = *state;

	say(env, "HEAD /hello HTTP/1.1\r\nHost: a\r\n\r\n" GET("/empty") GET("/hello"));
	PUMP_UNTIL(env, has(env, "\r\n\r\nhello"));
	assert_int_equal(count(env, "Content-Length: 5\r\n"), 2);
	assert_int_equal(count(env, "hello"), 1);
	assert_int_equal(count(env, "Content-Length: 0"), 0);
	assert_true(has(env, "HTTP/1.1 204 No Content\r\n"));
}

static void test_error_json(void **state)
{
	struct env *env = *state;

	say(env, GET("/error"));
	PUMP_UNTIL(env, has(env, "}"));
	assert_true(has(env, "HTTP/1.1 404 Not Found\r\n"));
	assert_true(has(env, "{\"code\":404,\"message\":\"no \\\"such\\\"\\u000a?\"}"));
}

static void test_bad_field_is_500(void **state)
{
	struct env *env = *state;

	say(env, GET("/bad-field"));
	PUMP_UNTIL(env, env->eof);
	assert_true(has(env, "HTTP/1.1 500 "));
	assert_false(has(env, "X-B"));
}

/* The taker: echoes upper-cased until "q", then gives the connection back. */
static void tunnel(struct conn *c, enum conn_event ev, void *arg)
{
	struct env *env = arg;
	struct buf *in = conn_in(c);

	if (ev != CONN_DATA)
		return;
	while (buf_len(in) > 0) {
		char ch = buf_data(in)[0];
		buf_consume(in, 1);
		if (ch == 'q') {
			http_server_return(env->server, TAKE(env->taken));
			return;
		}
		ch ^= 0x20;
		conn_write(c, &ch, 1);
	}
}

static void test_take_return(void **state)
{
	struct env *env = *state;

	say(env, "GET /take HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nabc");
	PUMP_UNTIL(env, env->taken);
	assert_int_equal(http_server_conns(env->server), 0);
	assert_int_equal(env->n_end, 1);
	assert_true(env->taken_head.upgrade);
	assert_string_equal(env->taken_head.target, "/take");
	conn_set_fn(env->taken, tunnel, env);
	conn_kick(env->taken);
	PUMP_UNTIL(env, has(env, "ABC"));
	say(env, "def");
	PUMP_UNTIL(env, has(env, "ABCDEF"));
	/* Given back with the next request in the buffer already. */
	say(env, "q" GET("/hello"));
	PUMP_UNTIL(env, has(env, "\r\n\r\nhello"));
	assert_int_equal(http_server_conns(env->server), 1);
	say(env, GET("/hello"));
	PUMP_UNTIL(env, count(env, "hello") == 2);
}

static void tell_nothing(struct conn *c, enum conn_event ev, void *arg)
{
}

/* A connection whose error was told to the taker is not kept as an idle one. */
static void test_return_of_a_dead_one(void **state)
{
	struct env *env = *state;

	say(env, "GET /take HTTP/1.1\r\nHost: a\r\n\r\n");
	PUMP_UNTIL(env, env->taken);
	conn_set_fn(env->taken, tell_nothing, NULL);
	close(env->fd);
	env->fd = -1;
	conn_write(env->taken, "x", 1);
	PUMP_UNTIL(env, conn_error(env->taken) != 0);
	for (int i = 0; i < 3; i++)
		loop_turn(env->loop, 0);
	http_server_return(env->server, TAKE(env->taken));
	assert_int_equal(http_server_conns(env->server), 0);
}

static void test_take_gone(void **state)
{
	struct env *env = *state;

	say(env, GET("/hold"));
	PUMP_UNTIL(env, env->held);
	shutdown(env->fd, SHUT_RDWR);
	PUMP_UNTIL(env, env->n_gone == 1);
	struct conn *c = http_req_take(TAKE(env->held), &env->taken_head);
	if (c)                          /* the end was seen, or the connection had died */
		assert_true(conn_eof(c) || conn_error(c) != 0);
	conn_free(c);
	assert_int_equal(http_server_conns(env->server), 0);
	assert_int_equal(env->n_end, 1);
}

static void test_free_in_handler(void **state)
{
	struct env *env = *state;

	say(env, GET("/free-server") GET("/hello"));
	PUMP_UNTIL(env, env->eof);
	assert_null(env->server);
	assert_int_equal(env->n_end, 1);
	assert_int_equal(env->n_handled, 1);
}

static void test_free_while_held(void **state)
{
	struct env *env = *state;

	say(env, GET("/hold"));
	PUMP_UNTIL(env, env->held);
	http_server_free(TAKE(env->server));
	assert_int_equal(env->n_end, 1);
	PUMP_UNTIL(env, env->eof);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_keep_alive),
		T(test_http10),
		T(test_pipelining),
		T(test_deep_pipeline),
		T(test_byte_by_byte),
		T(test_too_many),
		T(test_idle_gives_way),
		T(test_body_too_large),
		T(test_chunked_too_large),
		T(test_body_fits),
		T(test_body_malformed),
		T(test_body_cut),
		T(test_bad_head),
		T(test_head_too_large),
		T(test_client_gone),
		T(test_half_close),
		T(test_expect_continue),
		T(test_expect_unread),
		T(test_unread_body_drained),
		T(test_chunked_drain_limit),
		T(test_big_answer),
		T(test_no_body_answers),
		T(test_error_json),
		T(test_bad_field_is_500),
		T(test_take_return),
		T(test_return_of_a_dead_one),
		T(test_take_gone),
		T(test_free_in_handler),
		T(test_free_while_held),
		cmocka_unit_test_setup_teardown(test_head_timeout, setup_slow, teardown),
		cmocka_unit_test_setup_teardown(test_idle_timeout, setup_hasty, teardown),
		cmocka_unit_test_setup_teardown(test_body_timeout, setup_hasty, teardown),
		cmocka_unit_test_setup_teardown(test_reader_stalls, setup_hasty, teardown),
		cmocka_unit_test_setup_teardown(test_reader_stalls_and_sends, setup_hasty, teardown),
		cmocka_unit_test_setup_teardown(test_slow_reader, setup_steady, teardown),
	};
	return cmocka_run_group_tests_name("server", tests, NULL, NULL);
}
