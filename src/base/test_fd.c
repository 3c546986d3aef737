#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"

static char dir[] = "/tmp/space-test-fd-XXXXXX";
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
	unlinkat(dir_fd, "file", 0);
	unlinkat(dir_fd, "sock", 0);
	unlinkat(dir_fd, "link", 0);
	unlinkat(dir_fd, "a/b/c", AT_REMOVEDIR);
	unlinkat(dir_fd, "a/b", AT_REMOVEDIR);
	unlinkat(dir_fd, "a", AT_REMOVEDIR);
	close(dir_fd);
	return rmdir(dir);
}

static int open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 200; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void test_files(void **state)
{
	autofree char *text = NULL;
	struct stat st;
	size_t n;

	assert_int_equal(fd_write_file(dir_fd, "file", "hello", 5, 0640), 0);
	assert_int_equal(fd_write_file(dir_fd, "file", "world!", 6, 0640), 0);
	assert_int_equal(fstatat(dir_fd, "file", &st, 0), 0);
	assert_int_equal(st.st_mode & 07777, 0640);
	assert_int_equal(fd_read_file(dir_fd, "file", 5, &text, &n), -EFBIG);
	assert_int_equal(fd_read_file(dir_fd, "file", 6, &text, &n), 0);
	assert_int_equal(n, 6);
	assert_string_equal(text, "world!");
	assert_int_equal(fd_read_file(dir_fd, "none", 6, &text, &n), -ENOENT);
	free(TAKE(text));
	assert_int_equal(fd_read_regular(dir_fd, "file", 6, &text, &n), 0);
	assert_string_equal(text, "world!");
	assert_int_equal(fd_read_regular(dir_fd, "none", 6, &text, &n), -ENOENT);
	assert_int_equal(fd_read_regular(dir_fd, ".", 6, &text, &n), -EINVAL);
	/* Would wait for a writer. */
	assert_int_equal(mkfifoat(dir_fd, "fifo", 0600), 0);
	assert_int_equal(fd_read_regular(dir_fd, "fifo", 6, &text, &n), -EINVAL);
	assert_int_equal(unlinkat(dir_fd, "fifo", 0), 0);
	assert_int_equal(fd_write_file(dir_fd, "no/file", "x", 1, 0600), -ENOENT);
}

static void test_beneath(void **state)
{
	autoclose int fd = -1;

	assert_int_equal(fd_write_file(dir_fd, "file", "hello", 5, 0600), 0);
	fd = fd_openat_beneath(dir_fd, "file", O_RDONLY, 0);
	assert_true(fd >= 0);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(fd_openat_beneath(dir_fd, "../etc/passwd", O_RDONLY, 0), -EXDEV);
	assert_int_equal(fd_openat_beneath(dir_fd, "/etc/passwd", O_RDONLY, 0), -EXDEV);
	assert_int_equal(symlinkat("file", dir_fd, "link"), 0);
	assert_int_equal(fd_openat_beneath(dir_fd, "link", O_RDONLY, 0), -ELOOP);
}

static void test_mkdir(void **state)
{
	autofree char *path = x_asprintf("%s/a/b/c", dir), *under = x_asprintf("%s/file/x", dir);

	assert_int_equal(fd_mkdir_p(path, 0755), 0);
	assert_int_equal(fd_mkdir_p(path, 0755), 0);
	assert_int_equal(access(path, F_OK), 0);
	assert_int_equal(fd_write_file(dir_fd, "file", "x", 1, 0600), 0);
	assert_int_equal(fd_mkdir_p(under, 0755), -ENOTDIR);
	assert_int_equal(fd_mkdir_p("", 0755), -ENOENT);
}

