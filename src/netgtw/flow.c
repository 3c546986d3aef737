/* The relay; its theory stands in gtw.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "netgtw/gtw.h"

#define FLOW_EVENTS (EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLRDHUP | EPOLLET)

static void flow_on_io(struct loop_io *io, uint32_t events);
static void flow_run_ready(struct loop_defer *d);
static void flow_run_throttled(struct loop_timer *t);

struct flow *flow_new(struct gtw *g, int a, const struct addr *addr, uint8_t proto, uint64_t lease)
{
	struct flow *f = x_alloc(sizeof(*f));
	const char *name = lease ? NULL : flowlog_name(&g->log, addr);

	f->g = g;
	f->a.io.fd = a;
	f->b.io.fd = -1;
	f->addr = *addr;
	f->proto = proto;
	f->lease = lease;
	f->number = g->log.next_flow++;
	f->t_ms = clock_wall_ms();
	f->name = x_strdup(name);
	list_init(&f->wait);
	list_add_tail(&g->flows, &f->node);
	if (lease)
		g->n_leases++;
	else
		g->n_flows++;
	return f;
}

static void flow_log(const struct flow *f, int64_t end_ms, bool refused, enum flow_why why)
{
	flowlog_add(&f->g->log, &(struct flow_record) { .flow = f->number,
							.t_ms = f->t_ms,
							.end_ms = end_ms,
							.addr = f->addr,
							.dir = f->lease ? FLOW_IN : FLOW_OUT,
							.proto = f->proto,
							.refused = refused,
							.why = why,
							.name = f->name,
							.up = f->lease ? f->b_to_a : f->a_to_b,
							.down = f->lease ? f->a_to_b : f->b_to_a });
}

void flow_refused(struct gtw *g, enum flow_dir dir, uint8_t proto, const struct addr *addr,
		  enum flow_why why)
{
	int64_t now = clock_wall_ms();

	gtw_count(g, dir == FLOW_IN ? COUNT_LEASES_REFUSED : COUNT_FLOWS_REFUSED, 1);
	if (why == WHY_LIMIT)
		gtw_count(g, COUNT_LIMIT, 1);
	flowlog_add(&g->log, &(struct flow_record){
		.flow = g->log.next_flow++, .t_ms = now, .end_ms = now, .addr = *addr, .dir = dir,
		.proto = proto, .refused = true, .why = why,
		.name = dir == FLOW_OUT ? (char *)flowlog_name(&g->log, addr) : NULL });
}

/*
 * A reset is none for the end that has had all bytes and their end already: its kernel may still
 * have to deliver them. Unless nothing may pass any more, or a lease has ended.
 */
static enum flow_how end_how(const struct flow *f, const struct flow_end *x, enum flow_how how,
			     enum flow_why why)
{
	return x->shut && f->lease == 0 && why == WHY_RESET ? FLOW_END_CLEAN : how;
}

static void end_close(struct gtw *g, struct flow_end *x, enum flow_how how)
{
	loop_del(&x->io);
	g->buffered -= x->n_rest;
	free(x->rest);
	if (x->io.fd < 0)
		return;
	if (how == FLOW_END_RESET) {
		gtw_reset(x->io.fd);
		return;
	}
	fd_close(x->io.fd);
}

/* What a flow that never was open is called: the dial has failed or was refused. */
static void flow_count_end(struct flow *f, enum flow_why why)
{
	struct gtw *g = f->g;
	bool refused =
		why == WHY_FLOOR || why == WHY_INTERNET || why == WHY_LIMIT || why == WHY_NOT_OPEN;

	if (f->lease) {
		gtw_count(g, COUNT_LEASE_BYTES_IN, f->a_to_b);
		gtw_count(g, COUNT_LEASE_BYTES_OUT, f->b_to_a);
	} else {
		gtw_count(g, COUNT_BYTES_UP, f->a_to_b);
		gtw_count(g, COUNT_BYTES_DOWN, f->b_to_a);
		if (f->state != FLOW_OPEN)
			gtw_count(g, refused ? COUNT_FLOWS_REFUSED : COUNT_FLOWS_FAILED, 1);
	}
	if (why == WHY_LIMIT)
		gtw_count(g, COUNT_LIMIT, 1);
	flow_log(f, clock_wall_ms(), refused && f->state != FLOW_OPEN, why);
}

