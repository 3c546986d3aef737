/*
 * The inside process: the sockets of the sandbox's own network namespace, where every packet goes
 * to the guest. It dials the guest's ports for main, and carries DNS datagrams between the guest
 * and main: it copies them and never looks into them.
 *
 * A dial tries the guest's IPv4 address, then its IPv6 address, then the door: the guest's agent,
 * which connects to the port on the guest's loopback (GTW_DOOR_PORT: first line "port N", one byte
 * as answer, 0 = open). The first that says yes is handed over. "Refused" is the answer when all of
 * them refuse; silence of one is the end of the dial, so that main can say so in time.
 *
 * Datagrams that main or the guest does not take at once are dropped: that is what UDP does.
 */
#include "netgtw/inside.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/list.h"
#include "base/str.h"
#include "ipc/gtw_ops.h"
#include "netgtw/proto.h"

#define INSIDE_DIALS_MAX 1024
#define INSIDE_DIAL_MS (GTW_DIAL_IN_MS - 500)    /* main still has the time to say it */
#define INSIDE_BATCH 32

struct inside {
	struct loop *loop;
	struct loop_io main_io, udp_io[2];
	struct list dials;
	size_t n_dials;
	int error;
};

enum dial_step { DIAL_V4, DIAL_V6, DIAL_DOOR, DIAL_DOOR_ANSWER, DIAL_END };

struct dial {
	struct list node;
	struct inside *in;
	struct loop_io io;
	struct loop_timer timer;
	enum dial_step step;
	int fd;
	uint32_t id;
	uint16_t port;
};

static void dial_next(struct dial *d);

static void inside_end(struct inside *in, int error)
{
	in->error = error;
	loop_stop(in->loop);
}

/* An answer about a dial must arrive: main always reads, so waiting for room is no deadlock. */
static void inside_tell(struct inside *in, const struct in_msg *m, int fd)
{
	struct pollfd p = { .fd = GTW_INSIDE_MAIN, .events = POLLOUT };
	ssize_t n = fd_send(GTW_INSIDE_MAIN, m, sizeof(*m), &fd, fd >= 0 ? 1 : 0, MSG_DONTWAIT);

	while (n == -EAGAIN) {
		poll(&p, 1, -1);
		n = fd_send(GTW_INSIDE_MAIN, m, sizeof(*m), &fd, fd >= 0 ? 1 : 0, MSG_DONTWAIT);
	}
	if (n < 0)
		inside_end(in, (int)n);
}

static void dial_free(struct dial *d)
{
	loop_timer_stop(&d->timer);
	loop_del(&d->io);
	list_del(&d->node);
	d->in->n_dials--;
	fd_close(d->fd);
	free(d);
}

static void dial_answer(struct dial *d, int error)
{
	struct in_msg m = { .magic = PROTO_MAGIC, .kind = IN_DIAL, .id = d->id, .error = error,
			    .port = d->port, .door = d->step >= DIAL_DOOR };

	loop_del(&d->io);
	inside_tell(d->in, &m, error == 0 ? d->fd : -1);
	dial_free(d);
}

static void dial_on_timer(struct loop_timer *t)
{
	dial_answer(t->arg, -ETIMEDOUT);
}

/* The door's socket is open: says which port, and waits for one byte. */
static void dial_ask_door(struct dial *d)
{
	char line[16];

	str_format(line, sizeof(line), "port %u\n", d->port);
	if (send(d->fd, line, strlen(line), MSG_NOSIGNAL) != (ssize_t)strlen(line)) {
		dial_next(d);
		return;
	}
	d->step = DIAL_DOOR_ANSWER;
	loop_mod(&d->io, EPOLLIN);
}

static void dial_door_says(struct dial *d)
{
	char answer = 1;
	ssize_t n = recv(d->fd, &answer, 1, 0);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	dial_answer(d, n == 1 && answer == 0 ? 0 : -ECONNREFUSED);
}

