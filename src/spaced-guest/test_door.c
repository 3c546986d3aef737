/* The door with real sockets on loopback; the agent's loop turns in the test's thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "spaced-guest/door.h"

#define WAIT_MS 60000
#define BIG (3 << 20)

static struct agent agent;
static struct door *door;

static int listen_at(int family, uint16_t *port)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	void *sa = family == AF_INET ? (void *)&in : (void *)&in6;
	socklen_t n = family == AF_INET ? sizeof(in) : sizeof(in6);
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, sa, n) < 0 || listen(fd, 8) < 0 || getsockname(fd, sa, &n) < 0) {
		fd_close(fd);
		return -1;
	}
	*port = ntohs(family == AF_INET ? in.sin_port : in6.sin6_port);
	return fd;
}

static int call(void)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
				  .sin_port = htons(door_port(door)) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof(in)), 0);
	return fd;
}

/* Turns the loop until fd has what is asked for; a timer wakes it. */
static void tick(struct ev_timer *t) { ev_timer_set(agent.ev, t, 5); }

static void until(int fd, short events)
{
	int64_t end = clock_mono_ms() + WAIT_MS;
	struct pollfd p = { .fd = fd, .events = events };

	while (poll(&p, 1, 0) == 0) {
		assert_int_equal(ev_turn(agent.ev, false), 0);
		assert_true(clock_mono_ms() < end);
	}
}

static ssize_t take(int fd, void *p, size_t n)
{
	until(fd, POLLIN);
	return recv(fd, p, n, 0);
}

static int setup(void **state)
{
	static struct ev_timer timer;
	struct err e = { 0 };

	agent = (struct agent){ .ready = true };
	agent.ev = ev_new();
	ev_timer_init(&timer, tick);
	tick(&timer);
	return door_open(&agent, "127.0.0.1", 0, "127.0.0.1", &door, &e);
}

static int teardown(void **state)
{
	door_close(door);
	ev_free(agent.ev);
	/* Whatever happened: what was opened was closed. */
	return (int)agent.activity.requests;
}

static void ask(int fd, uint16_t port, char want)
{
	char line[16], answer = 9;
	int n = snprintf(line, sizeof(line), "port %u\n", port);

	assert_int_equal(send(fd, line, (size_t)n, 0), n);
	assert_int_equal(take(fd, &answer, 1), 1);
	assert_int_equal(answer, want);
}

static void pass(int family)
{
	uint16_t port = 0;
	int l = listen_at(family, &port), fd, s;
	char b[8];

	if (l < 0)
		skip();
	fd = call();
	ask(fd, port, 0);
	assert_int_equal(agent.activity.requests, 1);
	until(l, POLLIN);
	s = accept(l, NULL, NULL);
	assert_int_equal(send(fd, "there", 5, 0), 5);
	assert_int_equal(take(s, b, 8), 5);
	assert_int_equal(send(s, "back", 4, 0), 4);
	assert_int_equal(take(fd, b, 8), 4);
	/* Each direction ends by itself. */
	assert_int_equal(shutdown(fd, SHUT_WR), 0);
	assert_int_equal(take(s, b, 8), 0);
	assert_int_equal(send(s, "late", 4, 0), 4);
	assert_int_equal(take(fd, b, 8), 4);
	assert_int_equal(agent.activity.requests, 1);
	close(s);
	assert_int_equal(take(fd, b, 8), 0);
	assert_int_equal(agent.activity.requests, 0);
	close(fd);
	close(l);
}

static void test_ipv4(void **state) { pass(AF_INET); }
static void test_ipv6(void **state) { pass(AF_INET6); }

static void test_refused(void **state)
{
	uint16_t port = 0;
	int l = listen_at(AF_INET, &port), fd = call();
	char b;

	close(l);
	ask(fd, port, 1);
	assert_int_equal(take(fd, &b, 1), 0);
	close(fd);
	fd = call();
	ask(fd, door_port(door), 1);
	close(fd);
	l = listen_at(AF_INET, &port);
	agent.ready = false;
	fd = call();
	ask(fd, port, 1);
	close(fd);
	close(l);
	assert_int_equal(agent.activity.last_ms[ACTIVITY_REQUEST], 0);
}

static void test_lines(void **state)
{
	static const char *const bad[] = { "port 0\n", "port 08\n", "port 65536\n", "port \n", "port 1",
					   "PORT 1\n", "port -1\n", "port 1 \n", "port 123456\n",
					   "GET / HTTP/1.1\r\n", "\n", "port 80\nx" };
	char b;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		int fd = call();

		assert_int_equal(send(fd, bad[i], strlen(bad[i]), 0), (ssize_t)strlen(bad[i]));
		/* Also a line that never ends: closed when its time is over. */
		assert_true(take(fd, &b, 1) <= 0);
		close(fd);
	}
}

/* A reader that does not read stops its producer, and gets all of it in the end. */
static void test_slow(void **state)
{
	autofree char *out = x_alloc(BIG), *in = x_alloc(BIG);
	uint16_t port = 0;
	int l = listen_at(AF_INET, &port), fd = call(), s;
	size_t sent = 0, got = 0;
	int idle = 0;

	for (size_t i = 0; i < BIG; i++)
		out[i] = (char)(i * 7 + i / 4093);
	ask(fd, port, 0);
	until(l, POLLIN);
	s = accept(l, NULL, NULL);
	while (idle < 3 && sent < BIG) {
		ssize_t n = send(fd, out + sent, BIG - sent, MSG_DONTWAIT);

		idle = n < 0 ? idle + 1 : 0;
		sent += n < 0 ? 0 : (size_t)n;
		assert_int_equal(ev_turn(agent.ev, false), 0);
	}
	while (got < BIG) {
		ssize_t n;

		if (sent < BIG && (n = send(fd, out + sent, BIG - sent, MSG_DONTWAIT)) > 0)
			sent += (size_t)n;
		if (sent == BIG)
			shutdown(fd, SHUT_WR);
		n = take(s, in + got, BIG - got);
		assert_true(n > 0);
		got += (size_t)n;
	}
	assert_memory_equal(in, out, BIG);
	assert_int_equal(take(s, in, 1), 0);
	close(s);
	assert_int_equal(take(fd, in, 1), 0);
	close(fd);
	close(l);
}

static void test_reset(void **state)
{
	struct linger now = { .l_onoff = 1 };
	uint16_t port = 0;
	int l = listen_at(AF_INET, &port);
	char b;

	for (int i = 0; i < 2; i++) {
		int fd = call(), s, other;

		ask(fd, port, 0);
		until(l, POLLIN);
		s = accept(l, NULL, NULL);
		setsockopt(i ? fd : s, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
		other = i ? s : fd;
		close(i ? fd : s);
		assert_int_equal(take(other, &b, 1), -1);
		assert_int_equal(errno, ECONNRESET);
		close(other);
	}
	close(l);
}

static void test_stranger(void **state)
{
	struct door *d = door;
	struct err e = { 0 };
	char b;
	int fd;

	assert_int_equal(door_open(&agent, "127.0.0.1", 0, "10.0.2.2", &door, &e), 0);
	fd = call();
	assert_int_equal(take(fd, &b, 1), 0);
	close(fd);
	door_close(door);
	door = d;
}

int main(void)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_ipv4), TEST(test_ipv6), TEST(test_refused), TEST(test_lines),
		TEST(test_slow), TEST(test_reset), TEST(test_stranger),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
