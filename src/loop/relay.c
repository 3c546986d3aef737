/*
 * Theory of operation. Each direction is a small machine: prefix, then pipe, then end.
 *
 *	source --splice--> pipe --splice--> target
 *
 * It reads while the pipe has room and writes while the pipe (or the prefix) holds bytes. splice(2)
 * says EAGAIN both for an empty source and for a pipe without a free slot (a slot may hold one
 * byte); with bytes in the pipe the second is assumed and reading waits until bytes have left it.
 * The end of the source is passed on as shutdown(SHUT_WR) when prefix and pipe are empty. The relay
 * ends when both directions have ended, at the first error, or by relay_cut.
 *
 * relay_mask computes what epoll shall report for one side, from both directions. 0 takes the
 * descriptor out of epoll, because EPOLLHUP would be reported without end.
 */
#include "loop/relay.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "loop/pair.h"

#define RELAY_ROUNDS 4                   /* fairness: at most so many pipes full a turn and direction */

enum { RELAY_A, RELAY_B };

struct relay_dir {
	int pipe[2];
	size_t in_pipe;
	char *prefix;
	size_t prefix_off, prefix_len;
	uint64_t bytes;                  /* given to the target */
	bool eof;                        /* the source has ended */
	bool full;                       /* reading waits until bytes have left the pipe */
	bool ended;                      /* the end was passed on */
};

struct relay {
	struct loop *loop;
	int fd[2];
	struct loop_io io[2];
	struct relay_dir dir[2];         /* dir[x] reads from fd[x] and writes to fd[!x] */
	bool over;
	struct loop_defer gone;
	void (*fn)(struct relay *r, const struct relay_end *end, void *arg);
	void *arg;
};

static size_t relay_held(const struct relay_dir *d)
{
	return d->in_pipe + d->prefix_len - d->prefix_off;
}

static uint32_t relay_mask(const struct relay *r, int side)
{
	const struct relay_dir *from = &r->dir[side], *to = &r->dir[!side];
	uint32_t mask = 0;

	if (!from->eof && !from->full)
		mask |= EPOLLIN;
	if (relay_held(to))
		mask |= EPOLLOUT;
	return mask;
}

static void relay_on_gone(struct loop_defer *d)
{
	struct relay *r = d->arg;

	for (int side = 0; side < 2; side++)
		free(r->dir[side].prefix);
	free(r);
}

static void relay_drop_pipes(struct relay *r)
{
	for (int side = 0; side < 2; side++)
		for (int i = 0; i < 2; i++) {
			fd_close(r->dir[side].pipe[i]);
			r->dir[side].pipe[i] = -1;
		}
}

/*
 * After an error the peer must not take what it has for the whole. Connecting a TCP socket to
 * AF_UNSPEC resets it at once, even where another process holds a duplicate (connect(2)); half of a
 * pair says so at its other end; a Unix socket can only be shut down.
 */
static void relay_reset(int fd)
{
	struct sockaddr none = { .sa_family = AF_UNSPEC };

	if (!pair_reset(fd) && connect(fd, &none, sizeof(none)) < 0)
		shutdown(fd, SHUT_RDWR);
}

static void relay_finish(struct relay *r, int error)
{
	struct relay_end end = {
		.a_to_b = r->dir[RELAY_A].bytes,
		.b_to_a = r->dir[RELAY_B].bytes,
		.error = error,
	};

	if (r->over)
		return;
	r->over = true;
	relay_drop_pipes(r);
	for (int side = 0; side < 2; side++) {
		loop_del(&r->io[side]);
		if (error)
			relay_reset(r->fd[side]);
		else
			shutdown(r->fd[side], SHUT_RDWR);
	}
	r->fn(r, &end, r->arg);
	for (int side = 0; side < 2; side++)
		fd_close(r->fd[side]);
	loop_defer(r->loop, &r->gone, relay_on_gone, r);
}

