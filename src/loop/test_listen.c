#include <netinet/in.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "loop/listen.h"
#include "loop/test_port.h"
#include "loop/test_turn.h"

static char dir[] = "/tmp/space-test-listen-XXXXXX";
static char addr[64];

static int setup(void **state)
{
	if (!mkdtemp(dir))
		return -1;
	return str_format(addr, sizeof(addr), "unix:%s/sock", dir);
}

static int teardown(void **state)
{
	unlink(addr + 5);
	return rmdir(dir);
}

struct accepted {
	int fd, n;
	bool keep;
	struct listener *ln;
	bool free_it;
};

static void on_accept(int fd, void *arg)
{
	struct accepted *a = arg;

	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
	a->n++;
	if (!a->keep)
		close(fd);
	else
		a->fd = fd;
	if (a->free_it)
		listener_free(a->ln);
}

static void test_addresses(void **state)
{
	static const char *const bad[] = {
		"",
		"tcp:",
		"tcp:1.2.3.4",
		"tcp:localhost:80",
		"tcp:127.0.0.1:",
		"tcp:127.0.0.1:65536",
		"tcp:127.0.0.1:-1",
		"tcp:::1:80",
		"tcp:[::1]80",
		"tcp:[::1",
		"unix:relative",
		"udp:127.0.0.1:1",
		"/path",
		"tcp:[127.0.0.1]:80",
		"tcp:127.0.0.1:80x",
	};
	struct err e = { 0 };
	char longer[200];

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(listen_addr(bad[i], SOCK_STREAM, 0600, &e), -EINVAL);
	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	memcpy(longer, "unix:/", 6);
	assert_int_equal(dial_start(longer, &e), -ENAMETOOLONG);
	assert_int_equal(listen_addr("tcp:127.0.0.1:0", SOCK_SEQPACKET, 0, &e), -EINVAL);
}

static void test_accept(void **state)
{
	struct loop *l = loop_new();
	struct accepted a = { 0 };
	struct err e = { 0 };
	struct stat st;
	int c;

	assert_int_equal(listener_new(l, "x", addr, 0620, on_accept, &a, &a.ln, &e), 0);
	assert_int_equal(stat(addr + 5, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0620);
	for (int i = 0; i < 5; i++) {
		c = dial_wait(addr, TURN_DEADLINE_MS, &e);
		assert_true(c >= 0);
		assert_false(fcntl(c, F_GETFL) & O_NONBLOCK);
		close(c);
	}
	TURN_UNTIL(l, a.n == 5);
	c = dial_start(addr, &e);
	assert_true(fcntl(c, F_GETFL) & O_NONBLOCK);
	a.free_it = true;
	TURN_UNTIL(l, a.n == 6);
	close(c);
	assert_int_equal(dial_wait(addr, TURN_DEADLINE_MS, &e), -ECONNREFUSED);
	loop_free(l);
}

/* A peer that has gone without a word is noticed, by who was called and by who called. */
static void keeps_alive(int fd)
{
	int on = 0, idle_s = 0;
	socklen_t n = sizeof(int);

	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &n), 0);
	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, &n), 0);
	assert_true(on && idle_s == 60);
}

static void test_tcp(void **state)
{
	static const char *const addrs[] = { "tcp:127.0.0.1:0", "tcp:[::1]:0" };
	struct loop *l = loop_new();
	struct accepted a = { .keep = true };
	struct err e = { 0 };

	for (size_t i = 0; i < ARRAY_LEN(addrs); i++) {
		int r = listener_new(l, "x", addrs[i], 0, on_accept, &a, &a.ln, &e), c, held;
		struct test_port port;

		if (i == 1 && r == -EADDRNOTAVAIL)
			break;                  /* no IPv6 here */
		assert_int_equal(r, 0);
		test_port_of(listener_fd(a.ln), &port);
		c = dial_wait(port.addr, TURN_DEADLINE_MS, &e);
		assert_true(c >= 0);
		TURN_UNTIL(l, a.n == (int)i + 1);
		keeps_alive(a.fd);
		keeps_alive(c);
		close(a.fd);
		close(c);
		listener_free(a.ln);
		held = test_port_hold(&port);
		assert_int_equal(dial_wait(port.addr, TURN_DEADLINE_MS, &e), -ECONNREFUSED);
		close(held);
	}
	loop_free(l);
}

