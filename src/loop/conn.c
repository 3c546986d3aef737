/*
 * Theory of operation. conn_mask computes from the state what epoll shall report; it is called
 * after everything that may change the state. A mask of 0 takes the descriptor out of epoll: the
 * kernel reports EPOLLHUP whether it was asked for or not, and a connection whose end was told would
 * wake the loop without end. Who waits for nothing but room still wants to know that its peer has
 * left (EPOLLRDHUP alone, until that was said): nobody may ever make room.
 *
 * Nothing is called from inside a conn_ function. What happens there (an error on writing, all
 * written at once) is noted in `due` and given to the callback at the end of the turn, by the same
 * deferred function that serves conn_kick.
 *
 * States: connecting -> open -> dead (error noted) -> freed. `eof` and `shut_done` say which
 * directions have ended. A peer that closed wholly shows as CONN_EOF, then as CONN_ERROR (-EPIPE)
 * when something is written.
 */
#include "loop/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "loop/listen.h"
#include "loop/pair.h"

#define CONN_READ_MIN 4096
#define CONN_READ_MAX 65536
#define CONN_KEEP_BYTES 16384            /* an empty input buffer larger than this is given back */

enum conn_due {
	CONN_DUE_DATA = 1,
	CONN_DUE_DRAINED = 2,
	CONN_DUE_ERROR = 4,
	CONN_DUE_CONNECTED = 8
};

struct conn {
	struct loop *loop;
	int fd;
	bool is_socket, connecting, eof, left, paused, stalled, shut_wanted, shut_done, freed;
	unsigned due;
	int error;
	size_t read_size;
	struct buf in, out;
	struct loop_io io;
	struct loop_timer timer;
	struct loop_defer later, gone;
	conn_fn *fn;
	void *arg;
};

static void conn_on_io(struct loop_io *io, uint32_t events);
static void conn_on_later(struct loop_defer *d);

static void conn_give(struct conn *c, enum conn_event ev)
{
	if (!c->freed)
		c->fn(c, ev, c->arg);
}

static void conn_later(struct conn *c, unsigned due)
{
	c->due |= due;
	loop_defer(c->loop, &c->later, conn_on_later, c);
}

static uint32_t conn_mask(const struct conn *c)
{
	uint32_t mask = 0;

	if (c->error)
		return 0;
	if (c->connecting)
		return EPOLLOUT;
	if (!c->eof && !c->paused && !c->stalled)
		mask |= EPOLLIN;
	if (buf_len(&c->out))
		mask |= EPOLLOUT;
	return mask || c->eof || c->left ? mask : EPOLLRDHUP;
}

static void conn_fail(struct conn *c, int error)
{
	if (c->error)
		return;
	c->error = error;
	conn_later(c, CONN_DUE_ERROR);
}

static void conn_update(struct conn *c)
{
	uint32_t mask;
	int r = 0;

	if (c->freed)
		return;
	c->stalled = buf_room(&c->in) == 0;
	mask = conn_mask(c);
	if (mask == 0)
		loop_del(&c->io);
	else if (c->io.loop)
		r = loop_mod(&c->io, mask);
	else
		r = loop_add(c->loop, &c->io, c->fd, mask, conn_on_io, c);
	if (r < 0)
		conn_fail(c, r);
}

static ssize_t conn_send(struct conn *c, const void *p, size_t n)
{
	ssize_t r;

	do
		r = c->is_socket ? send(c->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT)
				 : write(c->fd, p, n);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : r;
}

static void conn_shut_if_due(struct conn *c)
{
	if (!c->shut_wanted || c->shut_done || c->connecting || c->error || buf_len(&c->out))
		return;
	c->shut_done = true;
	shutdown(c->fd, SHUT_WR);
}

