/*
 * A job: one story about one sandbox (or the template), run in a worker as straight-line code. It
 * has connections of its own, a working copy of the record, the request ID for log lines and
 * messages, and the time that each step took.
 */
#ifndef SBX_MANAGER_JOB_H
#define SBX_MANAGER_JOB_H

#include "ipc/gtw_ops.h"
#include "sbx-manager/sbx.h"
#include "vmm/manifest.h"

struct job {
	struct sbx *s;
	const char *name;                            /* of the story */
	int (*run)(struct job *j, struct err *e);    /* in the worker; sets result */
	void (*done)(struct job *j);                 /* in the loop; may be NULL */
	struct ipc_call *call;                       /* answered at the end; NULL = nobody waits */
	const struct ipc_op *op;
	char req_id[IPC_REQ_ID_MAX + 1];
	char sandbox[ID_SANDBOX_LEN + 1];            /* "" = not about one */
	struct capability cap;
	json_t *spec, *result;                       /* owned */
	struct record rec;
	bool had_record, no_box;
	bool nm_away;                                /* why the last call to node-manager failed */
	struct ipc_sync *nm;
	struct ipc_sync *nm_gateway;                 /* a gateway was asked for, and is not there yet */
	struct vmm *vm;
	json_t *ms;                                  /* step -> milliseconds */
	int64_t step_us, begin_us;
	struct err e;
	/* crash */
	enum life_event event;
	uint64_t generation;
	char reason[RECORD_REASON_MAX];
	/* gateway */
	struct gateway gateway;                      /* what it has confirmed in this job; pid 0 = nothing */
	unsigned gateway_reports, tries;
	bool gateway_said;
	bool unrecorded;                             /* the execution that a template is made of has no record */
	void *arg;                                   /* of `done` */
	/* template */
	char template[NM_TEMPLATE_MAX + 1];
	bool made;
};

struct job *job_new(struct sbx *s, const char *name, const char *sandbox, const char *req_id,
		    int (*run)(struct job *j, struct err *e));
void job_free(struct job *j);                        /* of one that was never started */
/*
 * Queues it behind the other jobs of its sandbox. When the queue is full the call is answered and
 * the job freed.
 */
int job_start(struct job *j);

/* ---- In the worker ---- */
int job_nm(struct job *j, enum nm_op op, const void *req, const int *fds, size_t n_fds, void *rep,
	   int *ret_fds, size_t *ret_n_fds, int timeout_ms, struct err *e);
/* Asks without waiting for the answer; a connection of its own, the caller's, for ipc_sync_end. */
int job_nm_begin(struct job *j, enum nm_op op, const void *req, struct ipc_sync **ret,
		 struct err *e);
/* Commits j->rec, then sets the copy in memory. */
int job_commit(struct job *j, struct err *e);
/* Of a create that left nothing: no tombstone, since this generation may still be made. */
int job_forget(struct job *j, struct err *e);
int job_set_state(struct job *j, enum life_state st, const char *reason, struct err *e);
void job_step(struct job *j, const char *name);      /* the time since the last step gets this name */
void job_event(struct job *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));   /* kept with the sandbox, for its log */
void job_take_vm(struct job *j);                     /* the watched control connection, if there is one */
int job_fault(const char *name, struct err *e);      /* a failpoint: 0 or its error */
int job_left_ms(int64_t until_ms);                   /* of several questions that share a time; 0: over, as ipc_sync_call has it */

/* ---- revoke.c ---- */
int revoke_execution(struct job *j, struct err *e);  /* the fixed order; afterwards nothing passes any more */
/*
 * Those of before a restart: the node-api connection that had them is gone. Of a page of leases of
 * the bridge or the gateway; op: its revocation.
 */
int revoke_leases(struct ipc_sync *c, const struct ipc_op *op, const char *req_id, json_t *leases,
		  int64_t until_ms, struct err *e);

/* ---- exec.c: how an execution begins and ends ---- */
/*
 * Spawn, load or boot, attach, /init. j->rec has identity, template, sizes. On failure the caller
 * calls exec_end.
 */
