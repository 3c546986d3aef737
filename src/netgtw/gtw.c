#include "netgtw/gtw.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"

void gtw_fatal(struct gtw *g, const char *what, int num)
{
	struct err e = { 0 };

	err_errno(&e, num, "%s", what);
	log_error("the gateway ends", F_ERR(&e));
	loop_stop(g->loop);
}

void gtw_count(struct gtw *g, enum counter c, uint64_t n)
{
	g->log.counters[c] += n;
}

bool gtw_accept_failed(void)
{
	return errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
}

static void gtw_accept_again(struct loop_timer *t)
{
	struct gtw *g = t->arg;

	g->accept_off = false;
	loop_mod(&g->stream_io, EPOLLIN);
	egress_accept(g, true);
}

/* Who waits stays in the queue; asking again at once would only turn in circles. */
void gtw_accept_pause(struct gtw *g)
{
	g->accept_off = true;
	loop_mod(&g->stream_io, 0);
	egress_accept(g, false);
	loop_timer_set(g->loop, &g->accept_timer, GTW_ACCEPT_PAUSE_MS, gtw_accept_again, g);
}

void gtw_reset(int fd)
{
	struct linger l = { .l_onoff = 1 };

	/* A Unix socket knows no reset; who reads there sees the end. */
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
	fd_close(fd);
}

bool gtw_is_guest(const struct gtw *g, const struct addr *a)
{
	return addr_eq(a, &g->guest4) || addr_eq(a, &g->guest6);
}

int gtw_tell_inside(struct gtw *g, const struct in_msg *m, const void *p)
{
	uint8_t packet[sizeof(*m) + PROTO_DATAGRAM_MAX];
	ssize_t n;

	if (m->size > PROTO_DATAGRAM_MAX)
		return -EMSGSIZE;
	memcpy(packet, m, sizeof(*m));
	if (m->size)
		memcpy(packet + sizeof(*m), p, m->size);
	n = send(g->inside_fd, packet, sizeof(*m) + m->size, MSG_DONTWAIT | MSG_NOSIGNAL);
	return n < 0 ? -EAGAIN : 0;
}

enum out_answer gtw_ask_outside(struct gtw *g, const struct out_req *q, int *ret_fd)
{
	struct pollfd p = { .fd = g->resolver_fd, .events = POLLIN };
	struct out_rep rep = { 0 };
	size_t n_fds = 1;
	int got = -1;
	ssize_t n;

	if (ret_fd)
		*ret_fd = -1;
	n = send(g->resolver_fd, q, sizeof(*q), MSG_NOSIGNAL);
	if (n == sizeof(*q) && poll(&p, 1, GTW_SYNC_MS) == 1)
		n = fd_recv(g->resolver_fd, &rep, sizeof(rep), &got, &n_fds, MSG_DONTWAIT);
	else
		n = -ETIMEDOUT;
	if (n == sizeof(rep) && n_fds == 1) {
		if (ret_fd)
			*ret_fd = got;
		else
			fd_close(got);
	}
	if (n >= 0 && proto_rep_ok(&rep, (size_t)n) && rep.id == q->id)
		return (enum out_answer)rep.answer;
	gtw_fatal(g, "the outside process does not answer", n < 0 ? (int)n : -EBADMSG);
	return OUT_FAILED;
}

/* Returns false when there is nothing more now. */
static bool gtw_from_inside(struct gtw *g)
{
	union { struct in_msg m; uint8_t bytes[sizeof(struct in_msg) + PROTO_DATAGRAM_MAX]; } p;
	size_t n_fds = 1;
	int got = -1;
	ssize_t n = fd_recv(g->inside_fd, &p, sizeof(p), &got, &n_fds, MSG_DONTWAIT);
	autoclose int fd = n > 0 && n_fds == 1 ? got : -1;

	if (n == -EAGAIN || n == -EINTR)
		return false;
	if (n < 0 || !proto_in_ok(&p.m, (size_t)n)) {
		gtw_fatal(g, "the inside process is gone, or is not what it should be",
			  n < 0 ? (int)n : n == 0 ? -EPIPE : -EBADMSG);
		return false;
	}
	if (p.m.kind == IN_DIAL)
		port_dialled(g, &p.m, TAKE_FD(fd));
	else
		dns_datagram(g, &p.m, p.bytes + sizeof(p.m), p.m.size);
	return true;
}

static void gtw_on_inside(struct loop_io *io, uint32_t events)
{
	for (int i = 0; i < GTW_ACCEPT_BATCH && gtw_from_inside(io->arg); i++)
		;
}