void flow_end(struct flow *f, enum flow_how how, enum flow_why why)
{
	struct gtw *g = f->g;

	flow_count_end(f, why);
	if (f->state != FLOW_OPEN)
		egress_forget(f);
	end_close(g, &f->a, end_how(f, &f->a, how, why));
	end_close(g, &f->b, end_how(f, &f->b, how, why));
	list_del(&f->node);
	list_del(&f->wait);
	if (f->lease)
		g->n_leases--;
	else
		g->n_flows--;
	free(f->name);
	free(f);
}

static void flow_wait(struct flow *f, struct list *l)
{
	struct gtw *g = f->g;

	if (!list_empty(&f->wait))
		return;
	list_add_tail(l, &f->wait);
	if (l == &g->ready)
		loop_defer(g->loop, &g->ready_defer, flow_run_ready, g);
	else if (g->throttle_timer.heap_pos == 0)
		loop_timer_set(g->loop, &g->throttle_timer, GTW_THROTTLE_MS, flow_run_throttled, g);
}

/* Sends what waits for x. Negative: the socket is dead. */
static int end_flush(struct gtw *g, struct flow_end *x)
{
	while (x->n_rest > 0 && x->writable) {
		ssize_t n = send(x->io.fd, x->rest + x->at_rest, x->n_rest, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno != EAGAIN)
			return -errno;
		x->writable = n >= 0;
		n = n < 0 ? 0 : n;
		x->at_rest += (uint32_t)n;
		x->n_rest -= (uint32_t)n;
		g->buffered -= (uint64_t)n;
	}
	if (x->n_rest == 0 && x->rest) {
		free(TAKE(x->rest));
		x->at_rest = 0;
	}
	return 0;
}

/* x takes what it can, the rest is kept. */
static int end_send(struct gtw *g, struct flow_end *x, const char *p, size_t n)
{
	ssize_t done;

	do
		done = send(x->io.fd, p, n, MSG_NOSIGNAL);
	while (done < 0 && errno == EINTR);
	if (done < 0 && errno != EAGAIN)
		return -errno;
	done = done < 0 ? 0 : done;
	if ((size_t)done == n)
		return 0;
	x->writable = false;
	x->n_rest = (uint32_t)(n - (size_t)done);
	x->at_rest = 0;
	x->rest = x_alloc(x->n_rest);
	memcpy(x->rest, p + done, x->n_rest);
	g->buffered += x->n_rest;
	return 0;
}

