/*
 * ServicePort: the second check (spec K-5, B-4, I-3). sbx-manager has admitted a stream and hands
 * in the capability itself; here it is verified again with this process's own copy of the key
 * bundle and compared with the identity that was installed, with port and protocol. Only then does
 * inside dial the guest. A stream that comes without what fits is told so and ends; nothing of it
 * has reached the guest.
 *
 * States: READ (preamble and token) -> DIAL -> a flow, or the verdict and the end.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "netgtw/gtw.h"
#include "netgtw/port.h"

struct port {
	struct list node;
	struct gtw *g;
	struct loop_io io;
	struct loop_timer timer;
	int fd;
	bool dialling;
	uint32_t dial_id;
	union { struct gtw_preamble p; uint8_t bytes[sizeof(struct gtw_preamble)]; } pre;
	size_t n;                            /* bytes read, preamble and token */
	char token[CAP_TEXT_MAX];
};

static const enum flow_proto port_protos[ID_PROTOCOL_COUNT] = {
	[ID_PROTOCOL_NONE] = FLOW_TCP, [ID_PROTOCOL_HTTP] = FLOW_HTTP,
	[ID_PROTOCOL_TCP] = FLOW_TCP, [ID_PROTOCOL_H2] = FLOW_H2,
};

static const enum flow_why port_whys[GTW_CODE_END] = {
	[GTW_OK] = WHY_NONE, [GTW_DENY] = WHY_DENIED, [GTW_REFRESH] = WHY_DENIED,
	[GTW_PORT_CLOSED] = WHY_PORT_CLOSED, [GTW_LIMIT] = WHY_LIMIT,
	[GTW_TIMEOUT] = WHY_UNREACHABLE,
};

static void port_free(struct port *p)
{
	struct gtw *g = p->g;

	if (p->dialling)
		g->n_port_dials--;
	g->n_ports--;
	loop_timer_stop(&p->timer);
	loop_del(&p->io);
	list_del(&p->node);
	fd_close(p->fd);
	free(p);
}

static struct addr port_addr(const struct port *p)
{
	struct addr a = p->g->guest4;

	a.port = p->pre.p.port;
	return a;
}

static enum flow_proto port_proto(const struct port *p)
{
	return p->pre.p.protocol < ID_PROTOCOL_COUNT ? port_protos[p->pre.p.protocol] : FLOW_TCP;
}

