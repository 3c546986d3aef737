/*
 * Pause and resume (spec C-3, I-5). The execution stays the same: its processes, its memory, its
 * identity, its bridge. What stops is the virtual machine: its processors get no time any more.
 *
 *	pause    record pausing: nothing is admitted from then on
 *	         its streams are cut, as when it ends: their clients see a lost connection, not an end
 *	         the machine is stopped, and asked whether it is
 *	         record paused
 *	resume   record resuming
 *	         the machine goes on
 *	         /init: the guest's clock is set, its generator gets fresh entropy
 *	         record running
 *
 * Nothing of a pause needs the guest, which may be stuck or hostile. The bridge is not asked
 * either: with its clients' sockets shut it resets their streams by itself, whenever the guest
 * takes that.
 *
 * A pause that fails leaves it running, a resume paused. Where this program was killed in between,
 * the next start makes both paused (pause_settle), and the request comes again. A machine that does
 * neither run nor stand still has ended: that is a crash.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/str.h"
#include "sbx-manager/job.h"

#define PAUSE_QMP_MS 10000
#define PAUSE_INIT_MS 20000
#define PAUSE_THAW_MS 3000

/* ---- The machine ---- */

/* One that does not answer may have much to do: once more, over a new connection. */
static int pause_turn(struct job *j, int (*turn)(struct vmm *vm, int timeout_ms, struct err *e),
		      struct err *e)
{
	struct err first = { 0 };

	job_take_vm(j);
	if (j->vm && turn(j->vm, PAUSE_QMP_MS, &first) == 0)
		return 0;
	if (exec_vm_again(j, e) < 0)
		return e->num;
	return turn(j->vm, PAUSE_QMP_MS, e);
}

/* It stands still, by its own word. */
static int pause_stop(struct job *j, struct err *e)
{
	enum vmm_run_state st = VMM_RUN_CRASHED;
	int r = pause_turn(j, vmm_stop, e);

	if (r == 0)
		r = vmm_status(j->vm, &st, PAUSE_QMP_MS, e);
	if (r == 0 && st != VMM_RUN_PAUSED)
		r = err_set_code(e, -ESTALE, "not-running", "The virtual machine is %s.",
				 vmm_run_names[st]);
	return r;
}

static void pause_cut_in_loop(void *arg)
{
	struct job *j = arg;
	struct box *b = box_find(j->s, j->rec.id.sandbox);

	if (b)
		lease_cut_all(b);
}

static void pause_look_in_loop(void *arg)
{
	struct job *j = arg;

	job_start(job_new(j->s, "look", j->rec.id.sandbox, "", lifecycle_look));
}

/* ---- Pause ---- */

/* Is this execution here, and in a state that leads to the other one? */
static int pause_load(struct job *j, struct err *e)
{
	int r = lifecycle_load(j, e);

	if (r < 0)
		return r;
	if (lifecycle_gone(j))
		return lifecycle_not_found(j, e);
	r = lifecycle_installed(j, e);
	if (r < 0)
		return r;
	if (!life_resident(j->rec.state))
		return err_set_code(e, -ESTALE, "not-running", "The sandbox is %s%s%s.",
				    life_state_names[j->rec.state], j->rec.reason[0] ? ": " : "",
				    j->rec.reason);
	return 0;
}

/*
 * Runs again, as before. Where not even the machine's control socket answers it may run all the
 * same: it is looked at again.
 */
static void pause_undo(struct job *j)
{
	enum vmm_run_state st = VMM_RUN_PAUSED;
	struct err e = { 0 };
	int r = j->vm ? vmm_status(j->vm, &st, PAUSE_QMP_MS, NULL) : 0;

	/* One that has ended meanwhile says so itself (exec_announce). */
	if (r < 0 || st == VMM_RUN_PAUSED)
		r = pause_turn(j, vmm_cont, &e);
	if (r < 0)
		log_warn("a failed pause: the machine does not answer", F_REQ(j->req_id),
			 F_STR("sandbox", j->rec.id.sandbox), F_ERR(&e));
	r = job_set_state(j, LIFE_RUNNING, "", &e);
	if (r == 0)
		r = exec_announce(j, &e);
	if (r == 0)
		r = sbx_in_loop(j->s, pause_look_in_loop, j);
	if (r < 0)
		log_warn("a failed pause was not undone", F_REQ(j->req_id),
			 F_STR("sandbox", j->rec.id.sandbox), F_ERR(&e));
}

