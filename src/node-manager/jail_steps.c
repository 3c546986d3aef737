#include "node-manager/jail_steps.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "node-manager/child.h"

#ifndef MOUNT_ATTR_NOSYMFOLLOW
#define MOUNT_ATTR_NOSYMFOLLOW 0x00200000
#endif

#define JAIL_FILTER_MAX 4096             /* instructions: BPF_MAXINSNS */
#define JAIL_CAPS_MAX 64

void jail_give_up(int ctl, const struct err *e)
{
	send(ctl, e, sizeof(*e), MSG_NOSIGNAL);
	_exit(1);
}

pid_t jail_fork(unsigned long flags, int *ret_pidfd)
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

int jail_enter_root(const char *tree, const struct jail_bind *b, size_t n, struct err *e)
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

int jail_tree_path(const struct nm *nm, char dst[PATH_MAX], const char *kind, const char *digest,
		     struct err *e)
{
	int r = conf_path(&nm->conf, dst, CONF_STATE, "data/%s/%s", kind, digest);

	return r < 0 ? err_errno(e, r, "the tree's path") : 0;
}

/* ---- Rights ---- */

int jail_set_limit(int what, rlim_t value, struct err *e)
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

int jail_drop_rights(uid_t uid, const struct jail_limit *limits, struct err *e)
{
	int r = drop_bounding(e);

	for (; r == 0 && limits->what >= 0; limits++)
		r = jail_set_limit(limits->what, limits->value, e);
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

int jail_load_filter(int fd, struct err *e)
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

int jail_place_fds(const int *fds, size_t n, int *const *own, size_t n_own, struct err *e)
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

/* ---- In node-manager's child ---- */

pid_t jail_pidfd_pid(int pidfd)
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

bool jail_has_ended(int pidfd)
{
	struct pollfd p = { .fd = pidfd, .events = POLLIN };

	return poll(&p, 1, 0) != 0;
}
