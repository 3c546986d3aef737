#include "loop/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"

#define LISTEN_BACKLOG 512
#define LISTEN_ACCEPT_BATCH 64           /* connections a turn */
#define LISTEN_PAUSE_MS 1000
#define LISTEN_FDS_START 3               /* sd_listen_fds(3) */
#define LISTEN_FDS_MAX 64

struct listener {
	struct loop *loop;
	int fd;
	bool dead;
	struct loop_io io;
	struct loop_timer pause;
	struct loop_defer gone;
	void (*fn)(int fd, void *arg);
	void *arg;
};

/* One parsed address. */
struct listen_sa {
	union {
		struct sockaddr any;
		struct sockaddr_in in4;
		struct sockaddr_in6 in6;
		struct sockaddr_un un;
	};
	socklen_t len;
};

static int listen_parse_tcp(const char *s, struct listen_sa *ret)
{
	bool six = s[0] == '[';
	const char *end = six ? strstr(s, "]:") : strrchr(s, ':');
	char host[INET6_ADDRSTRLEN];
	uint64_t port;
	size_t n;

	if (!end)
		return -EINVAL;
	n = (size_t)(end - s) - six;
	if (n >= sizeof(host) || str_to_u64(end + 1 + six, 65535, &port) < 0)
		return -EINVAL;
	memcpy(host, s + six, n);
	host[n] = '\0';
	*ret = (struct listen_sa){ .len = six ? sizeof(ret->in6) : sizeof(ret->in4) };
	if (six) {
		ret->in6.sin6_family = AF_INET6;
		ret->in6.sin6_port = htons((uint16_t)port);
		return inet_pton(AF_INET6, host, &ret->in6.sin6_addr) == 1 ? 0 : -EINVAL;
	}
	ret->in4.sin_family = AF_INET;
	ret->in4.sin_port = htons((uint16_t)port);
	return inet_pton(AF_INET, host, &ret->in4.sin_addr) == 1 ? 0 : -EINVAL;
}

static int listen_parse(const char *addr, struct listen_sa *ret, struct err *e)
{
	int r = -EINVAL;

	if (str_starts(addr, "unix:/")) {
		*ret = (struct listen_sa){ .len = sizeof(ret->un) };
		ret->un.sun_family = AF_UNIX;
		r = str_copy(ret->un.sun_path, sizeof(ret->un.sun_path), addr + 5) < 0
			    ? -ENAMETOOLONG
			    : 0;
	} else if (str_starts(addr, "tcp:")) {
		r = listen_parse_tcp(addr + 4, ret);
	}
	if (r == -ENAMETOOLONG)
		return err_set(e, r, "the socket path in \"%s\" is too long", addr);
	if (r < 0)
		return err_set(
			e, r,
			"\"%s\" is not an address; use unix:/path, tcp:127.0.0.1:8080 or tcp:[::1]:8080",
			addr);
	return 0;
}

static void listen_tcp_options(int fd, const struct listen_sa *sa, bool listening)
{
	int on = 1;

	if (sa->any.sa_family == AF_UNIX)
		return;
	/* Accepted sockets inherit both. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	fd_keep_alive(fd);
	if (listening)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
}

int listen_addr(const char *addr, int type, mode_t unix_mode, struct err *e)
{
	autoclose int fd = -1;
	struct listen_sa sa;
	int r = listen_parse(addr, &sa, e);

	if (r < 0)
		return r;
	if (sa.any.sa_family == AF_UNIX) {
		fd = fd_unix_listen(sa.un.sun_path, type, unix_mode, LISTEN_BACKLOG);
		if (fd < 0)
			return err_errno(e, fd, "cannot listen on %s", addr);
		return TAKE_FD(fd);
	}
	if (type != SOCK_STREAM)
		return err_set(e, -EINVAL, "%s serves streams only", addr);
	fd = socket(sa.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return err_errno(e, -errno, "cannot make a socket for %s", addr);
	listen_tcp_options(fd, &sa, true);
	if (bind(fd, &sa.any, sa.len) < 0 || listen(fd, LISTEN_BACKLOG) < 0)
		return err_errno(e, -errno, "cannot listen on %s", addr);
	return TAKE_FD(fd);
}

/* The inherited socket with this name, once; -ENOENT = there is none. */
static int listen_inherited(const char *name, struct err *e)
{
	static bool used[LISTEN_FDS_MAX];
	const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS"),
		   *names = getenv("LISTEN_FDNAMES");
	uint64_t want_pid, n;
	int on;
	socklen_t len = sizeof(on);

	if (!pid || !count || !names || str_to_u64(pid, INT32_MAX, &want_pid) < 0 ||
	    (pid_t)want_pid != getpid() || str_to_u64(count, LISTEN_FDS_MAX, &n) < 0)
		return -ENOENT;
	for (uint64_t i = 0; i < n && names; i++) {
		size_t k = strcspn(names, ":");
		int fd = LISTEN_FDS_START + (int)i;

		if (!used[i] && k == strlen(name) && memcmp(names, name, k) == 0) {
			if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &len) < 0 || !on)
				return err_set(
					e, -ENOTSOCK,
					"inherited descriptor %d (%s) is not a listening socket",
					fd, name);
			if (fd_set_cloexec(fd, true) < 0 || fd_set_nonblock(fd, true) < 0)
				return err_set(e, -EBADF,
					       "inherited descriptor %d (%s) cannot be used", fd,
					       name);
			used[i] = true;
			return fd;
		}
		names = names[k] ? names + k + 1 : NULL;
	}
	return -ENOENT;
}

