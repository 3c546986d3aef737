/*
 * Theory of operation
 *
 * One row for each operation: what its request is about, the states of that execution in which it
 * is served, those in which it is answered with "execution-gone" (the caller cannot know better:
 * processes end by themselves), what it does inline or in a child, with which capabilities and by
 * when. Any other state is out of order, and so is a name or number that no honest caller sends:
 * the peer is closed.
 *
 *	NONE ──spawn──▶ SPAWNING ──▶ ALIVE ──a process ends──▶ ENDED
 *	                   │            └───────destroy───────────┤
 *	                   └── failed, or destroy ──▶ DESTROYING ◀┘ ──▶ NONE
 *
 * A failed spawn is swept before it is answered, so the caller may try again at once. Requests for
 * DESTROY that come while one is running wait for it. One that comes while a gateway is made ends
 * its maker first.
 */
#include "node-manager/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
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
#include "identity/identity.h"
#include "node-manager/child.h"
#include "node-manager/disk.h"
#include "node-manager/gateway.h"
#include "node-manager/list.h"
#include "node-manager/sockets.h"
#include "node-manager/spawn.h"
#include "node-manager/sweep.h"
#include "node-manager/template.h"
#include "node-manager/verify.h"
#include "node-manager/watch.h"

#define CAP(name) (1ull << CAP_##name)
#define CAPS_DISK (CAP(SYS_ADMIN) | CAP(DAC_OVERRIDE) | CAP(FOWNER) | CAP(CHOWN))
#define CAPS_SWEEP (CAP(SYS_ADMIN) | CAP(KILL))
#define CAPS_SPAWN (CAPS_DISK | CAPS_SWEEP | CAP(NET_ADMIN) | CAP(SETUID) | CAP(SETGID) | CAP(SETPCAP) | CAP(SYS_PTRACE))
#define CAPS_GATEWAY (CAP(SYS_ADMIN) | CAP(NET_ADMIN) | CAP(CHOWN) | CAP(SETUID) | CAP(SETGID) | CAP(SETPCAP) | CAP(KILL) | CAP(SYS_PTRACE))
/* VERIFY reads /proc/PID/exe of other uids, KILL sends signals. */
#define CAPS_MAIN (CAP(SYS_PTRACE) | CAP(KILL))

enum op_about { ABOUT_NODE, ABOUT_EXECUTION, ABOUT_SANDBOX, ABOUT_TEMPLATE };

#define IN(state) (1u << EXEC_##state)

struct op_call {
	struct nm *nm;
	struct ipc_call *call;
	const struct op_row *row;
	const void *req;
	struct exec *x;                  /* of ABOUT_EXECUTION; NULL in state NONE */
	int *fds;
	size_t n_fds;
};

struct op_row {
	enum op_about about;
	unsigned served, gone;           /* ABOUT_EXECUTION: masks of states */
	/* Exactly one of both. inline_fn answers or fails the call. */
	void (*inline_fn)(struct op_call *c);
	child_fn *child_fn;
	uint64_t caps;
	int deadline_ms;
};