/* Writes what the kernel takes. */
static void conn_push(struct conn *c)
{
	bool had = buf_len(&c->out) > 0;

	while (buf_len(&c->out) && !c->connecting && !c->error) {
		ssize_t r = conn_send(c, buf_data(&c->out), buf_len(&c->out));

		if (r == -EAGAIN)
			return;
		if (r < 0) {
			conn_fail(c, (int)r);
			return;
		}
		buf_consume(&c->out, (size_t)r);
	}
	if (had && buf_len(&c->out) == 0) {
		if (c->out.cap_ > CONN_KEEP_BYTES)
			buf_shrink(&c->out);
		conn_later(c, CONN_DUE_DRAINED);
	}
	conn_shut_if_due(c);
}

static void conn_finish_connect(struct conn *c)
{
	int error = 0;
	socklen_t n = sizeof(error);

	if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &n) < 0)
		error = errno;
	c->connecting = false;
	if (error)
		conn_fail(c, -error);
	else
		c->due |= CONN_DUE_CONNECTED;
}

static void conn_pull(struct conn *c)
{
	ssize_t r = buf_read_fd(&c->in, c->fd, c->read_size);

	if (r == -EAGAIN || r == -ENOBUFS)
		return;
	if (r == 0 && pair_broken(c->fd))
		r = -ECONNRESET;
	if (r < 0) {
		conn_fail(c, (int)r);
	} else if (r == 0) {
		c->eof = true;
		conn_give(c, CONN_EOF);
	} else {
		if ((size_t)r == c->read_size && c->read_size < CONN_READ_MAX)
			c->read_size *= 2;
		conn_give(c, CONN_DATA);
	}
	if (!c->freed && buf_len(&c->in) == 0 && c->in.cap_ > CONN_KEEP_BYTES)
		buf_shrink(&c->in);
}

/* The callbacks of what was noted. An error is the last thing that a connection says. */
static void conn_give_due(struct conn *c)
{
	unsigned due = c->due;

	c->due = 0;
	if (due & CONN_DUE_CONNECTED)
		conn_give(c, CONN_CONNECTED);
	if ((due & CONN_DUE_DATA) && !c->freed && buf_len(&c->in))
		conn_give(c, CONN_DATA);
	if ((due & CONN_DUE_DRAINED) && !c->freed && buf_len(&c->out) == 0 && !c->error)
		conn_give(c, CONN_DRAINED);
	if (due & CONN_DUE_ERROR) {
		if (!c->freed)
			loop_timer_stop(&c->timer);
		conn_give(c, CONN_ERROR);
	}
	conn_update(c);
}

static void conn_on_later(struct loop_defer *d)
{
	struct conn *c = d->arg;

	if (!c->freed)
		conn_give_due(c);
}

static void conn_on_io(struct loop_io *io, uint32_t events)
{
	struct conn *c = io->arg;

	if (c->connecting && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
		conn_finish_connect(c);
	if (io->events == EPOLLRDHUP) {
		c->left = true;
		conn_give(c, CONN_LEFT);
	}
	if (!c->error && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
		conn_push(c);
	if (!c->freed && !c->error && !c->connecting && (io->events & EPOLLIN) &&
	    (events & (EPOLLIN | EPOLLERR | EPOLLHUP)))
		conn_pull(c);
	if (!c->freed)
		conn_give_due(c);
}

struct conn *conn_new(struct loop *l, int fd, size_t in_max, size_t out_max, conn_fn *fn, void *arg)
{
	struct conn *c = x_alloc(sizeof(*c));
	struct sockaddr_storage peer;
	socklen_t n = sizeof(peer);
	int type, error = 0;

	c->loop = l;
	c->fd = fd;
	c->fn = fn;
	c->arg = arg;
	c->read_size = CONN_READ_MIN;
	buf_init(&c->in, in_max);
	buf_init(&c->out, out_max);
	fd_set_nonblock(fd, true);
	c->is_socket =
		getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &(socklen_t) { sizeof(type) }) == 0;
	/* Not connected and without an error yet: connect(2) goes on. */
	if (c->is_socket && getpeername(fd, (struct sockaddr *)&peer, &n) < 0 &&
	    errno == ENOTCONN) {
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){ sizeof(error) });
		c->connecting = error == 0;
	}
	if (error)
		conn_fail(c, -error);
	conn_update(c);
	return c;
}

