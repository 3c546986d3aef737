/*
 * Theory of operation. One struct tls is one connection with two descriptors: `net` (TCP, behind
 * the SSL object) and `own`, our half of the socketpair.
 *
 *	HANDSHAKE -> OPEN -> LINGER -> dead
 *
 * HANDSHAKE: the client-hello callback asks the user about the name. While the answer is out
 * (`asked`) OpenSSL is suspended and nothing is read; the deadline runs on. A connection that dies
 * meanwhile stays in memory until it is answered.
 * OPEN: tls_pump_in moves net -> own, tls_pump_out moves own -> net, each with what one record
 * holds as its only buffer, so a slow reader stalls its writer. What SSL_read takes is always a
 * whole record (the scratch buffer is as large as one), so nothing waits inside of OpenSSL that
 * epoll does not see.
 * LINGER: all was said, the other half is closed, the client is not: what it sends is thrown away
 * for a while, or the kernel would take back our last words with a reset (as in http/server.c).
 *
 * Ends. net: close_notify -> `in_eof` -> shutdown(own) when all has been written: `in_done`.
 * own: end of file -> `out_eof` -> close_notify when all has been written: `out_done`.
 * Both: closed. Everything else is a cut: tls_break resets net and marks the pair as broken.
 *
 * tls_watch computes from this state what epoll shall report; it is called after everything that
 * may change the state. `own` stays registered with a mask of 0, because its EPOLLHUP says that the
 * other half was closed; after that it is taken out whenever it is not to be read. EPOLLHUP of
 * `net` alone says that both sides have ended in order: it is no cut, and what the client sent
 * before may still wait there for room.
 */
#include "loop/tls.h"

#include <assert.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/list.h"
#include "base/str.h"
#include "loop/pair.h"
#include "loop/tls_cert.h"

#define PUMP_ROUNDS 8                    /* records a turn and direction */
#define LINGER_MS 1000
#define LINGER_BYTES (1 << 20)
#define FLUSH_MS 60000                   /* the other half is closed, the client takes nothing of the rest */
#define UNSENT_BYTES 131072
#define ALPN_HTTP1 "http/1.1"
#define ALPN_H2 "h2"

enum tls_state { TLS_HANDSHAKE, TLS_OPEN, TLS_LINGER, TLS_DEAD };

struct tls {
	struct list node;                /* of server->conns or, unfinished, ->handshakes */
	struct tls_server *server;
	enum tls_state state;
	SSL *ssl;
	int net, own;
	struct loop_io net_io, own_io;
	struct loop_timer timer;
	struct loop_defer go, gone;
	struct pair pair;
	/* the hello */
	bool hello_seen, in_hello, asked, answered;
	enum tls_answer answer;
	bool offers_h2, offers_http1, offers_alpn, is_h2;
	char name[TLS_NAME_MAX + 1];
	/* what OpenSSL waits for on net, for each of its two calls */
	bool read_wants_write, write_wants_read, write_blocked, handshake_wants_write;
	struct buf in, out;              /* read and not yet written; at most a record each */
	bool in_eof, in_done, in_drop, out_eof, out_done, own_gone, net_hup;
	size_t thrown_bytes;
};

struct tls_server {
	struct tls_conf conf;
	struct tls_cert *cert;
	struct list conns, handshakes;
	struct list orphans;             /* dead, and their answer is still owed */
	size_t n_conns, n_handshakes;    /* n_conns counts both */
	char scratch[TLS_RECORD];
};

static void tls_on_net(struct loop_io *io, uint32_t events);
static void tls_on_own(struct loop_io *io, uint32_t events);
static void tls_run(struct tls *t);

/* ---- the end ---- */

static void tls_on_gone(struct loop_defer *d)
{
	struct tls *t = d->arg;

	if (!t->asked || t->answered)
		free(t);
}

