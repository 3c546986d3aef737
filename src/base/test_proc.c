#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/proc.h"

static pid_t child(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* A name that tries to look like the fields behind it. */
		prctl(PR_SET_NAME, ") Z 1 (x");
		for (;;)
			pause();
	}
	return pid;
}

static void test_identity(void **state)
{
	pid_t pid = child();
	struct proc_id id, wrong;
	int pidfd;

	assert_true(pid > 0);
	pidfd = proc_pidfd_open(pid);
	assert_true(pidfd >= 0);
	assert_int_equal(proc_id_of(pid, &id), 0);
	assert_true(proc_id_same(&id));
	wrong = id;
	wrong.start_ticks++;                    /* the PID was reused */
	assert_false(proc_id_same(&wrong));
	assert_int_equal(proc_pidfd_signal(pidfd, SIGKILL), 0);
	assert_int_equal(waitid(P_PID, (id_t)pid, &(siginfo_t){ 0 }, WEXITED | WNOWAIT), 0);
	assert_false(proc_id_same(&id));        /* a zombie */
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_false(proc_id_same(&id));
	assert_int_equal(proc_id_of(pid, &id), -ESRCH);
	assert_int_equal(proc_pidfd_signal(pidfd, SIGKILL), -ESRCH);
	assert_int_equal(proc_id_of(0, &id), -EINVAL);
	close(pidfd);
}

static void test_close_range(void **state)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		int a = dup(0), b = dup(0);

		if (proc_close_fds_from(b) < 0)
			_exit(1);
		_exit(fd_set_cloexec(a, true) == 0 && fd_set_cloexec(b, true) == -EBADF ? 0 : 2);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_identity),
		cmocka_unit_test(test_close_range),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