int exec_begin(struct job *j, const char *mode, json_t *env, struct err *e);
/*
 * Makes what runs findable: hands the VMM's connection to the loop. After the commit of state
 * running.
 */
int exec_announce(struct job *j, struct err *e);
/*
 * Revoke, shut the guest down (graceful), keep the console's tail, end the VMM, clear everything.
 * Idempotent.
 */
int exec_end(struct job *j, bool graceful, struct err *e);
int exec_console(struct job *j, struct err *e);      /* what the VMM holds goes into the records */
int exec_vm_open(struct job *j, int timeout_ms, struct err *e);      /* a new control connection into j->vm; it must do what the record says */
int exec_vm_again(struct job *j, struct err *e);     /* the same in the place of one that failed; NULL on failure */
/*
 * A control socket in the execution's folder, after a look at who listens there. Who was just
 * started gets wait_ms to do so.
 */
struct exec_peer { const char *socket, *what; uint64_t pid, uid; };
int exec_peer_open(struct job *j, const struct exec_peer *p, int wait_ms, struct ipc_sync **ret,
		   struct err *e);
/* The bridge's. */
int exec_control_open(struct job *j, int wait_ms, struct ipc_sync **ret, struct err *e);
int exec_destroy(struct job *j, struct err *e);      /* node-manager's part of the end */

/* ---- gateway.c ---- */
int gateway_ask(struct job *j, enum gtw_op op, const void *req, void *rep, int timeout_ms,
		struct err *e);                      /* one question to the gateway of j->rec */
int gateway_start(struct job *j, struct err *e);     /* ends what was there; sets j->rec.gateway and j->gateway */
int gateway_revoke(struct job *j, int timeout_ms, struct err *e);
/* Of an execution that begins: where it fails, that goes on without. */
void gateway_ask_for(struct job *j);                 /* it is made beside what else is to be done */
void gateway_begin(struct job *j);                   /* it is there */
void gateway_let_out(struct job *j);                 /* after /init */
void gateway_adopt(struct job *j);                   /* into j->gateway, with nobody's leases revoked */
void gateway_push_bundle(struct job *j, const char *text);

/* ---- netlog.c ---- */
int lifecycle_netlog(struct job *j, struct err *e);
int lifecycle_netstats(struct job *j, struct err *e);

/* ---- init.c: the guest's own routes, over a control connection ---- */
int guest_post(struct job *j, const char *target, json_t *body, int timeout_ms, struct err *e);
int guest_init(struct job *j, json_t *env, int timeout_ms, struct err *e);

/* ---- template.c ---- */
int template_manifest(struct job *j, const char *template, struct manifest *ret, struct err *e);     /* -ENOENT */
int template_fits(struct sbx *s, const struct manifest *m, struct err *e);                           /* this machine and this VMM */

/* ---- adopt.c ---- */
int adopt_run(struct job *j, struct err *e);
int adopt_sweep(struct job *j, struct err *e);       /* running records whose execution has gone */

/* ---- pause.c ---- */
int lifecycle_pause(struct job *j, struct err *e);
int lifecycle_resume(struct job *j, struct err *e);
int pause_settle(struct job *j, struct err *e);      /* a pause or resume that nobody drives any more: paused */
bool pause_thaw(struct job *j);                      /* goes on for its end, to write its disk; false = it does not */

/* ---- lifecycle.c ---- */
/* Reads the record and compares it with what the capability names; an older generation is stale. */
int lifecycle_load(struct job *j, struct err *e);
int lifecycle_installed(const struct job *j, struct err *e);     /* after it: that very execution, no later one */
bool lifecycle_gone(const struct job *j);            /* deleted, or its deletion has begun: nothing revives it */
int lifecycle_not_found(const struct job *j, struct err *e);
int lifecycle_result(struct job *j);
void lifecycle_total(struct job *j);                 /* the time of the whole among the steps */
void lifecycle_vm_lost(void *arg);                   /* in the loop: crashed, for j->reason */
int lifecycle_crash(struct job *j, struct err *e);
int lifecycle_finish(struct job *j, struct err *e);  /* what a failed job has left in the middle */
int lifecycle_look(struct job *j, struct err *e);    /* does it still run? */

#endif
