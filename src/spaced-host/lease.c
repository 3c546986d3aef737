#include "spaced-host/bridge.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"

static void lease_on_io(struct loop_io *io, uint32_t events);

/* What epoll is asked for follows from the state, here alone. */
static void lease_mask(struct lease *l)
{
	uint32_t events = 0;

	if (l->off)
		return;
	if (l->state == LEASE_PREAMBLE ||
	    (l->state == LEASE_OPEN && !l->peer_ended && list_empty(&l->wait)))
		events |= EPOLLIN;
	if (buf_len(&l->to_peer) > 0)
		events |= EPOLLOUT;
	loop_mod(&l->io, events);
}

void lease_end(struct lease *l, bool reset_guest)
{
	struct bridge *b = l->b;

	if (l->state == LEASE_OPEN && reset_guest && b->mux)
		mux_rst(b->mux, l->stream);
	else if (l->state == LEASE_OPEN && b->mux)
		mux_set_user(b->mux, l->stream, NULL);
	b->buffered -= buf_len(&l->to_peer);
	buf_done(&l->to_peer);
	loop_timer_stop(&l->timer);
	loop_del(&l->io);
	list_del(&l->node);
	list_del(&l->wait);
	b->n_leases--;
	shutdown(l->fd, SHUT_RDWR);
	fd_close(l->fd);
	free(l);
}

static void lease_on_timer(struct loop_timer *t)
{
	lease_end(t->arg, false);
}

static void lease_new(struct bridge *b, int fd)
{
	struct fd_peer peer;
	struct lease *l;

	if (fd_peer_cred(fd, &peer) < 0 || peer.uid != b->conf.peer_uid ||
	    b->n_leases >= BRIDGE_LEASES_MAX) {
		fd_close(fd);
		return;
	}
	l = x_alloc(sizeof(*l));
	l->b = b;
	l->fd = fd;
	list_init(&l->wait);
	buf_init(&l->to_peer, MUX_CREDIT_INITIAL);
	list_add_tail(&b->leases, &l->node);
	b->n_leases++;
	if (loop_add(b->loop, &l->io, fd, EPOLLIN, lease_on_io, l) < 0) {
		lease_end(l, false);
		return;
	}
	loop_timer_set(b->loop, &l->timer, BRIDGE_PREAMBLE_MS, lease_on_timer, l);
}

static void lease_accept_again(struct loop_timer *t)
{
	struct bridge *b = t->arg;

	loop_mod(&b->listen_io, EPOLLIN);
}

