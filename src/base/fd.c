#include "base/fd.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"

#define FD_READ_CHUNK 4096

void fd_auto_close(int *fd)
{
	fd_close(*fd);
}

void fd_close(int fd)
{
	int saved = errno;

	if (fd >= 0)
		close(fd);
	errno = saved;
}

static int fd_flag(int fd, int get, int set, int flag, bool on)
{
	int now = fcntl(fd, get), want;

	if (now < 0)
		return -errno;
	want = on ? now | flag : now & ~flag;
	if (want != now && fcntl(fd, set, want) < 0)
		return -errno;
	return 0;
}

int fd_set_nonblock(int fd, bool on)
{
	return fd_flag(fd, F_GETFL, F_SETFL, O_NONBLOCK, on);
}

int fd_set_cloexec(int fd, bool on)
{
	return fd_flag(fd, F_GETFD, F_SETFD, FD_CLOEXEC, on);
}

void fd_keep_alive(int fd)
{
	static const struct { int level, name, value; } options[] = {
		{ SOL_SOCKET, SO_KEEPALIVE, 1 }, { IPPROTO_TCP, TCP_KEEPIDLE, 60 },
		{ IPPROTO_TCP, TCP_KEEPINTVL, 15 }, { IPPROTO_TCP, TCP_KEEPCNT, 4 },
	};

	for (size_t i = 0; i < ARRAY_LEN(options); i++)
		setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
}

/* Waits until fd is ready or the deadline (clock_mono_ms; < 0 = none) has passed. */
static int fd_wait(int fd, short events, int64_t deadline_ms)
{
	for (;;) {
		struct pollfd p = { .fd = fd, .events = events };
		int64_t left = -1;
		int r;

		if (deadline_ms >= 0) {
			left = deadline_ms - clock_mono_ms();
			if (left < 0)
				left = 0;
			if (left > INT_MAX)
				left = INT_MAX;
		}
		r = poll(&p, 1, (int)left);
		if (r > 0)
			return 0;
		if (r == 0)
			return -ETIMEDOUT;
		if (errno != EINTR)
			return -errno;
	}
}

static int64_t fd_deadline(int timeout_ms)
{
	return timeout_ms < 0 ? -1 : clock_mono_ms() + timeout_ms;
}

