/*
 * Revocation of an execution. Fixed order (spec R-2, T-1):
 *
 *	1  mark: nothing is admitted any more
 *	2  the bridge ends all streams in the guest, throws away what it has read, and confirms
 *	   (no confirmation within SBX_REVOKE_MS: node-manager kills it by its pidfd)
 *	3  shutdown(2) on the duplicates; what waits in them for the reader is thrown away
 *	4  node-api is told of each lease, and drops its buffers
 */
#include <errno.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "sbx-manager/job.h"

static void revoke_mark(void *arg)
{
	struct job *j = arg;
	struct box *b = box_find(j->s, j->rec.id.sandbox);

	if (b)
		b->ending = true;
}

static void revoke_cut(void *arg)
{
	struct job *j = arg;
	struct box *b = box_find(j->s, j->rec.id.sandbox);

	if (b)
		lease_cut_all(b);
}

static int revoke_bridge(struct job *j, struct err *e)
{
	struct bridge_revoke q = { .lease = 0 };
	struct bridge_revoke_rep rep = { 0 };
	int64_t until = clock_mono_ms() + SBX_REVOKE_MS;
	struct ipc_sync *c = NULL;
	int r = exec_control_open(j, 0, &c, e);

	if (r == 0) {
		int64_t left = until - clock_mono_ms();

		r = ipc_sync_call(c, &bridge_ops[BRIDGE_REVOKE], j->req_id, &q, NULL, 0, &rep, NULL,
				  NULL, left > 1 ? (int)left : 1, e);
	}
	ipc_sync_close(c);
	return r;
}

static int revoke_kill_bridge(struct job *j, struct err *e)
{
	struct nm_kill k = { .generation = j->rec.id.generation, .what = "bridge" };
	int r;

	str_copy(k.sandbox, sizeof(k.sandbox), j->rec.id.sandbox);
	r = job_nm(j, NM_KILL, &k, NULL, 0, NULL, NULL, NULL, SBX_NM_MS, e);
	/* Nothing to kill is as good. */
	return r == -ENOENT || r == -ESRCH ? 0 : r;
}

int revoke_execution(struct job *j, struct err *e)
{
	struct err why = { 0 };
	int r = sbx_in_loop(j->s, revoke_mark, j);

	if (r < 0)
		return err_set(e, r, "The node service is ending.");
	r = job_fault("sbx.revoke.marked", e);
	if (r < 0)
		return r;
	if (j->rec.proc.bridge_pid != 0 && revoke_bridge(j, &why) < 0) {
		/*
		 * Nobody listens there any more: nothing passes either; killed all the same, for
		 * the case that it only looks so.
		 */
		bool gone = why.num == -ECONNREFUSED || why.num == -ENOENT;

		if (!gone)
			log_warn("the bridge did not confirm a revocation and is killed",
				 F_REQ(j->req_id), F_STR("sandbox", j->rec.id.sandbox),
				 F_ERR(&why));
		r = revoke_kill_bridge(j, e);
		if (r < 0)
			return r;
	}
	r = job_fault("sbx.revoke.confirmed", e);
	if (r < 0)
		return r;
	r = sbx_in_loop(j->s, revoke_cut, j);
	return r < 0 ? err_set(e, r, "The node service is ending.") : 0;
}
