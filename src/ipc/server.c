/*
 * Theory of operation. A peer is one accepted connection. It is referenced by the server (as long
 * as it is open) and by every call that has no answer yet; closing (peer_close) takes it out of the
 * loop and the server and tells `left`, and the memory goes when the last call is answered, at the
 * end of that turn. An answer to a closed peer is dropped.
 *
 * A call is referenced by its dispatch and by its answer, so that request and handler outlive an
 * answer that is given inside the handler.
 *
 * Whoever breaks a rule is closed, with the reason kept for `left`; nothing is argued.
 */
#include "ipc/ipc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/list.h"
#include "base/str.h"
#include "ipc/msg.h"

#define SERVER_ACCEPT_BATCH 16
#define SERVER_READ_BATCH 16             /* packets of one peer in a turn */
#define SERVER_CALLS_MAX 1024            /* of one peer without an answer; then its socket is not read */
#define SERVER_FAULT_MAX 200
#define SERVER_ACCEPT_PAUSE_MS 1000      /* on EMFILE and its like */

struct ipc_server {
	struct loop *loop;
	struct ipc_server_conf conf;
	uid_t *uids;
	int fd;
	struct loop_io io;
	struct loop_timer accept_again;
	struct loop_defer end;
	struct list peers;
	size_t n_peers;
};

struct ipc_peer {
	struct list node;
	struct loop *loop;
	struct ipc_server *server;       /* NULL = closed */
	struct loop_io io;
	struct loop_defer end;
	int fd;
	struct fd_peer cred;
	struct ipc_outq out;
	unsigned calls, refs;
	bool told;                       /* in ipc_server_event */
	char fault[SERVER_FAULT_MAX];
};

struct ipc_call {
	struct ipc_peer *peer;
	const struct ipc_op *op;
	uint64_t id;
	char req_id[IPC_REQ_ID_MAX + 1];
	void *req;
	unsigned refs;
	bool answered;
};

/* ---- Peers ---- */

static void peer_free(struct loop_defer *d)
{
	free(d->arg);
}

static void peer_unref(struct ipc_peer *p)
{
	if (--p->refs == 0)
		loop_defer(p->loop, &p->end, peer_free, p);
}

static void peer_close(struct ipc_peer *p)
{
	struct ipc_server *s = p->server;

	if (!s)
		return;
	p->server = NULL;
	loop_del(&p->io);
	fd_close(TAKE_FD(p->fd));
	ipc_outq_done(&p->out);
	list_del(&p->node);
	s->n_peers--;
	if (s->conf.left)
		s->conf.left(p, s->conf.arg);
	peer_unref(p);
}

static void peer_misuse(struct ipc_peer *p, const char *what, const struct err *e)
{
	if (!p->server)
		return;
	str_format(p->fault, sizeof(p->fault), "%s%s%s", what, e ? ": " : "", e ? e->text : "");
	peer_close(p);
}

static void peer_update_events(struct ipc_peer *p)
{
	uint32_t want = (p->calls < SERVER_CALLS_MAX ? EPOLLIN : 0) | (p->out.len ? EPOLLOUT : 0);
	int r;

	if (!p->server)
		return;
	r = loop_mod(&p->io, want);
	if (r < 0)
		peer_close(p);
}

static void peer_send(struct ipc_peer *p, const char *text, const int *fds, size_t n_fds)
{
	int r;

	if (!p->server)
		return;
	r = ipc_outq_send(&p->out, p->fd, text, fds, n_fds);
	if (r == -ENOBUFS)
		peer_misuse(p, "does not read its answers and events", NULL);
	else if (r < 0)
		peer_close(p);
	else
		peer_update_events(p);
}

void ipc_peer_close(struct ipc_peer *p)
{
	peer_close(p);
}

const char *ipc_peer_fault(const struct ipc_peer *p)
{
	return p->fault[0] ? p->fault : NULL;
}

const struct fd_peer *ipc_peer_cred(const struct ipc_peer *p)
{
	return &p->cred;
}

static void peer_event_text(struct ipc_peer *p, const char *text)
{
	/* An event that cannot be said would be lost in silence; who reconnects asks for lists. */
	if (!text)
		peer_misuse(p, "an event could not be encoded", NULL);
	else
		peer_send(p, text, NULL, 0);
}

void ipc_peer_event(struct ipc_peer *p, const char *name, const struct ipc_field *fields,
		    const void *st)
{
	autofree char *text = ipc_event_text(name, fields, st, NULL);

	peer_event_text(p, text);
}

