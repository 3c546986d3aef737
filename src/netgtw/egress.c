/*
 * The way out: connections that the guest makes, taken by tproxy at the address that the guest
 * meant (getsockname(2) is that address). Each is refused at once, by a reset, or asked of outside
 * and then connected to the socket that comes back.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "netgtw/gtw.h"

static const enum flow_why egress_whys[OUT_ANSWER_COUNT] = {
	[OUT_OK] = WHY_NONE, [OUT_INTERNET] = WHY_INTERNET, [OUT_FLOOR] = WHY_FLOOR,
	[OUT_NO_ROUTE] = WHY_UNREACHABLE, [OUT_INDEX] = WHY_UNREACHABLE,
	[OUT_FAILED] = WHY_UNREACHABLE,
};

static enum flow_why egress_may(struct gtw *g, const struct addr *from)
{
	if (!gtw_is_guest(g, from))
		return WHY_SOURCE;
	if (!g->open || g->closed)
		return WHY_NOT_OPEN;
	if (g->n_flows >= g->conf.limits.v[LIMIT_CONNECTIONS] ||
	    g->n_dials >= g->conf.limits.v[LIMIT_DIALS] ||
	    !bucket_one(&g->new_flows, clock_mono_us()))
		return WHY_LIMIT;
	return WHY_NONE;
}

static void egress_ask(struct gtw *g, int fd, const struct addr *to)
{
	struct flow *f = flow_new(g, fd, to, FLOW_TCP, 0);
	struct out_req q = {
		.magic = PROTO_MAGIC, .kind = OUT_DIAL, .id = g->asked_next, .addr = *to
	};

	f->asked_at = (uint8_t)(g->asked_next % PROTO_DIALS_UNANSWERED);
	g->asked[f->asked_at] = f;
	g->asked_next++;
	g->n_dials++;
	if (send(g->outside_fd, &q, sizeof(q), MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof(q))
		gtw_fatal(g, "the outside process does not take a question", -errno);
}

static void egress_new(struct gtw *g, int fd, const struct sockaddr_storage *peer)
{
	struct sockaddr_storage ss;
	struct addr to, from;
	socklen_t n = sizeof(ss);
	enum flow_why why;

	if (getsockname(fd, (struct sockaddr *)&ss, &n) < 0 || addr_of_sockaddr(&ss, &to) < 0 ||
	    addr_of_sockaddr(peer, &from) < 0) {
		gtw_reset(fd);
		return;
	}
	if (to.port == GTW_DNS_PORT && gtw_is_guest(g, &from)) {
		dns_accept(g, fd, &to);
		return;
	}
	why = egress_may(g, &from);
	if (why != WHY_NONE) {
		flow_refused(g, FLOW_OUT, FLOW_TCP, &to, why);
		gtw_reset(fd);
		return;
	}
	egress_ask(g, fd, &to);
}

static uint32_t egress_unanswered(const struct gtw *g)
{
	return g->asked_next - g->asked_first;
}

/*
 * Connections that are not taken wait in the listening queue: outside is asked no faster than it
 * answers.
 */
static void egress_on_listen(struct loop_io *io, uint32_t events)
{
	struct gtw *g = io->arg;

	for (int i = 0; i < GTW_ACCEPT_BATCH; i++) {
		struct sockaddr_storage ss;
		socklen_t n = sizeof(ss);
		int fd;

		if (egress_unanswered(g) == PROTO_DIALS_UNANSWERED) {
			egress_accept(g, false);
			return;
		}
		fd = accept4(io->fd, (struct sockaddr *)&ss, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0) {
			egress_new(g, fd, &ss);
		} else {
			if (gtw_accept_failed())
				gtw_accept_pause(g);
			return;
		}
	}
}

void egress_accept(struct gtw *g, bool on)
{
	loop_mod(&g->tcp4_io, on ? EPOLLIN : 0);
	loop_mod(&g->tcp6_io, on ? EPOLLIN : 0);
}

static void egress_connect_timer(struct gtw *g);

static void egress_on_timer(struct loop_timer *t)
{
	struct gtw *g = t->arg;
	int64_t now = clock_mono_ms();

	while (!list_empty(&g->connecting)) {
		struct flow *f = CONTAINER_OF(g->connecting.next, struct flow, wait);

		if (f->until_ms > now)
			break;
		flow_end(f, FLOW_END_RESET, WHY_UNREACHABLE);
	}
	egress_connect_timer(g);
}

static void egress_connect_timer(struct gtw *g)
{
	struct loop_timer *t = &g->connect_timer;
	struct flow *f;

	if (list_empty(&g->connecting))
		return;
	f = CONTAINER_OF(g->connecting.next, struct flow, wait);
	if (t->heap_pos == 0 || t->at_ms > f->until_ms)
		loop_timer_set(g->loop, t, f->until_ms - clock_mono_ms(), egress_on_timer, g);
}