int fd_write_all(int fd, const void *p, size_t n, int timeout_ms)
{
	int64_t deadline = fd_deadline(timeout_ms);
	const char *s = p;
	struct stat st;
	bool sock;

	if (fstat(fd, &st) < 0)
		return -errno;
	sock = S_ISSOCK(st.st_mode);
	while (n > 0) {
		/*
		 * A blocking pipe takes up to PIPE_BUF bytes without waiting once it is ready
		 * (pipe(7)).
		 */
		size_t chunk = sock || S_ISREG(st.st_mode) || n < PIPE_BUF ? n : PIPE_BUF;
		ssize_t r = fd_wait(fd, POLLOUT, deadline);

		if (r < 0)
			return (int)r;
		r = sock ? send(fd, s, chunk, MSG_DONTWAIT | MSG_NOSIGNAL) : write(fd, s, chunk);
		if (r < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (r < 0)
			return -errno;
		s += r;
		n -= (size_t)r;
	}
	return 0;
}

ssize_t fd_read_full(int fd, void *p, size_t n, int timeout_ms)
{
	int64_t deadline = fd_deadline(timeout_ms);
	size_t got = 0;

	while (got < n) {
		ssize_t r = fd_wait(fd, POLLIN, deadline);

		if (r < 0)
			return r;
		r = read(fd, (char *)p + got, n - got);
		if (r < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (r < 0)
			return -errno;
		if (r == 0)
			break;
		got += (size_t)r;
	}
	return (ssize_t)got;
}

static int read_whole(int fd, size_t max, char **ret, size_t *ret_len)
{
	autofree char *text = NULL;
	size_t len = 0, cap = 0;

	for (;;) {
		ssize_t r;

		if (len == cap) {
			cap = cap ? cap * 2 : FD_READ_CHUNK;
			if (cap > max + 1)
				cap = max + 1;          /* one byte more shows that the file is too long */
			text = x_realloc(text, cap + 1);
		}
		r = read(fd, text + len, cap - len);
		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		if (r == 0)
			break;
		len += (size_t)r;
		if (len > max)
			return -EFBIG;
	}
	text[len] = '\0';
	*ret = TAKE(text);
	if (ret_len)
		*ret_len = len;
	return 0;
}

int fd_read_file(int dirfd, const char *path, size_t max, char **ret, size_t *ret_len)
{
	autoclose int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY);

	return fd < 0 ? -errno : read_whole(fd, max, ret, ret_len);
}

int fd_read_regular(int dirfd, const char *path, size_t max, char **ret, size_t *ret_len)
{
	autoclose int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	return S_ISREG(st.st_mode) ? read_whole(fd, max, ret, ret_len) : -EINVAL;
}

static int fd_fill_file(int fd, const char *p, size_t n, mode_t mode)
{
	while (n > 0) {
		ssize_t r = write(fd, p, n);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		p += r;
		n -= (size_t)r;
	}
	if (fchmod(fd, mode) < 0 || fsync(fd) < 0)
		return -errno;
	return 0;
}

static int fd_sync_parent(int dirfd, const char *path)
{
	const char *slash = strrchr(path, '/');
	autofree char *dir =
		slash ? x_strndup(path, slash == path ? 1 : (size_t)(slash - path)) : x_strdup(".");
	autoclose int fd = openat(dirfd, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || fsync(fd) < 0)
		return -errno;
	return 0;
}

int fd_write_file(int dirfd, const char *path, const void *p, size_t n, mode_t mode)
{
	char word[17], tmp[PATH_MAX];
	int r, fd;

	r = str_random_hex(word, 8);
	if (r == 0)
		r = str_format(tmp, sizeof(tmp), "%s.%s" FD_WRITE_SUFFIX, path, word);
	if (r < 0)
		return r == -ENOSPC ? -ENAMETOOLONG : r;
	fd = openat(dirfd, tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	r = fd_fill_file(fd, p, n, mode);
	if (close(fd) < 0 && r == 0)
		r = -errno;
	if (r == 0 && renameat(dirfd, tmp, dirfd, path) < 0)
		r = -errno;
	if (r < 0) {
		unlinkat(dirfd, tmp, 0);
		return r;
	}
	return fd_sync_parent(dirfd, path);
}

int fd_openat_beneath(int dirfd, const char *path, int flags, mode_t mode)
{
	struct open_how how = {
		.flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
		.mode = (flags & (O_CREAT | O_TMPFILE)) ? mode : 0,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};
	long r;

	/* EAGAIN: the tree was renamed while the kernel walked it (openat2(2)). */
	for (int tries = 0; tries < 16; tries++) {
		r = syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
		if (r >= 0)
			return (int)r;
		if (errno != EAGAIN && errno != EINTR)
			break;
	}
	return -errno;
}

ssize_t fd_send(int sock, const void *p, size_t n, const int *fds, size_t n_fds, int flags)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int) * FD_PASS_MAX)];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)p, .iov_len = n };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t r;
	struct cmsghdr *c;

	if (n_fds > FD_PASS_MAX)
		return -E2BIG;
	/* Without descriptors send(2) does it: there are programs that may not call sendmsg. */
	if (n_fds == 0) {
		do
			r = send(sock, p, n, flags | MSG_NOSIGNAL);
		while (r < 0 && errno == EINTR);
		return r < 0 ? -errno : r;
	}
	m.msg_control = control.bytes;
	m.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
	c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
	memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
	do
		r = sendmsg(sock, &m, flags | MSG_NOSIGNAL);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : r;
}

/* Collects what came into got[FD_PASS_MAX]; the number. */
static size_t fd_collect(struct msghdr *m, int *got)
{
	size_t n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		size_t bytes;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS ||
		    c->cmsg_len < CMSG_LEN(0))
			continue;
		bytes = c->cmsg_len - CMSG_LEN(0);
		assert(n * sizeof(int) + bytes <= FD_PASS_MAX * sizeof(int));
		memcpy(got + n, CMSG_DATA(c), bytes);
		n += bytes / sizeof(int);
	}
	return n;
}