static void gtw_buckets(struct gtw *g)
{
	const uint64_t *v = g->conf.limits.v;
	int64_t now = clock_mono_us();

	/* Bandwidth: a tenth of a second at once, and at least a packet's worth. */
	for (int i = 0; i < WAY_COUNT; i++) {
		uint64_t rate = v[i == WAY_UP ? LIMIT_UP : LIMIT_DOWN];

		bucket_init(&g->bandwidth[i], rate, rate / 10 + GTW_SHARE_LEAST, now);
	}
	bucket_init(&g->new_flows, v[LIMIT_CONNECTIONS_RATE], 2 * v[LIMIT_CONNECTIONS_RATE], now);
	bucket_init(&g->dns_rate, v[LIMIT_DNS_RATE], 2 * v[LIMIT_DNS_RATE], now);
}

static_assert(GTW_MAIN_NOFILE >=
		      GTW_OTHER_FDS + 2 * (LIMIT_CONNECTIONS_MOST + LIMIT_LEASES_MOST),
	      "main's descriptors suffice for all that the limits allow");

/* Without a descriptor for what outside hands over main could not go on, so there are enough. */
static void gtw_fit_descriptors(struct gtw *g)
{
	uint64_t *v = g->conf.limits.v, room;
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur == RLIM_INFINITY)
		return;
	room = files.rlim_cur > GTW_OTHER_FDS + 8 ? (files.rlim_cur - GTW_OTHER_FDS) / 2 : 4;
	if (v[LIMIT_CONNECTIONS] + v[LIMIT_LEASES] <= room)
		return;
	log_warn("there are too few descriptors for all connections",
		 F_UINT("descriptors", files.rlim_cur), F_UINT("connections_and_leases", room));
	if (v[LIMIT_LEASES] > room / 4)
		v[LIMIT_LEASES] = room / 4;
	v[LIMIT_CONNECTIONS] = room - v[LIMIT_LEASES];
}

static int gtw_start(struct gtw *g, struct err *e)
{
	int r = 0;

	for (int fd = 3; fd < GTW_MAIN_FD_END && r == 0; fd++) {
		/* The resolver's pair is the one that is waited on. */
		r = fd_set_nonblock(fd, fd != GTW_MAIN_RESOLVER);
		if (r == 0)
			r = fd_set_cloexec(fd, true);
	}
	if (r == 0)
		r = egress_start(g);
	if (r == 0)
		r = port_start(g);
	if (r == 0)
		r = loop_add(g->loop, &g->inside_io, g->inside_fd, EPOLLIN, gtw_on_inside, g);
	if (r == 0)
		r = dns_start(g);
	if (r < 0)
		return err_errno(e, r, "The descriptors that were handed in cannot be used");
	return control_start(g, e);
}

int gtw_new(struct loop *l, const struct gtw_conf *c, struct gtw **ret, struct err *e)
{
	struct gtw *g = x_alloc(sizeof(*g));
	uint64_t seed = 0;
	int r;

	g->loop = l;
	g->conf = *c;
	g->inside_fd = GTW_MAIN_INSIDE;
	g->outside_fd = GTW_MAIN_OUTSIDE;
	g->resolver_fd = GTW_MAIN_RESOLVER;
	list_init(&g->flows);
	list_init(&g->connecting);
	list_init(&g->ready);
	list_init(&g->throttled[WAY_UP]);
	list_init(&g->throttled[WAY_DOWN]);
	list_init(&g->ports);
	g->scratch = x_alloc(GTW_READ);
	g->caps = cap_cache_new(GTW_CAP_CACHE);
	if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed) ||
	    addr_parse(GTW_GUEST_V4, &g->guest4) < 0 || addr_parse(GTW_GUEST_V6, &g->guest6) < 0) {
		gtw_free(g);
		return err_set(e, -EIO, "The kernel gives no random bytes.");
	}
	flowlog_init(&g->log, seed);
	gtw_fit_descriptors(g);
	gtw_buckets(g);
	r = gtw_start(g, e);
	if (r < 0) {
		gtw_free(g);
		return r;
	}
	*ret = g;
	return 0;
}

void gtw_free(struct gtw *g)
{
	if (!g)
		return;
	flow_end_all(g, true, true, WHY_REVOKED);
	port_revoke(g, 0);
	dns_stop(g);
	ipc_server_free(g->control);
	loop_timer_stop(&g->accept_timer);
	loop_timer_stop(&g->connect_timer);
	loop_timer_stop(&g->throttle_timer);
	loop_del(&g->inside_io);
	loop_del(&g->outside_io);
	loop_del(&g->stream_io);
	loop_del(&g->tcp4_io);
	loop_del(&g->tcp6_io);
	flowlog_done(&g->log);
	cap_cache_free(g->caps);
	free(g->scratch);
	free(g);
}