/* Most of them wait longest: they come last. */
static void egress_wait(struct flow *f, int64_t until_ms)
{
	struct gtw *g = f->g;
	struct list *at = g->connecting.prev;

	f->until_ms = until_ms;
	while (at != &g->connecting && CONTAINER_OF(at, struct flow, wait)->until_ms > until_ms)
		at = at->prev;
	list_add_tail(at->next, &f->wait);
	egress_connect_timer(g);
}

void egress_guest_ended(struct flow *f)
{
	list_del(&f->wait);
	egress_wait(f, f->until_ms - GTW_CONNECT_MS + GTW_ENDED_CONNECT_MS);
}

void egress_forget(struct flow *f)
{
	struct gtw *g = f->g;

	if (f->lease)
		return;
	g->n_dials--;
	list_del(&f->wait);
	if (g->asked[f->asked_at] == f)
		g->asked[f->asked_at] = NULL;
}

bool flow_connected(struct flow *f, bool failed)
{
	struct gtw *g = f->g;
	int fd = f->b.io.fd;

	if (failed) {
		flow_end(f, FLOW_END_RESET, WHY_UNREACHABLE);
		return false;
	}
	g->n_dials--;
	list_del(&f->wait);
	return flow_open(f, fd) == 0;
}

/* Returns false when there is nothing more now. */
static bool egress_answer(struct gtw *g)
{
	struct out_rep rep;
	size_t n_fds = 1;
	int got = -1;
	ssize_t n = fd_recv(g->outside_fd, &rep, sizeof(rep), &got, &n_fds, MSG_DONTWAIT);
	autoclose int fd = n_fds == 1 && n > 0 ? got : -1;
	struct flow *f;

	if (n == -EAGAIN || n == -EINTR)
		return false;
	if (n < 0 || !proto_rep_ok(&rep, (size_t)n) || egress_unanswered(g) == 0 ||
	    rep.id != g->asked_first || (rep.answer == OUT_OK) != (fd >= 0)) {
		gtw_fatal(g, "the outside process is gone, or is not what it should be",
			  n < 0 ? (int)n : n == 0 ? -EPIPE : -EBADMSG);
		return false;
	}
	f = g->asked[rep.id % PROTO_DIALS_UNANSWERED];
	g->asked[rep.id % PROTO_DIALS_UNANSWERED] = NULL;
	g->asked_first++;
	if (egress_unanswered(g) == PROTO_DIALS_UNANSWERED / 2 && !g->accept_off)
		egress_accept(g, true);
	if (f && rep.answer == OUT_OK) {
		egress_wait(f, clock_mono_ms() + GTW_CONNECT_MS);
		flow_open(f, TAKE_FD(fd));
	} else if (f) {
		flow_end(f, FLOW_END_RESET, egress_whys[rep.answer]);
	} else if (fd >= 0) {
		gtw_reset(TAKE_FD(fd));
	}
	return true;
}

static void egress_on_outside(struct loop_io *io, uint32_t events)
{
	struct gtw *g = io->arg;

	while (egress_answer(g))
		;
}

/* Who is accepted inherits them. */
static const struct { int level, name, value; } egress_options[] = {
	{ IPPROTO_TCP, TCP_NODELAY, 1 },
	{ SOL_SOCKET, SO_OOBINLINE, 1 },
	/* Of the keep-alive that flow.c begins. */
	{ IPPROTO_TCP, TCP_KEEPIDLE, GTW_ASK_GUEST_S },
	{ IPPROTO_TCP, TCP_KEEPINTVL, GTW_ASK_GUEST_S },
	{ IPPROTO_TCP, TCP_KEEPCNT, GTW_ASK_GUEST_TIMES },
};

int egress_start(struct gtw *g)
{
	int r;

	for (size_t i = 0; i < ARRAY_LEN(egress_options); i++) {
		for (int fd = GTW_MAIN_TCP4; fd <= GTW_MAIN_TCP6; fd++)
			setsockopt(fd, egress_options[i].level, egress_options[i].name,
				   &egress_options[i].value, sizeof(int));
	}
	r = loop_add(g->loop, &g->tcp4_io, GTW_MAIN_TCP4, EPOLLIN, egress_on_listen, g);
	if (r == 0)
		r = loop_add(g->loop, &g->tcp6_io, GTW_MAIN_TCP6, EPOLLIN, egress_on_listen, g);
	if (r == 0)
		r = loop_add(g->loop, &g->outside_io, g->outside_fd, EPOLLIN, egress_on_outside, g);
	return r;
}