ssize_t fd_recv(int sock, void *p, size_t n, int *fds, size_t *n_fds, int flags)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int) * FD_PASS_MAX)];
		struct cmsghdr align;
	} control;
	struct iovec iov = { .iov_base = p, .iov_len = n };
	struct msghdr m = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	size_t room = n_fds ? *n_fds : 0, n_got;
	int got[FD_PASS_MAX];
	ssize_t r;

	do
		r = recvmsg(sock, &m, flags | MSG_CMSG_CLOEXEC);
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return -errno;
	n_got = fd_collect(&m, got);
	if ((m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || n_got > room) {
		for (size_t i = 0; i < n_got; i++)
			close(got[i]);
		if (n_fds)
			*n_fds = 0;
		return -EMSGSIZE;
	}
	if (n_got)
		memcpy(fds, got, n_got * sizeof(int));
	if (n_fds)
		*n_fds = n_got;
	return r;
}

int fd_peer_cred(int sock, struct fd_peer *ret)
{
	struct ucred u;
	socklen_t n = sizeof(u);

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &u, &n) < 0)
		return -errno;
	*ret = (struct fd_peer){ .pid = u.pid, .uid = u.uid, .gid = u.gid };
	return 0;
}

static int fd_unix_addr(const char *path, struct sockaddr_un *ret)
{
	*ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (!path[0])
		return -EINVAL;
	return str_copy(ret->sun_path, sizeof(ret->sun_path), path) < 0 ? -ENAMETOOLONG : 0;
}

int fd_unix_listen(const char *path, int type, mode_t mode, int backlog)
{
	autoclose int fd = -1;
	struct sockaddr_un sa;
	struct stat st;
	int r = fd_unix_addr(path, &sa);

	if (r < 0)
		return r;
	if (lstat(path, &st) == 0) {
		if (!S_ISSOCK(st.st_mode))
			return -EEXIST;
		if (unlink(path) < 0)
			return -errno;
	}
	fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
		return -errno;
	/* Nobody can connect before listen(2), so the mode is in force in time. */
	if (chmod(path, mode) < 0 || listen(fd, backlog) < 0) {
		r = -errno;
		unlink(path);
		return r;
	}
	return TAKE_FD(fd);
}

static int fd_set_send_timeout(int fd, int ms)
{
	struct timeval tv = { .tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000 };

	return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)) < 0 ? -errno : 0;
}

int fd_unix_connect(const char *path, int type, int timeout_ms)
{
	autoclose int fd = -1;
	struct sockaddr_un sa;
	int r = fd_unix_addr(path, &sa);

	if (r < 0)
		return r;
	fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	/*
	 * On Unix sockets connect(2) waits for room in the backlog, as long as SO_SNDTIMEO says
	 * (socket(7)).
	 */
	r = fd_set_send_timeout(fd, timeout_ms < 0 ? 0 : timeout_ms ? timeout_ms : 1);
	if (r < 0)
		return r;
	do
		r = connect(fd, (struct sockaddr *)&sa, sizeof(sa));
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return errno == EAGAIN ? -ETIMEDOUT : -errno;
	r = fd_set_send_timeout(fd, 0);
	if (r < 0)
		return r;
	return TAKE_FD(fd);
}

static int fd_mkdir_one(const char *path, mode_t mode)
{
	struct stat st;

	if (mkdir(path, mode) == 0)
		return 0;
	if (errno != EEXIST)
		return -errno;
	if (stat(path, &st) < 0)
		return -errno;
	return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

int fd_mkdir_p(const char *path, mode_t mode)
{
	autofree char *copy = x_strdup(path);

	for (char *p = copy + 1; *copy && *p; p++) {
		int r;

		if (*p != '/')
			continue;
		*p = '\0';
		r = fd_mkdir_one(copy, mode);
		*p = '/';
		if (r < 0)
			return r;
	}
	return fd_mkdir_one(copy, mode);
}