static void listener_on_ready(struct loop_io *io, uint32_t events);

static void listener_resume(struct loop_timer *t)
{
	struct listener *ln = t->arg;

	if (loop_add(ln->loop, &ln->io, ln->fd, EPOLLIN, listener_on_ready, ln) < 0)
		loop_timer_set(ln->loop, &ln->pause, LISTEN_PAUSE_MS, listener_resume, ln);
}

static void listener_on_ready(struct loop_io *io, uint32_t events)
{
	struct listener *ln = io->arg;

	for (int i = 0; i < LISTEN_ACCEPT_BATCH && !ln->dead; i++) {
		int fd = accept4(ln->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) {
			ln->fn(fd, ln->arg);
			continue;
		}
		if (errno == EAGAIN)
			return;
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			loop_del(&ln->io);
			loop_timer_set(ln->loop, &ln->pause, LISTEN_PAUSE_MS, listener_resume, ln);
			return;
		}
		/*
		 * What is left concerns one connection that is gone already (accept(2)): go on with
		 * the next.
		 */
	}
}

int listen_named(const char *name, const char *addr, mode_t unix_mode, struct err *e)
{
	int fd = listen_inherited(name, e);

	return fd == -ENOENT ? listen_addr(addr, SOCK_STREAM, unix_mode, e) : fd;
}

int listener_new(struct loop *l, const char *name, const char *addr, mode_t unix_mode,
		 void (*fn)(int fd, void *arg), void *arg, struct listener **ret, struct err *e)
{
	int fd = listen_named(name, addr, unix_mode, e);

	return fd < 0 ? fd : listener_new_fd(l, fd, fn, arg, ret, e);
}

int listener_new_fd(struct loop *l, int given, void (*fn)(int fd, void *arg), void *arg,
		    struct listener **ret, struct err *e)
{
	autoclose int fd = given;
	struct listener *ln;
	int r;

	ln = x_alloc(sizeof(*ln));
	ln->loop = l;
	ln->fn = fn;
	ln->arg = arg;
	r = loop_add(l, &ln->io, fd, EPOLLIN, listener_on_ready, ln);
	if (r < 0) {
		free(ln);
		return err_errno(e, r, "cannot watch a listening socket");
	}
	ln->fd = TAKE_FD(fd);
	*ret = ln;
	return 0;
}

static void listener_gone(struct loop_defer *d)
{
	free(d->arg);
}

void listener_free(struct listener *ln)
{
	if (!ln || ln->dead)
		return;
	ln->dead = true;
	loop_del(&ln->io);
	loop_timer_stop(&ln->pause);
	fd_close(ln->fd);
	ln->fd = -1;
	loop_defer(ln->loop, &ln->gone, listener_gone, ln);
}

int listener_fd(const struct listener *ln)
{
	return ln->fd;
}

int dial_start(const char *addr, struct err *e)
{
	autoclose int fd = -1;
	struct listen_sa sa;
	int r = listen_parse(addr, &sa, e);

	if (r < 0)
		return r;
	fd = socket(sa.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return err_errno(e, -errno, "cannot make a socket for %s", addr);
	listen_tcp_options(fd, &sa, false);
	do
		r = connect(fd, &sa.any, sa.len);
	while (r < 0 && errno == EINTR);
	if (r < 0 && errno != EINPROGRESS)
		return err_errno(e, -errno, "cannot connect to %s", addr);
	return TAKE_FD(fd);
}

static int dial_wait_tcp(int fd, int timeout_ms)
{
	int64_t deadline = clock_mono_ms() + timeout_ms;
	int error = 0, r;
	socklen_t len = sizeof(error);

	do {
		struct pollfd p = { .fd = fd, .events = POLLOUT };
		int64_t left = deadline - clock_mono_ms();

		r = poll(&p, 1, timeout_ms < 0 ? -1 : left > 0 ? (int)left : 0);
	} while (r < 0 && errno == EINTR);
	if (r <= 0)
		return r < 0 ? -errno : -ETIMEDOUT;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
		return -errno;
	return error ? -error : fd_set_nonblock(fd, false);
}

int dial_wait(const char *addr, int timeout_ms, struct err *e)
{
	autoclose int fd = -1;
	struct listen_sa sa;
	int r = listen_parse(addr, &sa, e);

	if (r < 0)
		return r;
	if (sa.any.sa_family == AF_UNIX) {
		fd = fd_unix_connect(sa.un.sun_path, SOCK_STREAM, timeout_ms);
		if (fd < 0)
			return err_errno(e, fd, "cannot connect to %s", addr);
		return TAKE_FD(fd);
	}
	fd = dial_start(addr, e);
	if (fd < 0)
		return fd;
	r = dial_wait_tcp(fd, timeout_ms);
	if (r < 0)
		return err_errno(e, r, "cannot connect to %s", addr);
	return TAKE_FD(fd);
}
