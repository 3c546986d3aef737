/*
 * Theory of operation. A call is in one of three lists: `waiting` (there is no connection, or its
 * queue is full; text and duplicated descriptors are kept), `sent` (its answer is awaited),
 * `failing` (its error is told at the end of this turn, never inside ipc_client_call). Its slot is
 * part of its id, so that an answer finds it without a search and a late answer of an earlier call
 * in that slot does not fit. An answer to what was never asked is a broken rule: a bridge, whom
 * sbx-manager only listens to, could keep the loop busy with them.
 *
 * When a connection breaks, all that was sent fails with -ECONNRESET (nobody knows how far it
 * came); what was not sent waits for the next connection, at most as long as its time-out.
 */
#include "ipc/ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/list.h"
#include "base/str.h"
#include "ipc/msg.h"

#define CLIENT_CALLS_MAX 1024
#define CLIENT_READ_BATCH 32
#define CLIENT_BACKOFF_MIN_MS 50
#define CLIENT_BACKOFF_MAX_MS 2000
#define CLIENT_CONNECT_MS 20
#define CLIENT_PACE_MS 100

struct client_call {
	struct list node;
	struct ipc_client *client;
	const struct ipc_op *op;
	uint64_t id;
	ipc_reply_fn *fn;
	void *arg;
	struct loop_timer timer;
	char *text;                      /* until it was sent */
	int fds[FD_PASS_MAX];
	size_t n_fds;
	bool has_slot;
	struct err err;                  /* in `failing` */
};

struct ipc_client {
	struct loop *loop;
	char *path;
	uid_t server_uid;
	int fd;
	struct fd_peer cred;
	struct loop_io io;
	struct loop_timer retry;
	int64_t backoff_ms;
	bool paced, paused;
	struct loop_timer pace;
	struct ipc_outq out;
	struct list waiting, sent, failing;
	struct loop_defer fail_later, end;
	struct client_call *slots[CLIENT_CALLS_MAX];
	unsigned n_calls, next_slot;
	uint64_t seq;
	bool dead;
	void (*on_event)(const char *name, json_t *a, void *arg);
	void *event_arg;
	void (*on_state)(bool connected, void *arg);
	void *state_arg;
};

/* ---- Calls ---- */

static void call_drop_packet(struct client_call *c)
{
	free(c->text);
	c->text = NULL;
	ipc_close_fds(c->fds, c->n_fds);
	c->n_fds = 0;
}

/* Out of all lists, freed, and then told. */
static void call_finish(struct client_call *c, const struct err *e, const void *rep, int *fds,
			size_t n_fds)
{
	struct ipc_client *cl = c->client;
	ipc_reply_fn *fn = c->fn;
	void *arg = c->arg;
	struct err copy = { 0 };

	if (e)
		copy = *e;
	loop_timer_stop(&c->timer);
	list_del(&c->node);
	if (c->has_slot) {
		cl->slots[c->id % CLIENT_CALLS_MAX] = NULL;
		cl->n_calls--;
	}
	call_drop_packet(c);
	free(c);
	fn(arg, e ? &copy : NULL, rep, fds, n_fds);
}

static void client_fail_all(struct list *l, int num, const char *text)
{
	while (!list_empty(l)) {
		struct err e = { 0 };

		err_set(&e, num, "%s", text);
		call_finish(CONTAINER_OF(l->next, struct client_call, node), &e, NULL, NULL, 0);
	}
}

static void client_tell_failed(struct loop_defer *d)
{
	struct ipc_client *c = d->arg;

	/* Those that are added meanwhile are told in the next turn. */
	struct list now;

	list_init(&now);
	while (!list_empty(&c->failing)) {
		struct list *n = c->failing.next;

		list_del(n);
		list_add_tail(&now, n);
	}
	while (!list_empty(&now)) {
		struct client_call *call = CONTAINER_OF(now.next, struct client_call, node);

		call_finish(call, &call->err, NULL, NULL, 0);
	}
}

