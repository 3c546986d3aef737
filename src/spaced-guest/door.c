/*
 * Theory of operation
 *
 * A connection has two sides: the gateway's and the one to the port. What is read from one side is
 * written to the other in the same turn; what that does not take waits (`rest`), and meanwhile the
 * first is not read. So a connection at rest holds no buffer.
 *
 *	LINE ──"port N"──▶ DIAL_V4 ──refused──▶ DIAL_V6 ──refused──▶ "1", the end
 *	                      └────────open────────┴──▶ RELAY ──▶ both directions ended, or a reset
 */
#include "spaced-guest/door.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"

#define DOOR_BACKLOG 128
#define DOOR_ACCEPTS 16                  /* in one turn */
#define DOOR_ACCEPT_AGAIN_MS 100         /* without a free descriptor */

enum door_state { DOOR_LINE, DOOR_DIAL_V4, DOOR_DIAL_V6, DOOR_RELAY };

/* [0] the gateway, [1] the port. */
struct door_side {
	struct ev_watch watch;           /* fd -1: none */
	struct door_conn *c;
	bool eof;                        /* nothing more comes from here */
	bool shut;                       /* and nothing more goes there */
	char *rest;                      /* for here, not taken yet */
	size_t rest_len, rest_at;
};

struct door_conn {
	struct list node;
	struct door *d;
	enum door_state state;
	struct door_side side[2];
	struct ev_timer timer;
	char line[DOOR_LINE_MAX];
	size_t line_len;
	uint16_t port;
};

struct door {
	struct agent *a;
	struct ev_watch watch;
	struct ev_timer again;
	struct in_addr peer;
	struct list conns;
	unsigned n;
	char block[DOOR_BLOCK];
};

/* ---- The end of a connection ---- */

