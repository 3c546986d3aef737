#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "loop/listen.h"
#include "loop/relay.h"
#include "loop/test_turn.h"

#define BIG (100 * 1024 * 1024)

struct fixture {
	struct loop *l;
	int a, b;                       /* the far ends */
	struct relay *r;
	struct relay_end end;
	int ended;
};

static void on_end(struct relay *r, const struct relay_end *end, void *arg)
{
	struct fixture *f = arg;

	f->ended++;
	f->end = *end;
}

static void start(struct fixture *f, const char *to_b, const char *to_a)
{
	int x[2], y[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, x), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, y), 0);
	*f = (struct fixture){ .l = loop_new(), .a = x[1], .b = y[1] };
	f->r = relay_new(f->l, x[0], y[0], to_b, strlen(to_b), to_a, strlen(to_a), on_end, f);
	assert_non_null(f->r);
}

static void finish(struct fixture *f)
{
	assert_int_equal(f->ended, 1);
	loop_free(f->l);
	fd_close(f->a);
	fd_close(f->b);
}

static unsigned char pattern(uint64_t at)
{
	return (unsigned char)((at * 2654435761u) >> 13);
}

static void *writer(void *arg)
{
	struct fixture *f = arg;
	unsigned char chunk[40000];

	for (uint64_t at = 0; at < BIG;) {
		size_t n = sizeof(chunk) < BIG - at ? sizeof(chunk) : BIG - at;

		for (size_t i = 0; i < n; i++)
			chunk[i] = pattern(at + i);
		if (fd_write_all(f->a, chunk, n, 20000) < 0)
			break;
		at += n;
	}
	shutdown(f->a, SHUT_WR);
	return NULL;
}

/* Reads in odd pieces, with pauses at the beginning. *ret = bytes that were right, in order. */
static void *reader(void *arg)
{
	struct fixture *f = arg;
	unsigned char chunk[33333];
	uint64_t at = 0;

	for (int round = 0;; round++) {
		ssize_t n;

		if (round < 50)
			nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
		n = read(f->b, chunk, round % 7 ? sizeof(chunk) : 1);
		if (n <= 0)
			break;
		for (ssize_t i = 0; i < n; i++)
			if (chunk[i] != pattern(at++))
				return (void *)1;
	}
	shutdown(f->b, SHUT_WR);
	return at == BIG ? NULL : (void *)2;
}

static void test_big(void **state)
{
	struct fixture f;
	pthread_t w, r;
	void *wrong;

	start(&f, "", "");
	assert_int_equal(pthread_create(&w, NULL, writer, &f), 0);
	assert_int_equal(pthread_create(&r, NULL, reader, &f), 0);
	TURN_UNTIL(f.l, f.ended);
	pthread_join(w, NULL);
	pthread_join(r, &wrong);
	assert_null(wrong);
	assert_int_equal(f.end.error, 0);
	assert_int_equal(f.end.a_to_b, BIG);
	assert_int_equal(f.end.b_to_a, 0);
	finish(&f);
}

/* A reader that stops makes the writer wait: the relay holds one pipe. */
static void test_stalled_reader(void **state)
{
	static char chunk[65536];
	size_t sent = 0;
	struct fixture f;
	ssize_t r;
	int64_t t;

	start(&f, "", "");
	fd_set_nonblock(f.a, true);
	for (int idle = 0; idle < 10; loop_turn(f.l, 0)) {
		r = write(f.a, chunk, sizeof(chunk));
		idle = r > 0 ? 0 : idle + 1;
		sent += r > 0 ? (size_t)r : 0;
	}
	assert_true(sent < 2 * 1024 * 1024);
	t = clock_mono_ms();
	loop_turn(f.l, 60);                     /* nothing to do: it sleeps */
	assert_true(clock_mono_ms() - t >= 50);
	relay_cut(f.r);
	finish(&f);
}

