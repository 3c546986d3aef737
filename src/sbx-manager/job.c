#include "sbx-manager/job.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"

#define JOB_NM_TRIES 5                   /* of one whose child died */
#define JOB_NM_AWAY_MS 10000             /* it is started again, on a machine with much to do */
#define JOB_NM_RETRY_US 200000
#define JOB_NM_CONNECT_MS 2000

void job_free(struct job *j)
{
	json_decref(j->spec);
	json_decref(j->result);
	json_decref(j->ms);
	ipc_sync_close(j->nm);
	ipc_sync_close(j->nm_gateway);
	vmm_close(j->vm);
	free(j);
}

struct job *job_new(struct sbx *s, const char *name, const char *sandbox, const char *req_id,
		    int (*run)(struct job *j, struct err *e))
{
	struct job *j = x_alloc(sizeof(*j));

	j->s = s;
	j->name = name;
	j->run = run;
	str_copy(j->sandbox, sizeof(j->sandbox), sandbox);
	str_copy(j->req_id, sizeof(j->req_id), req_id ? req_id : "");
	return j;
}

static void job_log(const struct job *j)
{
	int64_t ms = (clock_mono_us() - j->begin_us) / 1000;
	/* {"disk":12.3,...}: milliseconds of each step, in their order. */
	autofree char *steps =
		j->ms ? json_dumps(j->ms, JSON_COMPACT | JSON_REAL_PRECISION(4)) : NULL;

	if (j->e.num < 0)
		log_warn("job failed", F_STR("job", j->name), F_REQ(j->req_id),
			 F_STR("sandbox", j->sandbox), F_INT("ms", ms),
			 F_STR("steps", steps ? steps : ""), F_ERR(&j->e));
	else
		log_info("job done", F_STR("job", j->name), F_REQ(j->req_id),
			 F_STR("sandbox", j->sandbox), F_INT("ms", ms),
			 F_STR("steps", steps ? steps : ""));
}

static void job_answer(struct job *j)
{
	struct sbx_lifecycle_rep rep = { .result = j->result };

	if (!j->call)
		return;
	if (j->e.num < 0)
		ipc_fail(j->call, &j->e);
	else
		ipc_answer(j->call, &rep, NULL, 0);
}

static void job_run(void *arg)
{
	struct job *j = arg;

	j->begin_us = j->step_us = clock_mono_us();
	j->ms = json_object();
	/* What was set on the way and did not matter is no failure. */
	if (j->run(j, &j->e) >= 0)
		j->e = (struct err){ 0 };
	else if (j->e.num == 0)
		err_set(&j->e, -EIO, "The job failed without a reason.");
	job_log(j);
}

static void job_done(void *arg)
{
	struct job *j = arg;
	struct box *b;

	if (j->done)
		j->done(j);
	else
		job_answer(j);
	b = j->sandbox[0] ? box_find(j->s, j->sandbox) : NULL;
	if (b) {
		b->jobs -= b->jobs > 0;
		crash_after_job(b);
		if (j->e.num < 0)
			crash_job_failed(b, &j->e);
		gateway_look(b);
	}
	job_free(j);
}

int job_start(struct job *j)
{
	struct box *b = j->sandbox[0] ? box_find(j->s, j->sandbox) : NULL;
	int r = work_add(j->s->work, j->sandbox[0] ? j->sandbox : j->name, job_run, job_done, j);

	if (r < 0) {
		err_set_code(&j->e, -EAGAIN, "limit", "The node has too much to do; try again.");
		if (j->done)
			j->done(j);
		else
			job_answer(j);
		job_free(j);
		return r;
	}
	if (b)
		b->jobs++;
	return 0;
}

/* What may be asked again at once, because twice is as good as once. */
static bool job_nm_idempotent(enum nm_op op)
{
	return op == NM_DESTROY || op == NM_DISK_DELETE || op == NM_DISK_CREATE ||
	       op == NM_LIST || op == NM_VERIFY || op == NM_QMP_OPEN || op == NM_GATEWAY;
}

/* Its failure is not to be taken for what node-manager itself would say, "not found" above all. */
static int job_nm_open(struct job *j, struct ipc_sync **ret, struct err *e)
{
	autoclose int fd = -1;
	struct fd_peer peer;

	fd = fd_unix_connect(j->s->nm_path, SOCK_SEQPACKET, JOB_NM_CONNECT_MS);
	if (fd < 0)
		return err_set_code(e, -ECONNREFUSED, "node-manager-away",
				    "node-manager does not listen (%s)", strerror(-fd));
	if (fd_peer_cred(fd, &peer) < 0 || peer.uid != j->s->nm_uid)
		return err_set(e, -EPERM, "node-manager's socket belongs to another user");
	return ipc_sync_open_fd(TAKE_FD(fd), ret);
}

int job_nm_begin(struct job *j, enum nm_op op, const void *req, struct ipc_sync **ret,
		 struct err *e)
{
	struct ipc_sync *c = NULL;
	int r = job_nm_open(j, &c, e);

	if (r == 0)
		r = ipc_sync_begin(c, &nm_ops[op], j->req_id, req, NULL, 0, SBX_NM_MS, e);
	if (r < 0)
		ipc_sync_close(c);
	else
		*ret = c;
	return r;
}