static void call_fail_later(struct client_call *c)
{
	struct ipc_client *cl = c->client;

	list_del(&c->node);
	list_add_tail(&cl->failing, &c->node);
	loop_defer(cl->loop, &cl->fail_later, client_tell_failed, cl);
}

static void call_timed_out(struct loop_timer *t)
{
	struct client_call *c = t->arg;
	struct err e = { 0 };

	err_set(&e, -ETIMEDOUT, "%s: no answer in time", c->op->name);
	call_finish(c, &e, NULL, NULL, 0);
}

static int call_take_slot(struct ipc_client *cl, struct client_call *c)
{
	if (cl->n_calls >= CLIENT_CALLS_MAX)
		return err_set(&c->err, -EAGAIN, "%s: too many calls without an answer",
			       c->op->name);
	while (cl->slots[cl->next_slot])
		cl->next_slot = (cl->next_slot + 1) % CLIENT_CALLS_MAX;
	c->id = ++cl->seq * CLIENT_CALLS_MAX + cl->next_slot;
	cl->slots[cl->next_slot] = c;
	cl->next_slot = (cl->next_slot + 1) % CLIENT_CALLS_MAX;
	cl->n_calls++;
	c->has_slot = true;
	return 0;
}

/* ---- The connection ---- */

static void client_connect(struct loop_timer *t);

static void client_retry(struct ipc_client *c)
{
	loop_timer_set(c->loop, &c->retry, c->backoff_ms, client_connect, c);
	c->backoff_ms *= 2;
	if (c->backoff_ms > CLIENT_BACKOFF_MAX_MS)
		c->backoff_ms = CLIENT_BACKOFF_MAX_MS;
}

static void client_disconnect(struct ipc_client *c, const char *why)
{
	if (c->fd < 0)
		return;
	loop_del(&c->io);
	fd_close(TAKE_FD(c->fd));
	ipc_outq_done(&c->out);
	loop_timer_stop(&c->pace);
	c->paused = false;
	client_retry(c);
	client_fail_all(&c->sent, -ECONNRESET, why);
	if (!c->dead && c->on_state)
		c->on_state(false, c->state_arg);
}

static void client_update_events(struct ipc_client *c)
{
	uint32_t want = (c->paused ? 0 : EPOLLIN) | (c->out.len ? EPOLLOUT : 0);

	if (c->fd >= 0 && loop_mod(&c->io, want) < 0)
		client_disconnect(c, "epoll refuses the connection");
}

/* 0 when it was handed to the socket or its queue; -ENOBUFS: that is full. */
static int client_send(struct ipc_client *c, struct client_call *call)
{
	int r = ipc_outq_send(&c->out, c->fd, call->text, call->fds, call->n_fds);

	if (r < 0)
		return r;
	list_del(&call->node);
	list_add_tail(&c->sent, &call->node);
	call_drop_packet(call);
	client_update_events(c);
	return 0;
}

static void client_send_waiting(struct ipc_client *c)
{
	int r = 0;

	while (r == 0 && c->fd >= 0 && !list_empty(&c->waiting))
		r = client_send(c, CONTAINER_OF(c->waiting.next, struct client_call, node));
	if (r < 0 && r != -ENOBUFS)
		client_disconnect(c, "the connection broke");
}