static void dial_on_io(struct loop_io *io, uint32_t events)
{
	struct dial *d = io->arg;
	int error = 0;
	socklen_t n = sizeof(error);

	if (d->step == DIAL_DOOR_ANSWER) {
		dial_door_says(d);
		return;
	}
	if (getsockopt(d->fd, SOL_SOCKET, SO_ERROR, &error, &n) < 0 || error != 0)
		dial_next(d);
	else if (d->step == DIAL_DOOR)
		dial_ask_door(d);
	else
		dial_answer(d, 0);
}

static int dial_start(struct dial *d)
{
	struct sockaddr_storage ss;
	struct addr a;
	int one = 1, r;
	socklen_t n;

	addr_parse(d->step == DIAL_V6 ? GTW_GUEST_V6 : GTW_GUEST_V4, &a);
	a.port = d->step == DIAL_DOOR ? GTW_DOOR_PORT : d->port;
	n = addr_to_sockaddr(&a, &ss);
	d->fd = socket(ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (d->fd < 0)
		return -errno;
	setsockopt(d->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(d->fd, SOL_SOCKET, SO_OOBINLINE, &one, sizeof(one));
	if (connect(d->fd, (struct sockaddr *)&ss, n) < 0 && errno != EINPROGRESS)
		return -errno;
	r = loop_add(d->in->loop, &d->io, d->fd, EPOLLOUT, dial_on_io, d);
	return r;
}

/* Of ours, and nothing that the guest has said. */
static bool dial_no_room(int r)
{
	return r == -EMFILE || r == -ENFILE || r == -ENOBUFS || r == -ENOMEM;
}

/* The next way that can be started, or "refused". */
static void dial_next(struct dial *d)
{
	int r;

	do {
		loop_del(&d->io);
		fd_close(TAKE_FD(d->fd));
		d->step++;
		r = d->step < DIAL_DOOR_ANSWER ? dial_start(d) : -ECONNREFUSED;
	} while (r < 0 && d->step < DIAL_DOOR_ANSWER && !dial_no_room(r));
	if (r < 0)
		dial_answer(d, dial_no_room(r) ? -EAGAIN : -ECONNREFUSED);
}

static void dial_new(struct inside *in, const struct in_msg *m)
{
	struct dial *d;

	if (in->n_dials >= INSIDE_DIALS_MAX) {
		struct in_msg no = { .magic = PROTO_MAGIC, .kind = IN_DIAL, .id = m->id,
				     .error = -EAGAIN, .port = m->port };

		inside_tell(in, &no, -1);
		return;
	}
	d = x_alloc(sizeof(*d));
	d->in = in;
	d->id = m->id;
	d->port = m->port;
	d->step = DIAL_V4;
	list_add_tail(&in->dials, &d->node);
	in->n_dials++;
	loop_timer_set(in->loop, &d->timer, INSIDE_DIAL_MS, dial_on_timer, d);
	if (dial_start(d) < 0)
		dial_next(d);
}

/* ---- Datagrams ---- */

union inside_packet { struct in_msg m; uint8_t bytes[sizeof(struct in_msg) + PROTO_DATAGRAM_MAX]; };
union inside_control { char bytes[256]; struct cmsghdr align; };

/* The address that was asked, as the kernel tells it. */
static bool datagram_asked(struct msghdr *h, struct addr *ret)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
		if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
			const struct in_pktinfo *i = (const void *)CMSG_DATA(c);

			*ret = (struct addr){ .family = 4 };
			memcpy(ret->ip, &i->ipi_addr, 4);
			return true;
		}
		if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
			const struct in6_pktinfo *i = (const void *)CMSG_DATA(c);

			*ret = (struct addr){ .family = 6 };
			memcpy(ret->ip, &i->ipi6_addr, 16);
			return true;
		}
	}
	return false;
}

