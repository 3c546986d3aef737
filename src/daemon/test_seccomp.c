#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/str.h"
#include "daemon/daemon.h"
#include "daemon/seccomp.h"
#include "loop/work.h"

static const char *const extra[] = { "getpgid", "ioctl:basic", "prctl", NULL };
static const char *const *const lists[] = { seccomp_common, extra, NULL };

static int in_child(int (*fn)(void))
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(fn());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static int confined(void)
{
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || seccomp_apply(lists, NULL) < 0;
}

static int do_ptrace(void)
{
	return confined() ? 99 : (int)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
}

static int do_execve(void)
{
	return confined() ? 99 : execl("/bin/true", "true", (char *)NULL);
}

static int do_bpf(void)
{
	return confined() ? 99 : (int)syscall(SYS_bpf, 0, NULL, 0);
}

static int do_unshare(void)
{
	return confined() ? 99 : unshare(CLONE_NEWUSER);
}

static int do_fork(void)
{
	return confined() ? 99 : fork();
}

static int do_clone_ns(void)
{
	return confined()
		       ? 99
		       : (int)syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL);
}

static int do_ioctl(void)
{
	return confined() ? 99 : ioctl(0, TIOCSTI, "x");
}

static int do_keyctl(void)
{
	return confined() ? 99 : (int)syscall(SYS_keyctl, 0, 0, 0, 0, 0);
}

static int do_mount(void)
{
	return confined() ? 99 : (int)syscall(SYS_mount, "", "", "", 0, NULL);
}

static void test_forbidden(void **state)
{
	int (*const calls[])(void) = { do_ptrace,   do_execve, do_bpf,	  do_unshare, do_fork,
				       do_clone_ns, do_ioctl,  do_keyctl, do_mount };

	for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
		int status = in_child(calls[i]);

		if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSYS)
			fail_msg("call %zu: status %x", i, status);
	}
}

/* sendto without an address alone, two of the commands of fcntl, mkdir with ENOSYS. */
static const struct seccomp_rule rules[] = {
	{ "sendto", { { 3, MSG_FASTOPEN, 0 }, { 4, SECCOMP_ALL, 0 } } },
	{ "fcntl", { { 1, SECCOMP_INT, F_GETFL } } },
	{ "fcntl", { { 1, SECCOMP_INT, F_GETFD } } },
	{ NULL },
};
static const char *const rule_calls[] = { "exit_group", "write", NULL };
static const char *const rule_enosys[] = { "mkdir", NULL };

static int ruled(void)
{
	static const char *const *const only[] = { rule_calls, NULL };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	       seccomp_apply_rules(only, rules, rule_enosys, NULL) < 0;
}

static int rule_good(void)
{
	long high = (long)(UINT64_C(1) << 40 | F_GETFL);

	if (ruled())
		return 99;
	if (syscall(SYS_mkdir, "/", 0700) != -1 || errno != ENOSYS)
		return 1;
	if (fcntl(1, F_GETFD) < 0 || syscall(SYS_fcntl, 1, high) < 0)
		return 2;
	return syscall(SYS_sendto, -1, "", 0, MSG_NOSIGNAL, NULL, 0) != -1 || errno != EBADF;
}

static int rule_address(void)
{
	char sa[16] = { 0 };

	return ruled() ? 99 : (int)syscall(SYS_sendto, -1, "", 0, 0, sa, sizeof(sa));
}

static int rule_fastopen(void)
{
	return ruled() ? 99
		       : (int)syscall(SYS_sendto, -1, "", 0, MSG_FASTOPEN | MSG_NOSIGNAL, NULL, 0);
}

__attribute__((unused)) static int rule_dup(void)
{
	return ruled() ? 99 : fcntl(1, F_DUPFD, 10);
}

static void test_rules(void **state)
{
	int (*const bad[])(void) = {
		rule_address,
		rule_fastopen,
#ifndef __SANITIZE_ADDRESS__
		rule_dup,                        /* sanitizer.c has the whole of fcntl */
#endif
	};

	assert_int_equal(in_child(rule_good), 0);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		int status = in_child(bad[i]);

		if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSYS)
			fail_msg("rule %zu: status %x", i, status);
	}
}

static void on_run(void *arg)
{
	free(x_alloc(1 << 20));
}

static void on_done(void *arg)
{
	loop_stop(arg);
}

/* The loop, which is made before, threads, allocation, files: what the common list promises. */
static int do_common(void)
{
	struct loop *l = loop_new();
	struct work *w;
	char text[16];
	int n;

	if (confined())
		return 99;
	w = work_new(l, 2);
	if (!w || work_add(w, "k", on_run, on_done, l) < 0 || loop_run(l) < 0)
		return 1;
	work_free(w);
	loop_free(l);
	if (getpgid(0) < 0 || ioctl(0, FIONREAD, &n) == 12345 || isatty(0) == 7)
		return 2;
	return str_format(text, sizeof(text), "%p", (void *)text) < 0;
}

static void test_common(void **state)
{
	assert_int_equal(in_child(do_common), 0);
}

/*
 * A name that libseccomp does not know would be skipped without a word: there is none in the list.
 */