static void client_answer(struct ipc_client *c, struct ipc_incoming *m, int *fds, size_t n_fds)
{
	struct client_call *call = c->slots[m->id % CLIENT_CALLS_MAX];
	autofree void *rep = NULL;
	const struct ipc_op *op;
	struct err e = { 0 };

	if (!call || call->id != m->id) {        /* its call has timed out */
		ipc_close_fds(fds, n_fds);
		return;
	}
	op = call->op;
	if (m->failed || n_fds > op->rep_fds) {
		ipc_close_fds(fds, n_fds);
		if (!m->failed)
			err_set(&m->err, -EPROTO, "%s: the answer has too many descriptors",
				op->name);
		call_finish(call, &m->err, NULL, NULL, 0);
		return;
	}
	rep = op->rep_size ? x_alloc(op->rep_size) : NULL;
	if (ipc_decode(op->rep, m->r, rep, op->rep_size, &e) < 0) {
		ipc_close_fds(fds, n_fds);
		e.num = -EPROTO;
		err_wrap(&e, "%s: malformed answer", op->name);
		call_finish(call, &e, NULL, NULL, 0);
		return;
	}
	call_finish(call, NULL, rep, fds, n_fds);
	if (rep)
		ipc_done(op->rep, rep);
}

static bool client_asked(const struct ipc_client *c, uint64_t id)
{
	return id / CLIENT_CALLS_MAX >= 1 && id / CLIENT_CALLS_MAX <= c->seq;
}

static int client_read_one(struct ipc_client *c)
{
	static char packet[IPC_MSG_MAX];         /* one loop thread, and nothing of it is kept */
	int fds[FD_PASS_MAX];
	size_t n_fds = FD_PASS_MAX;
	struct ipc_incoming m;
	struct err e = { 0 };
	ssize_t n = fd_recv(c->fd, packet, sizeof(packet), fds, &n_fds, MSG_DONTWAIT);

	if (n == -EAGAIN)
		return -EAGAIN;
	if (n <= 0) {
		ipc_close_fds(fds, n < 0 ? 0 : n_fds);
		client_disconnect(c, "the connection broke");
		return -ECONNRESET;
	}
	if (ipc_incoming_parse(packet, (size_t)n, &m, &e) < 0 ||
	    (!m.ev[0] && !client_asked(c, m.id))) {
		ipc_incoming_done(&m);
		ipc_close_fds(fds, n_fds);
		client_disconnect(c, "the server sent a malformed packet");
		return -EPROTO;
	}
	c->backoff_ms = CLIENT_BACKOFF_MIN_MS;
	if (m.ev[0]) {
		ipc_close_fds(fds, n_fds);
		if (c->on_event)
			c->on_event(m.ev, m.a, c->event_arg);
	} else {
		client_answer(c, &m, fds, n_fds);
	}
	ipc_incoming_done(&m);
	return 0;
}

static void client_unpause(struct loop_timer *t)
{
	struct ipc_client *c = t->arg;

	c->paused = false;
	client_update_events(c);
}

static void client_ready(struct loop_io *io, uint32_t events)
{
	struct ipc_client *c = io->arg;
	int batch = c->paced ? 1 : CLIENT_READ_BATCH;

	if (events & EPOLLOUT) {
		int r = ipc_outq_flush(&c->out, c->fd);

		if (r < 0 && r != -EAGAIN)
			client_disconnect(c, "the connection broke");
		else
			client_send_waiting(c);
	}
	for (int i = 0;
	     i < batch && c->fd >= 0 && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)); i++)
		if (client_read_one(c) < 0)
			break;
	if (c->paced && c->fd >= 0) {
		c->paused = true;
		loop_timer_set(c->loop, &c->pace, CLIENT_PACE_MS, client_unpause, c);
	}
	client_update_events(c);
}

static int client_dial(struct ipc_client *c)
{
	autoclose int fd = fd_unix_connect(c->path, SOCK_SEQPACKET, CLIENT_CONNECT_MS);
	int r;

	if (fd < 0)
		return fd;
	r = fd_set_nonblock(fd, true);
	if (r == 0)
		r = fd_peer_cred(fd, &c->cred);
	if (r < 0)
		return r;
	if (c->server_uid != (uid_t)-1 && c->cred.uid != c->server_uid)
		return -EPERM;
	r = loop_add(c->loop, &c->io, fd, EPOLLIN, client_ready, c);
	if (r < 0)
		return r;
	c->fd = TAKE_FD(fd);
	return 0;
}

