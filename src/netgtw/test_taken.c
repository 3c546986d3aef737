/*
 * What is left to a main process that was taken over (spec S-12): test_taken_main runs in its
 * place, under the same list of system calls, with the same descriptors, beside the real inside
 * and outside.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "netgtw/test_rig.h"

#define NAMES_MAX 4096

static const char *netgtw_path, *taken_path;
static struct rig rig;

static int run(const char *attack)
{
	static const char *const closed[] = { "--internet", "no", "--nameserver", "9.9.10.53",
					      NULL };
	const char *const args[] = { "--attack", attack, NULL };
	struct rig_conf c = { .program = netgtw_path,
			      .main_program = taken_path,
			      .main_args = args };
	int status;

	if (str_eq(attack, "ask-closed"))
		c.outside_args = closed;
	rig_start(&rig, &c);
	assert_int_equal(waitpid(rig.pid[0], &status, 0), rig.pid[0]);
	rig.pid[0] = 0;
	rig_stop_processes(&rig);
	return status;
}

/* All attacks that the program knows. */
static void names(char dst[NAMES_MAX])
{
	int p[2];
	pid_t pid;
	ssize_t n;

	assert_int_equal(pipe(p), 0);
	pid = fork();
	if (pid == 0) {
		dup2(p[1], 1);
		execl(taken_path, "taken", (char *)NULL);
		_exit(127);
	}
	close(p[1]);
	n = fd_read_full(p[0], dst, NAMES_MAX - 1, 10000);
	assert_true(n > 0);
	dst[n] = '\0';
	close(p[0]);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void test_taken(void **state)
{
	int server = rig_listen(&rig, RIG_INTERNET, "0.0.0.0", 80), n = 0;
	char all[NAMES_MAX], *at = all;

	names(all);
	for (char *name; (name = strsep(&at, "\n")) && *name; n++) {
		bool asks = str_starts(name, "ask-") || str_eq(name, "openat");
		int status = run(name);

		if (asks ? status != 0 : !WIFSIGNALED(status) || WTERMSIG(status) != SIGSYS)
			fail_msg("%s: status %x", name, status);
	}
	assert_true(n > 35);
	close(server);
}

static int start(void **state)
{
	rig_net(&rig);
	return 0;
}

static int stop(void **state)
{
	rig_stop(&rig);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_taken) };

	if (argc != 3)
		return 2;
	netgtw_path = argv[1];
	taken_path = argv[2];
	return cmocka_run_group_tests_name("taken", tests, start, stop);
}
