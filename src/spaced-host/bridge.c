#include "spaced-host/bridge.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"

#define BRIDGE_BACKLOG 512

struct revoke {
	struct list node;
	struct ipc_call *call;
	uint64_t at;                 /* confirmed when so many bytes have gone into the channel */
	struct ipc_revoke_rep rep;
};

static void bridge_op_attach(struct ipc_call *call, const void *req, int *fds, size_t n_fds,
			     void *arg)
{
	const struct bridge_attach *a = req;
	struct bridge *b = arg;
	struct mux_epoch epoch = { .generation = a->generation };
	struct err e = { 0 };

	if (n_fds != 1)
		err_set(&e, -EINVAL, "The guest channel's descriptor is missing.");
	else if (b->state == CHAN_SYNC || b->state == CHAN_READY)
		err_set(&e, -EBUSY, "A guest channel is attached already.");
	else if (str_unhex(epoch.activation, sizeof(epoch.activation), a->activation) < 0 ||
		 a->generation != b->conf.generation ||
		 (b->pinned && memcmp(&epoch, &b->epoch, sizeof(epoch)) != 0))
		err_set_code(&e, -EACCES, "wrong-epoch",
			     "This bridge belongs to another execution.");
	if (e.num == 0 && channel_attach(b, TAKE_FD(fds[0]), &epoch, &e) == 0) {
		b->attach_call = call;
		channel_flush(b);
		return;
	}
	ipc_fail(call, &e);
}

void bridge_attach_done(struct bridge *b, const struct err *e)
{
	struct ipc_call *call = TAKE(b->attach_call);

	if (call && e)
		ipc_fail(call, e);
	else if (call)
		ipc_answer(call, NULL, NULL, 0);
}

static void bridge_op_revoke(struct ipc_call *call, const void *req, int *fds, size_t n_fds,
			     void *arg)
{
	const struct ipc_revoke *r = req;
	struct bridge *b = arg;
	struct revoke *v;
	struct err e = { 0 };

	if (b->n_revokes >= BRIDGE_REVOKES_MAX) {
		err_set(&e, -EAGAIN, "Too many revocations wait for their confirmation.");
		ipc_fail(call, &e);
		return;
	}
	v = x_alloc(sizeof(*v));
	v->call = call;
	v->rep.ended = lease_revoke(b, r->lease);
	if (r->lease == 0)
		b->closed_for_data = true;
	/* All that is queued now, the resets included, must have left. */
	v->at = b->mux ? b->written + buf_len(mux_out(b->mux)) : 0;
	list_add_tail(&b->revokes, &v->node);
	b->n_revokes++;
	channel_flush(b);
	bridge_confirm_revokes(b);
}

void bridge_confirm_revokes(struct bridge *b)
{
	LIST_FOR_SAFE(&b->revokes, v, struct revoke, node) {
		if (b->mux && b->written < v->at)
			continue;
		list_del(&v->node);
		b->n_revokes--;
		ipc_answer(v->call, &v->rep, NULL, 0);
		free(v);
	}
}

static void bridge_op_leases(struct ipc_call *call, const void *req, int *fds, size_t n_fds,
			     void *arg)
{
	const struct bridge_leases *q = req;
	struct bridge *b = arg;
	struct bridge_leases_rep rep = { .leases = json_array(),
					 .attached = b->state == CHAN_READY,
					 .closed = b->closed_for_data,
					 .generation = b->conf.generation };
	uint64_t after = q->after;

	lease_accept_all(b);
	/* By number; there are few, and this is asked after a restart only. */
	for (unsigned n = 0; n < BRIDGE_LIST_PAGE; n++) {
		const struct lease *best = NULL;

		LIST_FOR(&b->leases, l, struct lease, node) {
			if (l->state != LEASE_PREAMBLE && l->pre.p.lease > after &&
			    (!best || l->pre.p.lease < best->pre.p.lease))
				best = l;
		}
		if (!best) {
			after = 0;
			break;
		}
		after = best->pre.p.lease;
		json_array_append_new(rep.leases,
				      json_pack("{s:I, s:I, s:I}", "lease", (json_int_t)after, "in",
						(json_int_t)best->in, "out",
						(json_int_t)best->out));
	}
	rep.next = after;
	ipc_answer(call, &rep, NULL, 0);
	json_decref(rep.leases);
}

static const struct ipc_handler bridge_handlers[] = {
	{ &bridge_ops[BRIDGE_ATTACH], bridge_op_attach },
	{ &bridge_ops[BRIDGE_REVOKE], bridge_op_revoke },
	{ &bridge_ops[BRIDGE_LEASES], bridge_op_leases },
	{ NULL, NULL },
};

void bridge_lost_event(struct bridge *b, const char *reason)
{
	struct bridge_lost ev = { 0 };

	str_copy(ev.reason, sizeof(ev.reason), reason);
	ipc_server_event(b->control, "channel-lost", bridge_lost_fields, &ev);
}

int bridge_new(struct loop *l, int stream_fd, int control_fd, const struct bridge_conf *c,
	       struct bridge **ret, struct err *e)
{
	struct bridge *b;

	if (listen(stream_fd, BRIDGE_BACKLOG) < 0 || listen(control_fd, BRIDGE_BACKLOG) < 0)
		return err_errno(e, -errno, "The sockets that were handed in cannot listen");
	b = x_alloc(sizeof(*b));
	b->loop = l;
	b->conf = *c;
	b->chan_fd = -1;
	list_init(&b->revokes);
	list_init(&b->waiting);
	list_init(&b->leases);
	fd_set_nonblock(stream_fd, true);
	fd_set_nonblock(control_fd, true);
	fd_set_cloexec(stream_fd, true);
	fd_set_cloexec(control_fd, true);
	b->listen_fd = stream_fd;
	b->control = ipc_server_new(l, control_fd, &(struct ipc_server_conf){
		.handlers = bridge_handlers, .uids = &b->conf.peer_uid, .n_uids = 1,
		.max_peers = BRIDGE_CONTROL_PEERS_MAX, .arg = b });
	if (!b->control || loop_add(l, &b->listen_io, stream_fd, EPOLLIN, lease_on_listen, b) < 0) {
		bridge_free(b);
		return err_set(e, -ENOMEM, "The loop does not take the sockets.");
	}
	*ret = b;
	return 0;
}

void bridge_free(struct bridge *b)
{
	if (!b)
		return;
	lease_end_all(b, false);
	channel_close(b);
	LIST_FOR_SAFE(&b->revokes, v, struct revoke, node)
		free(v);
	ipc_server_free(b->control);
	loop_timer_stop(&b->accept_timer);
	loop_del(&b->listen_io);
	fd_close(b->listen_fd);
	free(b);
}
