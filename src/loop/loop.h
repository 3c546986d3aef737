/*
 * The event loop: one thread owns every descriptor and long-lived object of a program. epoll,
 * level-triggered (edge-triggered on request), timers, deferred closing: what is freed during a
 * turn is freed at its end, so a callback never sees a dead object. Only loop_post may be called
 * from other threads.
 */
#ifndef LOOP_LOOP_H
#define LOOP_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

struct loop;

/* Embedded in its owner. Zeroed before first use. */
struct loop_io {
	int fd;                                     /* not owned */
	uint32_t events;                            /* EPOLLIN ... as registered */
	void (*fn)(struct loop_io *io, uint32_t events);
	void *arg;
	struct loop *loop;                          /* NULL = not registered */
};

struct loop_timer {
	int64_t at_ms;                              /* clock_mono_ms */
	void (*fn)(struct loop_timer *t);
	void *arg;
	int heap_pos;                               /* 0 = not armed */
	struct loop *loop;
};

/*
 * Run once at the end of the current turn (or the next when called outside one). Embedded in its
 * owner.
 */
struct loop_defer {
	void (*fn)(struct loop_defer *d);
	void *arg;
	struct loop_defer *next;
	bool queued;
};

struct loop *loop_new(void);
void loop_free(struct loop *l);
int loop_run(struct loop *l);                       /* until loop_stop; 0 or negative errno */
int loop_turn(struct loop *l, int timeout_ms);      /* one turn; for tests */
void loop_stop(struct loop *l);                     /* async-signal-safe is not promised */

int loop_add(struct loop *l, struct loop_io *io, int fd, uint32_t events,
	     void (*fn)(struct loop_io *, uint32_t), void *arg);
int loop_mod(struct loop_io *io, uint32_t events);  /* no system call when unchanged */
void loop_del(struct loop_io *io);                  /* fine when not registered; call before closing the fd */

void loop_timer_set(struct loop *l, struct loop_timer *t, int64_t in_ms,
		    void (*fn)(struct loop_timer *), void *arg);
void loop_timer_stop(struct loop_timer *t);         /* fine when not armed */

void loop_defer(struct loop *l, struct loop_defer *d, void (*fn)(struct loop_defer *), void *arg);

/*
 * From any thread: fn(arg) runs in the loop's thread. At most LOOP_POST_MAX waiting; -ENOSPC
 * beyond.
 */
#define LOOP_POST_MAX 65536
int loop_post(struct loop *l, void (*fn)(void *arg), void *arg);

/*
 * Signals through signalfd; the signals are blocked in the calling thread (call before making
 * threads).
 */
int loop_signal(struct loop *l, int signo, void (*fn)(int signo, void *arg), void *arg);

#endif
