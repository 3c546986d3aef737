/*
 * Theory of operation. The loop's thread owns the keys: it knows for each key the job that was
 * given out and the jobs that wait behind it. Only jobs that may run at once stand in the shared
 * queue. A worker takes one, runs it and puts it on the list of the finished; an eventfd wakes the
 * loop, which calls `done` and then gives out the next job of that key. So a job sees everything
 * that `done` of the one before it did.
 */
#include "loop/work.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/list.h"
#include "base/map.h"

#define WORK_STACK_BYTES (1024 * 1024)

struct work_job {
	struct list node;
	void (*run)(void *arg);
	void (*done)(void *arg);
	void *arg;
	char *key;
};

/* There while a job with this key is given out; `waiting` are those behind it. */
struct work_key {
	struct list waiting;
};

struct work {
	struct loop *loop;
	unsigned n_threads, n_pending;
	pthread_t *threads;
	void (*begin)(void *arg);
	void *begin_arg;
	struct map *keys;
	int event_fd;
	struct loop_io io;
	pthread_mutex_t lock;           /* guards what follows */
	pthread_cond_t more;
	struct list ready, finished;
	bool ending;
};

static void *work_thread(void *arg)
{
	struct work *w = arg;
	uint64_t one = 1;

	if (w->begin)
		w->begin(w->begin_arg);
	pthread_mutex_lock(&w->lock);
	for (;;) {
		struct work_job *job;

		while (list_empty(&w->ready) && !w->ending)
			pthread_cond_wait(&w->more, &w->lock);
		if (w->ending)
			break;
		job = CONTAINER_OF(w->ready.next, struct work_job, node);
		list_del(&job->node);
		pthread_mutex_unlock(&w->lock);
		job->run(job->arg);
		pthread_mutex_lock(&w->lock);
		list_add_tail(&w->finished, &job->node);
		while (write(w->event_fd, &one, sizeof(one)) < 0 && errno == EINTR)
			;
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static void work_give_out(struct work *w, struct work_job *job)
{
	pthread_mutex_lock(&w->lock);
	list_add_tail(&w->ready, &job->node);
	pthread_cond_signal(&w->more);
	pthread_mutex_unlock(&w->lock);
}

static void work_job_free(struct work_job *job)
{
	free(job->key);
	free(job);
}

static void work_next_of_key(struct work *w, const char *key)
{
	struct work_key *k = map_get(w->keys, key);
	struct work_job *job;

	if (list_empty(&k->waiting)) {
		map_del(w->keys, key);
		free(k);
		return;
	}
	job = CONTAINER_OF(k->waiting.next, struct work_job, node);
	list_del(&job->node);
	work_give_out(w, job);
}

static struct work_job *work_take_finished(struct work *w)
{
	struct work_job *job = NULL;

	pthread_mutex_lock(&w->lock);
	if (!list_empty(&w->finished)) {
		job = CONTAINER_OF(w->finished.next, struct work_job, node);
		list_del(&job->node);
	}
	pthread_mutex_unlock(&w->lock);
	return job;
}

static void work_on_finished(struct loop_io *io, uint32_t events)
{
	struct work *w = io->arg;
	struct work_job *job;
	uint64_t n;

	if (read(w->event_fd, &n, sizeof(n)) < 0)
		return;
	while ((job = work_take_finished(w)) != NULL) {
		w->n_pending--;
		if (job->done)
			job->done(job->arg);
		if (job->key)
			work_next_of_key(w, job->key);
		work_job_free(job);
	}
}

static int work_start_threads(struct work *w)
{
	pthread_attr_t attr;
	sigset_t all, old;
	int r = 0;

	sigfillset(&all);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, WORK_STACK_BYTES);
	/* Signals belong to the loop's thread. */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	for (unsigned n = w->n_threads; n > 0 && r == 0; n--) {
		r = pthread_create(&w->threads[n - 1], &attr, work_thread, w);
		if (r != 0) {
			memmove(w->threads, w->threads + n,
				(w->n_threads - n) * sizeof(*w->threads));
			w->n_threads -= n;
		}
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return -r;
}

struct work *work_new(struct loop *l, unsigned threads)
{
	return work_new_begin(l, threads, NULL, NULL);
}

struct work *work_new_begin(struct loop *l, unsigned threads, void (*begin)(void *arg), void *arg)
{
	struct work *w = x_alloc(sizeof(*w));

	w->loop = l;
	w->begin = begin;
	w->begin_arg = arg;
	w->n_threads = threads ? threads : 1;
	w->threads = x_array(w->n_threads, sizeof(*w->threads));
	w->keys = map_new(WORK_QUEUE_MAX);
	list_init(&w->ready);
	list_init(&w->finished);
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->more, NULL);
	w->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (w->event_fd < 0 || loop_add(l, &w->io, w->event_fd, EPOLLIN, work_on_finished, w) < 0) {
		w->n_threads = 0;
		work_free(w);
		return NULL;
	}
	if (work_start_threads(w) < 0 && w->n_threads == 0) {
		work_free(w);
		return NULL;
	}
	return w;
}

static void work_drop_list(struct list *l)
{
	LIST_FOR_SAFE(l, job, struct work_job, node) {
		list_del(&job->node);
		work_job_free(job);
	}
}

static int work_drop_key(const char *key, void *value, void *arg)
{
	struct work_key *k = value;

	work_drop_list(&k->waiting);
	free(k);
	return 0;
}

void work_stop(struct work *w)
{
	struct work_job *job;

	pthread_mutex_lock(&w->lock);
	w->ending = true;
	pthread_cond_broadcast(&w->more);
	pthread_mutex_unlock(&w->lock);
	for (; w->n_threads > 0; w->n_threads--)
		pthread_join(w->threads[w->n_threads - 1], NULL);
	loop_del(&w->io);
	while ((job = work_take_finished(w)) != NULL) {
		w->n_pending--;
		if (job->done)
			job->done(job->arg);
		work_job_free(job);
	}
}

void work_free(struct work *w)
{
	if (!w)
		return;
	work_stop(w);
	work_drop_list(&w->ready);
	map_each(w->keys, work_drop_key, NULL);
	map_free(w->keys);
	pthread_cond_destroy(&w->more);
	pthread_mutex_destroy(&w->lock);
	fd_close(w->event_fd);
	free(w->threads);
	free(w);
}

int work_add(struct work *w, const char *key, void (*run)(void *arg), void (*done)(void *arg),
	     void *arg)
{
	struct work_job *job;
	struct work_key *k;

	if (w->ending || w->n_pending >= WORK_QUEUE_MAX)
		return -EAGAIN;
	job = x_alloc(sizeof(*job));
	*job = (struct work_job){ .run = run, .done = done, .arg = arg, .key = x_strdup(key) };
	list_init(&job->node);
	w->n_pending++;
	if (!key) {
		work_give_out(w, job);
		return 0;
	}
	k = map_get(w->keys, key);
	if (k) {
		list_add_tail(&k->waiting, &job->node);
		return 0;
	}
	k = x_alloc(sizeof(*k));
	list_init(&k->waiting);
	if (map_put(w->keys, key, k) < 0)
		abort();                 /* there are never more keys than pending jobs */
	work_give_out(w, job);
	return 0;
}

unsigned work_pending(const struct work *w)
{
	return w->n_pending;
}