static void side_close(struct door_side *s, bool reset)
{
	struct linger now = { .l_onoff = 1 };

	if (s->watch.fd < 0)
		return;
	ev_watch_set(s->c->d->a->ev, &s->watch, 0);
	if (reset)
		setsockopt(s->watch.fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	fd_close(TAKE_FD(s->watch.fd));
	free(s->rest);
	s->rest = NULL;
}

static void conn_end(struct door_conn *c, bool reset)
{
	ev_timer_del(&c->timer);
	side_close(&c->side[0], reset);
	side_close(&c->side[1], reset);
	if (c->state == DOOR_RELAY)
		activity_close(c->d->a);
	list_del(&c->node);
	c->d->n--;
	free(c);
}

static void conn_late(struct ev_timer *t)
{
	conn_end(CONTAINER_OF(t, struct door_conn, timer), true);
}

/* ---- Relay ---- */

static struct door_side *other(struct door_side *s)
{
	return &s->c->side[s == &s->c->side[0]];
}

/* What to wait for follows from the state alone. */
static int side_mask(struct door_side *s)
{
	uint32_t mask = 0;

	if (!s->eof && !other(s)->rest)
		mask |= EPOLLIN;
	if (s->rest)
		mask |= EPOLLOUT;
	return ev_watch_set(s->c->d->a->ev, &s->watch, mask);
}

/* Bytes for s: those that it does not take are kept. */
static int side_put(struct door_side *s, const char *p, size_t n)
{
	ssize_t k = send(s->watch.fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);

	if (k < 0 && errno != EAGAIN && errno != EINTR)
		return -errno;
	k = k < 0 ? 0 : k;
	if ((size_t)k == n)
		return 0;
	s->rest_len = n - (size_t)k;
	s->rest_at = 0;
	s->rest = x_alloc(s->rest_len);
	memcpy(s->rest, p + k, s->rest_len);
	return 0;
}

static int side_flush(struct door_side *s)
{
	ssize_t k;

	if (!s->rest)
		return 0;
	k = send(s->watch.fd, s->rest + s->rest_at, s->rest_len - s->rest_at,
		 MSG_NOSIGNAL | MSG_DONTWAIT);
	if (k < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	s->rest_at += (size_t)k;
	if (s->rest_at == s->rest_len) {
		free(s->rest);
		s->rest = NULL;
	}
	return 0;
}

static int side_read(struct door_side *s)
{
	struct door *d = s->c->d;
	ssize_t n;

	if (s->eof || other(s)->rest)
		return 0;
	n = recv(s->watch.fd, d->block, sizeof(d->block), MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	if (n == 0) {
		s->eof = true;
		return 0;
	}
	return side_put(other(s), d->block, (size_t)n);
}

/* The end of what came from one side, once the other has taken all of it. */
static int side_shut(struct door_side *s)
{
	if (!other(s)->eof || s->rest || s->shut)
		return 0;
	s->shut = true;
	return shutdown(s->watch.fd, SHUT_WR) < 0 ? -errno : 0;
}

static void conn_relay(struct door_side *s, uint32_t events)
{
	struct door_conn *c = s->c;
	int r = events & EPOLLERR ? -ECONNRESET : side_flush(s);

	if (r == 0)
		r = side_read(s);
	for (int i = 0; i < 2 && r == 0; i++)
		r = side_shut(&c->side[i]);
	if (r < 0 || (c->side[0].shut && c->side[1].shut)) {
		conn_end(c, r < 0);
		return;
	}
	if (side_mask(&c->side[0]) < 0 || side_mask(&c->side[1]) < 0)
		conn_end(c, true);
}

/* ---- To the port ---- */

static int conn_dial(struct door_conn *c, enum door_state state)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(c->port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = htons(c->port),
				    .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	bool v4 = state == DOOR_DIAL_V4;
	struct door_side *s = &c->side[1];

	side_close(s, false);
	c->state = state;
	s->watch.fd = socket(v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (s->watch.fd < 0)
		return -errno;
	if (connect(s->watch.fd, v4 ? (struct sockaddr *)&in : (struct sockaddr *)&in6,
		    v4 ? sizeof(in) : sizeof(in6)) < 0 && errno != EINPROGRESS)
		return -errno;
	return ev_watch_set(c->d->a->ev, &s->watch, EPOLLOUT);
}

static void conn_refuse(struct door_conn *c)
{
	char refused = 1;
	bool told = send(c->side[0].watch.fd, &refused, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;

	conn_end(c, !told);
}

static void conn_try(struct door_conn *c, enum door_state state)
{
	int r = -ECONNREFUSED;

	for (; r < 0 && state <= DOOR_DIAL_V6; state++)
		r = conn_dial(c, state);
	if (r < 0)
		conn_refuse(c);
}

static void conn_open(struct door_conn *c)
{
	char open = 0;
	int one = 1;

	ev_timer_del(&c->timer);
	for (int i = 0; i < 2; i++)
		setsockopt(c->side[i].watch.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	c->state = DOOR_RELAY;
	activity_open(c->d->a);
	if (send(c->side[0].watch.fd, &open, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1 ||
	    side_mask(&c->side[0]) < 0 || side_mask(&c->side[1]) < 0)
		conn_end(c, true);
}

static void conn_dialled(struct door_conn *c)
{
	int error = 0;
	socklen_t n = sizeof(error);

	if (getsockopt(c->side[1].watch.fd, SOL_SOCKET, SO_ERROR, &error, &n) < 0 || error)
		conn_try(c, c->state + 1);
	else
		conn_open(c);
}

/* ---- The line ---- */

int door_line(const char *line, size_t n, uint16_t *ret_port)
{
	uint64_t port;

	if (!memchr(line, '\n', n) && n < DOOR_LINE_MAX)
		return -EAGAIN;
	if (n < 7 || memcmp(line, "port ", 5) != 0 || line[n - 1] != '\n' || line[5] == '0' ||
	    str_to_u64_n(line + 5, n - 6, UINT16_MAX, &port) < 0)
		return -EBADMSG;
	*ret_port = (uint16_t)port;
	return 0;
}

static void conn_line(struct door_conn *c)
{
	struct door_side *s = &c->side[0];
	ssize_t n = recv(s->watch.fd, c->line + c->line_len, sizeof(c->line) - c->line_len,
			 MSG_DONTWAIT);
	int r;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		conn_end(c, true);
		return;
	}
	c->line_len += (size_t)n;
	r = door_line(c->line, c->line_len, &c->port);
	if (r == -EAGAIN)
		return;
	if (r < 0) {
		conn_end(c, true);
		return;
	}
	ev_timer_set(c->d->a->ev, &c->timer, DOOR_DIAL_MS);
	if (!c->d->a->ready || c->port == door_port(c->d) ||
	    ev_watch_set(c->d->a->ev, &s->watch, 0) < 0)
		conn_refuse(c);
	else
		conn_try(c, DOOR_DIAL_V4);
}

static void on_side(struct ev_watch *w, uint32_t events)
{
	struct door_side *s = CONTAINER_OF(w, struct door_side, watch);
	struct door_conn *c = s->c;

	if (c->state == DOOR_RELAY)
		conn_relay(s, events);
	else if (c->state == DOOR_LINE)
		conn_line(c);
	else
		conn_dialled(c);
}

/* ---- The listener ---- */

static void conn_new(struct door *d, int fd)
{
	struct door_conn *c = x_alloc(sizeof(*c));

	c->d = d;
	for (int i = 0; i < 2; i++) {
		c->side[i].c = c;
		c->side[i].watch = (struct ev_watch){ .fd = -1, .fn = on_side };
	}
	c->side[0].watch.fd = fd;
	ev_timer_init(&c->timer, conn_late);
	ev_timer_set(d->a->ev, &c->timer, DOOR_LINE_MS);
	list_add_tail(&d->conns, &c->node);
	d->n++;
	if (ev_watch_set(d->a->ev, &c->side[0].watch, EPOLLIN) < 0)
		conn_end(c, true);
}

static void on_again(struct ev_timer *t)
{
	struct door *d = CONTAINER_OF(t, struct door, again);

	ev_watch_set(d->a->ev, &d->watch, EPOLLIN);
}

static void on_accept(struct ev_watch *w, uint32_t events)
{
	struct door *d = CONTAINER_OF(w, struct door, watch);

	for (int i = 0; i < DOOR_ACCEPTS; i++) {
		struct sockaddr_in from = { 0 };
		socklen_t n = sizeof(from);
		int fd = accept4(w->fd, (struct sockaddr *)&from, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
			ev_watch_set(d->a->ev, w, 0);
			ev_timer_set(d->a->ev, &d->again, DOOR_ACCEPT_AGAIN_MS);
		}
		if (fd < 0)
			return;
		if (from.sin_addr.s_addr != d->peer.s_addr || d->n >= DOOR_CONNS_MAX)
			fd_close(fd);
		else
			conn_new(d, fd);
	}
}

int door_open(struct agent *a, const char *address, uint16_t port, const char *peer,
	      struct door **ret, struct err *e)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(port) };
	autoclose int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct in_addr who;
	struct door *d;
	int one = 1, r;

	if (fd < 0 || inet_pton(AF_INET, address, &in.sin_addr) != 1 ||
	    inet_pton(AF_INET, peer, &who) != 1)
		return err_errno(e, fd < 0 ? -errno : -EINVAL, "the door's addresses");
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
	    bind(fd, (struct sockaddr *)&in, sizeof(in)) < 0 || listen(fd, DOOR_BACKLOG) < 0)
		return err_errno(e, -errno, "the door cannot listen at %s port %u", address, port);
	d = x_alloc(sizeof(*d));
	d->a = a;
	d->peer = who;
	d->watch = (struct ev_watch){ .fd = fd, .fn = on_accept };
	list_init(&d->conns);
	ev_timer_init(&d->again, on_again);
	r = ev_watch_set(a->ev, &d->watch, EPOLLIN);
	if (r < 0) {
		free(d);
		return err_errno(e, r, "the door cannot be watched");
	}
	TAKE_FD(fd);
	*ret = d;
	return 0;
}

uint16_t door_port(const struct door *d)
{
	struct sockaddr_in in = { 0 };
	socklen_t n = sizeof(in);

	return getsockname(d->watch.fd, (struct sockaddr *)&in, &n) < 0 ? 0 : ntohs(in.sin_port);
}

void door_close(struct door *d)
{
	if (!d)
		return;
	LIST_FOR_SAFE(&d->conns, c, struct door_conn, node)
		conn_end(c, true);
	ev_timer_del(&d->again);
	ev_watch_set(d->a->ev, &d->watch, 0);
	fd_close(d->watch.fd);
	free(d);
}
