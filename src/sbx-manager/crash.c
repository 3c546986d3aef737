/*
 * An execution that ended by itself: seen by its VMM's connection, by the bridge, by node-manager.
 * One crash job clears up. And what a job that failed has left half done: it is brought to its end,
 * again and again, whether somebody asks or not.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/log.h"
#include "base/str.h"
#include "sbx-manager/job.h"

#define CRASH_FINISH_MS 2000             /* for whoever asked to ask again first */
#define CRASH_RETRY_MS 1000              /* when node-manager could not clear it away */

static void crash_again(struct loop_timer *t)
{
	crash_after_job(t->arg);
}

static void crash_done(struct job *j)
{
	struct box *b = box_find(j->s, j->sandbox);

	if (j->e.num < 0 && b && life_resident(b->rec.state) && b->rec.id.generation == j->generation)
		loop_timer_set(j->s->loop, &b->retry, CRASH_RETRY_MS, crash_again, b);
	else if (b)
		b->crashed = false;
}

/* `crashed` stays until the job has done its work. */
static void crash_start(struct box *b)
{
	struct job *j = job_new(b->s, "crash", b->rec.id.sandbox, "", lifecycle_crash);

	b->ending = true;
	j->done = crash_done;
	j->generation = b->crash_generation;
	j->event = b->crash_event;
	str_copy(j->reason, sizeof(j->reason), b->crash_reason);
	job_start(j);
}

void crash_seen(struct sbx *s, const char *sandbox, uint64_t generation, enum life_event ev,
		const char *reason)
{
	struct box *b = box_find(s, sandbox);

	/* The first reason is the one that counts. */
	if (!b || b->rec.id.generation != generation || b->crashed || b->ending)
		return;
	log_warn("an execution has ended", F_STR("sandbox", sandbox),
		 F_UINT("generation", generation), F_STR("event", life_event_names[ev]),
		 F_STR("reason", reason));
	/* From now on, whatever job is there. */
	b->crashed = b->ending = true;
	b->crash_generation = generation;
	b->crash_event = ev;
	/* The words of the life-cycle table; of a crash also what was seen. */
	str_format(b->crash_reason, sizeof(b->crash_reason),
		   ev == LIFE_EV_CRASH ? "crashed: %s" : "%s",
		   ev == LIFE_EV_CRASH ? reason : life_event_names[ev]);
	crash_after_job(b);
}

/*
 * While a job is there it will find out by itself, or it makes a state that is looked at when it is
 * done.
 */
void crash_after_job(struct box *b)
{
	if (!b->crashed || b->jobs > 0 || b->retry.heap_pos > 0)
		return;
	if (life_resident(b->rec.state) && b->rec.id.generation == b->crash_generation)
		crash_start(b);
	else
		b->crashed = false;
}

static void crash_finish(struct loop_timer *t)
{
	struct box *b = t->arg;

	if (b->jobs == 0 && life_in_transition(b->rec.state))
		job_start(job_new(b->s, "finish", b->rec.id.sandbox, "", lifecycle_finish));
}

void crash_job_failed(struct box *b, const struct err *e)
{
	char reason[RECORD_REASON_MAX];

	if (life_in_transition(b->rec.state))
		loop_timer_set(b->s->loop, &b->finish, CRASH_FINISH_MS, crash_finish, b);
	if (!life_resident(b->rec.state) || !b->ending || b->crashed)
		return;
	/* Its end was begun and not finished: it serves nobody any more. */
	b->ending = false;
	str_format(reason, sizeof(reason), "its end was begun: %s", e->text);
	crash_seen(b->s, b->rec.id.sandbox, b->rec.id.generation, LIFE_EV_CRASH, reason);
}

void crash_on_nm_event(const char *name, json_t *a, void *arg)
{
	struct nm_exited x = { 0 };
	char reason[RECORD_REASON_MAX];

	if (!str_eq(name, "exited") || ipc_decode(nm_exited_fields, a, &x, sizeof(x), NULL) < 0)
		return;
	if (x.status >= 0 && WIFSIGNALED((int)x.status))
		str_format(reason, sizeof(reason), "%s was killed by signal %d", x.who,
			   WTERMSIG((int)x.status));
	else if (x.status >= 0)
		str_format(reason, sizeof(reason), "%s exited with status %d", x.who,
			   WEXITSTATUS((int)x.status));
	else
		str_format(reason, sizeof(reason), "%s has ended", x.who);
	/* The sandbox lives on without it, until there is another one. */
	if (str_eq(x.who, "gateway")) {
		gateway_exited(arg, x.sandbox, x.generation, reason);
		return;
	}
	crash_seen(arg, x.sandbox, x.generation, LIFE_EV_CRASH, reason);
}
