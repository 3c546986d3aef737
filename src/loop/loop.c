/*
 * Theory of operation. A turn is: wait, then the events of this wait, then timers that are due,
 * then what was deferred before or during the turn. What is deferred by a deferred function waits
 * for the next turn, so a function that defers itself does not hold the loop.
 *
 * An io that is removed while events of the same wait are still to be given out must not be called
 * (its owner may be gone): loop_del strikes it out of the rest of the current batch. If it is
 * registered again at once, the kernel reports it again in the next turn (a registration reports
 * what is ready, edge-triggered too).
 *
 * Timers stand in a binary heap with index 1 as its root; each timer knows its place, so it is
 * removed without a search. A timer that is armed while timers are run is due in the next
 * millisecond at the earliest.
 *
 * loop_post is a stack without locks (push by compare and swap, the loop takes all and turns the
 * order round) and an eventfd.
 */
#include "loop/loop.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"

#define LOOP_BATCH 64

struct loop_posted {
	struct loop_posted *next;
	void (*fn)(void *arg);
	void *arg;
};

struct loop_sig {
	void (*fn)(int signo, void *arg);
	void *arg;
};

struct loop {
	int epfd, wake_fd, signal_fd;
	bool stop;
	struct epoll_event batch[LOOP_BATCH];
	int batch_pos, batch_len;               /* the entries from batch_pos on are still to be given out */
	struct loop_timer **heap;
	int heap_len, heap_cap;
	int64_t timers_now_ms;                  /* while timers are run, else 0 */
	struct loop_defer *defer_first, **defer_end;
	_Atomic(struct loop_posted *) posted;
	atomic_int n_posted;
	struct loop_io wake_io, signal_io;
	sigset_t signals;
	struct loop_sig handlers[NSIG];
};

static void loop_run_posted(struct loop_io *io, uint32_t events)
{
	struct loop *l = io->arg;
	struct loop_posted *p, *next, *order = NULL;
	uint64_t n;

	if (read(l->wake_fd, &n, sizeof(n)) < 0)
		return;
	for (p = atomic_exchange(&l->posted, NULL); p; p = next) {
		next = p->next;
		p->next = order;
		order = p;
	}
	for (p = order; p; p = next) {
		next = p->next;
		atomic_fetch_sub(&l->n_posted, 1);
		p->fn(p->arg);
		free(p);
	}
}

struct loop *loop_new(void)
{
	struct loop *l = x_alloc(sizeof(*l));

	l->signal_fd = -1;
	l->defer_end = &l->defer_first;
	sigemptyset(&l->signals);
	l->epfd = epoll_create1(EPOLL_CLOEXEC);
	l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->epfd < 0 || l->wake_fd < 0 ||
	    loop_add(l, &l->wake_io, l->wake_fd, EPOLLIN, loop_run_posted, l) < 0) {
		loop_free(l);
		return NULL;
	}
	return l;
}

static bool loop_run_deferred(struct loop *l)
{
	struct loop_defer *d = l->defer_first, *next;
	bool any = d != NULL;

	l->defer_first = NULL;
	l->defer_end = &l->defer_first;
	for (; d; d = next) {
		next = d->next;
		d->queued = false;
		d->next = NULL;
		d->fn(d);
	}
	return any;
}

void loop_free(struct loop *l)
{
	struct loop_posted *p, *next;

	if (!l)
		return;
	while (loop_run_deferred(l))
		;
	for (p = atomic_load(&l->posted); p; p = next) {
		next = p->next;
		free(p);
	}
	for (int i = 1; i <= l->heap_len; i++)
		l->heap[i]->heap_pos = 0;
	free(l->heap);
	fd_close(l->signal_fd);
	fd_close(l->wake_fd);
	fd_close(l->epfd);
	free(l);
}

int loop_add(struct loop *l, struct loop_io *io, int fd, uint32_t events,
	     void (*fn)(struct loop_io *, uint32_t), void *arg)
{
	struct epoll_event ev = { .events = events, .data.ptr = io };

	assert(!io->loop);
	if (epoll_ctl(l->epfd, EPOLL_CTL_ADD, fd, &ev) < 0)
		return -errno;
	*io = (struct loop_io){ .fd = fd, .events = events, .fn = fn, .arg = arg, .loop = l };
	return 0;
}

int loop_mod(struct loop_io *io, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.ptr = io };

	if (io->events == events)
		return 0;
	if (epoll_ctl(io->loop->epfd, EPOLL_CTL_MOD, io->fd, &ev) < 0)
		return -errno;
	io->events = events;
	return 0;
}

void loop_del(struct loop_io *io)
{
	struct loop *l = io->loop;

	if (!l)
		return;
	epoll_ctl(l->epfd, EPOLL_CTL_DEL, io->fd, NULL);
	for (int i = l->batch_pos; i < l->batch_len; i++)
		if (l->batch[i].data.ptr == io)
			l->batch[i].data.ptr = NULL;
	io->loop = NULL;
}

/* The heap. */

static void loop_heap_put(struct loop *l, int pos, struct loop_timer *t)
{
	l->heap[pos] = t;
	t->heap_pos = pos;
}

static void loop_heap_up(struct loop *l, int pos, struct loop_timer *t)
{
	for (; pos > 1 && l->heap[pos / 2]->at_ms > t->at_ms; pos /= 2)
		loop_heap_put(l, pos, l->heap[pos / 2]);
	loop_heap_put(l, pos, t);
}

