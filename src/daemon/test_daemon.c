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
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "daemon/daemon.h"

/* A daemon in a forked child, with its real daemon_main. */

static char dir[] = "/tmp/space-test-daemon-XXXXXX";
static char conf_file[64], notify_path[64];
static int lifeline[2], log_pipe[2], notify_fd;

static const struct conf conf = {
	.instance = "test",
	.state_dir = "/tmp/none",
	.run_dir = "/tmp/none",
	.cache_dir = "/tmp/none",
	.lib_dir = "/tmp/none",
	.vmm = "/var/cache/space/vmm/0123",
	.cgroup_root = "space-test",
	.uid_base = 2000000000,
	.users = { 61001, 61002, 61003, 61004 },
	.worker = "0b8f9ab2-1d5c-4c57-9f6e-0f6d2b1c3a4e",
	.accel = "auto",
	.api_listen = "tcp:127.0.0.1:4983",
	.domain = "localhost",
	.max_sandboxes = 64,
	.kernel = "/var/cache/space/kernel/6.1/vmlinuz",
	.initrd = "/var/cache/space/initrd/0123/initrd.gz",
	.base_image = "/var/cache/space/base/0123/rootfs.img",
	.template_id = "base-0123456789abcdef",
};

static int on_init(struct daemon_ctx *d, struct err *e)
{
	d->self = d;
	return getuid() == 0 && str_eq(d->conf.instance, "test")
		       ? 0
		       : err_set(e, -EIO, "init saw the wrong state");
}

static int on_start(struct daemon_ctx *d, struct err *e)
{
	return getuid() == 61003 && d->self == d ? 0
						 : err_set(e, -EIO, "start saw the wrong state");
}

static int on_start_fails(struct daemon_ctx *d, struct err *e)
{
	return err_set(e, -EADDRINUSE, "the port is \"taken\"");
}

static void on_stop(struct daemon_ctx *d)
{
	if (write(2, "stopped\n", 8) < 0)
		abort();
}

static const char *const of_on_start[] = { "getuid", NULL };
static struct daemon_def def = { .name = "testd",
				 .user = "space-node",
				 .syscalls = of_on_start,
				 .init = on_init,
				 .stop = on_stop };

static int setup(void **state)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };

	if (!mkdtemp(dir))
		return -1;
	str_format(conf_file, sizeof(conf_file), "%s/conf.json", dir);
	str_format(notify_path, sizeof(notify_path), "%s/notify", dir);
	str_copy(sa.sun_path, sizeof(sa.sun_path), notify_path);
	notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (notify_fd < 0 || bind(notify_fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
		return -1;
	return geteuid() == 0 ? conf_write(conf_file, &conf, NULL) : 0;
}

static int teardown(void **state)
{
	close(notify_fd);
	unlink(notify_path);
	unlink(conf_file);
	return rmdir(dir);
}

static pid_t start(const char *const *args, int argc)
{
	pid_t pid;

	assert_int_equal(pipe2(lifeline, O_CLOEXEC), 0);
	assert_int_equal(pipe2(log_pipe, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		autofree char *fd = x_asprintf("%d", lifeline[0]);

		close(lifeline[1]);
		dup2(log_pipe[1], 2);
		setenv("SPACE_LIFELINE_FD", fd, 1);
		setenv("NOTIFY_SOCKET", notify_path, 1);
		_exit(daemon_main(argc, (char **)args, &def));
	}
	close(log_pipe[1]);
	close(lifeline[0]);
	return pid;
}

static void wait_ready(void)
{
	char text[16] = { 0 };

	assert_int_equal(fd_read_full(notify_fd, text, 7, 10000), 7);
	assert_string_equal(text, "READY=1");
}

static void expect_end(pid_t pid, int code, const char *says)
{
	char text[4096] = { 0 };
	int status;

	assert_true(fd_read_full(log_pipe[0], text, sizeof(text) - 1, 10000) >= 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (status != code << 8 || !strstr(text, says))
		fail_msg("status %x: %s", status, text);
	close(log_pipe[0]);
	close(lifeline[1]);
	/* What is left of "STOPPING=1". */
	while (recv(notify_fd, text, sizeof(text), MSG_DONTWAIT) > 0)
		;
}

static const char *const args[] = { "testd", "--config", conf_file, NULL };

static void test_term(void **state)
{
	static const int signals[] = { SIGTERM, SIGINT };

	for (size_t i = 0; i < ARRAY_LEN(signals); i++) {
		pid_t pid;

		def.start = on_start;
		pid = start(args, 3);
		wait_ready();
		kill(pid, SIGHUP);
		kill(pid, SIGPIPE);
		kill(pid, signals[i]);
		expect_end(pid, 0, "stopped\n");
	}
}

static void test_lifeline(void **state)
{
	pid_t pid;

	def.start = on_start;
	pid = start(args, 3);
	wait_ready();
	close(lifeline[1]);
	lifeline[1] = -1;
	expect_end(pid, 0, "supervisor is gone");
}

static void test_start_fails(void **state)
{
	def.start = on_start_fails;
	expect_end(
		start(args, 3), 1,
		"\"msg\":\"failed\",\"code\":\"internal\",\"error\":\"the port is \\\"taken\\\"\"}");
}

static void test_usage(void **state)
{
	static const char *const none[] = { "testd", NULL };
	static const char *const more[] = { "testd", "--config", "x", "y", NULL };
	static const char *const odd[] = { "testd", "--odd", NULL };
	static const char *const missing[] = { "testd", "--config=/no/such/file", NULL };

	expect_end(start(none, 1), 2, "Usage: testd --config FILE");
	expect_end(start(more, 4), 2, "Usage: testd --config FILE");
	expect_end(start(odd, 2), 2, "odd");
	expect_end(start(missing, 2), 1,
		   "cannot read the configuration /no/such/file: No such file");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_term),
		cmocka_unit_test(test_lifeline),
		cmocka_unit_test(test_start_fails),
		cmocka_unit_test(test_usage),
	};

	if (geteuid() != 0)
		return 77;                      /* meson: skipped */
	return cmocka_run_group_tests(tests, setup, teardown);
}
