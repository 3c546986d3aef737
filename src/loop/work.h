/*
 * Worker threads for straight-line blocking jobs (SQL, HTTP and IPC calls with deadlines). A job
 * runs in a worker and its `done` in the loop's thread. Jobs with the same key run one after the
 * other in order; jobs with key NULL are free; the next job of a key starts after `done` of the one
 * before. The only place with a mutex (STYLE.md).
 */
#ifndef LOOP_WORK_H
#define LOOP_WORK_H

#include "loop/loop.h"

struct work;

#define WORK_QUEUE_MAX 4096

struct work *work_new(struct loop *l, unsigned threads);
/*
 * The same; each thread calls begin(arg) once, before its first job: for what it keeps for all of
 * them. `arg` must outlive the workers.
 */
struct work *work_new_begin(struct loop *l, unsigned threads, void (*begin)(void *arg), void *arg);
/*
 * Waits for the running jobs and calls their done; queued ones are dropped (done is not called).
 * From then on work_add says -EAGAIN: who has several sets whose jobs begin others stops all of
 * them before it frees the first.
 */
void work_stop(struct work *w);
void work_free(struct work *w);                          /* stops it first */
/* -EAGAIN when WORK_QUEUE_MAX jobs wait. `arg` belongs to the job until done(arg) was called. */
int work_add(struct work *w, const char *key, void (*run)(void *arg), void (*done)(void *arg),
	     void *arg);
unsigned work_pending(const struct work *w);

#endif
