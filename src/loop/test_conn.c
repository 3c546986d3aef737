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
#include "base/err.h"
#include "base/fd.h"
#include "loop/conn.h"
#include "loop/listen.h"
#include "loop/test_port.h"
#include "loop/test_turn.h"

#define IN_MAX 4096
#define OUT_MAX 65536

struct seen {
	int n[CONN_LEFT + 1];
	bool free_in[CONN_LEFT + 1];
	bool eat, freed;
	size_t eaten;
};

static struct loop *l;
static struct seen s;
static struct conn *c;
static int peer;

static void on_conn(struct conn *conn, enum conn_event ev, void *arg)
{
	assert_false(s.freed);
	s.n[ev]++;
	if (ev == CONN_DATA && s.eat) {
		s.eaten += buf_len(conn_in(conn));
		buf_clear(conn_in(conn));
	}
	if (s.free_in[ev]) {
		s.freed = true;
		conn_free(conn);
		conn_free(conn);
	}
}

static int setup(void **state)
{
	int sv[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) < 0)
		return -1;
	memset(&s, 0, sizeof(s));
	l = loop_new();
	c = conn_new(l, sv[0], IN_MAX, OUT_MAX, on_conn, NULL);
	peer = sv[1];
	return 0;
}

static int teardown(void **state)
{
	if (!s.freed)
		conn_free(c);
	loop_free(l);
	fd_close(peer);
	return 0;
}

static void turns(int n)
{
	for (int i = 0; i < n; i++)
		loop_turn(l, 0);
}

/* A reader that does not consume stalls its peer; nothing is lost. */
static void test_flow_control(void **state)
{
	static char chunk[8192];
	size_t sent = 0;
	ssize_t r;

	fd_set_nonblock(peer, true);
	for (int i = 0; i < 200; i++) {
		r = send(peer, chunk, sizeof(chunk), MSG_NOSIGNAL);
		if (r > 0)
			sent += (size_t)r;
		turns(2);
	}
	assert_int_equal(buf_len(conn_in(c)), IN_MAX);
	assert_true(sent < 1000000);            /* what the kernel holds */
	turns(3);
	assert_int_equal(buf_len(conn_in(c)), IN_MAX);
	s.eat = true;
	s.eaten = buf_len(conn_in(c));
	buf_clear(conn_in(c));                  /* outside of a callback: reading goes on by itself */
	TURN_UNTIL(l, s.eaten == sent);
}

static void test_pause_and_kick(void **state)
{
	conn_pause(c, true);
	assert_int_equal(write(peer, "abc", 3), 3);
	turns(5);
	assert_int_equal(s.n[CONN_DATA], 0);
	conn_pause(c, false);
	TURN_UNTIL(l, s.n[CONN_DATA] == 1);
	turns(5);
	assert_int_equal(s.n[CONN_DATA], 1);
	conn_kick(c);
	conn_kick(c);
	assert_int_equal(s.n[CONN_DATA], 1);
	turns(2);
	assert_int_equal(s.n[CONN_DATA], 2);
	buf_clear(conn_in(c));
	conn_kick(c);
	turns(2);
	assert_int_equal(s.n[CONN_DATA], 2);
}

/* A paused connection whose peer left does not spin the loop and does not lose what was sent. */
static void test_paused_hangup(void **state)
{
	int64_t start;

	conn_pause(c, true);
	turns(1);
	assert_int_equal(write(peer, "abc", 3), 3);
	close(peer);
	peer = -1;
	turns(3);
	start = clock_mono_ms();
	loop_turn(l, 60);
	assert_true(clock_mono_ms() - start >= 50);
	assert_int_equal(s.n[CONN_LEFT], 1);
	assert_true(conn_left(c));
	conn_pause(c, false);
	TURN_UNTIL(l, s.n[CONN_EOF] == 1);
	assert_int_equal(s.n[CONN_DATA], 1);
	assert_int_equal(buf_len(conn_in(c)), 3);
	assert_true(conn_eof(c));
	turns(2);
	start = clock_mono_ms();
	loop_turn(l, 60);
	assert_true(clock_mono_ms() - start >= 50);
	assert_int_equal(conn_write(c, "x", 1), -EPIPE);
	TURN_UNTIL(l, s.n[CONN_ERROR] == 1);
	assert_int_equal(conn_error(c), -EPIPE);
	turns(3);
	assert_int_equal(s.n[CONN_ERROR], 1);
}

static void test_half_close(void **state)
{
	char text[16];

	assert_int_equal(write(peer, "question", 8), 8);
	shutdown(peer, SHUT_WR);
	TURN_UNTIL(l, s.n[CONN_EOF] == 1);
	assert_int_equal(s.n[CONN_DATA], 1);
	assert_int_equal(conn_write(c, "answer", 6), 0);
	conn_shutdown_write(c);
	assert_int_equal(conn_write(c, "more", 4), -EPIPE);
	assert_int_equal(fd_read_full(peer, text, sizeof(text), TURN_DEADLINE_MS), 6);
	turns(3);
	assert_int_equal(s.n[CONN_EOF], 1);
	assert_int_equal(s.n[CONN_DRAINED], 1);
	assert_int_equal(s.n[CONN_ERROR], 0);
}