/* No descriptor is left: accepting pauses, the loop does not spin, and it goes on afterwards. */
static void test_no_descriptors(void **state)
{
	struct loop *l = loop_new();
	struct accepted a = { 0 };
	struct rlimit old, now;
	struct err e = { 0 };
	int64_t start;
	int c;

	assert_int_equal(listener_new(l, "x", addr, 0600, on_accept, &a, &a.ln, &e), 0);
	c = dial_wait(addr, TURN_DEADLINE_MS, &e);
	assert_true(c >= 0);
	getrlimit(RLIMIT_NOFILE, &old);
	now = old;
	now.rlim_cur = 3;
	setrlimit(RLIMIT_NOFILE, &now);
	start = clock_mono_ms();
	loop_turn(l, 0);
	loop_turn(l, 50);
	assert_true(clock_mono_ms() - start >= 45);
	assert_int_equal(a.n, 0);
	setrlimit(RLIMIT_NOFILE, &old);
	TURN_UNTIL(l, a.n == 1);
	assert_true(clock_mono_ms() - start >= 900);
	close(c);
	listener_free(a.ln);
	loop_free(l);
}

/* In a child: descriptors 3 and 4 are named as a supervisor does it. */
static int inherit(bool own_pid)
{
	int x = listen_addr(addr, SOCK_STREAM, 0600, NULL), p[2], r;
	struct loop *l;
	struct accepted a = { 0 };
	struct err e = { 0 };
	char pid[16];

	if (x < 0 || pipe(p) < 0)
		return 10;
	x = fcntl(x, F_DUPFD, 20);
	p[0] = fcntl(p[0], F_DUPFD, 20);
	dup2(p[0], 3);
	dup2(x, 4);
	if (fd_set_nonblock(4, false) < 0)
		return 11;
	str_format(pid, sizeof(pid), "%d", (int)getpid() + !own_pid);
	setenv("LISTEN_PID", pid, 1);
	setenv("LISTEN_FDS", "2", 1);
	setenv("LISTEN_FDNAMES", "pipe:api", 1);
	l = loop_new();
	r = listener_new(l, "api", "unix:/no/such/dir/sock", 0600, on_accept, &a, &a.ln, &e);
	if (!own_pid)
		return r == -ENOENT ? 0 : 12;
	if (r < 0 || listener_fd(a.ln) != 4 || !(fcntl(4, F_GETFD) & FD_CLOEXEC) ||
	    !(fcntl(4, F_GETFL) & O_NONBLOCK))
		return 13;
	/* Given out once; another name is not found; what does not listen is refused. */
	if (listener_new(l, "api", "unix:/no/such/dir/sock", 0600, on_accept, &a, &a.ln, &e) !=
		    -ENOENT ||
	    listener_new(l, "ap", "unix:/no/such/dir/sock", 0600, on_accept, &a, &a.ln, &e) !=
		    -ENOENT ||
	    listener_new(l, "pipe", "unix:/no/such/dir/sock", 0600, on_accept, &a, &a.ln, &e) !=
		    -ENOTSOCK)
		return 14;
	x = dial_wait(addr, TURN_DEADLINE_MS, &e);
	loop_turn(l, 1000);
	return x >= 0 && a.n == 1 ? 0 : 15;
}

static void test_inherited(void **state)
{
	for (int own = 0; own < 2; own++) {
		pid_t pid = fork();
		int status;

		if (pid == 0)
			_exit(inherit(own));
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_addresses), cmocka_unit_test(test_accept),
		cmocka_unit_test(test_tcp),	  cmocka_unit_test(test_no_descriptors),
		cmocka_unit_test(test_inherited),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
