#include "daemon/seccomp.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <seccomp.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "daemon/sanitizer.h"

#define SECCOMP_NEW_NAMESPACES (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | \
				CLONE_NEWPID | CLONE_NEWNET)

/*
 * Recorded (docs/syscalls.md). What stands under "not seen" was in no test and has its reason
 * there; what only node-manager needs stands in its own list.
 */
const char *const seccomp_common[] = {
	/* files: configuration, failpoints, keys, SQLite (which also locks and truncates) */
	"read", "write", "pread64", "pwrite64", "lseek", "close", "openat", "newfstatat", "access",
	"unlink", "unlinkat", "renameat", "ftruncate", "fsync", "fdatasync", "chmod", "fchmod",
	"fcntl", "getdents64", "readlink",
	/* memory: malloc, stacks, SQLite's shared memory */
	"brk", "mmap", "munmap", "mprotect", "madvise",
	/* the loop */
	"epoll_ctl", "epoll_wait", "eventfd2", "poll",
	/* sockets; which kinds there can be is decided by the network namespace and the user */
	"socket", "bind", "listen", "accept4", "connect", "shutdown", "sendto", "recvfrom",
	"sendmsg", "recvmsg", "getsockopt", "setsockopt", "getpeername",
	/* threads, no processes; the end */
	"futex", "set_robust_list", "rseq", "clone:thread", "exit", "exit_group",
	/* signals; kill is what the failpoint "crash" uses */
	"rt_sigaction", "rt_sigprocmask", "kill",
	/* clocks and who am I; sysinfo is qsort(3) of more than 1 KiB */
	"clock_nanosleep", "getpid", "geteuid", "getrandom", "sysinfo",
	/*
	 * not seen: answered with ENOSYS before the point of recording; glibc tries it for each
	 * thread
	 */
	"clone3",
	/* not seen: clocks where the vDSO has none for the clock source */
	"clock_gettime", "gettimeofday", "time",
	/*
	 * not seen: the end of a program by abort(3), a failed assertion or the stack protector,
	 * with its message
	 */
	"gettid", "tgkill", "writev",
	/* not seen: realloc(3) of large buffers */
	"mremap",
	/* not seen: fstat(3) of a newer glibc */
	"fstat",
	/* not seen: two threads that look at the failpoints in one moment; jansson's seed */
	"sched_yield",
	/* not seen: poll, futex and clock_nanosleep go on by this after SIGSTOP and SIGCONT */
	"restart_syscall",
	NULL
};

static void seccomp_auto_release(scmp_filter_ctx *ctx)
{
	if (*ctx)
		seccomp_release(*ctx);
}

static int seccomp_add_ioctl_basic(scmp_filter_ctx ctx)
{
	static const unsigned requests[] = { FIONREAD, FIONBIO, TCGETS };
	int r = 0;

	for (size_t i = 0; i < ARRAY_LEN(requests) && r == 0; i++)
		r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1,
				     SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffff, requests[i]));
	return r;
}

/* Threads and no processes: fork and vfork are clone without CLONE_THREAD. */
static int seccomp_add_clone_thread(scmp_filter_ctx ctx)
{
	return seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
				SCMP_A0(SCMP_CMP_MASKED_EQ, SECCOMP_NEW_NAMESPACES | CLONE_THREAD,
					CLONE_THREAD));
}

static int seccomp_add_clone_any(scmp_filter_ctx ctx)
{
	return seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(clone), 0);
}

static int seccomp_add_clone3(scmp_filter_ctx ctx)
{
	return seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
}

static const struct {
	const char *name;
	int (*add)(scmp_filter_ctx ctx);
} seccomp_special[] = {
	{ "ioctl:basic", seccomp_add_ioctl_basic },
	{ "clone:thread", seccomp_add_clone_thread },
	{ "clone:any", seccomp_add_clone_any },
	{ "clone3", seccomp_add_clone3 },
};

static int seccomp_add(scmp_filter_ctx ctx, uint32_t action, const char *name)
{
	int nr;

	if (action == SCMP_ACT_ALLOW)
		for (size_t i = 0; i < ARRAY_LEN(seccomp_special); i++)
			if (str_eq(name, seccomp_special[i].name))
				return seccomp_special[i].add(ctx);
	nr = seccomp_syscall_resolve_name(name);
	if (nr == __NR_SCMP_ERROR)
		return 0;
	return seccomp_rule_add(ctx, action, nr, 0);
}