static void test_pass(void **state)
{
	int sv[2], fds[FD_PASS_MAX], got[FD_PASS_MAX], before;
	size_t n = FD_PASS_MAX;
	char text[8];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
	for (int i = 0; i < FD_PASS_MAX; i++)
		fds[i] = dir_fd;
	before = open_fds();
	assert_int_equal(fd_send(sv[0], "hello", 5, fds, FD_PASS_MAX, 0), 5);
	assert_int_equal(fd_recv(sv[1], text, sizeof(text), got, &n, 0), 5);
	assert_int_equal(n, FD_PASS_MAX);
	assert_int_equal(open_fds(), before + FD_PASS_MAX);
	for (size_t i = 0; i < n; i++) {
		assert_true(fcntl(got[i], F_GETFD) & FD_CLOEXEC);
		close(got[i]);
	}
	/* More than there is room for, a payload that is cut, none wanted: nothing stays open. */
	assert_int_equal(fd_send(sv[0], "hello", 5, fds, 3, 0), 5);
	n = 2;
	assert_int_equal(fd_recv(sv[1], text, sizeof(text), got, &n, 0), -EMSGSIZE);
	assert_int_equal(n, 0);
	assert_int_equal(fd_send(sv[0], "too long to fit", 15, fds, 1, 0), 15);
	n = FD_PASS_MAX;
	assert_int_equal(fd_recv(sv[1], text, sizeof(text), got, &n, 0), -EMSGSIZE);
	assert_int_equal(fd_send(sv[0], "x", 1, fds, 1, 0), 1);
	assert_int_equal(fd_recv(sv[1], text, sizeof(text), NULL, NULL, 0), -EMSGSIZE);
	assert_int_equal(open_fds(), before);
	assert_int_equal(fd_send(sv[0], "x", 1, fds, FD_PASS_MAX + 1, 0), -E2BIG);
	close(sv[0]);
	assert_int_equal(fd_recv(sv[1], text, sizeof(text), NULL, NULL, 0), 0);
	close(sv[1]);
}

static void test_timeouts(void **state)
{
	static char big[1 << 20];
	char small[8];
	int sv[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
	assert_int_equal(fd_read_full(sv[0], small, 8, 20), -ETIMEDOUT);
	assert_int_equal(fd_write_all(sv[0], big, sizeof(big), 20), -ETIMEDOUT);
	close(sv[1]);
	assert_int_equal(fd_write_all(sv[0], big, sizeof(big), 20), -EPIPE);
	close(sv[0]);
	assert_int_equal(pipe2(sv, O_CLOEXEC), 0);
	assert_int_equal(fd_write_all(sv[1], big, sizeof(big), 20), -ETIMEDOUT);
	close(sv[0]);
	close(sv[1]);
	assert_int_equal(pipe2(sv, O_CLOEXEC), 0);
	assert_int_equal(fd_write_all(sv[1], "abc", 3, 20), 0);
	close(sv[1]);
	assert_int_equal(fd_read_full(sv[0], small, 8, 1000), 3);
	close(sv[0]);
}

static void test_unix(void **state)
{
	autofree char *path = x_asprintf("%s/sock", dir), *file = x_asprintf("%s/file", dir);
	struct fd_peer peer;
	struct stat st;
	char longer[200];
	int l, c;

	l = fd_unix_listen(path, SOCK_STREAM, 0600, 0);
	assert_true(l >= 0);
	close(l);
	assert_int_equal(fd_unix_connect(path, SOCK_STREAM, 50), -ECONNREFUSED);
	l = fd_unix_listen(path, SOCK_STREAM, 0660, 0);
	assert_true(l >= 0);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0660);
	c = fd_unix_connect(path, SOCK_STREAM, 1000);
	assert_true(c >= 0);
	assert_int_equal(fd_peer_cred(c, &peer), 0);
	assert_int_equal(peer.pid, getpid());
	assert_int_equal(peer.uid, getuid());
	/* The backlog is full and nobody accepts. */
	assert_int_equal(fd_unix_connect(path, SOCK_STREAM, 30), -ETIMEDOUT);
	close(c);
	close(l);
	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	assert_int_equal(fd_unix_connect(longer, SOCK_STREAM, 30), -ENAMETOOLONG);
	assert_int_equal(fd_write_file(dir_fd, "file", "x", 1, 0600), 0);
	assert_int_equal(fd_unix_listen(file, SOCK_STREAM, 0600, 1), -EEXIST);
}

static void test_close_keeps_errno(void **state)
{
	errno = EXDEV;
	fd_close(-1);
	fd_close(9999);
	assert_int_equal(errno, EXDEV);
	assert_int_equal(fd_set_nonblock(9999, true), -EBADF);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_files),
		cmocka_unit_test(test_beneath),
		cmocka_unit_test(test_mkdir),
		cmocka_unit_test(test_pass),
		cmocka_unit_test(test_timeouts),
		cmocka_unit_test(test_unix),
		cmocka_unit_test(test_close_keeps_errno),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
