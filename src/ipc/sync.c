#include "ipc/ipc.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "ipc/msg.h"

#define SYNC_CONNECT_MS 2000

struct ipc_sync {
	char *path;              /* NULL: made from a descriptor, so it does not connect again */
	uid_t server_uid;
	int fd;                  /* -1 = broken */
	int watch_fd;            /* -1 = none */
	ipc_watch_fn *watch;
	void *watch_arg;
	uint64_t id;
	char packet[IPC_MSG_MAX];
};

static int sync_connect(struct ipc_sync *c, struct err *e)
{
	autoclose int fd = -1;
	struct fd_peer cred;
	int r;

	if (c->fd >= 0)
		return 0;
	if (!c->path)
		return err_set(e, -ECONNRESET, "the connection broke");
	fd = fd_unix_connect(c->path, SOCK_SEQPACKET, SYNC_CONNECT_MS);
	if (fd < 0)
		return err_errno(e, fd, "connect to %s", c->path);
	r = fd_peer_cred(fd, &cred);
	if (r < 0)
		return err_errno(e, r, "who listens at %s", c->path);
	if (c->server_uid != (uid_t)-1 && cred.uid != c->server_uid)
		return err_set(e, -EPERM, "%s is served by uid %u, expected %u", c->path, cred.uid,
			       c->server_uid);
	c->fd = TAKE_FD(fd);
	return 0;
}

int ipc_sync_open(const char *path, uid_t server_uid, struct ipc_sync **ret, struct err *e)
{
	struct ipc_sync *c = x_alloc(sizeof(*c));
	int r;

	c->path = x_strdup(path);
	c->server_uid = server_uid;
	c->fd = c->watch_fd = -1;
	r = sync_connect(c, e);
	if (r < 0) {
		ipc_sync_close(c);
		return r;
	}
	*ret = c;
	return 0;
}

int ipc_sync_open_fd(int fd, struct ipc_sync **ret)
{
	struct ipc_sync *c = x_alloc(sizeof(*c));

	c->fd = fd;
	c->watch_fd = -1;
	*ret = c;
	return 0;
}

void ipc_sync_watch(struct ipc_sync *c, int fd, ipc_watch_fn *fn, void *arg)
{
	c->watch_fd = fd;
	c->watch = fn;
	c->watch_arg = arg;
}

void ipc_sync_close(struct ipc_sync *c)
{
	if (!c)
		return;
	fd_close(c->fd);
	free(c->path);
	free(c);
}

bool ipc_sync_broken(const struct ipc_sync *c)
{
	return c->fd < 0;
}

static int sync_break(struct ipc_sync *c, struct err *e, int num, const char *why)
{
	fd_close(TAKE_FD(c->fd));
	return err_set(e, num, "%s", why);
}

static int sync_wait(struct ipc_sync *c, short events, int64_t deadline_ms, const char *what,
		     struct err *e)
{
	for (;;) {
		struct pollfd p[] = { { .fd = c->fd, .events = events },
				      { .fd = c->watch_fd, .events = POLLIN } };
		int64_t left = deadline_ms - clock_mono_ms();
		/*
		 * Over is over, even if there is something to read: a peer that sends events
		 * without end may be a hostile one.
		 */
		int r = left > 0 ? poll(p, ARRAY_LEN(p), (int)left) : 0;

		if (r == 0)
			return err_errno(e, -ETIMEDOUT, "%s", what);
		if (r < 0 && errno != EINTR)
			return err_errno(e, -errno, "%s", what);
		if (r > 0 && p[0].revents)
			return 0;
		if (r > 0 && (r = c->watch(c->watch_arg, e)) < 0)
			return r;
	}
}

/*
 * A packet that the kernel refused was not delivered, so it may go out once more on a new
 * connection.
 */
static int sync_send(struct ipc_sync *c, const char *text, const int *fds, size_t n_fds,
		     int64_t deadline_ms, struct err *e)
{
	bool again = c->path != NULL;

	for (;;) {
		ssize_t n;
		int r = sync_connect(c, e);

		if (r < 0)
			return r;
		n = fd_send(c->fd, text, strlen(text), fds, n_fds, MSG_DONTWAIT);
		if (n >= 0)
			return 0;
		if (n == -EAGAIN) {
			r = sync_wait(c, POLLOUT, deadline_ms, "send", e);
			if (r < 0)
				return r;
			continue;
		}
		fd_close(TAKE_FD(c->fd));
		if (!again)
			return err_errno(e, (int)n, "send");
		again = false;
	}
}