static struct ipc_peer *server_untold(struct ipc_server *s)
{
	LIST_FOR(&s->peers, p, struct ipc_peer, node)
		if (!p->told)
			return p;
	return NULL;
}

void ipc_server_event(struct ipc_server *s, const char *name, const struct ipc_field *fields,
		      const void *st)
{
	autofree char *text = ipc_event_text(name, fields, st, NULL);

	/* From the head each time: a callback of `left` may close other peers. */
	LIST_FOR(&s->peers, p, struct ipc_peer, node)
		p->told = false;
	for (struct ipc_peer *p; (p = server_untold(s));) {
		p->told = true;
		peer_event_text(p, text);
	}
}

/* ---- Calls ---- */

static void call_unref(struct ipc_call *c)
{
	if (--c->refs > 0)
		return;
	if (c->req)
		ipc_done(c->op->req, c->req);
	free(c->req);
	free(c);
}

static void call_finish(struct ipc_call *c, const char *text, const int *fds, size_t n_fds)
{
	struct ipc_peer *p = c->peer;

	if (c->answered)
		return;
	c->answered = true;
	p->calls--;
	if (text)
		peer_send(p, text, fds, n_fds);
	peer_update_events(p);
	peer_unref(p);
	call_unref(c);
}

void ipc_fail(struct ipc_call *call, const struct err *e)
{
	autofree char *text = ipc_fail_text(call->id, e);

	call_finish(call, text, NULL, 0);
}

void ipc_answer(struct ipc_call *call, const void *rep, const int *fds, size_t n_fds)
{
	struct err e = { 0 };
	autofree char *text = NULL;

	if (n_fds > call->op->rep_fds) {
		err_set(&e, -EINVAL, "%s: the answer has too many descriptors", call->op->name);
		ipc_fail(call, &e);
		return;
	}
	text = ipc_answer_text(call->op, call->id, rep, &e);
	if (text) {
		call_finish(call, text, fds, n_fds);
		return;
	}
	ipc_fail(call, &e);
}

const char *ipc_call_req_id(const struct ipc_call *call)
{
	return call->req_id;
}

struct ipc_peer *ipc_call_peer(const struct ipc_call *call)
{
	return call->peer;
}

static const struct ipc_handler *server_handler(const struct ipc_server *s, const char *name)
{
	for (const struct ipc_handler *h = s->conf.handlers; h->op; h++)
		if (str_eq(h->op->name, name))
			return h;
	return NULL;
}

static void peer_dispatch(struct ipc_peer *p, struct ipc_request *m, int *fds, size_t n_fds)
{
	struct ipc_server *s = p->server;
	const struct ipc_handler *h = server_handler(s, m->op);
	struct ipc_call *c;
	struct err e = { 0 };

	if (!h) {
		err_set(&e, -ENOSYS, "\"%s\"", m->op);
		peer_misuse(p, "unknown operation", &e);
		return;
	}
	if (n_fds > h->op->req_fds) {
		peer_misuse(p, "too many descriptors", NULL);
		return;
	}
	c = x_alloc(sizeof(*c));
	c->req = h->op->req_size ? x_alloc(h->op->req_size) : NULL;
	if (ipc_decode(h->op->req, m->a, c->req, h->op->req_size, &e) < 0) {
		free(c->req);
		free(c);
		peer_misuse(p, h->op->name, &e);
		return;
	}
	c->op = h->op;
	c->peer = p;
	c->id = m->id;
	memcpy(c->req_id, m->req, sizeof(c->req_id));
	c->refs = 2;
	p->refs++;
	p->calls++;
	h->fn(c, c->req, fds, n_fds, s->conf.arg);
	call_unref(c);
}

/* One packet. */
static int peer_read_one(struct ipc_peer *p)
{
	static char packet[IPC_MSG_MAX];         /* one loop thread, and nothing of it is kept */
	int fds[FD_PASS_MAX];
	size_t n_fds = FD_PASS_MAX;
	struct ipc_request m;
	struct err e = { 0 };
	ssize_t n = fd_recv(p->fd, packet, sizeof(packet), fds, &n_fds, MSG_DONTWAIT);

	if (n == -EAGAIN)
		return -EAGAIN;
	if (n == -EMSGSIZE) {
		peer_misuse(p, "the packet is too long or has too many descriptors", NULL);
		return -EMSGSIZE;
	}
	if (n <= 0) {
		ipc_close_fds(fds, n < 0 ? 0 : n_fds);
		peer_close(p);
		return -ECONNRESET;
	}
	if (ipc_request_parse(packet, (size_t)n, &m, &e) < 0) {
		peer_misuse(p, "malformed request", &e);
	} else {
		peer_dispatch(p, &m, fds, n_fds);
		ipc_request_done(&m);
	}
	ipc_close_fds(fds, n_fds);
	return 0;
}

