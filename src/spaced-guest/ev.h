/*
 * The agent's event loop: epoll, timers and jobs. One thread, level-triggered unless the mask has
 * EPOLLET. Limits: as many watches as descriptors; timers are a list, since there are at most a few
 * hundred.
 */
#ifndef GUEST_EV_H
#define GUEST_EV_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include "base/list.h"

struct ev;

struct ev_watch {
	int fd;
	uint32_t mask;                           /* what is in epoll now; 0 = not in it */
	void (*fn)(struct ev_watch *w, uint32_t events);
};

struct ev_timer {
	struct list node;                        /* linked while armed */
	int64_t due_ms;                          /* clock_mono_ms */
	void (*fn)(struct ev_timer *t);
};

/* Work in small pieces: step is called once in each turn of the loop until ev_job_del. */
struct ev_job {
	struct list node;
	void (*step)(struct ev_job *j);
};

struct ev *ev_new(void);                                         /* NULL with errno */
void ev_free(struct ev *ev);
/*
 * Mask 0 takes it out (a level-triggered EPOLLHUP would spin). The fd stays the caller's; take out
 * before closing.
 */
int ev_watch_set(struct ev *ev, struct ev_watch *w, uint32_t mask);
void ev_timer_init(struct ev_timer *t, void (*fn)(struct ev_timer *t));
void ev_timer_set(struct ev *ev, struct ev_timer *t, int64_t in_ms);     /* again = moved */
void ev_timer_del(struct ev_timer *t);
void ev_job_add(struct ev *ev, struct ev_job *j, void (*step)(struct ev_job *j));
void ev_job_del(struct ev_job *j);
/*
 * One turn: waits at most until the next timer (not at all when `busy` or a job is there), calls
 * what is due.
 */
int ev_turn(struct ev *ev, bool busy);

#endif
