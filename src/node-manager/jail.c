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
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "jail-init/jail_init.h"
#include "node-manager/child.h"
#include "node-manager/jail_tree.h"

#ifndef MOUNT_ATTR_NOSYMFOLLOW
#define MOUNT_ATTR_NOSYMFOLLOW 0x00200000
#endif

#define JAIL_FDS_MAX 8
#define JAIL_FD_HIGH 100                 /* descriptors are gathered above this before they are put in place */
#define JAIL_FILTER_MAX 4096             /* instructions: BPF_MAXINSNS */
#define JAIL_EMPTY "empty"               /* RUN/nm/empty: the root of jail-init */
#define JAIL_CAPS_MAX 64
#define JAIL_HOSTNAME "sandbox"

struct jail_parts { const struct jail_spec *s; int ctl, gate[2]; };

static __attribute__((noreturn)) void give_up(int ctl, const struct err *e)
{
	send(ctl, e, sizeof(*e), MSG_NOSIGNAL);
	_exit(1);
}

/*
 * As fork(2), with new namespaces and a pidfd. Legacy clone: clone3 is refused by the filter that
 * all daemons share.
 */
static pid_t fork_into(unsigned long flags, int *ret_pidfd)
{
	return (pid_t)syscall(SYS_clone, flags | CLONE_PIDFD | SIGCHLD, NULL, ret_pidfd, NULL, 0);
}

/* ---- Root ---- */

static int clone_mount(const char *source, const char *target, uint64_t attr, struct err *e)
{
	struct mount_attr a = { .attr_set = attr, .propagation = MS_PRIVATE };
	autoclose int m = open_tree(AT_FDCWD, source, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);

	if (m < 0)
		return err_errno(e, -errno, "%s cannot be cloned", source);
	if (mount_setattr(m, "", AT_EMPTY_PATH, &a, sizeof(a)) < 0)
		return err_errno(e, -errno, "the mount of %s cannot be restricted", source);
	if (move_mount(m, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH) < 0)
		return err_errno(e, -errno, "%s cannot be mounted in the jail", source);
	return 0;
}

static int enter_root(const char *tree, const struct jail_bind *b, size_t n, struct err *e)
{
	uint64_t attr =
		MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSYMFOLLOW;
	int r;

	/* Nothing that happens in here may reach the host's mounts, nor the reverse. */
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return err_errno(
			e, -errno,
			"mounts cannot be made private; the root folder must be a mount point");
	r = clone_mount(tree, tree, attr, e);
	if (r < 0)
		return r;
	if (chdir(tree) < 0)
		return err_errno(e, -errno, "the jail's root cannot be entered");
	for (size_t i = 0; i < n; i++) {
		uint64_t a = (attr | MOUNT_ATTR_NOEXEC) &
			     ~(uint64_t)(b[i].writable ? MOUNT_ATTR_RDONLY : 0);

		r = clone_mount(b[i].source, b[i].target, a, e);
		if (r < 0)
			return r;
	}
	/*
	 * The new root on top of the old one; what lies below is then taken away (pivot_root(2)).
	 */
	if (syscall(SYS_pivot_root, ".", ".") < 0)
		return err_errno(e, -errno, "the root cannot be pivoted");
	if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		return err_errno(e, -errno, "the old root cannot be left");
	return 0;
}

static int tree_path(const struct nm *nm, char dst[PATH_MAX], const char *kind, const char *digest,
		     struct err *e)
{
	int r = conf_path(&nm->conf, dst, CONF_STATE, "data/%s/%s", kind, digest);

	return r < 0 ? err_errno(e, r, "the tree's path") : 0;
}

/* ---- Rights ---- */

struct jail_limit { int what; rlim_t value; };
#define JAIL_LIMITS_END { -1, 0 }

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

static int set_limit(int what, rlim_t value, struct err *e)
{
	struct rlimit have, want = { value, value };

	/*
	 * Only root with CAP_SYS_RESOURCE may raise a hard limit; the machine's own may be lower.
	 */
	if (getrlimit((__rlimit_resource_t)what, &have) == 0 && have.rlim_max < value)
		want.rlim_cur = want.rlim_max = have.rlim_max;
	return setrlimit((__rlimit_resource_t)what, &want) < 0
		       ? err_errno(e, -errno, "resource limit %d", what)
		       : 0;
}

