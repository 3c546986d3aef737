#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "loop/loop.h"
#include "loop/test_turn.h"

#define TIMERS 500

static int64_t order[TIMERS];
static int n_order;

static void on_timer(struct loop_timer *t)
{
	order[n_order++] = t->at_ms;
}

static void test_timers(void **state)
{
	static struct loop_timer t[TIMERS];
	struct loop *l = loop_new();
	int stopped = 0;

	n_order = 0;
	for (int i = 0; i < TIMERS; i++) {
		int ms = (i * 37) % TIMERS / 10;

		loop_timer_set(l, &t[i], 1000, on_timer, NULL);
		loop_timer_set(l, &t[i], ms, on_timer, NULL);
	}
	for (int i = 0; i < TIMERS; i += 3, stopped++) {
		loop_timer_stop(&t[i]);
		loop_timer_stop(&t[i]);
	}
	TURN_UNTIL(l, n_order == TIMERS - stopped);
	for (int i = 1; i < n_order; i++)
		assert_true(order[i - 1] <= order[i]);
	for (int i = 0; i < TIMERS; i++)
		assert_int_equal(t[i].heap_pos, 0);
	loop_free(l);
}

static void on_again(struct loop_timer *t)
{
	n_order++;
	loop_timer_set(t->loop, t, 0, on_again, NULL);
}

/* A timer that arms itself again at once does not hold the turn. */
static void test_timer_again(void **state)
{
	struct loop_timer t = { 0 };
	struct loop *l = loop_new();
	int64_t start = clock_mono_ms();

	n_order = 0;
	loop_timer_set(l, &t, 0, on_again, NULL);
	TURN_UNTIL(l, n_order == 5);
	assert_true(clock_mono_ms() - start >= 4);
	loop_free(l);
	assert_int_equal(t.heap_pos, 0);
}

struct pair {
	struct loop_io io[2];
	int fd[2], seen;
};

static void on_kill_other(struct loop_io *io, uint32_t events)
{
	struct pair *p = io->arg;
	struct loop_io *other = io == &p->io[0] ? &p->io[1] : &p->io[0];

	if (++p->seen > 1)
		return;
	loop_del(other);
	memset(other, 0xff, sizeof(*other));    /* as if it was freed: a call would crash */
}

/* Two events in one wait; the first callback removes the other io. */
static void test_delete_in_callback(void **state)
{
	struct loop *l = loop_new();
	struct pair p = { 0 };

	for (int i = 0; i < 2; i++) {
		p.fd[i] = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
		assert_int_equal(loop_add(l, &p.io[i], p.fd[i], EPOLLIN, on_kill_other, &p), 0);
	}
	assert_int_equal(loop_turn(l, 0), 0);
	assert_int_equal(p.seen, 1);
	assert_int_equal(loop_turn(l, 0), 0);
	assert_int_equal(p.seen, 2);            /* the one that is left, again: level-triggered */
	close(p.fd[0]);
	close(p.fd[1]);
	loop_free(l);
}

static void on_io(struct loop_io *io, uint32_t events)
{
	++*(int *)io->arg;
}

static void test_modify(void **state)
{
	struct loop *l = loop_new();
	struct loop_io io = { 0 };
	int fd = eventfd(1, EFD_CLOEXEC), n = 0;

	assert_int_equal(loop_add(l, &io, fd, EPOLLIN, on_io, &n), 0);
	assert_int_equal(loop_mod(&io, 0), 0);
	loop_turn(l, 0);
	assert_int_equal(n, 0);
	assert_int_equal(loop_mod(&io, EPOLLIN), 0);
	loop_turn(l, 0);
	assert_int_equal(n, 1);
	loop_del(&io);
	loop_del(&io);
	loop_turn(l, 0);
	assert_int_equal(n, 1);
	close(fd);
	assert_true(loop_add(l, &io, fd, EPOLLIN, on_io, &n) < 0);
	assert_null(io.loop);
	loop_free(l);
}

struct deferred {
	struct loop_defer d;
	struct loop *l;
	int n;
};

static void on_defer(struct loop_defer *d)
{
	struct deferred *x = d->arg;

	if (++x->n < 3)
		loop_defer(x->l, d, on_defer, x);
}

static void test_defer(void **state)
{
	struct deferred x = { .l = loop_new() };

	loop_defer(x.l, &x.d, on_defer, &x);
	loop_defer(x.l, &x.d, on_defer, &x);
	assert_int_equal(x.n, 0);
	loop_turn(x.l, 1000);                   /* does not wait */
	assert_int_equal(x.n, 1);
	loop_turn(x.l, 1000);
	assert_int_equal(x.n, 2);
	loop_free(x.l);                         /* runs what is left */
	assert_int_equal(x.n, 3);
}

static struct loop *post_loop;
static int posted, post_last[4];

static void on_post(void *arg)
{
	int v = (int)(intptr_t)arg;

	assert_true(v % 100000 > post_last[v / 100000]);        /* in order for each thread */
	post_last[v / 100000] = v % 100000;
	posted++;
}

static void *poster(void *arg)
{
	for (int i = 1; i <= 5000; i++)
		while (loop_post(post_loop, on_post, (void *)((intptr_t)arg * 100000 + i)) < 0)
			;
	return NULL;
}

static void test_post(void **state)
{
	pthread_t t[4];
	int n = 0;

	post_loop = loop_new();
	for (intptr_t i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&t[i], NULL, poster, (void *)i), 0);
	TURN_UNTIL(post_loop, posted == 20000);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	while (loop_post(post_loop, on_post, NULL) == 0)
		n++;
	assert_int_equal(n, LOOP_POST_MAX);
	loop_free(post_loop);
}

static void on_signal(int signo, void *arg)
{
	loop_stop(arg);
}

static void test_signal(void **state)
{
	struct loop *l = loop_new();

	assert_int_equal(loop_signal(l, SIGUSR1, on_signal, l), 0);
	assert_int_equal(loop_signal(l, SIGUSR2, on_signal, l), 0);
	assert_int_equal(loop_signal(l, 0, on_signal, l), -22);
	kill(getpid(), SIGUSR2);
	assert_int_equal(loop_run(l), 0);
	kill(getpid(), SIGUSR1);
	assert_int_equal(loop_run(l), 0);
	loop_free(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_timers),
		cmocka_unit_test(test_timer_again),
		cmocka_unit_test(test_delete_in_callback),
		cmocka_unit_test(test_modify),
		cmocka_unit_test(test_defer),
		cmocka_unit_test(test_post),
		cmocka_unit_test(test_signal),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