static int seccomp_allow(scmp_filter_ctx ctx, const char *const *names, struct err *e)
{
	for (; *names; names++) {
		int r = seccomp_add(ctx, SCMP_ACT_ALLOW, *names);

		if (r < 0 && r != -EEXIST)      /* said twice, or by enosys before */
			return err_errno(e, r, "cannot allow the system call %s", *names);
	}
	return 0;
}

static bool seccomp_in(const char *const *names, const char *name)
{
	while (*names && !str_eq(*names, name))
		names++;
	return *names != NULL;
}

static int seccomp_add_rules(scmp_filter_ctx ctx, const struct seccomp_rule *rules, struct err *e)
{
	for (; rules && rules->call; rules++) {
		struct scmp_arg_cmp cmp[SECCOMP_CONDS_MAX];
		int nr = seccomp_syscall_resolve_name(rules->call), r;
		unsigned n = 0;

		for (; n < SECCOMP_CONDS_MAX && rules->conds[n].mask != 0; n++)
			cmp[n] = SCMP_CMP(rules->conds[n].arg, SCMP_CMP_MASKED_EQ,
					  rules->conds[n].mask, rules->conds[n].value);
		r = seccomp_rule_add_array(ctx, SCMP_ACT_ALLOW, nr, n, cmp);
		if (r < 0 && r != -EEXIST)
			return err_errno(e, r,
					 "cannot allow the system call %s with these arguments",
					 rules->call);
	}
	return 0;
}

static int seccomp_build(const char *const *const *lists, const struct seccomp_rule *rules,
			 const char *const *enosys, scmp_filter_ctx *ret, struct err *e)
{
	bool log = str_eq(getenv("SPACE_SECCOMP"), "log");
	scmp_filter_ctx ctx = seccomp_init(log ? SCMP_ACT_LOG : SCMP_ACT_KILL_PROCESS);
	int r = 0;

	if (!ctx)
		return err_set(e, -ENOMEM, "cannot start a seccomp filter");
	*ret = ctx;
	/* A search tree instead of a chain: every system call passes here. */
	seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2);
	seccomp_attr_set(ctx, SCMP_FLTATR_CTL_TSYNC, 1);
	for (; enosys && *enosys && r == 0; enosys++) {
		/* A call has one action: the runtimes' own need comes first. */
		if (!seccomp_in(sanitizer_syscalls, *enosys))
			r = seccomp_add(ctx, SCMP_ACT_ERRNO(ENOSYS), *enosys);
	}
	for (; *lists && r == 0; lists++)
		r = seccomp_allow(ctx, *lists, e);
	if (r == 0)
		r = seccomp_add_rules(ctx, rules, e);
	if (r == 0)
		r = seccomp_allow(ctx, sanitizer_syscalls, e);
	return r < 0 && !(e && e->num) ? err_errno(e, r, "cannot make the seccomp filter") : r;
}

int seccomp_apply_rules(const char *const *const *lists, const struct seccomp_rule *rules,
			const char *const *enosys, struct err *e)
{
	__attribute__((cleanup(seccomp_auto_release))) scmp_filter_ctx ctx = NULL;
	int r = seccomp_build(lists, rules, enosys, &ctx, e);

	if (r < 0)
		return r;
	r = seccomp_load(ctx);
	return r < 0 ? err_errno(e, r, "cannot load the seccomp filter") : 0;
}

int seccomp_apply(const char *const *const *lists, struct err *e)
{
	return seccomp_apply_rules(lists, NULL, NULL, e);
}

int seccomp_export_rules(const char *const *const *lists, const struct seccomp_rule *rules,
			 const char *const *enosys, int *ret_memfd, struct err *e)
{
	__attribute__((cleanup(seccomp_auto_release))) scmp_filter_ctx ctx = NULL;
	autoclose int fd = memfd_create("seccomp", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int r;

	if (fd < 0)
		return err_errno(e, -errno, "cannot make a file for the seccomp filter");
	r = seccomp_build(lists, rules, enosys, &ctx, e);
	if (r < 0)
		return r;
	r = seccomp_export_bpf(ctx, fd);
	if (r < 0)
		return err_errno(e, r, "cannot export the seccomp filter");
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0 ||
	    lseek(fd, 0, SEEK_SET) < 0)
		return err_errno(e, -errno, "cannot seal the seccomp filter");
	*ret_memfd = TAKE_FD(fd);
	return 0;
}

int seccomp_export(const char *const *const *lists, const char *const *enosys, int *ret_memfd,
		   struct err *e)
{
	return seccomp_export_rules(lists, NULL, enosys, ret_memfd, e);
}
