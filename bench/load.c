#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"

#define FDS_MAX 19000                /* of the server */
#define BACKLOG 8192
#define BATCH 64
#define WAIT_S 20

const char *const load_names[LOAD_FIGURES] = { "down_bytes_s", "up_bytes_s", "connections_s",
					       "first_byte_us" };

static char block[65536];

_Noreturn static void die(const char *what)
{
	fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void watch(int ep, int op, int fd, uint32_t events, uint32_t data)
{
	if (epoll_ctl(ep, op, fd, &(struct epoll_event) { .events = events, .data.u32 = data }) < 0)
		die("epoll_ctl");
}

/* Nothing for so long: something hangs. */
static int wait_events(int ep, struct epoll_event *ev, int n, int ms)
{
	int k = epoll_wait(ep, ev, n, ms < 0 ? WAIT_S * 1000 : ms);

	if (k < 0 || (k == 0 && ms < 0)) {
		errno = k ? errno : ETIMEDOUT;
		die("epoll_wait");
	}
	return k;
}

struct sockaddr_in load_addr(const char *addr, unsigned port)
{
	struct sockaddr_in sa = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };

	if (inet_pton(AF_INET, addr, &sa.sin_addr) != 1) {
		errno = EINVAL;
		die(addr);
	}
	return sa;
}

/*
 * ---- The server: the first byte says what a connection is: 'D' gets until it has ended its own
 * direction, 'U' gives, 'E' is echoed ----
 */

static char kinds[FDS_MAX];          /* by descriptor */

int load_listen(const struct sockaddr_in *at)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
	    bind(fd, (const struct sockaddr *)at, sizeof(*at)) < 0 || listen(fd, BACKLOG) < 0)
		die("listen");
	return fd;
}

static void server_io(int ep, int fd, uint32_t events)
{
	ssize_t n;

	if (kinds[fd] == 'D' && !(events & EPOLLIN)) {
		n = send(fd, block, sizeof(block), MSG_NOSIGNAL);
		if (n < 0 && errno != EAGAIN)
			close(fd);
		return;
	}
	n = recv(fd, block, sizeof(block), 0);
	if (n <= 0) {
		if (n == 0 || errno != EAGAIN)
			close(fd);
		return;
	}
	if (kinds[fd] == 0) {
		kinds[fd] = block[0];
		if (kinds[fd] == 'D')
			watch(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT, (uint32_t)fd);
	}
	if (kinds[fd] == 'E' && send(fd, block, (size_t)n, MSG_NOSIGNAL) < 0)
		close(fd);
}

void load_serve(int listener)
{
	int ep = epoll_create1(EPOLL_CLOEXEC), fd;
	struct epoll_event ev[BATCH];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	watch(ep, EPOLL_CTL_ADD, listener, EPOLLIN, (uint32_t)listener);
	for (;;) {
		int n = epoll_wait(ep, ev, BATCH, -1);

		for (int i = 0; i < n; i++) {
			if ((int)ev[i].data.u32 != listener) {
				server_io(ep, (int)ev[i].data.u32, ev[i].events);
				continue;
			}
			while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
				if (fd >= FDS_MAX) {
					close(fd);
					continue;
				}
				kinds[fd] = 0;
				watch(ep, EPOLL_CTL_ADD, fd, EPOLLIN, (uint32_t)fd);
			}
		}
	}
}

/* ---- The load ---- */

int load_dial(const struct sockaddr_in *to)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct timeval t = { .tv_sec = WAIT_S };

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t)) < 0 ||
	    connect(fd, (const struct sockaddr *)to, sizeof(*to)) < 0)
		die("connect");
	return fd;
}

static void recv_byte(int fd)
{
	char c;
	ssize_t n = recv(fd, &c, 1, 0);

	if (n == 1)
		return;
	errno = n == 0 ? ECONNRESET : errno;
	die("recv");
}

void load_echo(int fd)
{
	char c = 'E';

	if (send(fd, &c, 1, MSG_NOSIGNAL) != 1)
		die("send");
	recv_byte(fd);
}

/* One stream: bytes moved, *ended when its end has come. */
static size_t stream_io(int fd, char kind, uint32_t events, bool stopped, bool *ended)
{
	bool reads = kind == 'D' || stopped;
	ssize_t n;

	if (!reads && !(events & EPOLLOUT))
		return 0;
	n = reads ? recv(fd, block, sizeof(block), 0)
		  : send(fd, block, sizeof(block), MSG_NOSIGNAL);
	if (n < 0 && errno != EAGAIN)
		die(reads ? "recv" : "send");
	*ended = reads && n == 0;
	return n > 0 ? (size_t)n : 0;
}

