#include "spaced-guest/ev.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"

#define EV_BATCH 64

struct ev {
	int epfd;
	struct list timers, jobs;
	int64_t next_due_ms; /* never later than the first timer; INT64_MAX = none */
	struct epoll_event batch[EV_BATCH];
	int batch_n, batch_at;                   /* being dispatched */
};

struct ev *ev_new(void)
{
	int fd = epoll_create1(EPOLL_CLOEXEC);
	struct ev *ev;

	if (fd < 0)
		return NULL;
	ev = x_alloc(sizeof(*ev));
	ev->epfd = fd;
	ev->next_due_ms = INT64_MAX;
	list_init(&ev->timers);
	list_init(&ev->jobs);
	return ev;
}

void ev_free(struct ev *ev)
{
	if (!ev)
		return;
	close(ev->epfd);
	free(ev);
}

int ev_watch_set(struct ev *ev, struct ev_watch *w, uint32_t mask)
{
	struct epoll_event e = { .events = mask, .data.ptr = w };
	int op = w->mask == 0 ? EPOLL_CTL_ADD : mask == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;

	if (w->mask == mask)
		return 0;
	if (epoll_ctl(ev->epfd, op, w->fd, &e) < 0)
		return -errno;
	w->mask = mask;
	/* Its events in the batch are stale, and its memory may be freed now. */
	for (int i = ev->batch_at; mask == 0 && i < ev->batch_n; i++)
		if (ev->batch[i].data.ptr == w)
			ev->batch[i].data.ptr = NULL;
	return 0;
}

void ev_timer_init(struct ev_timer *t, void (*fn)(struct ev_timer *t))
{
	list_init(&t->node);
	t->fn = fn;
}

void ev_timer_set(struct ev *ev, struct ev_timer *t, int64_t in_ms)
{
	list_del(&t->node);
	t->due_ms = clock_mono_ms() + in_ms;
	list_add_tail(&ev->timers, &t->node);
	if (t->due_ms < ev->next_due_ms)
		ev->next_due_ms = t->due_ms;
}

void ev_timer_del(struct ev_timer *t)
{
	list_del(&t->node);
}

void ev_job_add(struct ev *ev, struct ev_job *j, void (*step)(struct ev_job *j))
{
	j->step = step;
	list_add_tail(&ev->jobs, &j->node);
}

void ev_job_del(struct ev_job *j)
{
	list_del(&j->node);
}

/* A timer's function may delete any timer, so the list is walked anew after each call. */
static void ev_fire(struct ev *ev)
{
	int64_t now = clock_mono_ms();
	bool again = now >= ev->next_due_ms;

	while (again) {
		again = false;
		ev->next_due_ms = INT64_MAX;
		LIST_FOR(&ev->timers, t, struct ev_timer, node) {
			if (t->due_ms <= now) {
				list_del(&t->node);
				t->fn(t);
				again = true;
				break;
			}
			if (t->due_ms < ev->next_due_ms)
				ev->next_due_ms = t->due_ms;
		}
	}
}

/* Each job of now runs once: those added meanwhile stand behind the mark. */
static void ev_run_jobs(struct ev *ev)
{
	struct list mark;

	if (list_empty(&ev->jobs))
		return;
	list_add_tail(&ev->jobs, &mark);
	while (ev->jobs.next != &mark) {
		struct ev_job *j = CONTAINER_OF(ev->jobs.next, struct ev_job, node);

		list_del(&j->node);
		list_add_tail(&ev->jobs, &j->node);
		j->step(j);
	}
	list_del(&mark);
}

static int ev_timeout(const struct ev *ev, bool busy)
{
	int64_t left;

	if (busy || !list_empty(&ev->jobs))
		return 0;
	if (ev->next_due_ms == INT64_MAX)
		return -1;
	left = ev->next_due_ms - clock_mono_ms();
	return left < 0 ? 0 : left > 60000 ? 60000 : (int)left;
}

int ev_turn(struct ev *ev, bool busy)
{
	int n = epoll_wait(ev->epfd, ev->batch, EV_BATCH, ev_timeout(ev, busy));

	if (n < 0 && errno != EINTR)
		return -errno;
	ev->batch_n = n < 0 ? 0 : n;
	for (ev->batch_at = 0; ev->batch_at < ev->batch_n;) {
		struct epoll_event *e = &ev->batch[ev->batch_at++];
		struct ev_watch *w = e->data.ptr;

		if (w)
			w->fn(w, e->events);
	}
	ev->batch_n = 0;
	ev_fire(ev);
	ev_run_jobs(ev);
	return 0;
}
