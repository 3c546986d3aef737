/*
 * How an execution begins and how it ends. Each step has a failpoint; each may be the last one
 * before a SIGKILL.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "sbx-manager/job.h"

#define EXEC_QMP_MS 10000
#define EXEC_LOAD_MS 30000
#define EXEC_ATTACH_RESTORE_MS 20000
#define EXEC_ATTACH_BOOT_MS 60000
#define EXEC_INIT_MS 20000
#define EXEC_SHUTDOWN_MS 5000            /* for the guest to write its disk back */
#define EXEC_QUIT_MS 3000
#define EXEC_CONSOLE_MS 1000
#define EXEC_BRIDGE_MS 3000              /* for a bridge that was just started to listen */
#define EXEC_BRIDGE_POLL_US 1000

int exec_peer_open(struct job *j, const struct exec_peer *p, int wait_ms, struct ipc_sync **ret,
		   struct err *e)
{
	int64_t until = clock_mono_ms() + wait_ms;
	autoclose int fd = -1;
	char path[PATH_MAX];
	struct fd_peer peer;

	if (box_path(j->s, path, j->rec.id.sandbox, j->rec.id.generation, p->socket) < 0)
		return err_set(e, -ENAMETOOLONG, "The run folder's name is too long.");
	while ((fd = fd_unix_connect(path, SOCK_SEQPACKET, SBX_REVOKE_MS)) == -ECONNREFUSED &&
	       clock_mono_ms() < until)
		usleep(EXEC_BRIDGE_POLL_US);
	if (fd < 0)
		return err_errno(e, fd, "The %s's control socket", p->what);
	if (fd_peer_cred(fd, &peer) < 0 || (uint64_t)peer.pid != p->pid || peer.uid != p->uid)
		return err_set(e, -EACCES, "The %s's control socket belongs to another process.",
			       p->what);
	return ipc_sync_open_fd(TAKE_FD(fd), ret);
}

int exec_control_open(struct job *j, int wait_ms, struct ipc_sync **ret, struct err *e)
{
	const struct exec_peer peer = { "control.sock", "bridge", j->rec.proc.bridge_pid,
					j->rec.proc.bridge_uid };

	return exec_peer_open(j, &peer, wait_ms, ret, e);
}

/*
 * A guest that ends while it starts (its disk is its own, it may be anything) is not waited for,
 * and not started again and again: what comes of it is no time-out, which another try may cure.
 */
static int exec_vm_says(void *arg, struct err *e)
{
	struct job *j = arg;
	struct vmm_event ev;
	int r = vmm_poll(j->vm, e);

	while (vmm_next_event(j->vm, &ev)) {
		if (ev.kind != VMM_EV_STOP && ev.kind != VMM_EV_RESUME &&
		    ev.kind != VMM_EV_CHANNEL_OPEN)
			return err_set_code(e, -EIO, "guest-failed",
					    "The guest ended while it started (%s).",
					    vmm_event_names[ev.kind]);
	}
	return r;
}

static int exec_boot_failed(struct err *e)
{
	char text[ERR_TEXT_MAX];

	str_copy(text, sizeof(text), e->text);
	return err_set_code(e, -EIO, "guest-failed", "The guest does not start: %s", text);
}

static int exec_attach(struct job *j, int timeout_ms, struct err *e)
{
	struct nm_exec x = { .generation = j->rec.id.generation };
	struct bridge_attach a = { .generation = j->rec.id.generation };
	struct ipc_sync *c = NULL;
	autoclose int channel = -1;
	size_t n = 1;
	int r;

	str_copy(x.sandbox, sizeof(x.sandbox), j->rec.id.sandbox);
	str_hex(a.activation, j->rec.id.activation, ID_ACTIVATION_BYTES);
	r = job_nm(j, NM_CHANNEL_OPEN, &x, NULL, 0, NULL, &channel, &n, SBX_NM_MS, e);
	if (r == 0)
		r = exec_control_open(j, EXEC_BRIDGE_MS, &c, e);
	if (r == 0 && j->vm)
		ipc_sync_watch(c, vmm_fd(j->vm), exec_vm_says, j);
	if (r == 0)
		r = ipc_sync_call(c, &bridge_ops[BRIDGE_ATTACH], j->req_id, &a, &channel, 1, NULL,
				  NULL, NULL, timeout_ms, e);
	ipc_sync_close(c);
	return r < 0 ? err_wrap(e, "guest channel") : 0;
}