static bool port_say(struct port *p, enum gtw_code code)
{
	struct gtw_verdict v = { .magic = GTW_VERDICT_MAGIC, .code = code };

	return send(p->fd, &v, sizeof(v), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(v);
}

static void port_refuse(struct port *p, enum gtw_code code)
{
	struct addr a = port_addr(p);

	flow_refused(p->g, FLOW_IN, port_proto(p), &a, port_whys[code]);
	port_say(p, code);
	shutdown(p->fd, SHUT_RDWR);
	port_free(p);
}

static struct port *port_of_lease(struct gtw *g, uint64_t lease, const struct port *not)
{
	LIST_FOR(&g->ports, p, struct port, node) {
		if (p != not && p->dialling && p->pre.p.lease == lease)
			return p;
	}
	return NULL;
}

static enum gtw_code port_may(struct port *p, struct err *e)
{
	struct gtw *g = p->g;

	if (!g->installed || g->closed) {
		err_set(e, -EACCES, "No execution is installed here.");
		return GTW_DENY;
	}
	if (flow_of_lease(g, p->pre.p.lease) || port_of_lease(g, p->pre.p.lease, p)) {
		err_set(e, -EEXIST, "There is a stream of this lease.");
		return GTW_DENY;
	}
	return port_check(&p->pre.p, p->token, g->caps, &g->bundle, &g->id,
			  clock_wall_ms() / 1000, e);
}

static void port_on_timer(struct loop_timer *t)
{
	struct port *p = t->arg;

	if (p->dialling)
		port_refuse(p, GTW_TIMEOUT);
	else
		port_free(p);
}

static void port_dial(struct port *p)
{
	struct gtw *g = p->g;
	struct in_msg m = { .magic = PROTO_MAGIC, .kind = IN_DIAL, .id = ++g->next_dial_in,
			    .port = p->pre.p.port };

	if (g->n_leases + g->n_ports > g->conf.limits.v[LIMIT_LEASES] ||
	    g->n_port_dials >= g->conf.limits.v[LIMIT_LEASE_DIALS] ||
	    gtw_tell_inside(g, &m, NULL) < 0) {
		port_refuse(p, GTW_LIMIT);
		return;
	}
	p->dialling = true;
	p->dial_id = m.id;
	g->n_port_dials++;
	/* Who has sent this has only to wait: what comes is left in the socket for the flow. */
	loop_mod(&p->io, 0);
	loop_timer_set(g->loop, &p->timer, GTW_DIAL_IN_MS, port_on_timer, p);
}

static void port_judge(struct port *p)
{
	static struct log_limit limit;
	struct err e = { 0 };
	enum gtw_code code = port_may(p, &e);

	if (code == GTW_OK) {
		port_dial(p);
		return;
	}
	/* sbx-manager has let it through: the two do not agree, and that should be seen. */
	if (log_limit_ok(&limit, 10))
		log_warn("a stream that was admitted is refused",
			 F_STR("verdict", gtw_code_names[code]), F_ERR(&e));
	port_refuse(p, code);
}

/* One read. false: nothing more now, or p is gone. */
static bool port_read(struct port *p)
{
	const size_t head = sizeof(p->pre);
	bool in_head = p->n < head;
	size_t want = in_head ? head - p->n : p->pre.p.token_len - (p->n - head);
	void *at = in_head ? (void *)(p->pre.bytes + p->n) : (void *)(p->token + (p->n - head));
	ssize_t n = recv(p->fd, at, want, 0);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (n <= 0) {
		port_free(p);
		return false;
	}
	p->n += (size_t)n;
	if (in_head && p->n == head && !port_preamble_ok(&p->pre.p)) {
		port_refuse(p, GTW_DENY);
		return false;
	}
	if (p->n == head + p->pre.p.token_len && p->n > head) {
		port_judge(p);
		return false;
	}
	return true;
}

static void port_on_io(struct loop_io *io, uint32_t events)
{
	struct port *p = io->arg;

	if (!p->dialling) {
		while (port_read(p))
			;
	} else if (events & (EPOLLERR | EPOLLHUP)) {
		port_free(p);
	}
}

static void port_new(struct gtw *g, int fd)
{
	struct fd_peer peer;
	struct port *p;

	if (fd_peer_cred(fd, &peer) < 0 || peer.uid != g->conf.peer_uid ||
	    g->n_ports >= g->conf.limits.v[LIMIT_LEASES]) {
		fd_close(fd);
		return;
	}
	p = x_alloc(sizeof(*p));
	p->g = g;
	p->fd = fd;
	g->n_ports++;
	list_add_tail(&g->ports, &p->node);
	if (loop_add(g->loop, &p->io, fd, EPOLLIN, port_on_io, p) < 0) {
		port_free(p);
		return;
	}
	loop_timer_set(g->loop, &p->timer, GTW_PREAMBLE_MS, port_on_timer, p);
}

static void port_on_listen(struct loop_io *io, uint32_t events)
{
	struct gtw *g = io->arg;
	int fd;

	while ((fd = accept4(io->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
		port_new(g, fd);
	if (gtw_accept_failed())
		gtw_accept_pause(g);
}

/*
 * Takes in the streams and preambles that are there already: a revocation does not overtake them.
 */
void port_accept_all(struct gtw *g)
{
	port_on_listen(&g->stream_io, EPOLLIN);
	LIST_FOR_SAFE(&g->ports, p, struct port, node) {
		if (!p->dialling)
			port_on_io(&p->io, EPOLLIN);
	}
}

uint64_t port_revoke(struct gtw *g, uint64_t lease)
{
	uint64_t n = 0;

	LIST_FOR_SAFE(&g->ports, p, struct port, node) {
		if (lease != 0 && (!p->dialling || p->pre.p.lease != lease))
			continue;
		n += p->dialling;
		shutdown(p->fd, SHUT_RDWR);
		port_free(p);
	}
	return n;
}

uint64_t port_next_lease(struct gtw *g, uint64_t after, uint16_t *ret_port)
{
	const struct port *best = NULL;

	LIST_FOR(&g->ports, p, struct port, node) {
		if (p->dialling && p->pre.p.lease > after &&
		    (!best || p->pre.p.lease < best->pre.p.lease))
			best = p;
	}
	if (best)
		*ret_port = best->pre.p.port;
	return best ? best->pre.p.lease : 0;
}

static void port_become_flow(struct port *p, int guest)
{
	struct gtw *g = p->g;
	struct addr a = port_addr(p);
	enum flow_proto proto = port_proto(p);
	uint64_t lease = p->pre.p.lease;
	struct flow *f;
	int fd;

	if (!port_say(p, GTW_OK)) {
		fd_close(guest);
		port_free(p);
		return;
	}
	loop_del(&p->io);
	fd = TAKE_FD(p->fd);
	port_free(p);
	f = flow_new(g, fd, &a, proto, lease);
	flow_open(f, guest);
}

void port_dialled(struct gtw *g, const struct in_msg *m, int fd)
{
	static const struct { int num; enum gtw_code code; } codes[] = {
		{ -ECONNREFUSED, GTW_PORT_CLOSED },
		{ -EAGAIN, GTW_LIMIT },
		{ 0, GTW_TIMEOUT },
	};
	size_t i = 0;

	LIST_FOR_SAFE(&g->ports, p, struct port, node) {
		if (!p->dialling || p->dial_id != m->id)
			continue;
		if (fd >= 0) {
			port_become_flow(p, fd);
			return;
		}
		while (codes[i].num != 0 && codes[i].num != m->error)
			i++;
		port_refuse(p, codes[i].code);
		return;
	}
	/* It was revoked, or its time was over. */
	if (fd >= 0)
		gtw_reset(fd);
}

int port_start(struct gtw *g)
{
	list_init(&g->ports);
	return loop_add(g->loop, &g->stream_io, GTW_MAIN_STREAM, EPOLLIN, port_on_listen, g);
}