static void test_names(void **state)
{
	for (size_t i = 0; seccomp_common[i]; i++) {
		if (strchr(seccomp_common[i], ':'))
			continue;
		if (seccomp_syscall_resolve_name(seccomp_common[i]) == __NR_SCMP_ERROR)
			fail_msg("%s is not a system call", seccomp_common[i]);
		for (size_t k = 0; k < i; k++)
			assert_string_not_equal(seccomp_common[i], seccomp_common[k]);
	}
}

static int do_logged(void)
{
	setenv("SPACE_SECCOMP", "log", 1);
	if (confined())
		return 99;
	return syscall(SYS_bpf, -1, NULL, 0) < 0 && errno != ENOSYS ? 0 : 1;
}

static int do_off(void)
{
	setenv("SPACE_SECCOMP", "off", 1);
	return do_bpf();
}

static void test_log_only(void **state)
{
	int status = in_child(do_off);

	assert_int_equal(in_child(do_logged), 0);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
}

static int do_exported(void)
{
	static const char *const enosys[] = { "getpgid", "statx", NULL };
	static const char *const exec[] = { "execve", NULL };
	static const char *const *const with_exec[] = { seccomp_common, exec, NULL };
	struct sock_fprog prog;
	struct stat st;
	int fd;

	if (seccomp_export(with_exec, enosys, &fd, NULL) < 0 || fstat(fd, &st) < 0 ||
	    st.st_size % 8)
		return 1;
	if (write(fd, "x", 1) >= 0)
		return 2;                       /* sealed */
	prog.len = (unsigned short)((size_t)st.st_size / sizeof(struct sock_filter));
	prog.filter = x_alloc((size_t)st.st_size);
	if (read(fd, prog.filter, (size_t)st.st_size) != st.st_size)
		return 3;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0)
		return 4;
	if (syscall(SYS_getpgid, 0) >= 0 || errno != ENOSYS)
		return 5;
	return (int)syscall(SYS_bpf, 0, NULL, 0);
}

static void test_export(void **state)
{
	int status = in_child(do_exported);

	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
}

/* daemon_confine: what the process is afterwards, read from /proc. */
static const struct daemon_def test_daemon = {
	.name = "test",
	.user = "space-sbx",
	.group = "space-ctl",
	.keep_caps = 1 << 5,                    /* CAP_KILL */
	.syscalls = extra,
};
static struct daemon_def root_daemon = { .name = "test", .keep_caps = 1 << 5 | 1 << 7 };
static const struct conf test_conf = { .users = { 61001, 61002, 61003, 61004 } };

static bool status_has(const char *const *lines, size_t n)
{
	static char text[16384];
	FILE *f = fopen("/proc/self/status", "r");
	size_t len = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
	bool ok = true;

	text[len] = '\0';
	for (size_t i = 0; i < n; i++)
		if (!strstr(text, lines[i])) {
			fprintf(stderr, "missing: %s", lines[i]);
			ok = false;
		}
	if (f)
		fclose(f);
	return ok;
}

static int do_confine_user(void)
{
	static const char *const want[] = {
		"Uid:\t61004\t61004\t61004\t61004\n",
		"Gid:\t61002\t61002\t61002\t61002\n",
		"Groups:\t \n",
		"CapInh:\t0000000000000000\n",
		"CapPrm:\t0000000000000020\n",
		"CapEff:\t0000000000000020\n",
		"CapBnd:\t0000000000000020\n",
		"CapAmb:\t0000000000000000\n",
		"NoNewPrivs:\t1\n",
		"Seccomp:\t2\n",
	};

	return daemon_confine(&test_daemon, &test_conf, NULL) < 0 || prctl(PR_GET_DUMPABLE) != 0 ||
	       !status_has(want, ARRAY_LEN(want)) || setuid(0) == 0;
}

static int do_confine_root(void)
{
	static const char *const want[] = {
		"Uid:\t0\t0\t0\t0\n",
		"Groups:\t \n",
		"CapPrm:\t00000000000000a0\n",
		"CapEff:\t00000000000000a0\n",
		"CapBnd:\t00000000000000a0\n",
		"NoNewPrivs:\t1\n",
		"Seccomp:\t0\n",
	};

	return daemon_confine(&root_daemon, &test_conf, NULL) < 0 ||
	       !status_has(want, ARRAY_LEN(want));
}

static void *nothing(void *arg)
{
	pause();
	return NULL;
}

static int do_confine_threads(void)
{
	pthread_t t;

	pthread_create(&t, NULL, nothing, NULL);
	return daemon_confine(&root_daemon, &test_conf, NULL) != -EBUSY;
}

static void test_confine(void **state)
{
	if (geteuid() != 0)
		skip();
	assert_int_equal(in_child(do_confine_user), SIGSYS);
	assert_int_equal(in_child(do_confine_root), 0);
	assert_int_equal(in_child(do_confine_threads), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_forbidden), cmocka_unit_test(test_common),
		cmocka_unit_test(test_rules),
		cmocka_unit_test(test_names),	  cmocka_unit_test(test_log_only),
		cmocka_unit_test(test_export),	  cmocka_unit_test(test_confine),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
