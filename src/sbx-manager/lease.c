/*
 * Leases: each is one stream between node-api and a bridge or a gateway, held at both ends.
 * node-api reports the end of each; a duplicate is kept here, so that the stream can be cut
 * whatever node-api does; a node-api connection that breaks ends all its leases. After EPOLLHUP of
 * the duplicate (the other side has closed) the lease stays until node-api has reported its end,
 * since bytes may still wait in the socket.
 */
#include "sbx-manager/sbx.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/log.h"

/* Numbers begin at random, so that those of before a restart are not given out again. */
int lease_init(struct sbx *s)
{
	list_init(&s->doors);
	for (unsigned i = 0; i < SBX_LEASE_BUCKETS; i++)
		list_init(&s->lease_buckets[i]);
	if (getrandom(&s->next_lease, sizeof(s->next_lease), 0) != sizeof(s->next_lease))
		return -EIO;
	s->next_lease &= (UINT64_C(1) << 52) - 1;
	return 0;
}

uint64_t lease_next_id(struct sbx *s)
{
	return ++s->next_lease;
}

static struct door *lease_door(struct sbx *s, const struct ipc_peer *p)
{
	LIST_FOR(&s->doors, d, struct door, node) {
		if (d->peer == p)
			return d;
	}
	return NULL;
}

static void lease_forget(struct lease *l)
{
	struct sbx *s = l->box->s;

	loop_del(&l->io);
	list_del(&l->in_box);
	list_del(&l->in_door);
	list_del(&l->in_bucket);
	l->box->n_leases--;
	l->box->n_ports -= l->port;
	s->n_leases--;
	fd_close(l->fd);
	free(l);
}

static void lease_on_hup(struct loop_io *io, uint32_t events)
{
	struct lease *l = io->arg;

	l->hup = true;
	loop_del(&l->io);
}

int lease_add(struct box *b, struct ipc_peer *p, uint64_t id, bool port, int fd, struct err *e)
{
	struct sbx *s = b->s;
	struct door *d = lease_door(s, p);
	struct lease *l;

	if (!d) {
		fd_close(fd);
		return err_set(e, -ECONNRESET, "The caller has gone.");
	}
	l = x_alloc(sizeof(*l));
	l->id = id;
	l->box = b;
	l->door = d;
	l->fd = fd;
	l->port = port;
	list_add_tail(&b->leases, &l->in_box);
	list_add_tail(&d->leases, &l->in_door);
	list_add_tail(&s->lease_buckets[id % SBX_LEASE_BUCKETS], &l->in_bucket);
	b->n_leases++;
	b->n_ports += port;
	s->n_leases++;
	/* EPOLLHUP and EPOLLERR come without being asked for. */
	if (loop_add(s->loop, &l->io, fd, 0, lease_on_hup, l) < 0) {
		lease_forget(l);
		return err_set(e, -ENOMEM, "The stream cannot be watched.");
	}
	return 0;
}

void lease_door_joined(struct ipc_peer *p, void *arg)
{
	struct sbx *s = arg;
	struct door *d = x_alloc(sizeof(*d));

	d->peer = p;
	list_init(&d->leases);
	list_add_tail(&s->doors, &d->node);
}

void lease_door_left(struct ipc_peer *p, void *arg)
{
	struct sbx *s = arg;
	struct door *d = lease_door(s, p);
	size_t n = 0;

	if (ipc_peer_fault(p))
		log_warn("a peer was closed", F_INT("pid", ipc_peer_cred(p)->pid),
			 F_STR("why", ipc_peer_fault(p)));
	if (!d)
		return;
	LIST_FOR_SAFE(&d->leases, l, struct lease, in_door) {
		shutdown(l->fd, SHUT_RDWR);
		lease_forget(l);
		n++;
	}
	if (n > 0)
		log_warn("leases ended with the connection that held them", F_UINT("leases", n));
	list_del(&d->node);
	free(d);
}

/*
 * Only the connection that got a lease can end it. An unknown one has ended already (it was
 * revoked).
 */
void lease_end_handle(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	const struct sbx_lease *a = req;
	struct sbx *s = arg;
	struct ipc_peer *p = ipc_call_peer(call);

	LIST_FOR_SAFE(&s->lease_buckets[a->lease % SBX_LEASE_BUCKETS], l, struct lease, in_bucket) {
		if (l->id != a->lease || l->door->peer != p)
			continue;
		shutdown(l->fd, SHUT_RDWR);
		lease_forget(l);
		break;
	}
	ipc_answer(call, NULL, NULL, 0);
}

/*
 * What waits in the socket for the reader, who is node-api, is thrown away: shutdown(2) leaves it
 * there (seen).
 */
static void lease_drain(int fd)
{
	static char scratch[16384];

	while (recv(fd, scratch, sizeof(scratch), MSG_DONTWAIT) > 0)
		;
}

static void lease_cut(struct lease *l)
{
	struct sbx_lease ev = { .lease = l->id };
	struct ipc_peer *p = l->door->peer;

	shutdown(l->fd, SHUT_RDWR);
	lease_drain(l->fd);
	lease_forget(l);
	ipc_peer_event(p, "revoked", sbx_revoked_fields, &ev);
}

static struct lease *lease_first(struct box *b, bool port)
{
	LIST_FOR(&b->leases, l, struct lease, in_box) {
		if (!port || l->port)
			return l;
	}
	return NULL;
}

/*
 * From the head each time: telling a peer may close it, and that ends all its leases.
 */
void lease_cut_all(struct box *b)
{
	struct lease *l;

	while ((l = lease_first(b, false)))
		lease_cut(l);
}

void lease_cut_ports(struct box *b)
{
	struct lease *l;

	while (b->n_ports > 0 && (l = lease_first(b, true)))
		lease_cut(l);
}

void lease_drop(struct box *b, uint64_t id)
{
	LIST_FOR_SAFE(&b->leases, l, struct lease, in_box) {
		if (l->id == id)
			lease_forget(l);
	}
}