/*
 * After `ms` each stream ends its own direction; the other end closes when it has got that, and
 * what arrived until then is all there was: nothing that is counted still lies in a buffer.
 */
static void throughput(const struct sockaddr_in *to, char kind, int ms, struct load_result *ret)
{
	int ep = epoll_create1(EPOLL_CLOEXEC), fds[LOAD_STREAMS], open = LOAD_STREAMS;
	struct epoll_event ev[LOAD_STREAMS];
	int64_t start = clock_mono_us();
	uint64_t bytes = 0;
	bool stopped = false;

	for (int i = 0; i < LOAD_STREAMS; i++) {
		fds[i] = load_dial(to);
		if (send(fds[i], &kind, 1, MSG_NOSIGNAL) != 1)
			die("send");
		fd_set_nonblock(fds[i], true);
		watch(ep, EPOLL_CTL_ADD, fds[i], kind == 'D' ? EPOLLIN : EPOLLOUT, (uint32_t)i);
	}
	while (open > 0) {
		int k = wait_events(ep, ev, LOAD_STREAMS, stopped ? -1 : 100);

		for (int i = 0; i < k; i++) {
			uint32_t at = ev[i].data.u32;
			bool ended = false;

			bytes += stream_io(fds[at], kind, ev[i].events, stopped, &ended);
			if (ended && !stopped) {
				errno = ECONNRESET;
				die("a stream ended");
			}
			if (ended) {
				close(fds[at]);
				open--;
			}
		}
		if (stopped || clock_mono_us() < start + (int64_t)ms * 1000)
			continue;
		stopped = true;
		for (int i = 0; i < LOAD_STREAMS; i++) {
			shutdown(fds[i], SHUT_WR);
			watch(ep, EPOLL_CTL_MOD, fds[i], EPOLLIN, (uint32_t)i);
		}
	}
	close(ep);
	ret->value = (double)bytes * 1e6 / (double)(clock_mono_us() - start);
	ret->units = (double)bytes / 1e9;
}

/* A connect that is on its way. */
static int dial_start(const struct sockaddr_in *to, int ep, uint32_t at)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0 || (connect(fd, (const struct sockaddr *)to, sizeof(*to)) < 0 &&
		       errno != EINPROGRESS))
		die("connect");
	watch(ep, EPOLL_CTL_ADD, fd, EPOLLOUT, at);
	return fd;
}

static void new_connections(const struct sockaddr_in *to, int amount, struct load_result *ret)
{
	int ep = epoll_create1(EPOLL_CLOEXEC), fds[LOAD_CLIENTS], started = 0, done = 0;
	struct epoll_event ev[LOAD_CLIENTS];
	int64_t start = clock_mono_us();
	char c = 'E';

	for (; started < LOAD_CLIENTS && started < amount; started++)
		fds[started] = dial_start(to, ep, (uint32_t)started);
	while (done < amount) {
		int k = wait_events(ep, ev, LOAD_CLIENTS, -1);

		for (int i = 0; i < k; i++) {
			uint32_t at = ev[i].data.u32;

			if (ev[i].events == EPOLLOUT) {
				if (send(fds[at], &c, 1, MSG_NOSIGNAL) != 1)
					die("send");
				watch(ep, EPOLL_CTL_MOD, fds[at], EPOLLIN, at);
				continue;
			}
			recv_byte(fds[at]);
			close(fds[at]);
			done++;
			if (started < amount) {
				fds[at] = dial_start(to, ep, at);
				started++;
			}
		}
	}
	close(ep);
	ret->value = done * 1e6 / (double)(clock_mono_us() - start);
	ret->units = done;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double load_median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof(*v), compare);
	return v[n / 2];
}

static void latency(const struct sockaddr_in *to, int n, struct load_result *ret)
{
	double *v = x_array((size_t)n, sizeof(*v));

	for (int i = 0; i < n; i++) {
		int64_t t = clock_mono_us();
		int fd = load_dial(to);

		load_echo(fd);
		v[i] = (double)(clock_mono_us() - t);
		close(fd);
	}
	ret->value = load_median(v, n);
	ret->units = n;
	free(v);
}

void load_measure(const struct sockaddr_in *to, enum load_figure which, int amount,
		  struct load_result *ret)
{
	if (which == LOAD_DOWN)
		throughput(to, 'D', amount, ret);
	else if (which == LOAD_UP)
		throughput(to, 'U', amount, ret);
	else if (which == LOAD_RATE)
		new_connections(to, amount, ret);
	else
		latency(to, amount, ret);
}