/* Returns false when there is nothing more now. */
static bool datagram_in(struct inside *in, int fd)
{
	union inside_packet p = { .m = { .magic = PROTO_MAGIC, .kind = IN_DATAGRAM } };
	union inside_control control;
	struct sockaddr_storage from;
	struct iovec iov = { .iov_base = p.bytes + sizeof(p.m), .iov_len = PROTO_DATAGRAM_MAX };
	struct msghdr h = { .msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = &iov,
			    .msg_iovlen = 1, .msg_control = control.bytes,
			    .msg_controllen = sizeof(control.bytes) };
	ssize_t n = recvmsg(fd, &h, MSG_DONTWAIT);

	if (n < 0)
		return errno == EINTR;
	if ((h.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || addr_of_sockaddr(&from, &p.m.guest) < 0 ||
	    !datagram_asked(&h, &p.m.asked))
		return true;
	p.m.asked.port = GTW_DNS_PORT;
	p.m.size = (uint32_t)n;
	n = send(GTW_INSIDE_MAIN, &p, sizeof(p.m) + p.m.size, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0 && errno != EAGAIN && errno != EINTR)
		inside_end(in, -errno);
	return n >= 0;
}

static void datagram_on_io(struct loop_io *io, uint32_t events)
{
	for (int i = 0; i < INSIDE_BATCH && datagram_in(io->arg, io->fd); i++)
		;
}

/* Answers come from the address that was asked; the port is that of the socket. */
static void datagram_out(const struct in_msg *m, const uint8_t *p)
{
	union inside_control control = { 0 };
	struct sockaddr_storage to;
	struct iovec iov = { .iov_base = (void *)p, .iov_len = m->size };
	struct msghdr h = { .msg_name = &to, .msg_namelen = addr_to_sockaddr(&m->guest, &to),
			    .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes };
	bool v4 = m->asked.family == 4;
	struct cmsghdr *c;

	h.msg_controllen = v4 ? CMSG_SPACE(sizeof(struct in_pktinfo))
			      : CMSG_SPACE(sizeof(struct in6_pktinfo));
	c = CMSG_FIRSTHDR(&h);
	c->cmsg_level = v4 ? IPPROTO_IP : IPPROTO_IPV6;
	c->cmsg_type = v4 ? IP_PKTINFO : IPV6_PKTINFO;
	c->cmsg_len =
		v4 ? CMSG_LEN(sizeof(struct in_pktinfo)) : CMSG_LEN(sizeof(struct in6_pktinfo));
	if (v4)
		memcpy(&((struct in_pktinfo *)(void *)CMSG_DATA(c))->ipi_spec_dst, m->asked.ip, 4);
	else
		memcpy(&((struct in6_pktinfo *)(void *)CMSG_DATA(c))->ipi6_addr, m->asked.ip, 16);
	sendmsg(v4 ? GTW_INSIDE_UDP4 : GTW_INSIDE_UDP6, &h, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* ---- main ---- */

/* Returns false when there is nothing more now, or main is gone. */
static bool inside_serve(struct inside *in)
{
	union inside_packet p;
	size_t no_fds = 0;
	ssize_t n = fd_recv(GTW_INSIDE_MAIN, &p, sizeof(p), NULL, &no_fds, MSG_DONTWAIT);

	if (n == -EAGAIN || n == -EINTR)
		return false;
	if (n < 0 || !proto_in_ok(&p.m, (size_t)n)) {
		inside_end(in, n == 0 || n == -ECONNRESET ? 0 : -EBADMSG);
		return false;
	}
	if (p.m.kind == IN_DIAL)
		dial_new(in, &p.m);
	else if (p.m.guest.family == p.m.asked.family)
		datagram_out(&p.m, p.bytes + sizeof(p.m));
	return true;
}

static void inside_on_main(struct loop_io *io, uint32_t events)
{
	for (int i = 0; i < INSIDE_BATCH && inside_serve(io->arg); i++)
		;
}

int inside_run(struct loop *l, struct err *e)
{
	struct inside in = { .loop = l };
	int r = loop_add(l, &in.main_io, GTW_INSIDE_MAIN, EPOLLIN, inside_on_main, &in);

	list_init(&in.dials);
	for (int i = 0; i < 2 && r == 0; i++)
		r = loop_add(l, &in.udp_io[i], GTW_INSIDE_UDP4 + i, EPOLLIN, datagram_on_io, &in);
	if (r == 0)
		r = loop_run(l);
	if (r == 0)
		r = in.error;
	LIST_FOR_SAFE(&in.dials, d, struct dial, node)
		dial_free(d);
	loop_del(&in.main_io);
	loop_del(&in.udp_io[0]);
	loop_del(&in.udp_io[1]);
	return r < 0 ? err_errno(e, r, "The inside process cannot go on") : 0;
}
