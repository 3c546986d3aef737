#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/alloc.h"
#include "base/str.h"
#include "loop/test_turn.h"
#include "loop/work.h"

#define KEYS 5
#define JOBS 400

struct job {
	int key, n;
};

static struct job jobs[JOBS];
static atomic_int running[KEYS], ran;
static int next_done[KEYS], done_total;
static pthread_t loop_thread;

static void on_run(void *arg)
{
	struct job *j = arg;

	assert_int_equal(atomic_fetch_add(&running[j->key], 1), 0);     /* never two of one key */
	assert_false(pthread_equal(pthread_self(), loop_thread));
	if (j->n % 10 == 0)
		nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
	atomic_fetch_sub(&running[j->key], 1);
	atomic_fetch_add(&ran, 1);
}

static void on_done(void *arg)
{
	struct job *j = arg;

	assert_true(pthread_equal(pthread_self(), loop_thread));
	assert_int_equal(j->n, next_done[j->key]++);
	done_total++;
}

static atomic_int begun;
static _Thread_local int begun_here;

static void on_begin(void *arg)
{
	assert_ptr_equal(arg, &begun);
	begun_here++;
	atomic_fetch_add(&begun, 1);
}

static void look_begun(void *arg)
{
	*(int *)arg = begun_here;
}

static void nothing(void *arg)
{
}

/* Every thread begins once, before its first job. */
static void test_begin(void **state)
{
	struct loop *l = loop_new();
	struct work *w = work_new_begin(l, 3, on_begin, &begun);
	int seen = 0;

	assert_int_equal(work_add(w, NULL, look_begun, nothing, &seen), 0);
	for (int i = 0; i < 1000 && (work_pending(w) || atomic_load(&begun) < 3); i++)
		loop_turn(l, 10);
	assert_int_equal(seen, 1);
	assert_int_equal(atomic_load(&begun), 3);
	work_free(w);
	loop_free(l);
}

static void test_order(void **state)
{
	struct loop *l = loop_new();
	struct work *w = work_new(l, 4);
	char key[8];

	assert_non_null(w);
	loop_thread = pthread_self();
	for (int i = 0; i < JOBS; i++) {
		jobs[i] = (struct job){ .key = i % KEYS, .n = i / KEYS };
		str_format(key, sizeof(key), "k%d", i % KEYS);
		assert_int_equal(work_add(w, key, on_run, on_done, &jobs[i]), 0);
	}
	assert_int_equal(work_pending(w), JOBS);
	TURN_UNTIL(l, done_total == JOBS);
	assert_int_equal(work_pending(w), 0);
	work_free(w);
	loop_free(l);
}

static pthread_barrier_t barrier;

static void on_meet(void *arg)
{
	pthread_barrier_wait(&barrier);
}

static void on_count(void *arg)
{
	++*(int *)arg;
}

/* Jobs without a key run side by side: these three only end together. */
static void test_free_jobs(void **state)
{
	struct loop *l = loop_new();
	struct work *w = work_new(l, 3);
	int n = 0;

	pthread_barrier_init(&barrier, NULL, 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(work_add(w, NULL, on_meet, on_count, &n), 0);
	TURN_UNTIL(l, n == 3);
	pthread_barrier_destroy(&barrier);
	work_free(w);
	loop_free(l);
}

static atomic_bool go;

static void on_block(void *arg)
{
	while (!atomic_load(&go))
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

static void *opener(void *arg)
{
	nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
	atomic_store(&go, true);
	return NULL;
}

static void test_full_and_free(void **state)
{
	struct loop *l = loop_new();
	struct work *w = work_new(l, 1);
	pthread_t t;
	int n = 0, added = 0;

	while (work_add(w, added % 2 ? "key" : NULL, on_block, on_count, &n) == 0)
		added++;
	assert_int_equal(added, WORK_QUEUE_MAX);
	assert_int_equal(work_add(w, NULL, on_block, on_count, &n), -EAGAIN);
	assert_int_equal(pthread_create(&t, NULL, opener, NULL), 0);
	work_free(w);                           /* at most the one that ran was done */
	assert_true(n <= 1);
	assert_true(atomic_load(&go) || n == 0);
	pthread_join(t, NULL);
	loop_free(l);
	work_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_begin),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_free_jobs),
		cmocka_unit_test(test_full_and_free),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