/* Every request about an execution begins like this one. */
#define LIKE_EXEC(type)                                                                            \
	_Static_assert(offsetof(struct type, sandbox) == offsetof(struct nm_exec, sandbox) &&      \
			       offsetof(struct type, generation) ==                                \
				       offsetof(struct nm_exec, generation),                       \
		       #type)
LIKE_EXEC(nm_spawn);
LIKE_EXEC(nm_verify);
LIKE_EXEC(nm_kill);
LIKE_EXEC(nm_gateway);
/* And every one about a sandbox or a template with its name. */
_Static_assert(offsetof(struct nm_disk_create, sandbox) == 0 &&
		       offsetof(struct nm_sandbox, sandbox) == 0 &&
		       offsetof(struct nm_template, template) == 0 &&
		       offsetof(struct nm_template_commit, template) == 0,
	       "names first");

static void op_spawn(struct op_call *c);
static void op_verify(struct op_call *c);
static void op_kill(struct op_call *c);
static void op_destroy(struct op_call *c);
static void op_gateway(struct op_call *c);

/* ---- What children do ---- */

static int run_stats(struct child_task *t, struct err *e) { return disk_stats(t->nm, t->rep, e); }

static int run_disk_create(struct child_task *t, struct err *e)
{
	const struct nm_disk_create *req = t->req;

	return disk_create(t->nm, req->sandbox, req->template, e);
}

static int run_disk_delete(struct child_task *t, struct err *e)
{
	const struct nm_sandbox *req = t->req;

	return disk_delete(t->nm, req->sandbox, e);
}

static int run_connect(struct child_task *t, enum exec_socket which, struct err *e)
{
	int fd = -1, r = sockets_connect(t->nm, &t->x->rec, which, &t->x->rec.proc[EXEC_VMM],
					 OPS_CONNECT_WAIT_MS, &fd, e);

	if (r == 0)
		t->ret_fds[t->n_ret_fds++] = fd;
	return r;
}

static int run_qmp_open(struct child_task *t, struct err *e) { return run_connect(t, EXEC_QMP, e); }
static int run_channel_open(struct child_task *t, struct err *e)
{
	return run_connect(t, EXEC_CHANNEL, e);
}

static int run_template_begin(struct child_task *t, struct err *e)
{
	return template_begin(t->nm, ((const struct nm_template *)t->req)->template, e);
}

static int run_template_commit(struct child_task *t, struct err *e)
{
	const struct nm_template_commit *req = t->req;

	return template_commit(t->nm, req->template, req->manifest, t->fds[0], e);
}

static int run_template_drop(struct child_task *t, struct err *e)
{
	return template_drop(t->nm, ((const struct nm_template *)t->req)->template, e);
}

static int run_template_import(struct child_task *t, struct err *e)
{
	return template_import(t->nm, ((const struct nm_template *)t->req)->template, e);
}

static int run_template_manifest(struct child_task *t, struct err *e)
{
	struct nm_manifest_rep *rep = t->rep;

	return template_manifest(t->nm, ((const struct nm_template *)t->req)->template,
				 &rep->manifest, e);
}

/* clang-format off */
static const struct op_row op_rows[NM_OP_COUNT] = {
	[NM_LIST]    = { ABOUT_NODE, .child_fn = list_run, .deadline_ms = 10000 },
	[NM_STATS]   = { ABOUT_NODE, .child_fn = run_stats, .deadline_ms = 10000 },
	[NM_DISK_CREATE] = { ABOUT_SANDBOX, .child_fn = run_disk_create, .caps = CAPS_DISK, .deadline_ms = 30000 },
	[NM_DISK_DELETE] = { ABOUT_SANDBOX, .child_fn = run_disk_delete, .caps = CAPS_DISK, .deadline_ms = 60000 },
	[NM_SPAWN]   = { ABOUT_EXECUTION, .served = IN(NONE), .inline_fn = op_spawn },
	[NM_QMP_OPEN] = { ABOUT_EXECUTION, .served = IN(ALIVE), .gone = IN(NONE) | IN(ENDED) | IN(DESTROYING),
			  .child_fn = run_qmp_open, .deadline_ms = 2 * OPS_CONNECT_WAIT_MS },
	[NM_CHANNEL_OPEN] = { ABOUT_EXECUTION, .served = IN(ALIVE), .gone = IN(NONE) | IN(ENDED) | IN(DESTROYING),
			  .child_fn = run_channel_open, .deadline_ms = 2 * OPS_CONNECT_WAIT_MS },
	[NM_VERIFY]  = { ABOUT_EXECUTION, .served = IN(ALIVE), .gone = IN(NONE) | IN(ENDED) | IN(DESTROYING), .inline_fn = op_verify },
	[NM_KILL]    = { ABOUT_EXECUTION, .served = IN(ALIVE) | IN(ENDED), .gone = IN(NONE) | IN(DESTROYING), .inline_fn = op_kill },
	[NM_GATEWAY] = { ABOUT_EXECUTION,
			 .served = IN(ALIVE), .gone = IN(NONE) | IN(ENDED) | IN(DESTROYING), .inline_fn = op_gateway },
	[NM_DESTROY] = { ABOUT_EXECUTION, .served = IN(NONE) | IN(SPAWNING) | IN(ALIVE) | IN(ENDED) | IN(DESTROYING),
			 .inline_fn = op_destroy },
	[NM_TEMPLATE_BEGIN]  = { ABOUT_TEMPLATE, .child_fn = run_template_begin, .caps = CAPS_DISK, .deadline_ms = 300000 },
	[NM_TEMPLATE_COMMIT] = { ABOUT_TEMPLATE, .child_fn = run_template_commit, .caps = CAPS_DISK, .deadline_ms = 300000 },
	[NM_TEMPLATE_DROP]   = { ABOUT_TEMPLATE, .child_fn = run_template_drop, .caps = CAPS_DISK, .deadline_ms = 60000 },
	[NM_TEMPLATE_IMPORT] = { ABOUT_TEMPLATE, .child_fn = run_template_import, .caps = CAPS_DISK, .deadline_ms = 300000 },
	[NM_TEMPLATE_MANIFEST] = { ABOUT_TEMPLATE, .child_fn = run_template_manifest, .caps = CAP(DAC_OVERRIDE), .deadline_ms = 10000 },
};
/* clang-format on */

uint64_t ops_main_caps(void) { return CAPS_MAIN; }

uint64_t ops_caps(void)
{
	uint64_t all = CAPS_MAIN | CAPS_SPAWN | CAPS_SWEEP;

	for (int i = 0; i < NM_OP_COUNT; i++)
		all |= op_rows[i].caps;
	return all;
}

/* ---- Answers ---- */

static const char *op_name(const struct op_row *row) { return nm_ops[row - op_rows].name; }

static void op_fail(struct nm *nm, struct ipc_call *call, const char *op, const struct err *e)
{
	log_warn("operation failed", F_STR("op", op), F_REQ(ipc_call_req_id(call)), F_ERR(e));
	ipc_fail(call, e);
}

static void op_fail_with(struct op_call *c, int num, const char *code, const char *text)
{
	struct err e = { 0 };

	err_set_code(&e, num, code, "%s", text);
	op_fail(c->nm, c->call, op_name(c->row), &e);
}

/* Misuse: said, and the peer is closed. */
static void op_misuse(struct op_call *c, const char *why)
{
	struct ipc_peer *peer = ipc_call_peer(c->call);

	log_error("peer broke the protocol and is closed", F_STR("op", op_name(c->row)),
		  F_STR("why", why), F_REQ(ipc_call_req_id(c->call)),
		  F_INT("pid", ipc_peer_cred(peer)->pid), F_UINT("uid", ipc_peer_cred(peer)->uid));
	ipc_peer_close(peer);
	op_fail_with(c, -EPROTO, "protocol", why);
}

/* ---- Children ---- */

struct op_wait { struct ipc_call *call; const struct op_row *row; int64_t since_ms; };

static void op_done(struct nm *nm, const struct child_result *res, void *arg)
{
	struct op_wait *w = arg;

	if (res->err.num < 0) {
		op_fail(nm, w->call, op_name(w->row), &res->err);
	} else {
		log_debug("operation done", F_STR("op", op_name(w->row)),
			  F_REQ(ipc_call_req_id(w->call)),
			  F_INT("ms", clock_mono_ms() - w->since_ms));
		ipc_answer(w->call, res->rep, res->fds, res->n_fds);
	}
	free(w);
}

static void op_key(char dst[CHILD_KEY_MAX], const struct op_call *c)
{
	static const char *const kind[] = { [ABOUT_NODE] = "",
					    [ABOUT_EXECUTION] = "",
					    [ABOUT_SANDBOX] = "sandbox ",
					    [ABOUT_TEMPLATE] = "template " };

	/* Connections are not kept apart: two of them disturb nobody. */
	if (!kind[c->row->about][0])
		dst[0] = '\0';
	else
		str_format(dst, CHILD_KEY_MAX, "%s%s", kind[c->row->about], (const char *)c->req);
}

static void op_fork(struct op_call *c)
{
	struct op_wait *w = x_alloc(sizeof(*w));
	struct child_task task = { .nm = c->nm,
				   .req = c->req,
				   .x = c->x,
				   .fds = c->fds,
				   .n_fds = c->n_fds,
				   .spare = { -1, -1, -1, -1 } };
	char key[CHILD_KEY_MAX];
	struct child_job job = { .key = key,
				 .op = &nm_ops[c->row - op_rows],
				 .fn = c->row->child_fn,
				 .caps = c->row->caps,
				 .deadline_ms = c->row->deadline_ms,
				 .done = op_done,
				 .arg = w };
	struct err e = { 0 };

	*w = (struct op_wait){ .call = c->call, .row = c->row, .since_ms = clock_mono_ms() };
	op_key(key, c);
	if (child_start(c->nm, &job, &task, NULL, &e) < 0) {
		free(w);
		op_fail(c->nm, c->call, op_name(c->row), &e);
	}
}

/* ---- Destroy ---- */

struct sweep_rep { bool clean; };
static const struct ipc_field sweep_fields[] = { IPC_F_BOOL(struct sweep_rep, clean), IPC_F_END };
static const struct ipc_op sweep_op = { "destroy", .rep = sweep_fields,
					.rep_size = sizeof(struct sweep_rep) };

struct sweep_wait { struct exec *x; struct ipc_call *spawn; struct err why; };     /* spawn: the failed one; may be NULL */

static int run_sweep(struct child_task *t, struct err *e)
{
	struct sweep_rep *rep = t->rep;
	struct slots_seen seen;
	int r = sweep_run(t, e);

	if (r < 0)
		return r;
	slots_scan_objects(&t->nm->slots, &seen);
	rep->clean = !slots_seen_has(&seen, (uint32_t)t->x->rec.slot);
	return 0;
}

static void answer_waiters(struct exec *x, const struct err *e)
{
	LIST_FOR_SAFE(&x->waiters, w, struct exec_waiter, node) {
		list_del(&w->node);
		if (e)
			op_fail(x->nm, w->call, nm_ops[NM_DESTROY].name, e);
		else
			ipc_answer(w->call, NULL, NULL, 0);
		free(w);
	}
}

static void sweep_done(struct nm *nm, const struct child_result *res, void *arg)
{
	struct sweep_wait *w = arg;
	struct exec *x = w->x;
	const struct sweep_rep *rep = res->rep;

	x->child = NULL;
	if (w->spawn)
		op_fail(nm, w->spawn, nm_ops[NM_SPAWN].name, &w->why);
	free(w);
	if (res->err.num < 0) {
		log_error("execution cannot be destroyed", F_STR("name", x->name),
			  F_ERR(&res->err));
		exec_set_state(x, EXEC_ENDED);
		answer_waiters(x, &res->err);
		return;
	}
	slots_give_back(&nm->slots, (uint32_t)x->rec.slot, rep->clean);
	exec_set_state(x, EXEC_NONE);
	answer_waiters(x, NULL);
	exec_free(x);
}

static void start_sweep(struct exec *x, struct ipc_call *spawn, const struct err *why)
{
	struct sweep_wait *w = x_alloc(sizeof(*w));
	char key[CHILD_KEY_MAX];
	struct child_task task = { .nm = x->nm, .x = x, .spare = { -1, -1, -1, -1 } };
	struct child_job job = { .key = key, .op = &sweep_op, .fn = run_sweep, .caps = CAPS_SWEEP,
				 .deadline_ms = SWEEP_DEADLINE_MS, .done = sweep_done, .arg = w };
	struct child_result failed = { .code = "" };

	w->x = x;
	w->spawn = spawn;
	if (why)
		w->why = *why;
	exec_set_state(x, EXEC_DESTROYING);
	str_format(key, sizeof(key), "sandbox %s", x->rec.sandbox);
	if (child_start(x->nm, &job, &task, &x->child, &failed.err) < 0)
		sweep_done(x->nm, &failed, w);
}

static void op_destroy(struct op_call *c)
{
	struct exec_waiter *w;

	if (!c->x) {
		ipc_answer(c->call, NULL, NULL, 0);
		return;
	}
	w = x_alloc(sizeof(*w));
	w->call = c->call;
	list_add_tail(&c->x->waiters, &w->node);
	if (c->x->state == EXEC_DESTROYING)
		return;
	if (c->x->child)
		child_kill(c->x->child);         /* what its end leaves is swept then */
	else if (c->x->state != EXEC_DESTROYING)
		start_sweep(c->x, NULL, NULL);
}

/* ---- Spawn ---- */

struct spawn_wait { struct exec *x; struct ipc_call *call; int64_t since_ms; };

static void spawn_done(struct nm *nm, const struct child_result *res, void *arg)
{
	struct spawn_wait *w = arg;
	struct exec *x = w->x;
	struct err e = res->err;

	x->child = NULL;
	if (e.num == 0 && FAULT("nm.spawn.answer") < 0)
		err_set(&e, -EIO, "failpoint nm.spawn.answer");
	/* The child had answered already when it was killed. */
	if (e.num == 0 && !list_empty(&x->waiters))
		err_set_code(&e, -ESRCH, "execution-gone", "this execution was destroyed");
	if (e.num == 0)
		exec_record_read(nm->run_fd, x->name, &x->rec, &e);
	if (e.num < 0) {
		/*
		 * With the last copy of this end gone, jail-init ends by itself, whatever it has
		 * become so far.
		 */
		fd_close(TAKE_FD(x->link_fd));
		start_sweep(x, w->call, &e);
		free(w);
		return;
	}
	exec_set_state(x, EXEC_ALIVE);
	watch_start(x);
	log_info("execution started", F_STR("sandbox", x->rec.sandbox),
		 F_UINT("generation", x->rec.generation), F_REQ(ipc_call_req_id(w->call)),
		 F_INT("ms", clock_mono_ms() - w->since_ms));
	ipc_answer(w->call, res->rep, res->fds, res->n_fds);
	free(w);
}

static int take_slot(struct nm *nm, uint32_t *ret, struct err *e)
{
	struct slots_seen seen;

	if (slots_take(&nm->slots, ret) == 0)
		return 0;
	/* Perhaps what made slots dirty has ended: rare, so it may take its few ms here. */
	if (slots_scan(&nm->slots, &seen, e) == 0)
		slots_refresh(&nm->slots, &seen);
	if (slots_take(&nm->slots, ret) == 0)
		return 0;
	return err_set_code(e, -EAGAIN, "node-full", "the node runs its %u sandboxes already",
			    nm->slots.n);
}

/*
 * link[1] and text[i][1] go to the child. What was opened is closed by exec_free, or by the caller
 * for the far ends.
 */
static int open_links(struct exec *x, int far[4], struct err *e)
{
	int pair[2], text[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return err_errno(e, -errno, "no socket pair");
	x->link_fd = far[SPAWN_LINK_MAIN] = pair[0];
	far[SPAWN_LINK_INIT] = pair[1];
	for (int who = EXEC_VMM; who <= EXEC_BRIDGE; who++) {
		/*
		 * Non-blocking at both ends: a program that writes too much loses it and does not
		 * wait.
		 */
		if (pipe2(text, O_CLOEXEC | O_NONBLOCK) < 0)
			return err_errno(e, -errno, "no pipe");
		x->text_fd[who] = text[0];
		far[who == EXEC_VMM ? SPAWN_TEXT_VMM : SPAWN_TEXT_BRIDGE] = text[1];
	}
	return 0;
}

static int start_spawn(struct op_call *c, struct exec *x, struct err *e)
{
	struct spawn_wait *w;
	char key[CHILD_KEY_MAX];
	struct child_task task = {
		.nm = c->nm, .req = c->req, .x = x, .spare = { -1, -1, -1, -1 }
	};
	struct child_job job = { .key = key,
				 .op = &nm_ops[NM_SPAWN],
				 .fn = spawn_run,
				 .caps = CAPS_SPAWN,
				 .deadline_ms = SPAWN_DEADLINE_MS,
				 .done = spawn_done };
	int r = open_links(x, task.spare, e);

	str_format(key, sizeof(key), "sandbox %s", x->rec.sandbox);
	if (r == 0) {
		job.arg = w = x_alloc(sizeof(*w));
		*w = (struct spawn_wait){ .x = x, .call = c->call, .since_ms = clock_mono_ms() };
		x->state = EXEC_SPAWNING;
		r = child_start(c->nm, &job, &task, &x->child, e);
		if (r < 0)
			free(w);
	}
	fd_close(task.spare[SPAWN_LINK_INIT]);
	fd_close(task.spare[SPAWN_TEXT_VMM]);
	fd_close(task.spare[SPAWN_TEXT_BRIDGE]);
	return r;
}

static void op_spawn(struct op_call *c)
{
	const struct nm_spawn *req = c->req;
	struct err e = { 0 };
	enum vmm_mode mode;
	enum vmm_accel accel;
	uint32_t slot = 0;
	struct exec *x;
	char key[CHILD_KEY_MAX];

	if (vmm_mode_of(req->mode, &mode) < 0 || mode == VMM_PROBE ||
	    vmm_accel_of(req->accel, &accel) < 0 || !template_name_ok(req->template)) {
		op_misuse(c, "unknown mode, accelerator or template name");
		return;
	}
	if (exec_of_sandbox(c->nm, req->sandbox)) {
		op_fail_with(c, -EBUSY, "execution-exists",
			     "another execution of this sandbox is there");
		return;
	}
	/* A template in the making has one writer. */
	str_format(key, sizeof(key), "template %s", req->template);
	if (mode == VMM_TEMPLATE &&
	    (child_busy(c->nm, key) || exec_of_template(c->nm, req->template))) {
		op_fail_with(c, -EBUSY, "busy", "something else makes this template");
		return;
	}
	if (take_slot(c->nm, &slot, &e) < 0) {
		op_fail(c->nm, c->call, op_name(c->row), &e);
		return;
	}
	x = exec_add(c->nm, req->sandbox, req->generation);
	x->rec.slot = slot;
	/* Known from the start, so that a template in the making is protected from the start. */
	str_copy(x->rec.mode, sizeof(x->rec.mode), req->mode);
	str_copy(x->rec.template, sizeof(x->rec.template), req->template);
	if (start_spawn(c, x, &e) < 0) {
		slots_give_back(&c->nm->slots, slot, true);
		exec_free(x);
		op_fail(c->nm, c->call, op_name(c->row), &e);
	}
}

/* ---- Gateway ---- */

struct gateway_wait { struct exec *x; struct ipc_call *call; int64_t since_ms; };

static void gateway_done(struct nm *nm, const struct child_result *res, void *arg)
{
	struct gateway_wait *w = arg;
	struct exec *x = w->x;
	struct exec_record rec;
	struct err e = res->err;

	x->child = NULL;
	if (e.num == 0 && FAULT("nm.gateway.answer") < 0)
		err_set(&e, -EIO, "failpoint nm.gateway.answer");
	if (e.num == 0 && exec_record_read(nm->run_fd, x->name, &rec, &e) == 0) {
		x->rec = rec;
		watch_start_gateway(x);
		log_info("gateway started", F_STR("sandbox", x->rec.sandbox),
			 F_UINT("generation", x->rec.generation),
			 F_REQ(ipc_call_req_id(w->call)),
			 F_INT("ms", clock_mono_ms() - w->since_ms));
		ipc_answer(w->call, res->rep, NULL, 0);
	} else {
		cgroup_kill_leaf(&nm->cgroups, x->name, CGROUP_GATEWAY);
		fd_close(TAKE_FD(x->text_fd[EXEC_GATEWAY]));
		op_fail(nm, w->call, nm_ops[NM_GATEWAY].name, &e);
	}
	free(w);
	if (!list_empty(&x->waiters))
		start_sweep(x, NULL, NULL);
}

static int start_gateway(struct op_call *c, struct exec *x, struct err *e)
{
	struct gateway_wait *w;
	char key[CHILD_KEY_MAX];
	struct child_task task = {
		.nm = c->nm, .req = c->req, .x = x, .spare = { -1, -1, -1, -1 }
	};
	struct child_job job = { .key = key,
				 .op = &nm_ops[NM_GATEWAY],
				 .fn = gateway_run,
				 .caps = CAPS_GATEWAY,
				 .deadline_ms = GATEWAY_DEADLINE_MS,
				 .done = gateway_done };
	int text[2], r;

	if (pipe2(text, O_CLOEXEC | O_NONBLOCK) < 0)
		return err_errno(e, -errno, "no pipe");
	x->text_fd[EXEC_GATEWAY] = text[0];
	task.spare[GATEWAY_TEXT] = text[1];
	str_format(key, sizeof(key), "sandbox %s", x->rec.sandbox);
	job.arg = w = x_alloc(sizeof(*w));
	*w = (struct gateway_wait){ .x = x, .call = c->call, .since_ms = clock_mono_ms() };
	r = child_start(c->nm, &job, &task, &x->child, e);
	if (r < 0) {
		free(w);
		fd_close(TAKE_FD(x->text_fd[EXEC_GATEWAY]));
	}
	fd_close(text[1]);
	return r;
}

static void op_gateway(struct op_call *c)
{
	struct err e = { 0 };

	if (c->x->child) {
		op_fail_with(c, -EBUSY, "busy", "another operation on this sandbox is running");
		return;
	}
	/* From here on the one before is over, whether there will be another one or not. */
	watch_kill(c->x, EXEC_GATEWAY);
	watch_forget_gateway(c->x);
	if (start_gateway(c, c->x, &e) < 0)
		op_fail(c->nm, c->call, op_name(c->row), &e);
}

/* ---- Inline ---- */

static void op_verify(struct op_call *c)
{
	const struct nm_verify *req = c->req;
	struct err e = { 0 };

	if (verify_execution(c->nm, c->x, req->bridge_pid, req->gateway_pid, &e) < 0)
		op_fail(c->nm, c->call, op_name(c->row), &e);
	else
		ipc_answer(c->call, NULL, NULL, 0);
}

static void op_kill(struct op_call *c)
{
	/*
	 * "all": the death of process 1 is the death of its namespace. The gateway, which has one of
	 * its own, lives until DESTROY, without a guest.
	 */
	static const struct { const char *what; enum exec_who who; } kills[] = {
		{ "bridge", EXEC_BRIDGE },
		{ "vmm", EXEC_VMM },
		{ "gateway", EXEC_GATEWAY },
		{ "all", EXEC_INIT },
	};
	const struct nm_kill *req = c->req;

	for (size_t i = 0; i < ARRAY_LEN(kills); i++) {
		if (!str_eq(req->what, kills[i].what))
			continue;
		if (watch_kill(c->x, kills[i].who) < 0)
			op_fail_with(c, -ESRCH, "process-gone", "the process has ended");
		else
			ipc_answer(c->call, NULL, NULL, 0);
		return;
	}
	op_misuse(c, "nothing of that name can be killed");
}

/* ---- Dispatch ---- */

static bool execution_in_order(struct op_call *c)
{
	const struct nm_exec *req = c->req;
	unsigned state;

	if (!id_sandbox_ok(req->sandbox) || req->generation < 1 ||
	    req->generation > NM_GENERATION_MAX) {
		op_misuse(c, "not a sandbox or not a generation");
		return false;
	}
	c->x = exec_find(c->nm, req->sandbox, req->generation);
	state = 1u << (c->x ? c->x->state : EXEC_NONE);
	if (c->row->served & state)
		return true;
	if (c->row->gone & state)
		op_fail_with(c, -ESRCH, "execution-gone", "this execution has ended");
	else
		op_misuse(c, "out of order in this state of the execution");
	return false;
}

static bool sandbox_in_order(struct op_call *c)
{
	const char *sandbox = c->req;

	if (!id_sandbox_ok(sandbox) ||
	    (c->row == &op_rows[NM_DISK_CREATE] &&
	     !template_name_ok(((const struct nm_disk_create *)c->req)->template))) {
		op_misuse(c, "not a sandbox or not a template");
		return false;
	}
	if (!exec_of_sandbox(c->nm, sandbox))
		return true;
	op_fail_with(c, -EBUSY, "execution-exists", "an execution has this sandbox's disk");
	return false;
}

static bool template_in_order(struct op_call *c)
{
	const char *template = c->req;
	bool commit = c->row == &op_rows[NM_TEMPLATE_COMMIT];

	if (!template_name_ok(template) || (commit && c->n_fds != 1)) {
		op_misuse(c, "not a template, or no device state with it");
		return false;
	}
	if (c->row == &op_rows[NM_TEMPLATE_MANIFEST] || !exec_of_template(c->nm, template))
		return true;
	op_fail_with(c, -EBUSY, "execution-exists", "an execution makes this template");
	return false;
}

static bool node_in_order(struct op_call *c) { return true; }

static void dispatch(struct op_call *c)
{
	static bool (*const in_order[])(struct op_call *) = {
		[ABOUT_NODE] = node_in_order, [ABOUT_EXECUTION] = execution_in_order,
		[ABOUT_SANDBOX] = sandbox_in_order, [ABOUT_TEMPLATE] = template_in_order,
	};
	char step[64];

	str_format(step, sizeof(step), "nm.%s.main", op_name(c->row));
	if (FAULT(step) < 0) {
		op_fail_with(c, -EIO, "", "failpoint");
		return;
	}
	if (!in_order[c->row->about](c))
		return;
	/* The guest channel goes to nobody while anything about the execution has changed (B-2). */
	if (c->row == &op_rows[NM_CHANNEL_OPEN]) {
		struct err e = { 0 };

		if (verify_execution(c->nm, c->x, 0, 0, &e) < 0) {
			op_fail(c->nm, c->call, op_name(c->row), &e);
			return;
		}
	}
	if (c->row->inline_fn)
		c->row->inline_fn(c);
	else
		op_fork(c);
}

#define HANDLER(OP)                                                                                \
	static void on_##OP(struct ipc_call *call, const void *req, int *fds, size_t n_fds,        \
			    void *arg)                                                             \
	{                                                                                          \
		dispatch(&(struct op_call) { .nm = arg,                                            \
					     .call = call,                                         \
					     .row = &op_rows[OP],                                  \
					     .req = req,                                           \
					     .fds = fds,                                           \
					     .n_fds = n_fds });                                    \
	}

#define ALL_OPS(X)                                                                                 \
	X(NM_LIST)                                                                                 \
	X(NM_STATS) X(NM_DISK_CREATE) X(NM_DISK_DELETE) X(NM_SPAWN) X(NM_QMP_OPEN)                 \
		X(NM_CHANNEL_OPEN) X(NM_VERIFY) X(NM_KILL) X(NM_GATEWAY) X(NM_DESTROY)             \
			X(NM_TEMPLATE_BEGIN)                                                       \
			X(NM_TEMPLATE_COMMIT) X(NM_TEMPLATE_DROP) X(NM_TEMPLATE_IMPORT)            \
				X(NM_TEMPLATE_MANIFEST)

ALL_OPS(HANDLER)

#define ROW(OP) { &nm_ops[OP], on_##OP },

const struct ipc_handler *ops_handlers(void)
{
	static const struct ipc_handler handlers[] = { ALL_OPS(ROW) { NULL, NULL } };

	_Static_assert(ARRAY_LEN(handlers) == NM_OP_COUNT + 1, "every operation has a handler");
	return handlers;
}
