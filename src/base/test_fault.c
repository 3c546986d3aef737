#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/str.h"

static char dir[] = "/tmp/space-test-fault-XXXXXX";
static int dir_fd = -1;

static int setup(void **state)
{
	if (!mkdtemp(dir))
		return -1;
	dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return dir_fd < 0 ? -1 : 0;
}

static int teardown(void **state)
{
	unlinkat(dir_fd, "failpoints", 0);
	unlinkat(dir_fd, "clock-shift-ms", 0);
	unlinkat(dir_fd, "faults.log", 0);
	unlinkat(dir_fd, "other", 0);
	close(dir_fd);
	return rmdir(dir);
}

static void set(const char *text, mode_t mode)
{
	assert_int_equal(fd_write_file(dir_fd, "failpoints", text, strlen(text), mode), 0);
	fault_open(dir, "test");
}

static void skip_unless_root(void)
{
	if (geteuid() != 0)
		skip();
}

static void test_error(void **state)
{
	skip_unless_root();
	assert_int_equal(FAULT("a.b"), 0);
	set("# comment\n\na.b error 28 2\nc error 5\nbad line\nx error\ny error 0\nz error 99999\nw explode 1\nv crash soon\n",
	    0600);
	assert_int_equal(fault_count(), 2);
	assert_int_equal(FAULT("a.b"), -28);
	assert_int_equal(FAULT("a.b"), -28);
	assert_int_equal(FAULT("a.b"), 0);
	assert_int_equal(FAULT("a"), 0);
	for (int i = 0; i < 10; i++)
		assert_int_equal(FAULT("c"), -5);
	unlinkat(dir_fd, "failpoints", 0);
	fault_open(dir, "test");
	assert_int_equal(FAULT("c"), 0);
}

/* A file that somebody else could have written is not obeyed. */
static void test_ownership(void **state)
{
	skip_unless_root();
	set("c error 5\n", 0620);
	assert_int_equal(fault_count(), 0);
	set("c error 5\n", 0602);
	assert_int_equal(FAULT("c"), 0);
	set("c error 5\n", 0644);
	assert_int_equal(FAULT("c"), -5);
	assert_int_equal(fchownat(dir_fd, "failpoints", 1, 0, 0), 0);
	fault_open(dir, "test");
	assert_int_equal(FAULT("c"), 0);
	unlinkat(dir_fd, "failpoints", 0);
	assert_int_equal(fd_write_file(dir_fd, "other", "c error 5\n", 10, 0600), 0);
	assert_int_equal(symlinkat("other", dir_fd, "failpoints"), 0);
	fault_open(dir, "test");
	assert_int_equal(FAULT("c"), 0);
	unlinkat(dir_fd, "failpoints", 0);
	assert_int_equal(mkfifoat(dir_fd, "failpoints", 0600), 0);
	fault_open(dir, "test");
	assert_int_equal(FAULT("c"), 0);
	unlinkat(dir_fd, "failpoints", 0);
}

static void test_delay_and_log(void **state)
{
	autofree char *text = NULL;
	int64_t start;

	skip_unless_root();
	assert_int_equal(fd_write_file(dir_fd, "faults.log", "", 0, 0600), 0);
	set("d delay 30 1\n", 0600);
	start = clock_mono_ms();
	assert_int_equal(FAULT("d"), 0);
	assert_true(clock_mono_ms() - start >= 29);
	assert_int_equal(FAULT("d"), 0);
	assert_int_equal(fd_read_file(dir_fd, "faults.log", 4096, &text, NULL), 0);
	assert_non_null(strstr(text, "\"prog\":\"test\",\"pid\":"));
	assert_non_null(strstr(text, "\"name\":\"d\",\"action\":\"delay\",\"arg\":30}\n"));
	assert_ptr_equal(strchr(text, '\n') + 1, text + strlen(text));
}

static void test_crash(void **state)
{
	int status;
	pid_t pid;

	skip_unless_root();
	set("e crash\n", 0600);
	pid = fork();
	if (pid == 0) {
		(void)FAULT("e");
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* A change is seen without fault_open, after at most 100 ms. */
static void test_reload(void **state)
{
	int64_t end = clock_mono_ms() + 5000;

	skip_unless_root();
	set("", 0600);
	assert_int_equal(FAULT("f"), 0);
	assert_int_equal(fd_write_file(dir_fd, "failpoints", "f error 1\n", 10, 0600), 0);
	while (FAULT("f") == 0 && clock_mono_ms() < end)
		usleep(5000);
	assert_int_equal(FAULT("f"), -1);
	assert_true(clock_mono_ms() < end);
}

static void test_shift(void **state)
{
	int64_t wall = clock_wall_ms(), d;

	skip_unless_root();
	assert_int_equal(fd_write_file(dir_fd, "clock-shift-ms", "-90000\n", 7, 0644), 0);
	fault_open(dir, "test");
	d = clock_wall_ms() - wall;
	assert_true(d >= -90000 && d < -80000);
	assert_int_equal(fd_write_file(dir_fd, "clock-shift-ms", "90000\n", 6, 0666), 0);
	fault_open(dir, "test");
	d = clock_wall_ms() - wall;
	assert_true(d >= 0 && d < 10000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_error),	      cmocka_unit_test(test_ownership),
		cmocka_unit_test(test_delay_and_log), cmocka_unit_test(test_crash),
		cmocka_unit_test(test_reload),	      cmocka_unit_test(test_shift),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