static void end_ask(const struct flow_end *x, int on)
{
	setsockopt(x->io.fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

/* The end of what x sends: passed on when all before it is written. */
static void end_pass_on(struct flow *f, struct flow_end *x, struct flow_end *y)
{
	if (!x->ended || y->shut || y->n_rest > 0)
		return;
	y->shut = true;
	shutdown(y->io.fd, SHUT_WR);
	/* How it is asked stands at the listener (egress.c). */
	if (f->lease == 0 && x == &f->a)
		end_ask(x, 1);
}

/* What of its bandwidth one read takes; 0: there is not so much. */
static size_t bandwidth_share(struct bucket *b)
{
	uint64_t share = b->rate * GTW_SHARE_MS / 1000;

	if (b->rate == 0)
		return GTW_READ;
	share = share < GTW_SHARE_LEAST ? GTW_SHARE_LEAST : share > GTW_READ ? GTW_READ : share;
	return bucket_look(b, clock_mono_us()) < share ? 0 : (size_t)share;
}

static size_t flow_share(struct gtw *g, enum flow_way way)
{
	size_t most = g->buffered > GTW_BUFFERED_TIGHT ? GTW_READ_SHORT : GTW_READ, n;

	if (!list_empty(&g->throttled[way]) && !g->serving)
		return 0;
	n = bandwidth_share(&g->bandwidth[way]);
	return n < most ? n : most;
}

/* One read and write. 1: go on; 0: nothing to be done now; negative: reset. */
static int flow_step(struct flow *f, struct flow_end *x, struct flow_end *y, uint64_t *count,
		     enum flow_way way)
{
	struct gtw *g = f->g;
	size_t share;
	ssize_t n;
	int r;

	if (!x->readable || x->ended || y->n_rest > 0 || !y->writable)
		return 0;
	share = flow_share(g, way);
	if (share == 0) {
		flow_wait(f, &g->throttled[way]);
		return 0;
	}
	n = recv(x->io.fd, g->scratch, share, 0);
	if (n < 0 && errno == EINTR)
		return 1;
	if (n < 0 && errno == EAGAIN) {
		x->readable = false;
		return 0;
	}
	if (n < 0)
		return -errno;
	if (n == 0) {
		x->ended = true;
		return 0;
	}
	/*
	 * Less than asked for: it is empty, and more is a new edge; unless its end was told
	 * already, or the read has only come to an urgent mark.
	 */
	if ((size_t)n < share && !x->hup && !x->urgent)
		x->readable = false;
	*count += (uint64_t)n;
	bucket_take(&g->bandwidth[way], (uint64_t)n);
	r = end_send(g, y, g->scratch, (size_t)n);
	return r < 0 ? r : 1;
}

static int flow_move(struct flow *f, bool from_a)
{
	struct flow_end *x = from_a ? &f->a : &f->b, *y = from_a ? &f->b : &f->a;
	enum flow_way way = from_a == (f->lease != 0) ? WAY_DOWN : WAY_UP;
	uint64_t *count = from_a ? &f->a_to_b : &f->b_to_a;
	int r = end_flush(f->g, y), rounds = f->g->bandwidth[way].rate ? 1 : GTW_ROUNDS;

	for (int i = 0; r >= 0 && i < rounds; i++) {
		r = flow_step(f, x, y, count, way);
		if (r <= 0)
			break;
	}
	if (r > 0 && x->readable && y->writable)
		flow_wait(f, &f->g->ready);
	end_pass_on(f, x, y);
	return r < 0 ? r : 0;
}

static bool flow_done(const struct flow *f)
{
	return f->a.ended && f->b.ended && f->a.shut && f->b.shut;
}

/* false: f is gone. */
static bool flow_pump(struct flow *f)
{
	if (flow_move(f, true) < 0 || flow_move(f, false) < 0) {
		flow_end(f, FLOW_END_RESET, WHY_RESET);
		return false;
	}
	if (flow_done(f)) {
		flow_end(f, FLOW_END_CLEAN, WHY_NONE);
		return false;
	}
	return true;
}

static void end_note(struct flow_end *x, uint32_t events)
{
	if (events & (EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		x->readable = true;
	if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		x->hup = true;
	if (events & EPOLLPRI)
		x->urgent = true;
	if (events & EPOLLOUT)
		x->writable = true;
}

/* The guest, before its peer has answered: it may end, all else waits. */
static void flow_waits(struct flow *f, bool ended, bool gone)
{
	if (gone)
		flow_end(f, FLOW_END_RESET, WHY_RESET);
	else if (ended)
		egress_guest_ended(f);
}

/*
 * A raw stream to a port whose other end was closed altogether was cut: in order it is shut first,
 * one way and then the other. The guest must not read an end before the reset. (An HTTP message
 * shows by itself that it is not whole.)
 */
static bool flow_was_cut(const struct flow *f, const struct flow_end *x)
{
	return f->lease && f->proto != FLOW_HTTP && x == &f->a && !x->shut;
}

static void flow_on_io(struct loop_io *io, uint32_t events)
{
	struct flow *f = io->arg;
	struct flow_end *x = CONTAINER_OF(io, struct flow_end, io);
	bool gone = (events & (EPOLLHUP | EPOLLERR)) != 0, knew = x->hup;

	end_note(x, events);
	/* A server that has said all may go: asked then, it would answer with a reset. */
	if (x->hup && !knew && f->lease == 0 && x == &f->b)
		end_ask(x, 0);
	if (f->state == FLOW_CONNECTING && x == &f->a) {
		flow_waits(f, x->hup && !knew, gone);
		return;
	}
	/* The edge that ends the connecting may tell of bytes and of the end as well. */
	if (f->state == FLOW_CONNECTING && !flow_connected(f, (events & EPOLLERR) != 0))
		return;
	if (gone && flow_was_cut(f, x)) {
		flow_end(f, FLOW_END_RESET, WHY_RESET);
		return;
	}
	/* What came before a reset is still passed on, as far as it goes at once. */
	if (flow_pump(f) && gone && ((events & EPOLLERR) || !x->shut))
		flow_end(f, FLOW_END_RESET, WHY_RESET);
}

static int end_watch(struct flow *f, struct flow_end *x, int fd)
{
	int r;

	if (x->io.loop)
		return 0;
	r = loop_add(f->g->loop, &x->io, fd, FLOW_EVENTS, flow_on_io, f);
	x->io.fd = fd;
	return r;
}

int flow_open(struct flow *f, int b)
{
	int r;

	f->b.io.fd = b;
	if (f->state == FLOW_ASKED && !f->lease) {
		f->state = FLOW_CONNECTING;
	} else {
		f->state = FLOW_OPEN;
		gtw_count(f->g, f->lease ? COUNT_LEASES : COUNT_FLOWS, 1);
		f->a.writable = f->b.writable = true;
		flow_log(f, 0, false, WHY_NONE);
	}
	r = end_watch(f, &f->a, f->a.io.fd);
	if (r == 0)
		r = end_watch(f, &f->b, b);
	if (r < 0)
		flow_end(f, FLOW_END_RESET, WHY_LIMIT);
	return r;
}

static struct list *flow_run_first(struct list *waiting)
{
	struct list *first = waiting->next;

	list_del(first);
	flow_pump(CONTAINER_OF(first, struct flow, wait));
	return first;
}

/* Those that wait now; who comes again waits for the next turn. */
static void flow_run_ready(struct loop_defer *d)
{
	struct gtw *g = d->arg;
	struct list *last = g->ready.prev;

	while (!list_empty(&g->ready) && flow_run_first(&g->ready) != last)
		;
}

/* Who is served and wants more has to stand in line again. */
static void flow_run_throttled(struct loop_timer *t)
{
	struct gtw *g = t->arg;

	g->serving = true;
	for (int way = 0; way < WAY_COUNT; way++) {
		while (!list_empty(&g->throttled[way]) && bandwidth_share(&g->bandwidth[way]) > 0)
			flow_run_first(&g->throttled[way]);
	}
	g->serving = false;
	if (!list_empty(&g->throttled[WAY_UP]) || !list_empty(&g->throttled[WAY_DOWN]))
		loop_timer_set(g->loop, t, GTW_THROTTLE_MS, flow_run_throttled, g);
}

void flow_end_all(struct gtw *g, bool egress, bool leases, enum flow_why why)
{
	LIST_FOR_SAFE(&g->flows, f, struct flow, node) {
		if (f->lease ? leases : egress)
			flow_end(f, FLOW_END_RESET, why);
	}
}

struct flow *flow_of_lease(struct gtw *g, uint64_t lease)
{
	LIST_FOR(&g->flows, f, struct flow, node) {
		if (f->lease == lease)
			return f;
	}
	return NULL;
}

uint64_t flow_revoke(struct gtw *g, uint64_t lease)
{
	uint64_t n = 0;

	LIST_FOR_SAFE(&g->flows, f, struct flow, node) {
		if (f->lease == 0 || (lease != 0 && f->lease != lease))
			continue;
		flow_end(f, FLOW_END_RESET, WHY_REVOKED);
		n++;
	}
	return n;
}
