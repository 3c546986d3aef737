/*
 * Theory of operation
 *
 *	node-manager's child ── clone ──▶ process 1 ── clone ──▶ VMM     (2)
 *	                                            ── clone ──▶ bridge  (3)
 *
 * Process 1 begins new PID, IPC, UTS, network and mount namespaces; VMM and bridge inherit all but
 * the mount namespace, of which each gets its own. Until they exec, all three run this file as root
 * and touch nothing that a guest can reach. Each of VMM and bridge builds its root: a clone of its
 * tree, read-only, nosuid, nodev, with the few bound files on top, pivoted into; the old root is
 * detached. /proc, /sys and /dev are in none.
 *
 * Order. Both then wait at the gate, a pipe whose only writer is process 1 and closes when that
 * executes jail-init: so process 1 has given up every right before a program that handles hostile
 * bytes runs in its namespace. After the gate: capability bounding set, ambient and all other sets
 * emptied, no_new_privs, rlimits, the own uid without groups, exactly the descriptors of the
 * contract, the seccomp filter, execve.
 *
 * Errors come back over one socket pair, close-on-exec in all three: a packet is an error or the
 * two pidfds; end of file says that each has executed or died, which the caller tells apart by
 * looking at the processes.
 *
 * The death of node-manager's child before process 1 has executed jail-init kills process 1
 * (PR_SET_PDEATHSIG; changing the uid clears it) and with it the namespace. Afterwards jail-init
 * ends unless it hears "go" (jail_init.c).
 */
#include "node-manager/jail.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "jail-init/jail_init.h"
#include "node-manager/jail_steps.h"
#include "node-manager/jail_tree.h"

#define JAIL_EMPTY "empty"               /* RUN/nm/empty: the root of jail-init */

struct jail_parts { const struct jail_spec *s; int ctl, gate[2]; };

/*
 * RLIMIT_NPROC counts per uid; each of these belongs to one process, and perhaps to a zombie of its
 * last owner.
 */
static const struct jail_limit init_limits[] = {
	{ RLIMIT_CORE, 0 },	   { RLIMIT_NOFILE, 2 * JAIL_FD_HIGH },
	{ RLIMIT_NPROC, 4 },	   { RLIMIT_FSIZE, 0 },
	{ RLIMIT_MEMLOCK, 0 },	   { RLIMIT_MSGQUEUE, 0 },
	{ RLIMIT_NICE, 0 },	   { RLIMIT_RTPRIO, 0 },
	{ RLIMIT_SIGPENDING, 16 }, JAIL_LIMITS_END
};
static const struct jail_limit vmm_limits[] = {
	{ RLIMIT_CORE, 0 }, { RLIMIT_NOFILE, JAIL_VMM_FILES }, { RLIMIT_NPROC, CGROUP_VMM_PIDS },
	{ RLIMIT_MEMLOCK, 0 }, { RLIMIT_MSGQUEUE, 0 }, { RLIMIT_NICE, 0 }, { RLIMIT_RTPRIO, 0 },
	{ RLIMIT_SIGPENDING, 1024 }, JAIL_LIMITS_END
};
static const struct jail_limit bridge_limits[] = {
	{ RLIMIT_CORE, 0 },	   { RLIMIT_NOFILE, JAIL_BRIDGE_FILES },
	{ RLIMIT_NPROC, 4 },	   { RLIMIT_FSIZE, 0 },
	{ RLIMIT_MEMLOCK, 0 },	   { RLIMIT_MSGQUEUE, 0 },
	{ RLIMIT_NICE, 0 },	   { RLIMIT_RTPRIO, 0 },
	{ RLIMIT_SIGPENDING, 64 }, JAIL_LIMITS_END
};

static int pass_gate(const struct jail_parts *p, struct err *e)
{
	char byte;
	ssize_t n = read(p->gate[0], &byte, 1);

	return n == 0 ? 0 : err_set(e, -EIO, "the gate of the jail");
}

/* ---- The three ---- */