static int exec_spawn(struct job *j, const char *mode, int *ret_state_fd, struct err *e)
{
	struct nm_spawn q = { .generation = j->rec.id.generation,
			      .memory_mib = j->rec.memory_mib,
			      .vcpus = j->rec.vcpus };
	int fds[2] = { -1, -1 };
	size_t n = 2;
	int r;

	str_copy(q.sandbox, sizeof(q.sandbox), j->rec.id.sandbox);
	str_copy(q.template, sizeof(q.template), j->rec.template);
	str_copy(q.mode, sizeof(q.mode), mode);
	str_copy(q.accel, sizeof(q.accel), j->rec.accel);
	r = job_nm(j, NM_SPAWN, &q, NULL, 0, &j->rec.proc, fds, &n, SBX_NM_MS, e);
	if (r < 0)
		return r;
	job_step(j, "spawn");
	gateway_ask_for(j);
	*ret_state_fd = fds[1];
	if (n < 1)
		return err_set(e, -EPROTO, "spawn: no control connection came.");
	r = vmm_open(vmm_driver_find("qemu"), fds[0], EXEC_QMP_MS, &j->vm, e);
	job_step(j, "vmm-open");
	return r < 0 ? err_wrap(e, "The virtual machine monitor") : 0;
}

static int exec_load(struct job *j, int state_fd, struct err *e)
{
	int r;

	if (state_fd < 0)
		return err_set(e, -EPROTO, "spawn: the template's device state did not come.");
	r = vmm_load(j->vm, state_fd, EXEC_LOAD_MS, e);
	job_step(j, "load");
	if (r == 0)
		r = vmm_cont(j->vm, EXEC_QMP_MS, e);
	job_step(j, "cont");
	return r < 0 ? err_wrap(e, "The virtual machine") : 0;
}

int exec_begin(struct job *j, const char *mode, json_t *env, struct err *e)
{
	bool restore = str_eq(mode, "restore");
	autoclose int state_fd = -1;
	int r = job_fault("sbx.exec.before-spawn", e);

	if (r == 0)
		r = exec_spawn(j, mode, &state_fd, e);
	if (r == 0)
		r = job_fault("sbx.exec.after-spawn", e);
	/*
	 * Its processes are not recorded before it is announced: what is not announced is destroyed
	 * by name (adopt.c).
	 */
	if (r == 0 && restore)
		r = exec_load(j, state_fd, e);
	if (r == 0)
		r = job_fault("sbx.exec.after-load", e);
	if (r == 0)
		r = exec_attach(j, restore ? EXEC_ATTACH_RESTORE_MS : EXEC_ATTACH_BOOT_MS, e);
	job_step(j, "channel");
	if (r == 0)
		r = job_fault("sbx.exec.after-attach", e);
	if (r == 0)
		gateway_begin(j);
	if (r == 0)
		r = guest_init(j, env, EXEC_INIT_MS, e);
	if (r == -ETIMEDOUT && !restore)
		r = exec_boot_failed(e);
	job_step(j, "init");
	if (r == 0)
		gateway_let_out(j);
	if (r == 0)
		r = job_fault("sbx.exec.after-init", e);
	return r;
}

static void exec_announce_in_loop(void *arg)
{
	struct job *j = arg;
	struct box *b = box_find(j->s, j->rec.id.sandbox);

	if (b && j->vm)
		box_watch(b, TAKE(j->vm));
	if (b)
		gateway_set(b, j);
}

int exec_announce(struct job *j, struct err *e)
{
	int r = sbx_in_loop(j->s, exec_announce_in_loop, j);

	return r < 0 ? err_set(e, r, "The node service is ending.") : 0;
}

int exec_console(struct job *j, struct err *e)
{
	autofree char *text = NULL;
	size_t n = 0;
	int r;

	if (!j->vm)
		return 0;
	r = vmm_console(j->vm, &text, &n, EXEC_CONSOLE_MS, e);
	return r == 0 && !j->unrecorded
		       ? record_console_add(j->s->db, j->rec.id.sandbox, text, n,
					    clock_wall_ms(), e)
		       : r;
}