static int pause_steps(struct job *j, struct err *e)
{
	int r = sbx_in_loop(j->s, pause_cut_in_loop, j);

	if (r < 0)
		return err_set(e, r, "The node service is ending.");
	r = job_fault("sbx.pause.cut", e);
	if (r == 0)
		r = pause_stop(j, e);
	job_step(j, "stop");
	if (r == 0)
		r = job_fault("sbx.pause.stopped", e);
	if (r == 0)
		r = job_set_state(j, LIFE_PAUSED, "", e);
	job_step(j, "commit");
	if (r == 0)
		r = job_fault("sbx.pause.committed", e);
	return r;
}

int lifecycle_pause(struct job *j, struct err *e)
{
	int r = pause_load(j, e);

	if (r < 0)
		return r;
	if (j->rec.state == LIFE_PAUSED)
		return lifecycle_result(j);
	r = job_set_state(j, LIFE_PAUSING, NULL, e);
	job_step(j, "record");
	if (r == 0)
		r = job_fault("sbx.pause.recorded", e);
	if (r == 0)
		r = pause_steps(j, e);
	if (r < 0) {
		pause_undo(j);
		return r;
	}
	r = exec_announce(j, e);
	if (r < 0)
		return r;
	job_event(j, "paused: execution %llu", (unsigned long long)j->rec.id.generation);
	lifecycle_total(j);
	return lifecycle_result(j);
}

/* ---- Resume ---- */

static int resume_steps(struct job *j, struct err *e)
{
	int r = pause_turn(j, vmm_cont, e);

	job_step(j, "cont");
	if (r == 0)
		r = job_fault("sbx.resume.after-cont", e);
	if (r == 0)
		r = guest_init(j, json_object_get(j->spec, "env"), PAUSE_INIT_MS, e);
	if (r == -ETIMEDOUT)
		r = err_set_code(e, -EIO, "guest-failed",
				 "The guest does not answer; it stays paused. A start boots it anew from its disk.");
	job_step(j, "init");
	if (r == 0)
		r = job_fault("sbx.resume.after-init", e);
	if (r == 0)
		r = job_set_state(j, LIFE_RUNNING, "", e);
	job_step(j, "commit");
	if (r == 0)
		r = job_fault("sbx.resume.committed", e);
	return r;
}

int lifecycle_resume(struct job *j, struct err *e)
{
	struct err settle = { 0 };
	int r = pause_load(j, e);

	if (r < 0)
		return r;
	if (j->rec.state == LIFE_RUNNING)
		return lifecycle_result(j);
	r = job_set_state(j, LIFE_RESUMING, NULL, e);
	job_step(j, "record");
	if (r == 0)
		r = job_fault("sbx.resume.recorded", e);
	if (r == 0)
		r = resume_steps(j, e);
	if (r < 0) {
		if (pause_settle(j, &settle) < 0)
			log_warn("a failed resume was not undone", F_REQ(j->req_id),
				 F_STR("sandbox", j->rec.id.sandbox), F_ERR(&settle));
		return r;
	}
	r = exec_announce(j, e);
	if (r < 0)
		return r;
	job_event(j, "resumed: execution %llu", (unsigned long long)j->rec.id.generation);
	lifecycle_total(j);
	return lifecycle_result(j);
}

/* ---- What is left in between ---- */

int pause_settle(struct job *j, struct err *e)
{
	struct err lost = { 0 };
	int r = pause_stop(j, &lost);

	if (r == 0)
		r = job_set_state(j, LIFE_PAUSED, "", &lost);
	if (r == 0)
		return exec_announce(j, e);
	*e = lost;
	/* What it says by itself (the guest has powered off) comes first. */
	str_copy(j->reason, sizeof(j->reason), lost.text);
	if (exec_announce(j, &lost) == 0)
		sbx_in_loop(j->s, lifecycle_vm_lost, j);
	return e->num;
}

bool pause_thaw(struct job *j)
{
	struct err e = { 0 };

	job_take_vm(j);
	if (j->vm && vmm_cont(j->vm, PAUSE_THAW_MS, &e) == 0)
		return true;
	log_warn("a paused sandbox ends without writing its disk", F_REQ(j->req_id),
		 F_STR("sandbox", j->rec.id.sandbox), F_ERR(&e));
	return false;
}