/*
 * One packet; what it brings is for this call (1), for nobody any more (0), or the connection is
 * broken.
 */
static int sync_receive(struct ipc_sync *c, struct ipc_incoming *m, int *fds, size_t *n_fds,
			int64_t deadline_ms, struct err *e)
{
	ssize_t n;
	int r = sync_wait(c, POLLIN, deadline_ms, "no answer", e);

	if (r < 0)
		return r;
	*n_fds = FD_PASS_MAX;
	n = fd_recv(c->fd, c->packet, sizeof(c->packet), fds, n_fds, MSG_DONTWAIT);
	if (n == -EAGAIN)
		return 0;
	if (n <= 0) {
		ipc_close_fds(fds, n < 0 ? 0 : *n_fds);
		return sync_break(c, e, n == -EMSGSIZE ? -EPROTO : -ECONNRESET,
				  "the connection broke before the answer");
	}
	if (ipc_incoming_parse(c->packet, (size_t)n, m, e) < 0) {
		ipc_incoming_done(m);
		ipc_close_fds(fds, *n_fds);
		return sync_break(c, e, -EPROTO, "the server sent a malformed packet");
	}
	if (!m->ev[0] && m->id == c->id)
		return 1;
	ipc_incoming_done(m);
	ipc_close_fds(fds, *n_fds);
	return 0;
}

static int sync_take(const struct ipc_op *op, struct ipc_incoming *m, const int *fds, size_t n_fds,
		     void *rep, int *ret_fds, size_t *ret_n_fds, struct err *e)
{
	size_t room = ret_n_fds ? *ret_n_fds : 0;
	int r;

	if (m->failed) {
		if (e)
			*e = m->err;
		return m->err.num;
	}
	if (n_fds > op->rep_fds || n_fds > room)
		return err_set(e, -EPROTO, "%s: the answer has too many descriptors", op->name);
	r = ipc_decode(op->rep, m->r, rep, op->rep_size, e);
	if (r < 0) {
		if (e)
			e->num = -EPROTO;
		return -EPROTO;
	}
	if (n_fds)
		memcpy(ret_fds, fds, n_fds * sizeof(int));
	if (ret_n_fds)
		*ret_n_fds = n_fds;
	return 0;
}

int ipc_sync_begin(struct ipc_sync *c, const struct ipc_op *op, const char *req_id,
		   const void *req, const int *fds, size_t n_fds, int timeout_ms, struct err *e)
{
	autofree char *text = NULL;
	struct err why = { 0 };

	if (n_fds > op->req_fds)
		return err_set(e, -EINVAL, "%s: too many descriptors", op->name);
	text = ipc_request_text(op, ++c->id, req_id, req, &why);
	if (!text)
		return err_set(e, why.num, "%s", why.text);
	return sync_send(c, text, fds, n_fds, clock_mono_ms() + timeout_ms, e);
}

int ipc_sync_end(struct ipc_sync *c, const struct ipc_op *op, void *rep, int *ret_fds,
		 size_t *ret_n_fds, int timeout_ms, struct err *e)
{
	int64_t deadline_ms = clock_mono_ms() + timeout_ms;
	autofree void *own_rep = NULL;
	struct ipc_incoming m;
	int got[FD_PASS_MAX];
	size_t n_got;
	int r;

	do
		r = sync_receive(c, &m, got, &n_got, deadline_ms, e);
	while (r == 0);
	if (r < 0)
		return r;
	if (!rep && op->rep_size)
		rep = own_rep = x_alloc(op->rep_size);
	r = sync_take(op, &m, got, n_got, rep, ret_fds, ret_n_fds, e);
	if (r < 0)
		ipc_close_fds(got, n_got);
	if (own_rep && r == 0)
		ipc_done(op->rep, own_rep);
	ipc_incoming_done(&m);
	return r;
}

int ipc_sync_call(struct ipc_sync *c, const struct ipc_op *op, const char *req_id, const void *req,
		  const int *fds, size_t n_fds, void *rep, int *ret_fds, size_t *ret_n_fds,
		  int timeout_ms, struct err *e)
{
	int64_t until_ms = clock_mono_ms() + timeout_ms;
	int r = ipc_sync_begin(c, op, req_id, req, fds, n_fds, timeout_ms, e);

	return r < 0 ? r
		     : ipc_sync_end(c, op, rep, ret_fds, ret_n_fds,
				    (int)(until_ms - clock_mono_ms()), e);
}