static bool exec_state_fits(enum life_state rec, enum vmm_run_state st)
{
	if (rec == LIFE_PAUSING || rec == LIFE_RESUMING)
		return st == VMM_RUN_RUNNING || st == VMM_RUN_PAUSED;
	return st == (rec == LIFE_PAUSED ? VMM_RUN_PAUSED : VMM_RUN_RUNNING);
}

int exec_vm_open(struct job *j, int timeout_ms, struct err *e)
{
	struct nm_exec x = { .generation = j->rec.id.generation };
	enum vmm_run_state st;
	int fd = -1, r;
	size_t n = 1;

	str_copy(x.sandbox, sizeof(x.sandbox), j->rec.id.sandbox);
	r = job_nm(j, NM_QMP_OPEN, &x, NULL, 0, NULL, &fd, &n, SBX_NM_MS, e);
	if (r == 0)
		r = vmm_open(vmm_driver_find("qemu"), fd, timeout_ms, &j->vm, e);
	if (r == 0)
		r = vmm_status(j->vm, &st, timeout_ms, e);
	if (r == 0 && !exec_state_fits(j->rec.state, st))
		r = err_set(e, -ECONNRESET, "The virtual machine is %s.", vmm_run_names[st]);
	return r;
}

/*
 * What was asked last is answered too late, or not at all: after a time-out the old connection is
 * of no use (vmm/qmp.h).
 */
int exec_vm_again(struct job *j, struct err *e)
{
	int r;

	vmm_close(TAKE(j->vm));
	r = exec_vm_open(j, EXEC_QMP_MS, e);
	if (r < 0)
		vmm_close(TAKE(j->vm));
	return r;
}

static void exec_unwatch_in_loop(void *arg)
{
	struct job *j = arg;
	struct box *b = box_find(j->s, j->rec.id.sandbox);

	if (b)
		box_unwatch(b);
}

int exec_destroy(struct job *j, struct err *e)
{
	struct nm_exec x = { .generation = j->rec.id.generation };

	str_copy(x.sandbox, sizeof(x.sandbox), j->rec.id.sandbox);
	return job_nm(j, NM_DESTROY, &x, NULL, 0, NULL, NULL, NULL, SBX_NM_MS, e);
}

/*
 * What is nice to have on the way out: a written disk, the last words. None of it holds the end up.
 */
static void exec_last_words(struct job *j, bool graceful)
{
	struct err e = { 0 };
	json_t *empty = json_object();

	if (graceful && j->rec.proc.bridge_pid != 0 &&
	    guest_post(j, "/shutdown", empty, EXEC_SHUTDOWN_MS, &e) < 0)
		log_warn("the guest did not shut down by itself", F_REQ(j->req_id),
			 F_STR("sandbox", j->rec.id.sandbox), F_ERR(&e));
	json_decref(empty);
	job_take_vm(j);
	if (!j->vm)
		return;
	if (exec_console(j, &e) < 0)
		log_warn("the end of the console is lost", F_REQ(j->req_id),
			 F_STR("sandbox", j->rec.id.sandbox), F_ERR(&e));
	vmm_quit(j->vm, EXEC_QUIT_MS, NULL);
	vmm_close(TAKE(j->vm));
}

int exec_end(struct job *j, bool graceful, struct err *e)
{
	int r = revoke_execution(j, e);

	if (r < 0)
		return r;
	exec_last_words(j, graceful);
	r = sbx_in_loop(j->s, exec_unwatch_in_loop, j);
	if (r < 0)
		return err_set(e, r, "The node service is ending.");
	r = job_fault("sbx.end.before-destroy", e);
	if (r == 0)
		r = exec_destroy(j, e);
	if (r == 0)
		r = job_fault("sbx.end.after-destroy", e);
	if (r < 0)
		return r;
	j->rec.proc = (struct nm_spawn_rep){ 0 };
	j->rec.gateway = (struct nm_gateway_rep){ 0 };
	j->gateway = (struct gateway){ 0 };
	j->rec.guest_token[0] = '\0';
	return 0;
}
