/*
 * Revocation of an execution. Fixed order (spec R-2, T-1):
 *
 *	1  mark: nothing is admitted any more
 *	2  the bridge, then the gateway, end all streams in the guest, throw away what they have
 *	   read, and confirm; both within SBX_REVOKE_MS, else node-manager kills who did not
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

static int revoke_bridge(struct job *j, int timeout_ms, struct err *e)
{
	struct ipc_revoke q = { .lease = 0 };
	struct ipc_revoke_rep rep = { 0 };
	struct ipc_sync *c = NULL;
	int r = exec_control_open(j, 0, &c, e);

	if (r == 0)
		r = ipc_sync_call(c, &bridge_ops[BRIDGE_REVOKE], j->req_id, &q, NULL, 0, &rep, NULL,
				  NULL, timeout_ms, e);
	ipc_sync_close(c);
	return r;
}

static int revoke_kill(struct job *j, const char *what, struct err *e)
{
	struct nm_kill k = { .generation = j->rec.id.generation };
	int r;

	str_copy(k.what, sizeof(k.what), what);
	str_copy(k.sandbox, sizeof(k.sandbox), j->rec.id.sandbox);
	r = job_nm(j, NM_KILL, &k, NULL, 0, NULL, NULL, NULL, SBX_NM_MS, e);
	/* Nothing to kill is as good. */
	return r == -ENOENT || r == -ESRCH ? 0 : r;
}

/* Tells one of the two, and kills it where it does not confirm in time. */
static int revoke_tell(struct job *j, const char *what, uint64_t pid,
		       int (*tell)(struct job *j, int timeout_ms, struct err *e), int64_t until_ms,
		       struct err *e)
{
	struct err why = { 0 };
	bool gone;

	if (pid == 0 || tell(j, job_left_ms(until_ms), &why) == 0)
		return 0;
	/*
	 * Nobody listens there any more: nothing passes either; killed all the same, for the case
	 * that it only looks so.
	 */
	gone = why.num == -ECONNREFUSED || why.num == -ENOENT;
	if (!gone)
		log_warn("a revocation was not confirmed: who did not is killed", F_REQ(j->req_id),
			 F_STR("sandbox", j->rec.id.sandbox), F_STR("who", what), F_ERR(&why));
	return revoke_kill(j, what, e);
}

int revoke_execution(struct job *j, struct err *e)
{
	int64_t until;
	int r = sbx_in_loop(j->s, revoke_mark, j);

	if (r < 0)
		return err_set(e, r, "The node service is ending.");
	r = job_fault("sbx.revoke.marked", e);
	if (r < 0)
		return r;
	until = clock_mono_ms() + SBX_REVOKE_MS;
	r = revoke_tell(j, "bridge", j->rec.proc.bridge_pid, revoke_bridge, until, e);
	if (r == 0)
		r = revoke_tell(j, "gateway", j->rec.gateway.pid, gateway_revoke, until, e);
	if (r == 0)
		r = job_fault("sbx.revoke.confirmed", e);
	if (r < 0)
		return r;
	r = sbx_in_loop(j->s, revoke_cut, j);
	return r < 0 ? err_set(e, r, "The node service is ending.") : 0;
}

int revoke_leases(struct ipc_sync *c, const struct ipc_op *op, const char *req_id, json_t *leases,
		  int64_t until_ms, struct err *e)
{
	json_t *item;
	size_t i;
	int r = 0;

	json_array_foreach(leases, i, item) {
		struct ipc_revoke q = { .lease = (uint64_t)json_integer_value(
						json_object_get(item, "lease")) };
		struct ipc_revoke_rep rep;

		if (r == 0 && q.lease != 0)
			r = ipc_sync_call(c, op, req_id, &q, NULL, 0, &rep, NULL, NULL,
					  job_left_ms(until_ms), e);
	}
	return r;
}