static void test_prefix_and_half_close(void **state)
{
	struct fixture f;
	char text[32] = { 0 };

	start(&f, "to b ", "to a ");
	assert_int_equal(write(f.a, "question", 8), 8);
	shutdown(f.a, SHUT_WR);
	for (int i = 0; i < 20; i++)
		loop_turn(f.l, 5);
	assert_int_equal(f.ended, 0);
	assert_int_equal(fd_read_full(f.b, text, sizeof(text), 1000), 13);      /* with its end */
	assert_string_equal(text, "to b question");
	assert_int_equal(write(f.b, "answer", 6), 6);
	close(f.b);
	f.b = -1;
	TURN_UNTIL(f.l, f.ended);
	memset(text, 0, sizeof(text));
	assert_int_equal(fd_read_full(f.a, text, sizeof(text), 1000), 11);
	assert_string_equal(text, "to a answer");
	assert_int_equal(f.end.error, 0);
	assert_int_equal(f.end.a_to_b, 13);
	assert_int_equal(f.end.b_to_a, 11);
	finish(&f);
}

/*
 * One side has gone while the other is full: it ends with an error at the next write, without
 * spinning.
 */
static void test_gone_target(void **state)
{
	struct fixture f;

	start(&f, "", "");
	close(f.b);
	f.b = -1;
	for (int i = 0; i < 5; i++)
		loop_turn(f.l, 5);
	assert_int_equal(f.ended, 0);
	assert_int_equal(write(f.a, "x", 1), 1);
	TURN_UNTIL(f.l, f.ended);
	assert_int_equal(f.end.error, -EPIPE);
	assert_int_equal(f.end.a_to_b, 0);
	finish(&f);
}

/* Full in both directions, then cut: what the relay held never arrives. */
static void test_cut(void **state)
{
	static char chunk[65536];
	struct fixture f;
	size_t got = 0;
	ssize_t r;

	start(&f, "", "");
	fd_set_nonblock(f.a, true);
	fd_set_nonblock(f.b, true);
	for (int idle = 0; idle < 10; loop_turn(f.l, 0)) {
		r = write(f.a, chunk, sizeof(chunk)) + write(f.b, chunk, sizeof(chunk));
		idle = r > 0 ? 0 : idle + 1;
	}
	relay_cut(f.r);
	assert_int_equal(f.ended, 1);
	assert_int_equal(f.end.error, -ECONNRESET);
	relay_cut(f.r);
	loop_turn(f.l, 0);
	while ((r = read(f.b, chunk, sizeof(chunk))) > 0)
		got += (size_t)r;
	assert_true(r == 0 || errno == ECONNRESET);
	assert_int_equal(got, f.end.a_to_b);    /* nothing beyond what had been delivered before */
	finish(&f);
}

/* Over TCP the cut is a reset, even while somebody else holds a duplicate of the socket. */
static void test_cut_tcp(void **state)
{
	int l = listen_addr("tcp:127.0.0.1:0", SOCK_STREAM, 0, NULL), sv[2], near, far, copy;
	struct sockaddr_storage sa;
	socklen_t n = sizeof(sa);
	struct fixture f = { .l = loop_new(), .a = -1 };
	char byte;

	assert_true(l >= 0);
	assert_int_equal(getsockname(l, (struct sockaddr *)&sa, &n), 0);
	far = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(far, (struct sockaddr *)&sa, n), 0);
	near = accept4(l, NULL, NULL, SOCK_CLOEXEC);
	assert_true(near >= 0);
	copy = dup(near);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
	f.b = sv[1];
	f.r = relay_new(f.l, near, sv[0], NULL, 0, NULL, 0, on_end, &f);
	relay_cut(f.r);
	assert_int_equal(read(far, &byte, 1), -1);
	assert_int_equal(errno, ECONNRESET);
	close(far);
	close(copy);
	close(l);
	finish(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_big), cmocka_unit_test(test_stalled_reader),
		cmocka_unit_test(test_prefix_and_half_close), cmocka_unit_test(test_gone_target),
		cmocka_unit_test(test_cut), cmocka_unit_test(test_cut_tcp),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