static int drop_bounding(struct err *e)
{
	for (unsigned long cap = 0;
	     cap < JAIL_CAPS_MAX && prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++) {
		if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
			return err_errno(e, -errno,
					 "the capability bounding set cannot be emptied");
	}
	return 0;
}

/* Everything but descriptors and filter. */
static int drop_rights(uid_t uid, const struct jail_limit *limits, struct err *e)
{
	int r = drop_bounding(e);

	for (; r == 0 && limits->what >= 0; limits++)
		r = set_limit(limits->what, limits->value, e);
	if (r < 0)
		return r;
	umask(077);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
		return err_errno(e, -errno, "no_new_privs");
	if (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
		return err_errno(e, -errno, "the uid %u cannot be taken", (unsigned)uid);
	r = child_keep_caps(0);
	return r < 0 ? err_errno(e, r, "capabilities cannot be given up") : 0;
}

static int load_filter(int fd, struct err *e)
{
	autofree struct sock_filter *code = x_array(JAIL_FILTER_MAX, sizeof(*code));
	ssize_t n = pread(fd, code, JAIL_FILTER_MAX * sizeof(*code), 0);
	struct sock_fprog prog = { .filter = code };

	if (n <= 0 || n % (ssize_t)sizeof(*code) != 0 ||
	    n == (ssize_t)(JAIL_FILTER_MAX * sizeof(*code)))
		return err_set(e, -EINVAL, "the system-call filter cannot be read");
	prog.len = (unsigned short)((size_t)n / sizeof(*code));
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog) < 0)
		return err_errno(e, -errno, "the system-call filter cannot be loaded");
	return 0;
}

/*
 * fds[i] becomes descriptor i and stays over exec; those of `own` follow with close-on-exec and are
 * changed to their new numbers; everything else is closed.
 */
static int place_fds(const int *fds, size_t n, int *const *own, size_t n_own, struct err *e)
{
	int tmp[JAIL_FDS_MAX * 2];

	for (size_t i = 0; i < n + n_own; i++) {
		tmp[i] = fcntl(i < n ? fds[i] : *own[i - n], F_DUPFD_CLOEXEC, JAIL_FD_HIGH);
		if (tmp[i] < 0)
			return err_errno(e, -errno, "descriptor %zu of a jail", i);
	}
	for (size_t i = 0; i < n + n_own; i++) {
		if (dup3(tmp[i], (int)i, i < n ? 0 : O_CLOEXEC) < 0)
			return err_errno(e, -errno, "descriptor %zu of a jail", i);
		if (i >= n)
			*own[i - n] = (int)i;
	}
	return syscall(SYS_close_range, (unsigned)(n + n_own), ~0U, 0) < 0
		       ? err_errno(e, -errno, "close_range")
		       : 0;
}

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
		r = tree_path(s->nm, tree, JAIL_TREE_VMM, s->nm->vmm_tree.digest, e);
	if (r == 0)
		r = enter_root(tree, s->bind, s->n_binds, e);
	if (r == 0)
		r = pass_gate(p, e);
	/* Transparent huge pages would make a sandbox pay for memory that it does not write. */
	if (r == 0 && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) < 0)
		r = err_errno(e, -errno, "PR_SET_THP_DISABLE");
	if (r == 0)
		r = set_limit(RLIMIT_FSIZE, s->vmm_file_bytes, e);
	if (r == 0)
		r = drop_rights(s->vmm_uid, vmm_limits, e);
	if (r == 0)
		r = place_fds(fds, n_fds, (int *const[]){ ctl, &filter }, 2, e);
	if (r == 0)
		r = load_filter(filter, e);
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
		r = tree_path(s->nm, tree, JAIL_TREE_BRIDGE, s->nm->bridge_tree.digest, e);
	if (r == 0)
		r = enter_root(tree, NULL, 0, e);
	if (r == 0)
		r = pass_gate(p, e);
	if (r == 0)
		r = drop_rights(s->bridge_uid, bridge_limits, e);
	if (r == 0)
		r = place_fds(fds, ARRAY_LEN(fds), (int *const[]){ ctl, &filter }, 2, e);
	if (r == 0)
		r = load_filter(filter, e);
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
	r = enter_root(root, NULL, 0, e);
	if (r == 0)
		r = drop_rights(s->init_uid, init_limits, e);
	if (r == 0)
		r = place_fds(fds, ARRAY_LEN(fds), (int *const[]) { ctl, &filter, &program, &gate },
			      4, e);
	if (r == 0)
		r = load_filter(filter, e);
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
	give_up(ctl, &e);
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
		give_up(ctl, &e);
	vmm = fork_into(CLONE_NEWNS, &pidfd[0]);
	if (vmm == 0)
		run_child(p, run_vmm);
	bridge = vmm < 0 ? -1 : fork_into(CLONE_NEWNS, &pidfd[1]);
	if (bridge == 0)
		run_child(p, run_bridge);
	if (vmm != JAIL_INIT_VMM_PID || bridge != JAIL_INIT_BRIDGE_PID) {
		err_set(&e, -EIO, "the processes of the jail cannot be forked");
		give_up(ctl, &e);
	}
	if (fd_send(ctl, "P", 1, pidfd, 2, MSG_NOSIGNAL) < 0)
		_exit(1);
	run_init(p, &ctl, &e);
	give_up(ctl, &e);
}