/* Source to pipe. Bytes, 0 = nothing now, negative errno. */
static ssize_t relay_fill(struct relay_dir *d, int source)
{
	ssize_t n;

	if (d->eof || d->full)
		return 0;
	n = splice(source, NULL, d->pipe[1], NULL, RELAY_PIPE_BYTES,
		   SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
	if (n > 0) {
		d->in_pipe += (size_t)n;
		return n;
	}
	if (n == 0 && pair_broken(source))
		return -ECONNRESET;
	if (n == 0)
		d->eof = true;
	else if (errno == EAGAIN)
		d->full = d->in_pipe > 0;
	else if (errno != EINTR)
		return -errno;
	return 0;
}

/* Prefix or pipe to target. Bytes, 0 = nothing now, negative errno. */
static ssize_t relay_drain(struct relay_dir *d, int target)
{
	ssize_t n;

	if (relay_held(d) == 0)
		return 0;
	if (d->prefix_off < d->prefix_len)
		n = send(target, d->prefix + d->prefix_off, d->prefix_len - d->prefix_off,
			 MSG_NOSIGNAL | MSG_DONTWAIT);
	else
		n = splice(d->pipe[0], NULL, target, NULL, d->in_pipe,
			   SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	if (d->prefix_off < d->prefix_len) {
		d->prefix_off += (size_t)n;
	} else {
		d->in_pipe -= (size_t)n;
		d->full = false;
	}
	d->bytes += (uint64_t)n;
	return n;
}

static int relay_pump(struct relay *r, int side)
{
	struct relay_dir *d = &r->dir[side];

	for (int round = 0; round < RELAY_ROUNDS; round++) {
		ssize_t in = relay_fill(d, r->fd[side]), out = 0;

		if (in >= 0)
			out = relay_drain(d, r->fd[!side]);
		if (in < 0 || out < 0)
			return (int)(in < 0 ? in : out);
		if (in == 0 && out == 0)
			break;
	}
	if (d->eof && !d->ended && relay_held(d) == 0) {
		d->ended = true;
		shutdown(r->fd[!side], SHUT_WR);
	}
	return 0;
}

static void relay_on_io(struct loop_io *io, uint32_t events);

static int relay_watch(struct relay *r, int side)
{
	uint32_t mask = relay_mask(r, side);

	if (mask == 0) {
		loop_del(&r->io[side]);
		return 0;
	}
	if (r->io[side].loop)
		return loop_mod(&r->io[side], mask);
	return loop_add(r->loop, &r->io[side], r->fd[side], mask, relay_on_io, r);
}

static int relay_fd_error(int fd)
{
	int error = 0;
	socklen_t n = sizeof(error);

	getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n);
	return -error;
}

static void relay_on_io(struct loop_io *io, uint32_t events)
{
	struct relay *r = io->arg;
	int side = io == &r->io[RELAY_B], error = 0;

	if (events & EPOLLERR)
		error = relay_fd_error(r->fd[side]);
	if (error == 0 && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		error = relay_pump(r, side);
	if (error == 0 && (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)))
		error = relay_pump(r, !side);
	for (int i = 0; i < 2 && error == 0; i++)
		error = relay_watch(r, i);
	if (error || (r->dir[RELAY_A].ended && r->dir[RELAY_B].ended))
		relay_finish(r, error);
}

static void relay_dir_init(struct relay_dir *d, const void *prefix, size_t n)
{
	d->pipe[0] = d->pipe[1] = -1;
	if (n == 0)
		return;
	d->prefix = x_alloc(n);
	d->prefix_len = n;
	memcpy(d->prefix, prefix, n);
}

struct relay *relay_new(struct loop *l, int a, int b, const void *prefix_to_b, size_t n_to_b,
			const void *prefix_to_a, size_t n_to_a,
			void (*fn)(struct relay *r, const struct relay_end *end, void *arg),
			void *arg)
{
	struct relay *r = x_alloc(sizeof(*r));

	*r = (struct relay){ .loop = l, .fd = { a, b }, .fn = fn, .arg = arg };
	relay_dir_init(&r->dir[RELAY_A], prefix_to_b, n_to_b);
	relay_dir_init(&r->dir[RELAY_B], prefix_to_a, n_to_a);
	for (int side = 0; side < 2; side++) {
		fd_set_nonblock(r->fd[side], true);
		if (pipe2(r->dir[side].pipe, O_CLOEXEC | O_NONBLOCK) == 0 &&
		    relay_watch(r, side) == 0)
			continue;
		relay_drop_pipes(r);
		for (int i = 0; i < 2; i++) {
			loop_del(&r->io[i]);
			fd_close(r->fd[i]);
		}
		loop_defer(l, &r->gone, relay_on_gone, r);
		return NULL;
	}
	return r;
}

void relay_cut(struct relay *r)
{
	relay_finish(r, -ECONNRESET);
}
