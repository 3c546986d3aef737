#include "spaced-host/bridge.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"

static void channel_on_io(struct loop_io *io, uint32_t events);

void channel_close(struct bridge *b)
{
	loop_timer_stop(&b->attach_timer);
	loop_del(&b->chan_io);
	fd_close(b->chan_fd);
	b->chan_fd = -1;
	mux_free(b->mux);
	b->mux = NULL;
}

static void channel_lost(struct bridge *b, const char *reason)
{
	bool was_ready = b->state == CHAN_READY;
	struct err e = { 0 };

	if (b->state != CHAN_SYNC && b->state != CHAN_READY)
		return;
	b->state = CHAN_LOST;
	lease_end_all(b, false);
	/* The reason may stand in the multiplexer. */
	err_set_code(&e, -EPROTO, "channel-lost", "The guest channel is lost: %s.", reason);
	channel_close(b);
	bridge_attach_done(b, &e);
	bridge_confirm_revokes(b);
	if (was_ready)
		bridge_lost_event(b, e.text);
}

static void channel_on_deadline(struct loop_timer *t)
{
	struct bridge *b = t->arg;

	if (b->state == CHAN_SYNC)
		channel_lost(b, "no answer from the guest in time");
}

static void channel_ready(struct bridge *b)
{
	b->state = CHAN_READY;
	loop_timer_stop(&b->attach_timer);
	bridge_attach_done(b, NULL);
}

static void channel_event(struct bridge *b, const struct mux_event *ev)
{
	struct lease *l = ev->user;

	if (ev->type == MUX_EV_READY) {
		channel_ready(b);
		return;
	}
	if (!l)
		return;
	switch (ev->type) {
	case MUX_EV_DATA:
		lease_from_guest(l, ev->data, ev->len);
		break;
	case MUX_EV_END:
		lease_guest_end(l);
		break;
	case MUX_EV_RST:
		lease_end(l, false);
		break;
	case MUX_EV_CREDIT:
		if (!list_empty(&l->wait))
			lease_pump(l);
		break;
	default:
		break;
	}
}

/* One round: everybody who waits gets one try. true = something was queued. */
static bool channel_serve_waiting(struct bridge *b)
{
	size_t before = buf_len(mux_out(b->mux));
	struct list round;

	if (list_empty(&b->waiting))
		return false;
	/* The list is moved aside, since those who cannot send queue up again. */
	round = b->waiting;
	round.next->prev = &round;
	round.prev->next = &round;
	list_init(&b->waiting);
	while (!list_empty(&round)) {
		struct lease *l = CONTAINER_OF(round.next, struct lease, wait);

		list_del(&l->wait);
		lease_pump(l);
	}
	return buf_len(mux_out(b->mux)) > before;
}

void channel_flush(struct bridge *b)
{
	if (b->state != CHAN_SYNC && b->state != CHAN_READY)
		return;
	for (;;) {
		struct buf *out = mux_out(b->mux);
		ssize_t n;

		if (buf_len(out) == 0 && !channel_serve_waiting(b))
			break;
		n = buf_write_fd(mux_out(b->mux), b->chan_fd);
		if (n == -EAGAIN || n == -EINTR)
			break;
		if (n < 0) {
			channel_lost(b, "it cannot be written");
			return;
		}
		b->written += (uint64_t)n;
	}
	loop_mod(&b->chan_io, EPOLLIN | (buf_len(mux_out(b->mux)) > 0 ? EPOLLOUT : 0));
	bridge_confirm_revokes(b);
}

/* false: the channel is lost. */
static bool channel_events(struct bridge *b)
{
	struct mux_event ev;

	while (mux_next(b->mux, &ev)) {
		channel_event(b, &ev);
		if (!b->mux)
			return false;
	}
	if (!mux_error(b->mux))
		return true;
	channel_lost(b, mux_error(b->mux));
	return false;
}

/* One read a turn, so that a guest that never stops does not keep the clients waiting. */
static bool channel_read(struct bridge *b)
{
	size_t room;
	void *p = mux_in_reserve(b->mux, &room);
	ssize_t n;

	if (!p) {
		channel_lost(b, "the guest has filled the multiplexer");
		return false;
	}
	n = read(b->chan_fd, p, room);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0) {
		channel_lost(b, n == 0 ? "the VMM has closed it" : strerror(errno));
		return false;
	}
	if (mux_in_commit(b->mux, (size_t)n) < 0) {
		channel_lost(b, mux_error(b->mux));
		return false;
	}
	return channel_events(b);
}

static void channel_on_io(struct loop_io *io, uint32_t events)
{
	struct bridge *b = io->arg;

	if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && !channel_read(b))
		return;
	channel_flush(b);
}

int channel_attach(struct bridge *b, int fd, const struct mux_epoch *epoch, struct err *e)
{
	int r;

	fd_set_nonblock(fd, true);
	b->chan_fd = fd;
	b->mux = mux_new(MUX_HOST);
	b->epoch = *epoch;
	b->pinned = true;
	b->written = 0;
	r = mux_start(b->mux, epoch);
	if (r == 0)
		r = loop_add(b->loop, &b->chan_io, fd, EPOLLIN, channel_on_io, b);
	if (r < 0) {
		channel_close(b);
		return err_errno(e, r, "The guest channel could not be set up");
	}
	b->state = CHAN_SYNC;
	loop_timer_set(b->loop, &b->attach_timer, BRIDGE_ATTACH_MS, channel_on_deadline, b);
	return 0;
}