/* ---- In node-manager's child ---- */

/* The PID that a pidfd stands for, in the PID namespace of /proc (proc(5), fdinfo). */
static pid_t pidfd_pid(int pidfd)
{
	char path[64];
	autofree char *text = NULL;
	const char *p;
	uint64_t pid;

	str_format(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
	if (fd_read_file(AT_FDCWD, path, 4096, &text, NULL) < 0)
		return -1;
	p = strstr(text, "\nPid:\t");
	if (!p || str_to_u64_n(p + 6, strcspn(p + 6, "\n"), INT32_MAX, &pid) < 0)
		return -1;
	return (pid_t)pid;
}

static bool has_ended(int pidfd)
{
	struct pollfd p = { .fd = pidfd, .events = POLLIN };

	return poll(&p, 1, 0) != 0;
}

/* Packets until end of file. The child's deadline bounds the wait. */
static int gather(int ctl, int pidfd[EXEC_WHO_COUNT], struct err *e)
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
	for (int i = 0; i < EXEC_WHO_COUNT; i++) {
		if (pidfd[i] < 0 || has_ended(pidfd[i]))
			return err_set_code(e, -ECHILD, "jail-ended", "%s ended as it was started",
					    exec_who_names[i]);
	}
	return 0;
}

int jail_start(const struct jail_spec *s, pid_t ret_pid[EXEC_WHO_COUNT], struct err *e)
{
	const unsigned long space =
		CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWNS;
	int ctl[2], gate[2], pidfd[EXEC_WHO_COUNT] = { -1, -1, -1 };
	struct jail_parts p = { .s = s };
	pid_t pid;
	int r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ctl) < 0 ||
	    pipe2(gate, O_CLOEXEC) < 0)
		return err_errno(e, -errno, "no pipes for the jail");
	p.ctl = ctl[1];
	memcpy(p.gate, gate, sizeof(gate));
	pid = fork_into(space, &pidfd[EXEC_INIT]);
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
	for (int i = 0; i < EXEC_WHO_COUNT && r == 0; i++) {
		ret_pid[i] = pidfd_pid(pidfd[i]);
		if (ret_pid[i] <= 0)
			r = err_set_code(e, -ECHILD, "jail-ended", "%s ended as it was started",
					 exec_who_names[i]);
	}
	if (r < 0 && pid > 0)
		kill(pid, SIGKILL);
	for (int i = 0; i < EXEC_WHO_COUNT; i++)
		fd_close(pidfd[i]);
	close(ctl[0]);
	return r;
}