static void loop_heap_down(struct loop *l, int pos, struct loop_timer *t)
{
	for (;;) {
		int child = pos * 2;

		if (child < l->heap_len && l->heap[child + 1]->at_ms < l->heap[child]->at_ms)
			child++;
		if (child > l->heap_len || l->heap[child]->at_ms >= t->at_ms)
			break;
		loop_heap_put(l, pos, l->heap[child]);
		pos = child;
	}
	loop_heap_put(l, pos, t);
}

void loop_timer_stop(struct loop_timer *t)
{
	struct loop *l = t->loop;
	struct loop_timer *last;
	int pos = t->heap_pos;

	if (pos == 0)
		return;
	t->heap_pos = 0;
	last = l->heap[l->heap_len--];
	if (last == t)
		return;
	if (pos > 1 && l->heap[pos / 2]->at_ms > last->at_ms)
		loop_heap_up(l, pos, last);
	else
		loop_heap_down(l, pos, last);
}

void loop_timer_set(struct loop *l, struct loop_timer *t, int64_t in_ms,
		    void (*fn)(struct loop_timer *), void *arg)
{
	loop_timer_stop(t);
	if (l->heap_len + 1 >= l->heap_cap) {
		l->heap_cap = l->heap_cap ? l->heap_cap * 2 : 64;
		l->heap = x_realloc(l->heap, (size_t)l->heap_cap * sizeof(*l->heap));
	}
	t->loop = l;
	t->fn = fn;
	t->arg = arg;
	t->at_ms = clock_mono_ms() + (in_ms > 0 ? in_ms : 0);
	if (t->at_ms <= l->timers_now_ms)
		t->at_ms = l->timers_now_ms + 1;
	loop_heap_up(l, ++l->heap_len, t);
}

static void loop_run_timers(struct loop *l)
{
	if (l->heap_len == 0)
		return;
	l->timers_now_ms = clock_mono_ms();
	while (l->heap_len > 0 && l->heap[1]->at_ms <= l->timers_now_ms) {
		struct loop_timer *t = l->heap[1];

		loop_timer_stop(t);
		t->fn(t);
	}
	l->timers_now_ms = 0;
}

static int loop_wait_ms(const struct loop *l, int timeout_ms)
{
	int64_t left;

	if (l->defer_first)
		return 0;
	if (l->heap_len == 0)
		return timeout_ms;
	left = l->heap[1]->at_ms - clock_mono_ms();
	if (left < 0)
		left = 0;
	if (left > INT_MAX)
		left = INT_MAX;
	return timeout_ms >= 0 && timeout_ms < left ? timeout_ms : (int)left;
}

int loop_turn(struct loop *l, int timeout_ms)
{
	int n = epoll_wait(l->epfd, l->batch, LOOP_BATCH, loop_wait_ms(l, timeout_ms));

	if (n < 0 && errno != EINTR)
		return -errno;
	l->batch_len = n < 0 ? 0 : n;
	l->batch_pos = 0;
	while (l->batch_pos < l->batch_len) {
		struct epoll_event *ev = &l->batch[l->batch_pos++];
		struct loop_io *io = ev->data.ptr;

		if (io)
			io->fn(io, ev->events);
	}
	l->batch_len = l->batch_pos = 0;
	loop_run_timers(l);
	loop_run_deferred(l);
	return 0;
}

int loop_run(struct loop *l)
{
	int r = 0;

	while (!l->stop && r == 0)
		r = loop_turn(l, -1);
	l->stop = false;
	return r;
}

void loop_stop(struct loop *l)
{
	l->stop = true;
}

void loop_defer(struct loop *l, struct loop_defer *d, void (*fn)(struct loop_defer *), void *arg)
{
	if (d->queued)
		return;
	*d = (struct loop_defer){ .fn = fn, .arg = arg, .queued = true };
	*l->defer_end = d;
	l->defer_end = &d->next;
}

int loop_post(struct loop *l, void (*fn)(void *arg), void *arg)
{
	struct loop_posted *p;
	uint64_t one = 1;

	if (atomic_fetch_add(&l->n_posted, 1) >= LOOP_POST_MAX) {
		atomic_fetch_sub(&l->n_posted, 1);
		return -ENOSPC;
	}
	p = x_alloc(sizeof(*p));
	p->fn = fn;
	p->arg = arg;
	p->next = atomic_load(&l->posted);
	while (!atomic_compare_exchange_weak(&l->posted, &p->next, p))
		;
	/* EAGAIN: the counter is at its end, so the loop is awake already. */
	while (write(l->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
	return 0;
}

static void loop_run_signals(struct loop_io *io, uint32_t events)
{
	struct loop *l = io->arg;
	struct signalfd_siginfo si;

	while (read(l->signal_fd, &si, sizeof(si)) == (ssize_t)sizeof(si)) {
		struct loop_sig *s = si.ssi_signo < NSIG ? &l->handlers[si.ssi_signo] : NULL;

		if (s && s->fn)
			s->fn((int)si.ssi_signo, s->arg);
	}
}

int loop_signal(struct loop *l, int signo, void (*fn)(int signo, void *arg), void *arg)
{
	sigset_t one;
	int fd, r;

	if (signo <= 0 || signo >= NSIG)
		return -EINVAL;
	sigemptyset(&one);
	sigaddset(&one, signo);
	r = pthread_sigmask(SIG_BLOCK, &one, NULL);
	if (r != 0)
		return -r;
	sigaddset(&l->signals, signo);
	fd = signalfd(l->signal_fd, &l->signals, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0)
		return -errno;
	l->handlers[signo] = (struct loop_sig){ .fn = fn, .arg = arg };
	if (l->signal_fd >= 0)
		return 0;
	l->signal_fd = fd;
	return loop_add(l, &l->signal_io, fd, EPOLLIN, loop_run_signals, l);
}