static void peer_ready(struct loop_io *io, uint32_t events)
{
	struct ipc_peer *p = io->arg;
	int r = 0;

	p->refs++;
	if (events & EPOLLOUT) {
		r = ipc_outq_flush(&p->out, p->fd);
		if (r < 0 && r != -EAGAIN)
			peer_close(p);
	}
	for (int i = 0; i < SERVER_READ_BATCH && (events & EPOLLIN) && p->server &&
			p->calls < SERVER_CALLS_MAX;
	     i++)
		if (peer_read_one(p) < 0)
			break;
	if ((events & (EPOLLHUP | EPOLLERR)) && !(events & EPOLLIN))
		peer_close(p);
	peer_update_events(p);
	peer_unref(p);
}

/* ---- The listening socket ---- */

static bool server_admits(const struct ipc_server *s, const struct fd_peer *cred)
{
	for (size_t i = 0; i < s->conf.n_uids; i++)
		if (s->uids[i] == cred->uid)
			return true;
	return false;
}

static void server_joined(struct ipc_server *s, int fd)
{
	struct fd_peer cred;
	struct ipc_peer *p;

	if (fd_peer_cred(fd, &cred) < 0 || !server_admits(s, &cred) ||
	    s->n_peers >= s->conf.max_peers) {
		fd_close(fd);
		return;
	}
	p = x_alloc(sizeof(*p));
	p->loop = s->loop;
	p->fd = fd;
	p->cred = cred;
	p->refs = 1;
	ipc_outq_init(&p->out);
	if (loop_add(s->loop, &p->io, fd, EPOLLIN, peer_ready, p) < 0) {
		fd_close(fd);
		free(p);
		return;
	}
	p->server = s;
	list_add_tail(&s->peers, &p->node);
	s->n_peers++;
	if (s->conf.joined)
		s->conf.joined(p, s->conf.arg);
}

static void server_accept_again(struct loop_timer *t)
{
	struct ipc_server *s = t->arg;

	loop_mod(&s->io, EPOLLIN);
}

static void server_ready(struct loop_io *io, uint32_t events)
{
	struct ipc_server *s = io->arg;

	for (int i = 0; i < SERVER_ACCEPT_BATCH; i++) {
		int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) {
			server_joined(s, fd);
			if (!io->loop)
				return;          /* `joined` has freed the server */
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			loop_mod(&s->io, 0);
			loop_timer_set(s->loop, &s->accept_again, SERVER_ACCEPT_PAUSE_MS,
				       server_accept_again, s);
		}
		return;
	}
}

struct ipc_server *ipc_server_new(struct loop *l, int listen_fd, const struct ipc_server_conf *c)
{
	struct ipc_server *s = x_alloc(sizeof(*s));

	s->loop = l;
	s->conf = *c;
	s->uids = x_array(c->n_uids ? c->n_uids : 1, sizeof(uid_t));
	if (c->n_uids)
		memcpy(s->uids, c->uids, c->n_uids * sizeof(uid_t));
	s->fd = listen_fd;
	list_init(&s->peers);
	if (fd_set_nonblock(listen_fd, true) < 0 ||
	    loop_add(l, &s->io, listen_fd, EPOLLIN, server_ready, s) < 0) {
		ipc_server_free(s);
		return NULL;
	}
	return s;
}

static void server_end(struct loop_defer *d)
{
	struct ipc_server *s = d->arg;

	free(s->uids);
	free(s);
}

void ipc_server_free(struct ipc_server *s)
{
	if (!s)
		return;
	LIST_FOR_SAFE(&s->peers, p, struct ipc_peer, node)
		peer_close(p);
	loop_timer_stop(&s->accept_again);
	loop_del(&s->io);
	fd_close(TAKE_FD(s->fd));
	loop_defer(s->loop, &s->end, server_end, s);     /* it may be one of its own callbacks that frees it */
}