static void tls_close(struct tls *t, bool cut)
{
	struct linger now = { .l_onoff = 1, .l_linger = 0 };

	if (t->state == TLS_DEAD)
		return;
	if (t->state == TLS_HANDSHAKE)
		t->server->n_handshakes--;
	t->server->n_conns--;
	list_del(&t->node);
	if (t->asked && !t->answered)
		list_add_tail(&t->server->orphans, &t->node);
	t->state = TLS_DEAD;
	loop_timer_stop(&t->timer);
	loop_del(&t->net_io);
	loop_del(&t->own_io);
	if (cut)
		setsockopt(t->net, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	pair_end(&t->pair, cut);
	SSL_free(TAKE(t->ssl));
	fd_close(t->net);
	fd_close(t->own);
	t->net = t->own = -1;
	buf_done(&t->in);
	buf_done(&t->out);
	loop_defer(t->server->conf.loop, &t->gone, tls_on_gone, t);
}

static void tls_break(struct tls *t)
{
	tls_close(t, true);
}

static void pair_wants_reset(void *arg)
{
	tls_break(arg);
}

/* Nothing between the plain half and the client's kernel. */
static bool pair_asks_idle(void *arg)
{
	struct tls *t = arg;
	struct tcp_info i = { 0 };
	socklen_t n = sizeof(i);
	char c;

	return buf_len(&t->out) == 0 && recv(t->own, &c, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
	       getsockopt(t->net, IPPROTO_TCP, TCP_INFO, &i, &n) == 0 && n == sizeof(i) &&
	       i.tcpi_unacked == 0 && i.tcpi_notsent_bytes == 0;
}

static const struct pair_ops tls_pair_ops = { .reset = pair_wants_reset, .idle = pair_asks_idle };

/* ---- what epoll shall report ---- */

static uint32_t net_mask(const struct tls *t)
{
	uint32_t mask = 0;

	if (t->state == TLS_LINGER)
		return EPOLLIN;
	if (t->state == TLS_HANDSHAKE)
		return t->asked && !t->answered ? 0 : t->handshake_wants_write ? EPOLLOUT : EPOLLIN;
	/* Who has nobody to send to any more shall take what is left, and does not prolong it. */
	if ((!t->in_eof && !t->own_gone && buf_len(&t->in) == 0 && !t->read_wants_write) ||
	    t->write_wants_read)
		mask |= EPOLLIN;
	if (t->read_wants_write || (t->write_blocked && !t->write_wants_read))
		mask |= EPOLLOUT;
	return mask;
}

static uint32_t own_mask(const struct tls *t)
{
	uint32_t mask = 0;

	if (!t->out_eof && buf_len(&t->out) == 0 && !t->write_blocked)
		mask |= EPOLLIN;
	if (buf_len(&t->in) && !t->in_drop)
		mask |= EPOLLOUT;
	return mask;
}

static int watch(struct loop *l, struct loop_io *io, int fd, uint32_t mask,
		 void (*fn)(struct loop_io *, uint32_t), struct tls *t)
{
	return io->loop ? loop_mod(io, mask) : loop_add(l, io, fd, mask, fn, t);
}

static void tls_watch(struct tls *t)
{
	struct loop *l = t->server->conf.loop;
	uint32_t mask;
	int r = 0;

	if (t->state == TLS_DEAD)
		return;
	mask = net_mask(t);
	if (mask == 0 && t->net_hup)
		loop_del(&t->net_io);
	else
		r = watch(l, &t->net_io, t->net, mask, tls_on_net, t);
	if ((t->own_gone && own_mask(t) == 0) || t->state == TLS_LINGER)
		loop_del(&t->own_io);
	else if (r == 0 && t->own >= 0)
		r = watch(l, &t->own_io, t->own, own_mask(t), tls_on_own, t);
	if (r < 0)
		tls_break(t);
}

/* ---- net to own ---- */

/* What the other half does not take any more is dropped: it will close. */
static bool give_own(struct tls *t, const char *p, size_t n)
{
	ssize_t r;

	if (t->in_drop)
		return true;
	do
		r = send(t->own, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (r < 0 && errno == EINTR);
	if (r < 0 && errno != EAGAIN) {
		t->in_drop = true;
		return true;
	}
	if (r < 0)
		r = 0;
	if ((size_t)r < n)
		buf_put(&t->in, p + r, n - (size_t)r);
	return (size_t)r == n;
}

static bool empty_in(struct tls *t)
{
	ssize_t r = 1;

	while (buf_len(&t->in) && !t->in_drop && r > 0) {
		r = send(t->own, buf_data(&t->in), buf_len(&t->in), MSG_NOSIGNAL | MSG_DONTWAIT);
		if (r > 0)
			buf_consume(&t->in, (size_t)r);
		else if (errno != EAGAIN && errno != EINTR)
			t->in_drop = true;
	}
	if (t->in_drop)
		buf_clear(&t->in);
	if (buf_len(&t->in))
		return false;
	buf_shrink(&t->in);
	return true;
}

/* False: nothing more can be read now, or ever. */
static bool read_failed(struct tls *t, int r)
{
	switch (SSL_get_error(t->ssl, r)) {
	case SSL_ERROR_WANT_READ:
		break;
	case SSL_ERROR_WANT_WRITE:
		t->read_wants_write = true;
		break;
	case SSL_ERROR_ZERO_RETURN:
		t->in_eof = true;
		break;
	default:
		tls_break(t);
	}
	return false;
}

static bool read_record(struct tls *t)
{
	int r;

	t->read_wants_write = false;
	ERR_clear_error();
	r = SSL_read(t->ssl, t->server->scratch, TLS_RECORD);
	return r > 0 ? give_own(t, t->server->scratch, (size_t)r) : read_failed(t, r);
}

static void tls_pump_in(struct tls *t)
{
	for (int i = 0; i < PUMP_ROUNDS && empty_in(t) && !t->in_eof && !t->own_gone; i++)
		if (!read_record(t))
			break;
	if (t->state == TLS_DEAD || !t->in_eof || t->in_done || buf_len(&t->in))
		return;
	t->in_done = true;
	shutdown(t->own, SHUT_WR);
}

/* ---- own to net ---- */

/* Bytes taken; 0 = later, or dead. */
static size_t give_net(struct tls *t, const char *p, size_t n)
{
	int r;

	t->write_blocked = t->write_wants_read = false;
	ERR_clear_error();
	r = SSL_write(t->ssl, p, (int)n);
	if (r > 0)
		return (size_t)r;
	switch (SSL_get_error(t->ssl, r)) {
	case SSL_ERROR_WANT_READ:
		t->write_wants_read = true;
		/* fall through */
	case SSL_ERROR_WANT_WRITE:
		t->write_blocked = true;
		break;
	default:
		tls_break(t);
	}
	return 0;
}

static bool empty_out(struct tls *t)
{
	while (buf_len(&t->out)) {
		size_t n = give_net(t, buf_data(&t->out), buf_len(&t->out));

		if (n == 0)
			return false;
		buf_consume(&t->out, n);
	}
	buf_shrink(&t->out);
	return true;
}

static bool read_own(struct tls *t)
{
	ssize_t n;
	size_t sent;

	do
		n = recv(t->own, t->server->scratch, TLS_RECORD, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN)
		return false;
	/* An error is that of a half that was closed with bytes it had not read: its end as well. */
	if (n <= 0) {
		t->out_eof = true;
		return false;
	}
	sent = give_net(t, t->server->scratch, (size_t)n);
	if (t->state == TLS_DEAD)
		return false;
	if (sent < (size_t)n)
		buf_put(&t->out, t->server->scratch + sent, (size_t)n - sent);
	return sent == (size_t)n;
}

static void say_end(struct tls *t)
{
	int r;

	t->write_blocked = t->write_wants_read = false;
	ERR_clear_error();
	r = SSL_shutdown(t->ssl);
	if (r < 0 && SSL_get_error(t->ssl, r) == SSL_ERROR_WANT_WRITE) {
		t->write_blocked = true;
		return;
	}
	ERR_clear_error();
	t->out_done = true;
	shutdown(t->net, SHUT_WR);
}

static void tls_pump_out(struct tls *t)
{
	for (int i = 0; i < PUMP_ROUNDS && empty_out(t) && t->state != TLS_DEAD && !t->out_eof; i++)
		if (!read_own(t))
			break;
	if (t->state != TLS_DEAD && t->out_eof && !t->out_done && buf_len(&t->out) == 0)
		say_end(t);
}

/* ---- after everything ---- */

static void linger(struct tls *t)
{
	ssize_t n;

	do {
		n = recv(t->net, t->server->scratch, TLS_RECORD, MSG_DONTWAIT);
		if (n > 0)
			t->thrown_bytes += (size_t)n;
	} while (n > 0 && t->thrown_bytes <= LINGER_BYTES);
	if (n >= 0 || errno != EAGAIN)
		tls_close(t, false);
}

static void on_linger_end(struct loop_timer *timer)
{
	tls_close(timer->arg, false);
}

/* Our last word was written. */
static void linger_start(struct tls *t)
{
	shutdown(t->net, SHUT_WR);
	t->state = TLS_LINGER;
	loop_timer_set(t->server->conf.loop, &t->timer, LINGER_MS, on_linger_end, t);
	linger(t);
}

static void tls_settle(struct tls *t)
{
	if (t->state != TLS_OPEN || !t->out_done)
		return;
	if (t->in_done) {
		tls_close(t, false);
	} else if (t->own_gone) {
		linger_start(t);
	}
}

/* ---- the hello ---- */

static int read_hello(struct tls *t, char name[TLS_NAME_MAX + 1])
{
	const unsigned char *p;
	size_t n;

	name[0] = '\0';
	if (SSL_client_hello_get0_ext(t->ssl, TLSEXT_TYPE_server_name, &p, &n) &&
	    tls_hello_name(p, n, name) < 0)
		return -EBADMSG;
	t->offers_alpn = SSL_client_hello_get0_ext(
		t->ssl, TLSEXT_TYPE_application_layer_protocol_negotiation, &p, &n);
	t->offers_h2 = t->offers_http1 = false;
	return t->offers_alpn ? tls_hello_alpn(p, n, &t->offers_h2, &t->offers_http1) : 0;
}

/* Comes again when it said RETRY, and for the second hello of a client that was sent a new group. */
static int on_hello(SSL *ssl, int *alert, void *arg)
{
	struct tls *t = SSL_get_app_data(ssl);
	const struct tls_conf *c = &t->server->conf;
	char name[TLS_NAME_MAX + 1];

	*alert = SSL_AD_DECODE_ERROR;
	if (read_hello(t, name) < 0)
		return SSL_CLIENT_HELLO_ERROR;
	if (!t->hello_seen) {
		t->hello_seen = true;
		str_copy(t->name, sizeof(t->name), name);
		t->asked = t->in_hello = true;
		if (c->hello)
			c->hello(t, tls_name(t), t->offers_h2 && !t->offers_http1, c->arg);
		else
			tls_answer(t, TLS_HTTP1);
		t->in_hello = false;
	}
	*alert = SSL_AD_ILLEGAL_PARAMETER;
	if (!str_eq(name, t->name))
		return SSL_CLIENT_HELLO_ERROR;
	if (!t->answered)
		return SSL_CLIENT_HELLO_RETRY;
	*alert = t->answer == TLS_REFUSE ? SSL_AD_UNRECOGNIZED_NAME : SSL_AD_INTERNAL_ERROR;
	return t->answer == TLS_REFUSE || t->answer == TLS_UNAVAILABLE ? SSL_CLIENT_HELLO_ERROR
								       : SSL_CLIENT_HELLO_SUCCESS;
}

static int on_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_len,
		   const unsigned char *in, unsigned in_len, void *arg)
{
	struct tls *t = SSL_get_app_data(ssl);

	t->is_h2 = !t->offers_http1 && t->offers_h2 && t->answer == TLS_HTTP1_OR_H2;
	if (!t->is_h2 && !t->offers_http1)
		return SSL_TLSEXT_ERR_ALERT_FATAL;
	*out = (const unsigned char *)(t->is_h2 ? ALPN_H2 : ALPN_HTTP1);
	*out_len = (unsigned char)strlen(t->is_h2 ? ALPN_H2 : ALPN_HTTP1);
	return SSL_TLSEXT_ERR_OK;
}

/* Somebody speaks HTTP without TLS: one sentence instead of an alert that nobody reads. */
static void say_https(struct tls *t)
{
	static const char text[] = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n"
				   "Content-Length: 59\r\nConnection: close\r\n\r\n"
				   "{\"code\":400,\"message\":\"This port speaks HTTPS, "
				   "not HTTP.\"}\n";
	static_assert(sizeof("{\"code\":400,\"message\":\"This port speaks HTTPS, "
			     "not HTTP.\"}\n") - 1 == 59, "Content-Length");

	/* Who sends as fast as this reads does not hold the loop; what is left lingers. */
	for (int i = 0; i < PUMP_ROUNDS; i++)
		if (recv(t->net, t->server->scratch, TLS_RECORD, MSG_DONTWAIT) != TLS_RECORD)
			break;
	send(t->net, text, sizeof(text) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* From the list of handshakes to that of connections. */
static void unfinished_end(struct tls *t)
{
	t->server->n_handshakes--;
	list_del(&t->node);
	list_add_tail(&t->server->conns, &t->node);
}

static void handshake_failed(struct tls *t, int r)
{
	t->handshake_wants_write = false;
	switch (SSL_get_error(t->ssl, r)) {
	case SSL_ERROR_WANT_WRITE:
		t->handshake_wants_write = true;
		break;
	case SSL_ERROR_WANT_READ:
	case SSL_ERROR_WANT_CLIENT_HELLO_CB:
		break;
	default:
		if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST)
			say_https(t);
		ERR_clear_error();
		unfinished_end(t);
		linger_start(t);         /* for the alert to arrive */
	}
}

static void handshake_done(struct tls *t)
{
	int given, r;

	loop_timer_stop(&t->timer);
	r = pair_new(&t->pair, &tls_pair_ops, t, &given, &t->own);
	if (r < 0) {
		tls_close(t, false);
		return;
	}
	t->state = TLS_OPEN;
	unfinished_end(t);
	t->server->conf.ready(t, given, t->server->conf.arg);
}

static void tls_handshake(struct tls *t)
{
	int r;

	if (t->asked && !t->answered)
		return;
	ERR_clear_error();
	r = SSL_accept(t->ssl);
	if (r == 1)
		handshake_done(t);
	else
		handshake_failed(t, r);
}

static void tls_run(struct tls *t)
{
	if (t->state == TLS_HANDSHAKE)
		tls_handshake(t);
	if (t->state == TLS_OPEN)
		tls_pump_in(t);
	if (t->state == TLS_OPEN)
		tls_pump_out(t);
	/* The client's answer to a key update may have let a write go on, and the other way round. */
	tls_settle(t);
	tls_watch(t);
}

/* ---- events ---- */

static void on_deadline(struct loop_timer *timer)
{
	tls_close(timer->arg, true);
}

static void tls_on_net(struct loop_io *io, uint32_t events)
{
	struct tls *t = io->arg;

	t->net_hup |= (events & EPOLLHUP) != 0;
	if (t->state == TLS_LINGER)
		linger(t);
	else if ((events & EPOLLERR) || (t->net_hup && !t->out_done && !(io->events & EPOLLIN)))
		tls_break(t);
	else
		tls_run(t);
	if (t->state == TLS_OPEN && t->own_gone)
		loop_timer_set(t->server->conf.loop, &t->timer, FLUSH_MS, on_deadline, t);
	tls_watch(t);
}

static void tls_on_own(struct loop_io *io, uint32_t events)
{
	struct tls *t = io->arg;

	if (events & (EPOLLHUP | EPOLLERR)) {
		t->own_gone = t->in_drop = true;
		loop_timer_set(t->server->conf.loop, &t->timer, FLUSH_MS, on_deadline, t);
	}
	tls_run(t);
}

static void on_answered(struct loop_defer *d)
{
	struct tls *t = d->arg;

	if (t->state == TLS_HANDSHAKE)
		tls_run(t);
}

void tls_answer(struct tls *t, enum tls_answer a)
{
	t->answer = a;
	t->answered = true;
	if (t->state == TLS_DEAD) {
		list_del(&t->node);
		loop_defer(t->server->conf.loop, &t->gone, tls_on_gone, t);
	} else if (!t->in_hello) {
		loop_defer(t->server->conf.loop, &t->go, on_answered, t);
	}
}

/* ---- interface ---- */

struct tls_server *tls_server_new(const struct tls_conf *c)
{
	struct tls_server *s = x_alloc(sizeof(*s));

	tls_openssl_init();
	s->conf = *c;
	list_init(&s->conns);
	list_init(&s->handshakes);
	list_init(&s->orphans);
	return s;
}

static void close_all(struct list *l)
{
	while (!list_empty(l)) {
		struct tls *t = CONTAINER_OF(l->next, struct tls, node);

		t->answered = true;
		tls_close(t, true);
	}
}

void tls_server_free(struct tls_server *s)
{
	if (!s)
		return;
	close_all(&s->handshakes);
	close_all(&s->conns);
	while (!list_empty(&s->orphans)) {
		struct tls *t = CONTAINER_OF(s->orphans.next, struct tls, node);

		t->answered = true;
		list_del(&t->node);
		loop_defer(s->conf.loop, &t->gone, tls_on_gone, t);
	}
	tls_cert_free(s->cert);
	free(s);
}

void tls_server_set_cert(struct tls_server *s, struct tls_cert *c)
{
	SSL_CTX_set_client_hello_cb(c->ctx, on_hello, NULL);
	SSL_CTX_set_alpn_select_cb(c->ctx, on_alpn, NULL);
	tls_cert_free(s->cert);          /* connections hold the context for themselves */
	s->cert = c;
}

bool tls_server_names(const struct tls_server *s, const char *name)
{
	return s->cert && X509_check_host(s->cert->leaf, name, strlen(name),
					  X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS, NULL) == 1;
}

int64_t tls_server_cert_end(const struct tls_server *s)
{
	struct tm tm;

	if (!s->cert || ASN1_TIME_to_tm(X509_get0_notAfter(s->cert->leaf), &tm) != 1)
		return 0;
	return timegm(&tm);
}

static struct tls *tls_new(struct tls_server *s, SSL *ssl, int fd)
{
	static const int on = 1, unsent = UNSENT_BYTES;
	struct tls *t = x_alloc(sizeof(*t));

	/* As http/server.c does with sockets of its own. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
	fd_set_nonblock(fd, true);
	t->server = s;
	t->ssl = ssl;
	t->net = fd;
	t->own = -1;
	buf_init(&t->in, TLS_RECORD);
	buf_init(&t->out, TLS_RECORD);
	SSL_set_app_data(ssl, t);
	SSL_set_accept_state(ssl);
	list_add_tail(&s->handshakes, &t->node);
	s->n_handshakes++;
	s->n_conns++;
	loop_timer_set(s->conf.loop, &t->timer, s->conf.handshake_ms, on_deadline, t);
	return t;
}

void tls_server_accept(struct tls_server *s, int fd)
{
	SSL *ssl;

	ERR_clear_error();
	if (s->n_handshakes >= s->conf.max_handshakes)
		tls_close(CONTAINER_OF(s->handshakes.next, struct tls, node), true);
	ssl = s->cert && s->n_conns < s->conf.max_conns ? SSL_new(s->cert->ctx) : NULL;
	if (!ssl || SSL_set_fd(ssl, fd) != 1) {
		SSL_free(ssl);
		fd_close(fd);
		return;
	}
	tls_watch(tls_new(s, ssl, fd));
}

size_t tls_server_conns(const struct tls_server *s)
{
	return s->n_conns;
}

size_t tls_server_handshakes(const struct tls_server *s)
{
	return s->n_handshakes;
}

const char *tls_name(const struct tls *t)
{
	return t->name[0] ? t->name : NULL;
}

bool tls_is_h2(const struct tls *t)
{
	return t->is_h2;
}

struct tls *tls_of(int fd)
{
	return pair_arg(fd, &tls_pair_ops);
}