void lease_on_listen(struct loop_io *io, uint32_t events)
{
	struct bridge *b = io->arg;
	int fd;

	while ((fd = accept4(b->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
		lease_new(b, fd);
	if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
		/* Who waits stays in the queue; asking again at once would only turn in circles. */
		loop_mod(&b->listen_io, 0);
		loop_timer_set(b->loop, &b->accept_timer, BRIDGE_ACCEPT_PAUSE_MS,
			       lease_accept_again, b);
	}
}

static struct lease *lease_find(struct bridge *b, uint64_t id)
{
	LIST_FOR(&b->leases, l, struct lease, node) {
		if (l->state != LEASE_PREAMBLE && l->pre.p.lease == id)
			return l;
	}
	return NULL;
}

/* Only an exact epoch opens a stream; whatever else came is closed without a byte. */
static bool lease_preamble_ok(struct bridge *b, const struct bridge_preamble *p)
{
	if (p->magic != BRIDGE_PREAMBLE_MAGIC || p->kind > 1 || p->lease == 0)
		return false;
	if (b->state != CHAN_READY || p->generation != b->epoch.generation ||
	    memcmp(p->activation, b->epoch.activation, sizeof(p->activation)) != 0)
		return false;
	if (b->closed_for_data && p->kind == 0)
		return false;
	return lease_find(b, p->lease) == NULL;
}

static void lease_wait(struct lease *l)
{
	if (list_empty(&l->wait))
		list_add_tail(&l->b->waiting, &l->wait);
	lease_mask(l);
}

/* Opens the stream, or waits for room in the channel's queue. false: l is gone. */
static bool lease_open(struct lease *l)
{
	struct bridge *b = l->b;
	int r = mux_open(b->mux, l->pre.p.kind == 1, &l->stream);

	l->state = r == 0 ? LEASE_OPEN : LEASE_OPENING;
	if (r == 0) {
		mux_set_user(b->mux, l->stream, l);
		lease_mask(l);
		return true;
	}
	if (r == -EAGAIN) {
		lease_wait(l);
		return true;
	}
	lease_end(l, false);
	return false;
}

/* false: l is gone. */
static bool lease_read_preamble(struct lease *l)
{
	struct bridge *b = l->b;
	ssize_t n;

	n = recv(l->fd, l->pre.bytes + l->n_pre, sizeof(l->pre) - l->n_pre, 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0) {
		lease_end(l, false);
		return false;
	}
	l->n_pre += (size_t)n;
	if (l->n_pre < sizeof(l->pre))
		return true;
	loop_timer_stop(&l->timer);
	if (!lease_preamble_ok(b, &l->pre.p)) {
		lease_end(l, false);
		return false;
	}
	return lease_open(l);
}

/* Takes in the connections and preambles that are there already. */
void lease_accept_all(struct bridge *b)
{
	if (b->listen_io.loop)
		lease_on_listen(&b->listen_io, EPOLLIN);
	LIST_FOR_SAFE(&b->leases, l, struct lease, node) {
		if (l->state == LEASE_PREAMBLE)
			lease_read_preamble(l);
	}
}

/* Both directions over: forget it. true = l is gone. */
static bool lease_maybe_done(struct lease *l)
{
	if (l->guest_ended && !l->write_shut && buf_len(&l->to_peer) == 0) {
		l->write_shut = true;
		shutdown(l->fd, SHUT_WR);
	}
	if (l->write_shut && l->peer_ended) {
		lease_end(l, false);
		return true;
	}
	return false;
}

/* Keeps its place in the queue until it could send: those behind it get their turn. */
void lease_pump(struct lease *l)
{
	struct bridge *b = l->b;
	size_t room;
	ssize_t n;

	if (l->state == LEASE_OPENING) {
		list_del(&l->wait);
		lease_open(l);
		return;
	}
	if (l->peer_ended)
		return;
	room = mux_can_send(b->mux, l->stream);
	if (room == 0) {
		lease_wait(l);
		return;
	}
	list_del(&l->wait);
	room = room < MUX_PAYLOAD_MAX ? room : MUX_PAYLOAD_MAX;
	n = recv(l->fd, mux_send_start(b->mux, l->stream, room), room, 0);
	mux_send_finish(b->mux, n > 0 ? (size_t)n : 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
		lease_mask(l);
		return;
	}
	if (n < 0) {
		lease_end(l, true);
		return;
	}
	if (n == 0) {
		l->peer_ended = true;
		mux_end(b->mux, l->stream);
		if (!lease_maybe_done(l))
			lease_mask(l);
		return;
	}
	l->in += (uint64_t)n;
	/* Out of epoll, nobody else would come back for the rest. */
	if (l->off)
		lease_wait(l);
	else
		lease_mask(l);
}

/* false: l is gone. */
static bool lease_write(struct lease *l)
{
	struct bridge *b = l->b;

	while (buf_len(&l->to_peer) > 0) {
		ssize_t n = send(l->fd, buf_data(&l->to_peer), buf_len(&l->to_peer), MSG_NOSIGNAL);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			break;
		if (n < 0) {
			lease_end(l, true);
			return false;
		}
		buf_consume(&l->to_peer, (size_t)n);
		b->buffered -= (size_t)n;
		l->out += (uint64_t)n;
		mux_taken(b->mux, l->stream, (size_t)n);
	}
	if (buf_len(&l->to_peer) == 0)
		buf_shrink(&l->to_peer);
	if (lease_maybe_done(l))
		return false;
	lease_mask(l);
	return true;
}

void lease_from_guest(struct lease *l, const uint8_t *p, size_t n)
{
	struct bridge *b = l->b;
	ssize_t done = 0;

	if (buf_len(&l->to_peer) == 0) {
		done = send(l->fd, p, n, MSG_NOSIGNAL);
		if (done < 0 && errno != EAGAIN && errno != EINTR) {
			lease_end(l, true);
			return;
		}
		done = done < 0 ? 0 : done;
	}
	if ((size_t)done < n) {
		size_t rest = n - (size_t)done;

		if (b->buffered + rest > BRIDGE_BUFFERED_MAX ||
		    buf_put(&l->to_peer, p + done, rest) < 0) {
			lease_end(l, true);
			return;
		}
		b->buffered += rest;
		lease_mask(l);
	}
	l->out += (uint64_t)done;
	/* Last, since p points into the multiplexer. */
	if (done > 0)
		mux_taken(b->mux, l->stream, (size_t)done);
}

void lease_guest_end(struct lease *l)
{
	l->guest_ended = true;
	lease_maybe_done(l);
}

/*
 * EPOLLHUP stays on and cannot be masked. Either the client has closed for good: nobody is left to
 * read. Or both sides have shut their writing halves: what the client sent before is still read as
 * the guest takes it, without epoll.
 */
static void lease_on_hup(struct lease *l)
{
	if (!l->write_shut) {
		lease_end(l, true);
		return;
	}
	l->off = true;
	loop_del(&l->io);
	lease_pump(l);
}

static void lease_on_io(struct loop_io *io, uint32_t events)
{
	struct lease *l = io->arg;
	struct bridge *b = l->b;

	if (l->state == LEASE_PREAMBLE) {
		lease_read_preamble(l);
	} else if (events & (EPOLLERR | EPOLLHUP)) {
		lease_on_hup(l);
	} else if (l->state == LEASE_OPENING) {
		lease_mask(l);
	} else {
		bool alive = !(events & EPOLLOUT) || lease_write(l);

		if (alive && (events & EPOLLIN))
			lease_pump(l);
	}
	channel_flush(b);
}

uint64_t lease_revoke(struct bridge *b, uint64_t id)
{
	uint64_t n = 0;

	lease_accept_all(b);
	LIST_FOR_SAFE(&b->leases, l, struct lease, node) {
		if (id != 0 && (l->state == LEASE_PREAMBLE || l->pre.p.lease != id))
			continue;
		n += l->state != LEASE_PREAMBLE;
		lease_end(l, true);
	}
	return n;
}

void lease_end_all(struct bridge *b, bool reset_guest)
{
	LIST_FOR_SAFE(&b->leases, l, struct lease, node)
		lease_end(l, reset_guest);
}