/* The queue is bounded, keeps its order, and the end is sent behind it. */
static void test_out_queue(void **state)
{
	static char chunk[1000];
	size_t queued = 0, got = 0;
	char text[4096];
	ssize_t r;

	for (;;) {
		for (size_t i = 0; i < sizeof(chunk); i++)
			chunk[i] = (char)((queued + i) % 251);
		r = conn_write(c, chunk, sizeof(chunk));
		if (r < 0)
			break;
		queued += sizeof(chunk);
	}
	assert_int_equal(r, -ENOBUFS);
	assert_true(conn_out_len(c) > OUT_MAX - sizeof(chunk) && conn_out_len(c) <= OUT_MAX);
	conn_shutdown_write(c);
	turns(3);
	assert_int_equal(s.n[CONN_DRAINED], 0);
	fd_set_nonblock(peer, true);
	for (r = -1; r != 0;) {
		r = read(peer, text, sizeof(text));
		for (ssize_t i = 0; i < r; i++, got++)
			assert_int_equal(text[i], (char)(got % 251));
		loop_turn(l, 0);
	}
	assert_int_equal(got, queued);
	assert_int_equal(s.n[CONN_DRAINED], 1);
}

static void test_drained_at_once(void **state)
{
	assert_int_equal(conn_write(c, "x", 1), 0);
	assert_int_equal(s.n[CONN_DRAINED], 0); /* never from inside a call */
	turns(1);
	assert_int_equal(s.n[CONN_DRAINED], 1);
	buf_puts(conn_out(c), "abc");
	conn_flush(c);
	turns(1);
	assert_int_equal(s.n[CONN_DRAINED], 2);
}

static void test_timeout(void **state)
{
	int64_t start = clock_mono_ms();

	conn_set_timeout(c, 10000);
	conn_set_timeout(c, 30);
	TURN_UNTIL(l, s.n[CONN_TIMEOUT] == 1);
	assert_true(clock_mono_ms() - start >= 29);
	conn_set_timeout(c, 5);
	conn_set_timeout(c, 0);
	loop_turn(l, 20);
	assert_int_equal(s.n[CONN_TIMEOUT], 1);
}

/* conn_free in each callback: not one more is called (on_conn asserts that). */
static void test_free_in_callback(void **state)
{
	enum conn_event *ev = *state;

	s.free_in[*ev] = true;
	assert_int_equal(write(peer, "abc", 3), 3);
	if (*ev == CONN_EOF || *ev == CONN_LEFT)
		shutdown(peer, SHUT_WR);
	if (*ev == CONN_LEFT)
		conn_pause(c, true);
	conn_write(c, "x", 1);
	conn_kick(c);
	if (*ev == CONN_TIMEOUT)
		conn_set_timeout(c, 1);
	if (*ev == CONN_ERROR) {
		close(peer);
		peer = -1;
		conn_write(c, "x", 1);
	}
	TURN_UNTIL(l, s.freed);
	turns(3);
}

static void test_detach(void **state)
{
	int fd = conn_detach(c);

	s.freed = true;
	turns(2);
	assert_int_equal(write(fd, "x", 1), 1);
	close(fd);
}

static void on_accept(int fd, void *arg)
{
	*(int *)arg = fd;
}

static void test_dial(void **state)
{
	struct listener *ln = NULL;
	struct err e = { 0 };
	struct seen *sp = &s;
	struct test_port port;
	struct conn *d;
	int got = -1, held;

	assert_int_equal(listener_new(l, "t", "tcp:127.0.0.1:0", 0, on_accept, &got, &ln, &e), 0);
	test_port_of(listener_fd(ln), &port);
	d = conn_dial(l, port.addr, 100, 100, on_conn, NULL, &e);
	assert_non_null(d);
	assert_int_equal(conn_write(d, "early", 5), 0);
	TURN_UNTIL(l, sp->n[CONN_CONNECTED] == 1 && got >= 0);
	assert_int_equal(fd_read_full(got, (char[8]){ 0 }, 5, TURN_DEADLINE_MS), 5);
	close(got);
	conn_free(d);
	listener_free(ln);
	turns(1);
	held = test_port_hold(&port);
	d = conn_dial(l, port.addr, 100, 100, on_conn, NULL, &e);
	if (d) {
		TURN_UNTIL(l, sp->n[CONN_ERROR] == 1);
		assert_int_equal(conn_error(d), -ECONNREFUSED);
		conn_free(d);
	}
	close(held);
	assert_null(conn_dial(l, "unix:/no/such/socket", 100, 100, on_conn, NULL, &e));
	assert_int_equal(e.num, -ENOENT);
	assert_int_equal(sp->n[CONN_CONNECTED], 1);
}

#define FREE_IN(ev)                                                                                \
	{                                                                                          \
		.name = "test_free_in_" #ev, .test_func = test_free_in_callback,                   \
		.setup_func = setup_free, .teardown_func = teardown,                               \
		.initial_state = &(enum conn_event)                                                \
		{                                                                                  \
			ev                                                                         \
		}                                                                                  \
	}

static int setup_free(void **state)
{
	return setup(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_flow_control, setup, teardown),
		cmocka_unit_test_setup_teardown(test_pause_and_kick, setup, teardown),
		cmocka_unit_test_setup_teardown(test_paused_hangup, setup, teardown),
		cmocka_unit_test_setup_teardown(test_half_close, setup, teardown),
		cmocka_unit_test_setup_teardown(test_out_queue, setup, teardown),
		cmocka_unit_test_setup_teardown(test_drained_at_once, setup, teardown),
		cmocka_unit_test_setup_teardown(test_timeout, setup, teardown),
		FREE_IN(CONN_DATA),
		FREE_IN(CONN_EOF),
		FREE_IN(CONN_DRAINED),
		FREE_IN(CONN_ERROR),
		FREE_IN(CONN_TIMEOUT),
		FREE_IN(CONN_LEFT),
		cmocka_unit_test_setup_teardown(test_detach, setup, teardown),
		cmocka_unit_test_setup_teardown(test_dial, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