static int job_nm_once(struct job *j, enum nm_op op, const void *req, const int *fds, size_t n_fds,
		       void *rep, int *ret_fds, size_t *ret_n_fds, int timeout_ms, struct err *e)
{
	size_t none = 0;
	int r = j->nm ? 0 : job_nm_open(j, &j->nm, e);

	/* It died over it, or is just being started again. */
	j->nm_away = r < 0;
	if (r == 0)
		r = ipc_sync_call(j->nm, &nm_ops[op], j->req_id, req, fds, n_fds, rep, ret_fds,
				  ret_n_fds ? ret_n_fds : &none, timeout_ms, e);
	if (j->nm)
		j->nm_away = ipc_sync_broken(j->nm);
	/* An answer that comes late would be the answer to the next question. */
	if (j->nm_away || r == -ECONNRESET || r == -EPIPE || r == -ETIMEDOUT || r == -EPROTO) {
		ipc_sync_close(j->nm);
		j->nm = NULL;
	}
	return r;
}

int job_nm(struct job *j, enum nm_op op, const void *req, const int *fds, size_t n_fds, void *rep,
	   int *ret_fds, size_t *ret_n_fds, int timeout_ms, struct err *e)
{
	int64_t until = clock_mono_ms() + JOB_NM_AWAY_MS;

	for (int tries = 0;; tries++) {
		struct err failed = { 0 };
		bool again;
		int r = job_nm_once(j, op, req, fds, n_fds, rep, ret_fds, ret_n_fds, timeout_ms,
				    &failed);

		if (r >= 0)
			return r;
		/* It is soon back, and finds what was done; its child died: once more. */
		again = j->nm_away ? clock_mono_ms() < until
				   : str_eq(failed.code, "node-failed") && tries < JOB_NM_TRIES;
		if (!job_nm_idempotent(op) || atomic_load(&j->s->leaving) || !again) {
			if (e)
				*e = failed;
			err_wrap(e, "%s", nm_ops[op].name);
			return r;
		}
		log_warn("node-manager is asked again", F_REQ(j->req_id),
			 F_STR("op", nm_ops[op].name), F_ERR(&failed));
		usleep(JOB_NM_RETRY_US);
	}
}

static void job_set_in_loop(void *arg)
{
	struct job *j = arg;
	bool fresh = !box_find(j->s, j->rec.id.sandbox);
	struct box *b = box_set(j->s, &j->rec);

	j->no_box = !b && j->rec.state != LIFE_NONE;
	/* The job that makes the box is one of its jobs. */
	if (b && fresh && j->sandbox[0])
		b->jobs++;
}

int job_commit(struct job *j, struct err *e)
{
	int r;

	if (j->unrecorded)
		return 0;
	r = record_put(j->s->db, &j->rec, e);
	if (r < 0)
		return r;
	r = sbx_in_loop(j->s, job_set_in_loop, j);
	if (r < 0)
		return err_set(e, r, "The node service is ending.");
	return j->no_box ? err_set_code(e, -ENOSPC, "limit",
					"This node has as many sandboxes as it can keep.")
			 : 0;
}

int job_forget(struct job *j, struct err *e)
{
	int r;

	/* First away in memory: what is denied needs no commit. */
	j->rec.state = LIFE_NONE;
	r = sbx_in_loop(j->s, job_set_in_loop, j);
	return r < 0 ? err_set(e, r, "The node service is ending.")
		     : record_drop(j->s->db, j->rec.id.sandbox, e);
}

int job_set_state(struct job *j, enum life_state st, const char *reason, struct err *e)
{
	if (j->rec.state != st)
		log_info("state", F_REQ(j->req_id), F_STR("sandbox", j->rec.id.sandbox),
			 F_UINT("generation", j->rec.id.generation),
			 F_STR("from", life_state_names[j->rec.state]),
			 F_STR("to", life_state_names[st]), F_STR("reason", reason ? reason : ""));
	j->rec.state = st;
	j->rec.since_ms = clock_wall_ms();
	if (reason)
		str_copy(j->rec.reason, sizeof(j->rec.reason), reason);
	return job_commit(j, e);
}

void job_step(struct job *j, const char *name)
{
	int64_t now = clock_mono_us();

	json_object_set_new(j->ms, name, json_real((double)(now - j->step_us) / 1000.0));
	j->step_us = now;
}

void job_event(struct job *j, const char *fmt, ...)
{
	char text[RECORD_EVENT_TEXT_MAX];
	struct err e = { 0 };
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (record_event_add(j->s->db, j->rec.id.sandbox, clock_wall_ms(), text, &e) < 0)
		log_warn("an event of a sandbox was not kept", F_REQ(j->req_id),
			 F_STR("sandbox", j->rec.id.sandbox), F_ERR(&e));
}

static void job_take_vm_in_loop(void *arg)
{
	struct job *j = arg;
	struct box *b = box_find(j->s, j->rec.id.sandbox);

	j->vm = b ? box_lend_vm(b) : NULL;
}

void job_take_vm(struct job *j)
{
	if (!j->vm)
		sbx_in_loop(j->s, job_take_vm_in_loop, j);
}

int job_fault(const char *name, struct err *e)
{
	int r = FAULT(name);

	return r < 0 ? err_errno(e, r, "The failpoint %s", name) : 0;
}

int job_left_ms(int64_t until_ms)
{
	int64_t left = until_ms - clock_mono_ms();

	return left > 0 ? (int)left : 0;
}