struct conn *conn_dial(struct loop *l, const char *addr, size_t in_max, size_t out_max, conn_fn *fn,
		       void *arg, struct err *e)
{
	int fd = dial_start(addr, e);
	struct conn *c;

	if (fd < 0)
		return NULL;
	c = conn_new(l, fd, in_max, out_max, fn, arg);
	if (!c->connecting && !c->error)
		conn_later(c, CONN_DUE_CONNECTED);
	return c;
}

static void conn_on_gone(struct loop_defer *d)
{
	struct conn *c = d->arg;

	buf_done(&c->in);
	buf_done(&c->out);
	free(c);
}

int conn_detach(struct conn *c)
{
	int fd = c->fd;

	c->fd = -1;
	conn_free(c);
	return fd;
}

void conn_free(struct conn *c)
{
	if (!c || c->freed)
		return;
	c->freed = true;
	loop_del(&c->io);
	loop_timer_stop(&c->timer);
	fd_close(c->fd);
	c->fd = -1;
	/* Behind `later` in the queue, should that be there. */
	loop_defer(c->loop, &c->gone, conn_on_gone, c);
}

void conn_set_fn(struct conn *c, conn_fn *fn, void *arg)
{
	c->fn = fn;
	c->arg = arg;
}

struct buf *conn_in(struct conn *c)
{
	/* The caller may be about to consume: look again at the end of the turn. */
	if (c->stalled && !c->freed)
		conn_later(c, 0);
	return &c->in;
}

int conn_write(struct conn *c, const void *p, size_t n)
{
	size_t sent = 0;

	if (c->error || c->freed)
		return c->error ? c->error : -ENOTCONN;
	if (c->shut_wanted)
		return -EPIPE;
	if (n > buf_room(&c->out))
		return -ENOBUFS;
	if (n == 0)
		return 0;
	if (buf_len(&c->out) == 0 && !c->connecting) {
		ssize_t r = conn_send(c, p, n);

		if (r < 0 && r != -EAGAIN) {
			conn_fail(c, (int)r);
			return (int)r;
		}
		sent = r > 0 ? (size_t)r : 0;
	}
	if (sent == n)
		conn_later(c, CONN_DUE_DRAINED);
	else
		buf_put(&c->out, (const char *)p + sent, n - sent);
	conn_update(c);
	return 0;
}

struct buf *conn_out(struct conn *c)
{
	return &c->out;
}

void conn_flush(struct conn *c)
{
	if (c->freed)
		return;
	conn_push(c);
	conn_update(c);
}

size_t conn_out_len(const struct conn *c)
{
	return buf_len(&c->out);
}

void conn_pause(struct conn *c, bool paused)
{
	c->paused = paused;
	conn_update(c);
}

void conn_shutdown_write(struct conn *c)
{
	c->shut_wanted = true;
	if (!c->freed)
		conn_shut_if_due(c);
}

static void conn_on_timer(struct loop_timer *t)
{
	struct conn *c = t->arg;

	conn_give(c, CONN_TIMEOUT);
	conn_update(c);
}

void conn_set_timeout(struct conn *c, int64_t ms)
{
	if (ms <= 0 || c->freed)
		loop_timer_stop(&c->timer);
	else
		loop_timer_set(c->loop, &c->timer, ms, conn_on_timer, c);
}

int conn_fd(const struct conn *c)
{
	return c->fd;
}

int conn_error(const struct conn *c)
{
	return c->error;
}

bool conn_eof(const struct conn *c)
{
	return c->eof;
}

bool conn_left(const struct conn *c)
{
	return c->left;
}

void conn_kick(struct conn *c)
{
	if (!c->freed)
		conn_later(c, CONN_DUE_DATA);
}