static void client_connect(struct loop_timer *t)
{
	struct ipc_client *c = t->arg;

	if (client_dial(c) < 0) {
		client_retry(c);
		return;
	}
	client_send_waiting(c);
	if (c->fd >= 0 && c->on_state)
		c->on_state(true, c->state_arg);
}

/* ---- The interface ---- */

struct ipc_client *ipc_client_new(struct loop *l, const char *path, uid_t server_uid)
{
	struct ipc_client *c = x_alloc(sizeof(*c));

	c->loop = l;
	c->path = x_strdup(path);
	c->server_uid = server_uid;
	c->fd = -1;
	c->backoff_ms = CLIENT_BACKOFF_MIN_MS;
	list_init(&c->waiting);
	list_init(&c->sent);
	list_init(&c->failing);
	ipc_outq_init(&c->out);
	loop_timer_set(l, &c->retry, 0, client_connect, c);
	return c;
}

static void client_end(struct loop_defer *d)
{
	struct ipc_client *c = d->arg;

	free(c->path);
	free(c);
}

void ipc_client_free(struct ipc_client *c)
{
	if (!c || c->dead)
		return;
	c->dead = true;
	c->on_event = NULL;
	c->on_state = NULL;
	client_disconnect(c, "the client ends");
	loop_timer_stop(&c->retry);
	client_fail_all(&c->sent, -ECONNRESET, "the client ends");
	client_fail_all(&c->waiting, -ECONNRESET, "the client ends");
	client_fail_all(&c->failing, -ECONNRESET, "the client ends");
	loop_defer(c->loop, &c->end, client_end, c);     /* behind fail_later, which may be queued */
}

/* Descriptors are kept only for a call that waits. */
static int call_keep_fds(struct client_call *c, const int *fds, size_t n_fds)
{
	if (n_fds > c->op->req_fds || n_fds > FD_PASS_MAX)
		return err_set(&c->err, -EINVAL, "%s: too many descriptors", c->op->name);
	for (size_t i = 0; i < n_fds; i++) {
		int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);

		if (fd < 0)
			return err_errno(&c->err, -errno, "%s: a descriptor", c->op->name);
		c->fds[c->n_fds++] = fd;
	}
	return 0;
}

void ipc_client_call(struct ipc_client *c, const struct ipc_op *op, const char *req_id,
		     const void *req, const int *fds, size_t n_fds, int timeout_ms,
		     ipc_reply_fn *fn, void *arg)
{
	struct client_call *call = x_alloc(sizeof(*call));

	call->client = c;
	call->op = op;
	call->fn = fn;
	call->arg = arg;
	list_add_tail(&c->waiting, &call->node);
	if (c->dead)
		err_set(&call->err, -ECONNRESET, "%s: the client ends", op->name);
	if (call->err.num < 0 || call_take_slot(c, call) < 0 ||
	    call_keep_fds(call, fds, n_fds) < 0 ||
	    !(call->text = ipc_request_text(op, call->id, req_id, req, &call->err))) {
		call_fail_later(call);
		return;
	}
	loop_timer_set(c->loop, &call->timer, timeout_ms, call_timed_out, call);
	/* Others wait when the connection has just broken, or its queue is full. */
	if (c->fd >= 0 && c->waiting.next == &call->node)
		client_send(c, call);
}

void ipc_client_on_event(struct ipc_client *c, void (*fn)(const char *name, json_t *a, void *arg),
			 void *arg)
{
	c->on_event = fn;
	c->event_arg = arg;
}

void ipc_client_on_state(struct ipc_client *c, void (*fn)(bool connected, void *arg), void *arg)
{
	c->on_state = fn;
	c->state_arg = arg;
}

void ipc_client_pace(struct ipc_client *c) { c->paced = true; }

bool ipc_client_connected(const struct ipc_client *c)
{
	return c->fd >= 0;
}