static int run_vmm(const struct jail_parts *p, int *ctl, struct err *e)
{
	const struct jail_spec *s = p->s;
	int null = s->null, filter = s->nm->vmm_filter_fd[s->accel];
	int text = s->text[EXEC_VMM] >= 0 ? s->text[EXEC_VMM] : null;
	const int fds[] = { null,   null,    text,  s->socket[EXEC_QMP], s->socket[EXEC_CHANNEL],
			    s->tap, s->disk, s->kvm };
	const size_t n_fds = ARRAY_LEN(fds) - (s->kvm < 0 ? 1 : 0);
	autofree char *program = x_asprintf("/%s", s->vmm_argv[0]);
	char tree[PATH_MAX], *env[] = { NULL };
	int r = cgroup_enter(&s->nm->cgroups, s->name, CGROUP_VMM, e);

	_Static_assert(VMM_FD_CONTROL == 3 && VMM_FD_CHANNEL == 4 && VMM_FD_TAP == 5 &&
			       VMM_FD_DISK == 6 && VMM_FD_KVM == 7,
		       "fds has them in this order");
	if (r == 0)
		r = jail_tree_path(s->nm, tree, JAIL_TREE_VMM, s->nm->vmm_tree.digest, e);
	if (r == 0)
		r = jail_enter_root(tree, s->bind, s->n_binds, e);
	if (r == 0)
		r = pass_gate(p, e);
	/* Transparent huge pages would make a sandbox pay for memory that it does not write. */
	if (r == 0 && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) < 0)
		r = err_errno(e, -errno, "PR_SET_THP_DISABLE");
	if (r == 0)
		r = jail_set_limit(RLIMIT_FSIZE, s->vmm_file_bytes, e);
	if (r == 0)
		r = jail_drop_rights(s->vmm_uid, vmm_limits, e);
	if (r == 0)
		r = jail_place_fds(fds, n_fds, (int *const[]){ ctl, &filter }, 2, e);
	if (r == 0)
		r = jail_load_filter(filter, e);
	if (r < 0)
		return r;
	execve(program, s->vmm_argv, env);
	return err_errno(e, -errno, "the VMM cannot be executed");
}

static int run_bridge(const struct jail_parts *p, int *ctl, struct err *e)
{
	const struct jail_spec *s = p->s;
	int null = s->null, filter = s->nm->bridge_filter_fd;
	int text = s->text[EXEC_BRIDGE] >= 0 ? s->text[EXEC_BRIDGE] : null;
	const int fds[] = { null, null, text, s->socket[EXEC_STREAMS], s->socket[EXEC_CONTROL] };
	char tree[PATH_MAX], *env[] = { NULL };
	int r = cgroup_enter(&s->nm->cgroups, s->name, CGROUP_BRIDGE, e);

	if (r == 0)
		r = jail_tree_path(s->nm, tree, JAIL_TREE_BRIDGE, s->nm->bridge_tree.digest, e);
	if (r == 0)
		r = jail_enter_root(tree, NULL, 0, e);
	if (r == 0)
		r = pass_gate(p, e);
	if (r == 0)
		r = jail_drop_rights(s->bridge_uid, bridge_limits, e);
	if (r == 0)
		r = jail_place_fds(fds, ARRAY_LEN(fds), (int *const[]){ ctl, &filter }, 2, e);
	if (r == 0)
		r = jail_load_filter(filter, e);
	if (r < 0)
		return r;
	execve("/" JAIL_BRIDGE_PROGRAM, s->bridge_argv, env);
	return err_errno(e, -errno, "the bridge cannot be executed");
}

/*
 * Descriptors 0 to 2 lead nowhere; 3 is the link. The program is executed by its descriptor: its
 * root is empty.
 */
static int run_init(const struct jail_parts *p, int *ctl, struct err *e)
{
	const struct jail_spec *s = p->s;
	int null = s->null, filter = s->nm->init_filter_fd, program = s->nm->init_fd;
	int gate = p->gate[1];
	const int fds[] = { null, null, null, s->link };
	char root[PATH_MAX], *env[] = { NULL }, arg0[] = "jail-init", *argv[] = { arg0, NULL };
	int r = conf_path(&s->nm->conf, root, CONF_RUN, "nm/" JAIL_EMPTY);

	_Static_assert(JAIL_INIT_LINK_FD == 3, "fds has the link at 3");
	if (r < 0)
		return err_errno(e, r, "the empty root's path");
	r = jail_enter_root(root, NULL, 0, e);
	if (r == 0)
		r = jail_drop_rights(s->init_uid, init_limits, e);
	if (r == 0)
		r = jail_place_fds(fds, ARRAY_LEN(fds), (int *const[]) { ctl, &filter, &program, &gate },
			      4, e);
	if (r == 0)
		r = jail_load_filter(filter, e);
	if (r < 0)
		return r;
	syscall(SYS_execveat, program, "", argv, env, AT_EMPTY_PATH);
	return err_errno(e, -errno, "jail-init cannot be executed");
}

static __attribute__((noreturn)) void run_child(const struct jail_parts *p,
						int (*run)(const struct jail_parts *, int *,
							   struct err *))
{
	struct err e = { 0 };
	int ctl = p->ctl;

	setsid();
	close(p->gate[1]);
	run(p, &ctl, &e);
	jail_give_up(ctl, &e);
}

static __attribute__((noreturn)) void run_first(const struct jail_parts *p)
{
	struct err e = { 0 };
	int pidfd[2] = { -1, -1 }, ctl = p->ctl, r;
	pid_t vmm, bridge;

	/*
	 * The parent is in another PID namespace: getppid(2) says 0 for it and for its absence. Who
	 * has died meanwhile has closed its end of the socket pair, on which the packet below then
	 * fails.
	 */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setsid();
	r = cgroup_enter(&p->s->nm->cgroups, p->s->name, CGROUP_BRIDGE, &e);
	if (r == 0 && sethostname(JAIL_HOSTNAME, strlen(JAIL_HOSTNAME)) < 0)
		r = err_errno(&e, -errno, "the host name cannot be set");
	if (r < 0)
		jail_give_up(ctl, &e);
	vmm = jail_fork(CLONE_NEWNS, &pidfd[0]);
	if (vmm == 0)
		run_child(p, run_vmm);
	bridge = vmm < 0 ? -1 : jail_fork(CLONE_NEWNS, &pidfd[1]);
	if (bridge == 0)
		run_child(p, run_bridge);
	if (vmm != JAIL_INIT_VMM_PID || bridge != JAIL_INIT_BRIDGE_PID) {
		err_set(&e, -EIO, "the processes of the jail cannot be forked");
		jail_give_up(ctl, &e);
	}
	if (fd_send(ctl, "P", 1, pidfd, 2, MSG_NOSIGNAL) < 0)
		_exit(1);
	run_init(p, &ctl, &e);
	jail_give_up(ctl, &e);
}

/* ---- In node-manager's child ---- */

/* Packets until end of file. The child's deadline bounds the wait. */
static int gather(int ctl, int pidfd[EXEC_CORE_COUNT], struct err *e)
{
	for (;;) {
		struct err got;
		int fds[2];
		size_t n_fds = 2;
		ssize_t n = fd_recv(ctl, &got, sizeof(got), fds, &n_fds, 0);

		if (n < 0)
			return err_errno(e, (int)n, "the jail cannot be heard");
		if (n == 0)
			break;
		if (n == 1 && n_fds == 2) {
			pidfd[EXEC_VMM] = fds[0];
			pidfd[EXEC_BRIDGE] = fds[1];
			continue;
		}
		for (size_t i = 0; i < n_fds; i++)
			fd_close(fds[i]);
		if (n != sizeof(got))
			return err_set(e, -EIO, "the jail cannot be understood");
		if (e)
			*e = got;
		return got.num;
	}
	for (int i = 0; i < EXEC_CORE_COUNT; i++) {
		if (pidfd[i] < 0 || jail_has_ended(pidfd[i]))
			return err_set_code(e, -ECHILD, "jail-ended", "%s ended as it was started",
					    exec_who_names[i]);
	}
	return 0;
}

int jail_start(const struct jail_spec *s, pid_t ret_pid[EXEC_CORE_COUNT], struct err *e)
{
	const unsigned long space =
		CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWNS;
	int ctl[2], gate[2], pidfd[EXEC_CORE_COUNT] = { -1, -1, -1 };
	struct jail_parts p = { .s = s };
	pid_t pid;
	int r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ctl) < 0 ||
	    pipe2(gate, O_CLOEXEC) < 0)
		return err_errno(e, -errno, "no pipes for the jail");
	p.ctl = ctl[1];
	memcpy(p.gate, gate, sizeof(gate));
	pid = jail_fork(space, &pidfd[EXEC_INIT]);
	if (pid == 0) {
		close(ctl[0]);
		run_first(&p);
	}
	r = pid < 0 ? err_errno(e, -errno, "the namespaces of the jail cannot be made") : 0;
	close(ctl[1]);
	close(gate[0]);
	close(gate[1]);
	if (r == 0)
		r = gather(ctl[0], pidfd, e);
	for (int i = 0; i < EXEC_CORE_COUNT && r == 0; i++) {
		ret_pid[i] = jail_pidfd_pid(pidfd[i]);
		if (ret_pid[i] <= 0)
			r = err_set_code(e, -ECHILD, "jail-ended", "%s ended as it was started",
					 exec_who_names[i]);
	}
	if (r < 0 && pid > 0)
		kill(pid, SIGKILL);
	for (int i = 0; i < EXEC_CORE_COUNT; i++)
		fd_close(pidfd[i]);
	close(ctl[0]);
	return r;
}
