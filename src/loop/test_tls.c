/* A real client (OpenSSL, in a thread, over loopback) against tls.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "loop/conn.h"
#include "loop/listen.h"
#include "loop/pair.h"
#include "loop/test_cert.h"
#include "loop/test_turn.h"
#include "loop/tls.h"

#define BIG (10 << 20)
#define CLIENT_MS 45000

static struct tls_cert *make_cert(int serial)
{
	autofree char *pem = make_pem("DNS:api.test,DNS:*.box.test", serial, true);
	struct tls_cert *c = NULL;
	struct err e = { 0 };

	assert_int_equal(tls_cert_load(pem, strlen(pem), &c, &e), 0);
	return c;
}

/* ---- server: what each connection gets on its plain half ---- */

enum plain_mode { PLAIN_ECHO, PLAIN_HOLD, PLAIN_SEND_BIG };

struct rig {
	struct loop *l;
	struct tls_server *s;
	struct listener *ln;
	char addr[64];
	int port;
	/* server side */
	enum plain_mode mode;
	enum tls_answer answer;
	bool wait;                       /* answer later */
	bool said;                       /* taken when the client has said something */
	struct tls *waiting;
	int asked, ready, ended, errors;
	struct conn *plain;              /* the newest */
	char name[TLS_NAME_MAX + 1];
	bool h2, asked_h2;
	size_t left;
	/* client side */
	pthread_t thread;
	void (*step)(struct rig *r);
	atomic_bool done;
	const char *sni;
	const unsigned char *alpn; size_t alpn_len;
	int version;
	SSL_CTX *ctx;
	SSL *ssl;
	int fd;
	int result, alert, serial;
	size_t got;
	bool clean_end;
	char chosen[16];
};

static void push_big(struct rig *r, struct conn *c)
{
	static const char zeros[16384];

	while (r->left > 0 && conn_out_len(c) == 0) {
		size_t n = r->left < sizeof(zeros) ? r->left : sizeof(zeros);

		if (conn_write(c, zeros, n) < 0)
			return;
		r->left -= n;
	}
	if (r->left == 0)
		conn_shutdown_write(c);
}

static void on_plain(struct conn *c, enum conn_event ev, void *arg)
{
	struct rig *r = arg;
	struct buf *in = conn_in(c);

	if (ev == CONN_ERROR) {
		r->errors++;
		r->plain = NULL;
		conn_free(c);
	} else if (r->mode == PLAIN_SEND_BIG) {
		buf_clear(in);
		push_big(r, c);
	} else if (r->mode == PLAIN_ECHO && (ev == CONN_DATA || ev == CONN_DRAINED)) {
		if (conn_out_len(c) == 0 && buf_len(in)) {
			conn_write(c, buf_data(in), buf_len(in));
			buf_clear(in);
		}
	}
	if (ev == CONN_EOF) {
		r->ended++;
		if (r->mode != PLAIN_SEND_BIG)
			conn_shutdown_write(c);
	}
}

static void on_ready(struct tls *t, int plain, void *arg)
{
	struct rig *r = arg;

	r->ready++;
	r->h2 = tls_is_h2(t);
	assert_ptr_equal(tls_of(plain), t);
	r->plain = conn_new(r->l, plain, 65536, BIG, on_plain, r);
	if (r->mode == PLAIN_SEND_BIG)
		push_big(r, r->plain);
}

static void on_hello(struct tls *t, const char *name, bool h2, void *arg)
{
	struct rig *r = arg;

	r->asked++;
	r->asked_h2 = h2;
	str_copy(r->name, sizeof(r->name), name ? name : "");
	if (r->wait)
		r->waiting = t;
	else
		tls_answer(t, r->answer);
}

static void on_accept(int fd, void *arg)
{
	struct rig *r = arg;
	struct pollfd p = { .fd = fd, .events = POLLIN };

	if (r->said)
		assert_int_equal(poll(&p, 1, CLIENT_MS), 1);
	tls_server_accept(r->s, fd);
}

static struct rig *rig_new(const struct tls_conf *with)
{
	struct rig *r = x_alloc(sizeof(*r));
	struct tls_conf c = {
		.handshake_ms = TURN_DEADLINE_MS, .max_handshakes = 64, .max_conns = 64,
		.hello = on_hello, .ready = on_ready, .arg = r,
	};
	struct sockaddr_in sa;
	socklen_t n = sizeof(sa);

	if (with) {
		c.handshake_ms = with->handshake_ms;
		c.max_handshakes = with->max_handshakes;
		c.max_conns = with->max_conns;
	}
	signal(SIGPIPE, SIG_IGN);
	r->l = c.loop = loop_new();
	r->s = tls_server_new(&c);
	tls_server_set_cert(r->s, make_cert(1));
	r->answer = TLS_HTTP1_OR_H2;
	r->sni = "api.test";
	r->fd = -1;
	assert_int_equal(listener_new(r->l, "t", "tcp:127.0.0.1:0", 0, on_accept, r, &r->ln, NULL), 0);
	getsockname(listener_fd(r->ln), (struct sockaddr *)&sa, &n);
	str_format(r->addr, sizeof(r->addr), "tcp:127.0.0.1:%d", ntohs(sa.sin_port));
	return r;
}

static void rig_free(struct rig *r)
{
	SSL_free(r->ssl);
	SSL_CTX_free(r->ctx);
	fd_close(r->fd);
	conn_free(r->plain);
	listener_free(r->ln);
	tls_server_free(r->s);
	loop_turn(r->l, 0);
	loop_free(r->l);
	free(r);
}

/* ---- client ---- */

static int dial(struct rig *r)
{
	struct timeval tv = { .tv_sec = CLIENT_MS / 1000 };
	int fd = dial_wait(r->addr, CLIENT_MS, NULL);

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	return fd;
}

static bool client_connect(struct rig *r)
{
	X509 *x;

	r->ctx = SSL_CTX_new(TLS_client_method());
	if (r->version)
		SSL_CTX_set_max_proto_version(r->ctx, r->version);
	r->ssl = SSL_new(r->ctx);
	r->fd = dial(r);
	SSL_set_fd(r->ssl, r->fd);
	if (r->sni)
		SSL_set_tlsext_host_name(r->ssl, r->sni);
	if (r->alpn)
		SSL_set_alpn_protos(r->ssl, r->alpn, (unsigned)r->alpn_len);
	r->result = SSL_connect(r->ssl);
	if (r->result != 1) {
		r->alert = ERR_GET_REASON(ERR_peek_error());
		return false;
	}
	const unsigned char *p;
	unsigned n;
	SSL_get0_alpn_selected(r->ssl, &p, &n);
	memcpy(r->chosen, n ? (const char *)p : "", n < sizeof(r->chosen) ? n : 0);
	x = SSL_get1_peer_certificate(r->ssl);
	r->serial = (int)ASN1_INTEGER_get(X509_get0_serialNumber(x));
	X509_free(x);
	return true;
}

/* Reads to the end. */
static void client_drain(struct rig *r)
{
	static char buf[65536];
	int n;

	while ((n = SSL_read(r->ssl, buf, sizeof(buf))) > 0)
		r->got += (size_t)n;
	r->clean_end = SSL_get_error(r->ssl, n) == SSL_ERROR_ZERO_RETURN;
}

static void *client_main(void *arg)
{
	struct rig *r = arg;

	r->step(r);
	atomic_store(&r->done, true);
	return NULL;
}

static void run(struct rig *r, void (*step)(struct rig *r))
{
	r->step = step;
	atomic_store(&r->done, false);
	pthread_create(&r->thread, NULL, client_main, r);
}

static void finish(struct rig *r)
{
	TURN_UNTIL(r->l, atomic_load(&r->done));
	pthread_join(r->thread, NULL);
}

static void connect_only(struct rig *r)
{
	client_connect(r);
}


/* ---- tests ---- */

static void say_and_half_close(struct rig *r)
{
	if (!client_connect(r))
		return;
	SSL_write(r->ssl, "hello", 5);
	SSL_shutdown(r->ssl);
	client_drain(r);
}

static void test_echo(void **state)
{
	static const int versions[] = { TLS1_2_VERSION, TLS1_3_VERSION };

	for (size_t i = 0; i < ARRAY_LEN(versions); i++) {
		struct rig *r = rig_new(NULL);

		r->version = versions[i];
		run(r, say_and_half_close);
		finish(r);
		assert_int_equal(r->result, 1);
		assert_int_equal(r->got, 5);
		assert_true(r->clean_end);
		assert_int_equal(r->ended, 1);
		assert_int_equal(r->errors, 0);
		assert_int_equal(r->serial, 1);
		assert_string_equal(r->name, "api.test");
		TURN_UNTIL(r->l, tls_server_conns(r->s) == 0);
		rig_free(r);
	}
}

static void *write_big(void *arg)
{
	struct rig *r = arg;
	char *block = x_alloc(65536);

	for (size_t sent = 0; sent < BIG; sent += 65536)
		if (SSL_write(r->ssl, block, 65536) <= 0)
			break;
	free(block);
	return NULL;
}

/* One thread cannot use an SSL object from two sides: written in pieces, read between them. */
static void big_both_ways(struct rig *r)
{
	char *block = x_alloc(65536);

	if (!client_connect(r))
		return;
	for (size_t sent = 0; sent < BIG; sent += 65536) {
		size_t back = 0;

		if (SSL_write(r->ssl, block, 65536) <= 0)
			break;
		while (back < 65536) {
			int n = SSL_read(r->ssl, block, 65536);

			if (n <= 0)
				break;
			back += (size_t)n;
		}
		r->got += back;
	}
	free(block);
	SSL_shutdown(r->ssl);
	client_drain(r);
}

static void test_big(void **state)
{
	struct rig *r = rig_new(NULL);

	run(r, big_both_ways);
	finish(r);
	assert_int_equal(r->got, BIG);
	assert_true(r->clean_end);
	rig_free(r);
}

/* The server sends 10 MB to one who takes nothing for a while, then all. */
static atomic_bool go;

static void slow_reader(struct rig *r)
{
	if (!client_connect(r))
		return;
	while (!atomic_load(&go))
		poll(NULL, 0, 5);
	client_drain(r);
}

static void test_slow_reader(void **state)
{
	struct rig *r = rig_new(NULL);
	size_t left;

	atomic_store(&go, false);
	r->mode = PLAIN_SEND_BIG;
	r->left = 4 * BIG;
	run(r, slow_reader);
	TURN_UNTIL(r->l, r->ready == 1);
	do {
		left = r->left;
		for (int i = 0; i < 10; i++)
			loop_turn(r->l, 5);
	} while (r->left != left);
	assert_true(r->left > BIG);              /* the producer stands */
	atomic_store(&go, true);
	finish(r);
	assert_int_equal(r->got, 4 * BIG);
	assert_true(r->clean_end);
	rig_free(r);
}

/* The client sends and never reads; the plain side holds: memory stands still, nothing dies. */
static void flood(struct rig *r)
{
	struct timeval tv = { .tv_usec = 300000 };

	if (!client_connect(r))
		return;
	setsockopt(r->fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	write_big(r);
}

static void test_stalled_plain(void **state)
{
	struct rig *r = rig_new(NULL);

	r->mode = PLAIN_HOLD;
	run(r, flood);
	finish(r);
	TURN_UNTIL(r->l, r->ready == 1);
	assert_true(buf_len(conn_in(r->plain)) <= 65536);
	rig_free(r);
}

#define LATE 400000                      /* more than what lies between the two sides holds */

static void send_after_the_end(struct rig *r)
{
	static char block[LATE];

	if (!client_connect(r))
		return;
	client_drain(r);
	SSL_write(r->ssl, block, sizeof(block));
	SSL_shutdown(r->ssl);
	close(TAKE_FD(r->fd));
}

/* Our side has ended, the client goes on, ends and leaves: what it sent arrives, however late. */
static void test_late_reader(void **state)
{
	struct rig *r = rig_new(NULL);
	size_t got = 0;

	r->mode = PLAIN_HOLD;
	run(r, send_after_the_end);
	TURN_UNTIL(r->l, r->plain);
	conn_pause(r->plain, true);
	conn_shutdown_write(r->plain);
	finish(r);
	for (int i = 0; i < 20; i++)
		loop_turn(r->l, 1);
	conn_pause(r->plain, false);
	while (r->plain && !r->ended) {
		loop_turn(r->l, CLIENT_MS);
		if (r->plain) {
			got += buf_len(conn_in(r->plain));
			buf_clear(conn_in(r->plain));
		}
	}
	assert_int_equal(r->errors, 0);
	assert_int_equal(got, LATE);
	TURN_UNTIL(r->l, tls_server_conns(r->s) == 0);
	rig_free(r);
}

static void test_names(void **state)
{
	static const struct { const char *sni; enum tls_answer answer; int alert; const char *seen; } rows[] = {
		{ "api.test", TLS_HTTP1, 0, "api.test" },
		{ NULL, TLS_HTTP1, 0, "" },
		{ "3000-IABC.Box.Test", TLS_HTTP1, 0, "3000-iabc.box.test" },
		{ "other.test", TLS_REFUSE, SSL_R_TLSV1_UNRECOGNIZED_NAME, "other.test" },
		{ "api.test", TLS_UNAVAILABLE, SSL_R_TLSV1_ALERT_INTERNAL_ERROR, "api.test" },
		{ "a..b", TLS_HTTP1, SSL_R_TLSV1_ALERT_DECODE_ERROR, "" },
	};

	for (size_t i = 0; i < 2 * ARRAY_LEN(rows); i++) {
		size_t k = i / 2;
		struct rig *r = rig_new(NULL);

		r->sni = rows[k].sni;
		r->answer = rows[k].answer;
		r->wait = i % 2;                 /* at once, and suspended */
		run(r, connect_only);
		if (r->wait && rows[k].alert != SSL_R_TLSV1_ALERT_DECODE_ERROR) {
			TURN_UNTIL(r->l, r->waiting);
			for (int n = 0; n < 3; n++)
				loop_turn(r->l, 5);
			assert_int_equal(r->ready, 0);
			tls_answer(r->waiting, r->answer);
		}
		finish(r);
		assert_string_equal(r->name, rows[k].seen);
		assert_int_equal(r->result == 1, rows[k].alert == 0);
		if (rows[k].alert)
			assert_int_equal(r->alert, rows[k].alert);
		TURN_UNTIL(r->l, tls_server_handshakes(r->s) == 0);
		rig_free(r);
	}
}

#define P_H2 "\2h2"
#define P_H1 "\10http/1.1"

static void test_alpn(void **state)
{
	static const struct {
		const char *offer;
		enum tls_answer answer;
		const char *chosen;      /* NULL: refused */
		bool h2;
	} rows[] = {
		{ NULL, TLS_HTTP1_OR_H2, "", false },
		{ P_H1, TLS_HTTP1_OR_H2, "http/1.1", false },
		{ P_H2 P_H1, TLS_HTTP1_OR_H2, "http/1.1", false },
		{ P_H1 P_H2, TLS_HTTP1_OR_H2, "http/1.1", false },
		{ P_H2, TLS_HTTP1_OR_H2, "h2", true },
		{ "\10grpc-exp" P_H2, TLS_HTTP1_OR_H2, "h2", true },
		{ P_H2, TLS_HTTP1, NULL, false },
		{ P_H2 P_H1, TLS_HTTP1, "http/1.1", false },
		{ "\2h3", TLS_HTTP1_OR_H2, NULL, false },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct rig *r = rig_new(NULL);

		r->alpn = (const unsigned char *)rows[i].offer;
		r->alpn_len = rows[i].offer ? strlen(rows[i].offer) : 0;
		r->answer = rows[i].answer;
		run(r, connect_only);
		finish(r);
		assert_int_equal(r->asked_h2, rows[i].offer && strstr(rows[i].offer, P_H2) &&
						      !strstr(rows[i].offer, P_H1));
		assert_int_equal(r->result == 1, rows[i].chosen != NULL);
		if (rows[i].chosen) {
			assert_string_equal(r->chosen, rows[i].chosen);
			TURN_UNTIL(r->l, r->ready == 1);
			assert_int_equal(r->h2, rows[i].h2);
		} else {
			assert_int_equal(r->alert, SSL_R_TLSV1_ALERT_NO_APPLICATION_PROTOCOL);
		}
		rig_free(r);
	}
}

/* Who leaves while his name is looked up, or is too slow for it; the answer comes all the same. */
static void test_gone_while_asked(void **state)
{
	static const struct tls_conf quick = { .handshake_ms = 50, .max_handshakes = 4, .max_conns = 4 };

	for (int leave = 0; leave < 2; leave++) {
		struct rig *r = rig_new(leave ? NULL : &quick);

		r->wait = true;
		r->said = true;          /* else its short time may be over before that */
		run(r, connect_only);
		TURN_UNTIL(r->l, r->waiting);
		if (leave)
			shutdown(r->fd, SHUT_RDWR);
		if (leave)
			setsockopt(r->fd, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 },
				   sizeof(struct linger));
		if (leave) {
			finish(r);
			fd_close(TAKE_FD(r->fd));
		}
		TURN_UNTIL(r->l, tls_server_conns(r->s) == 0);
		tls_answer(r->waiting, TLS_HTTP1);
		loop_turn(r->l, 0);
		if (!leave)
			finish(r);
		assert_int_not_equal(r->result, 1);
		assert_int_equal(r->ready, 0);
		rig_free(r);
	}
}

/* An answer that never comes: nothing is lost with the server. */
static void test_never_answered(void **state)
{
	static const struct tls_conf quick = { .handshake_ms = 30, .max_handshakes = 4, .max_conns = 4 };
	struct rig *r = rig_new(&quick);

	r->wait = true;
	run(r, connect_only);
	finish(r);
	assert_int_not_equal(r->result, 1);
	rig_free(r);
}

static void test_reload(void **state)
{
	struct rig *r = rig_new(NULL);
	SSL *old;
	SSL_CTX *old_ctx;
	int old_fd;
	char back[8] = "";

	run(r, connect_only);
	finish(r);
	TURN_UNTIL(r->l, r->ready == 1);
	assert_int_equal(r->serial, 1);
	assert_true(tls_server_names(r->s, "api.test"));
	assert_true(tls_server_names(r->s, "3000-i.box.test"));
	assert_false(tls_server_names(r->s, "a.b.box.test"));
	assert_false(tls_server_names(r->s, "other.test"));
	assert_true(tls_server_cert_end(r->s) > 0);
	old = TAKE(r->ssl);
	old_ctx = TAKE(r->ctx);
	old_fd = TAKE_FD(r->fd);
	r->plain = NULL;

	tls_server_set_cert(r->s, make_cert(2));
	run(r, connect_only);
	finish(r);
	assert_int_equal(r->serial, 2);

	assert_int_equal(SSL_write(old, "still", 5), 5);         /* the first one's stream goes on */
	fd_set_nonblock(old_fd, true);
	TURN_UNTIL(r->l, SSL_peek(old, back, sizeof(back)) == 5);
	assert_memory_equal(back, "still", 5);
	SSL_free(old);
	SSL_CTX_free(old_ctx);
	fd_close(old_fd);
	TURN_UNTIL(r->l, r->errors == 1);
	rig_free(r);
}

static void raw_silence(struct rig *r)
{
	char c;

	r->fd = dial(r);
	r->got = (size_t)(recv(r->fd, &c, 1, 0) + 1);    /* 0 or 1: closed */
}

/* A byte now and then: the deadline is for the whole handshake. */
static void raw_dribble(struct rig *r)
{
	static const unsigned char hello[] = { 0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3 };

	r->fd = dial(r);
	for (size_t i = 0; i < 1000; i++) {
		if (send(r->fd, &hello[i < sizeof(hello) ? i : 10], 1, MSG_NOSIGNAL) != 1)
			return;
		poll(NULL, 0, 10);
	}
	r->got = 1;
}

static void test_deadline(void **state)
{
	static const struct tls_conf quick = { .handshake_ms = 100, .max_handshakes = 4, .max_conns = 4 };
	static void (*const steps[])(struct rig *) = { raw_silence, raw_dribble };

	for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
		struct rig *r = rig_new(&quick);

		run(r, steps[i]);
		finish(r);
		assert_int_equal(r->got, 0);
		TURN_UNTIL(r->l, tls_server_conns(r->s) == 0);
		rig_free(r);
	}
}

/* Many that never say anything: the oldest give way, and who does speak is served. */
static void test_many_idle(void **state)
{
	static const struct tls_conf few = { .handshake_ms = 60000, .max_handshakes = 8, .max_conns = 40 };
	struct rig *r = rig_new(&few);
	int idle[100];

	for (size_t i = 0; i < ARRAY_LEN(idle); i++) {
		idle[i] = dial(r);
		loop_turn(r->l, 0);
	}
	TURN_UNTIL(r->l, tls_server_handshakes(r->s) == 8);
	assert_int_equal(tls_server_conns(r->s), 8);
	run(r, say_and_half_close);
	finish(r);
	assert_int_equal(r->got, 5);
	for (size_t i = 0; i < ARRAY_LEN(idle); i++)
		fd_close(idle[i]);
	TURN_UNTIL(r->l, tls_server_conns(r->s) == 0);
	rig_free(r);
}

static void test_too_many(void **state)
{
	static const struct tls_conf one = { .handshake_ms = TURN_DEADLINE_MS, .max_handshakes = 8, .max_conns = 1 };
	struct rig *r = rig_new(&one);
	int second;
	char c;

	run(r, connect_only);
	finish(r);
	TURN_UNTIL(r->l, r->ready == 1);
	second = dial(r);
	fd_set_nonblock(second, true);
	TURN_UNTIL(r->l, recv(second, &c, 1, 0) >= 0 || errno == ECONNRESET);
	assert_int_equal(tls_server_conns(r->s), 1);
	fd_close(second);
	rig_free(r);
}

static void raw_http(struct rig *r)
{
	char buf[1024] = "";

	r->fd = dial(r);
	send(r->fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27, 0);
	r->got = (size_t)recv(r->fd, buf, sizeof(buf) - 1, MSG_WAITALL);
	r->result = strstr(buf, "speaks HTTPS") != NULL;
}

static void raw_garbage(struct rig *r)
{
	char buf[4096];
	unsigned seed = 7;

	for (int round = 0; round < 50; round++) {
		size_t n = 1 + (size_t)rand_r(&seed) % sizeof(buf);

		for (size_t i = 0; i < n; i++)
			buf[i] = (char)rand_r(&seed);
		if (round % 2)
			memcpy(buf, "\x16\x03\x01", 3);
		fd_close(r->fd);
		r->fd = dial(r);
		send(r->fd, buf, n, MSG_NOSIGNAL);
		shutdown(r->fd, SHUT_WR);
		while (recv(r->fd, buf, sizeof(buf), 0) > 0)
			;
	}
}

static void test_not_tls(void **state)
{
	struct rig *r = rig_new(NULL);

	run(r, raw_http);
	finish(r);
	assert_int_equal(r->result, 1);
	run(r, raw_garbage);
	finish(r);
	assert_int_equal(r->ready, 0);
	TURN_UNTIL(r->l, tls_server_conns(r->s) == 0);
	rig_free(r);
}

/*
 * A client that sends on as fast as it is read, without a race that the test would have to win: the
 * linker gives these recv(2) to all of this program (meson.build).
 */
#define ENDLESS_READS 1000
static bool endless;
static unsigned endless_reads;

ssize_t __real_recv(int fd, void *p, size_t n, int flags);
ssize_t __wrap_recv(int fd, void *p, size_t n, int flags);
ssize_t __wrap_recv(int fd, void *p, size_t n, int flags)
{
	if (n != TLS_RECORD || !endless)
		return __real_recv(fd, p, n, flags);
	if (++endless_reads > ENDLESS_READS)
		fail_msg("a client that sends on holds the loop");
	memset(p, 'x', n);
	return (ssize_t)n;
}

/* Who speaks HTTP and goes on: read for a while in one turn, then the others have theirs. */
static void test_endless(void **state)
{
	struct rig *r = rig_new(NULL);

	endless = true;
	run(r, raw_http);
	finish(r);
	TURN_UNTIL(r->l, tls_server_conns(r->s) == 0);
	endless = false;
	/* Twice: before the answer, and behind it. */
	assert_in_range(endless_reads, 2, ENDLESS_READS);
	assert_int_equal(r->ready, 0);
	rig_free(r);
}

/* After the handshake: a record that was tampered with, one that is too long, and plain text. */
static void bad_record(struct rig *r)
{
	static const char *const records[] = {
		"\x17\x03\x03\x00\x10" "0123456789abcdef", "\x17\x03\x03\xff\xff" "0123456789abcdef",
		"GET / HTTP/1.1\r\n\r\n", "\x15\x03\x03\x00\x02\x02\x00",
	};
	char buf[64];

	if (!client_connect(r))
		return;
	send(r->fd, records[r->left], r->left < 2 ? 21 : 7, MSG_NOSIGNAL);
	while (recv(r->fd, buf, sizeof(buf), 0) > 0)
		;
}

static void test_bad_records(void **state)
{
	for (size_t i = 0; i < 4; i++) {
		struct rig *r = rig_new(NULL);

		r->left = i;
		r->mode = PLAIN_HOLD;
		run(r, bad_record);
		finish(r);
		assert_int_equal(r->ready, 1);
		TURN_UNTIL(r->l, r->errors == 1);        /* a cut, no end */
		assert_int_equal(r->ended, 0);
		TURN_UNTIL(r->l, tls_server_conns(r->s) == 0);
		rig_free(r);
	}
}

static void drop_tcp(struct rig *r)
{
	if (client_connect(r))
		SSL_write(r->ssl, "hello", 5);
	shutdown(r->fd, SHUT_WR);                /* without close_notify */
	client_drain(r);
}

static void test_cut_by_client(void **state)
{
	struct rig *r = rig_new(NULL);

	run(r, drop_tcp);
	finish(r);
	TURN_UNTIL(r->l, r->errors == 1);
	assert_int_equal(r->ended, 0);
	assert_false(r->clean_end);
	rig_free(r);
}

static void connect_and_drain(struct rig *r)
{
	if (client_connect(r))
		client_drain(r);
}

static void test_cut_by_server(void **state)
{
	struct rig *r = rig_new(NULL);

	run(r, connect_and_drain);
	TURN_UNTIL(r->l, r->ready == 1);
	assert_false(pair_broken(conn_fd(r->plain)));
	conn_write(r->plain, "part", 4);
	TURN_UNTIL(r->l, pair_idle(conn_fd(r->plain)));
	assert_true(pair_reset(conn_fd(r->plain)));
	finish(r);
	assert_int_equal(r->got, 4);
	assert_false(r->clean_end);
	TURN_UNTIL(r->l, r->errors == 1);
	assert_false(pair_reset(0));
	rig_free(r);
}

/* The plain half is closed at once: what was written before arrives whole, with an orderly end. */
static void test_closed_plain(void **state)
{
	struct rig *r = rig_new(NULL);

	run(r, connect_and_drain);
	TURN_UNTIL(r->l, r->ready == 1);
	conn_write(r->plain, "last words", 10);
	conn_free(TAKE(r->plain));
	finish(r);
	assert_int_equal(r->got, 10);
	assert_true(r->clean_end);
	fd_close(TAKE_FD(r->fd));
	TURN_UNTIL(r->l, tls_server_conns(r->s) == 0);
	rig_free(r);
}

/* The same with all that a socket pair holds, which is more than one turn takes. */
static void test_closed_full(void **state)
{
	static const char block[4096];
	struct rig *r = rig_new(NULL);
	size_t sent = 0;
	ssize_t n;

	r->mode = PLAIN_HOLD;
	run(r, connect_and_drain);
	TURN_UNTIL(r->l, r->ready == 1);
	while ((n = send(conn_fd(r->plain), block, sizeof(block), MSG_DONTWAIT)) > 0)
		sent += (size_t)n;
	conn_free(TAKE(r->plain));
	finish(r);
	assert_int_equal(r->got, sent);
	assert_true(r->clean_end);
	rig_free(r);
}

static void test_bad_files(void **state)
{
	autofree char *a = make_pem("DNS:a", 1, true), *b = make_pem("DNS:b", 1, false);
	autofree char *mixed = x_asprintf("%s%s", b, a), *cut = x_strndup(a, strlen(a) - 80);
	autofree char *broken = x_strdup(a);
	struct tls_cert *c = NULL;
	struct err e;

	broken[100] = broken[100] == 'A' ? 'B' : 'A';
	broken[200] = '!';
	const struct { const char *text, *says; } rows[] = {
		{ "", "no certificate" }, { "nonsense", "no certificate" }, { b, "no private key" },
		{ mixed, "private key cannot be used" }, { cut, "cannot be read" },
		{ broken, "certificate cannot be read" },
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		e = (struct err){ 0 };
		assert_true(tls_cert_load(rows[i].text, strlen(rows[i].text), &c, &e) < 0);
		if (!strstr(e.text, rows[i].says))
			fail_msg("%zu: %s", i, e.text);
	}
	assert_null(c);
	/* A chain, in either order of key and certificates. */
	autofree char *chain = x_asprintf("%s%s", a, b);
	assert_int_equal(tls_cert_load(chain, strlen(chain), &c, &e), 0);
	tls_cert_free(c);
}

static void test_hello_fields(void **state)
{
	char name[TLS_NAME_MAX + 1];
	bool h2, http1;

	assert_int_equal(tls_hello_name((const unsigned char *)"\0\6\0\0\3A.b", 8, name), 0);
	assert_string_equal(name, "a.b");
	assert_int_equal(tls_hello_name((const unsigned char *)"\0\6\0\0\3a.\0", 8, name), -EBADMSG);
	assert_int_equal(tls_hello_name((const unsigned char *)"\0\6\1\0\3a.b", 8, name), -EBADMSG);
	assert_int_equal(tls_hello_name((const unsigned char *)"\0\6\0\0\2a.b", 8, name), -EBADMSG);
	assert_int_equal(tls_hello_name((const unsigned char *)"\0\3\0\0\0", 5, name), -EBADMSG);
	assert_int_equal(tls_hello_name((const unsigned char *)"", 0, name), -EBADMSG);
	assert_int_equal(tls_hello_alpn((const unsigned char *)"\0\3\2h2", 5, &h2, &http1), 0);
	assert_true(h2 && !http1);
	assert_int_equal(tls_hello_alpn((const unsigned char *)"\0\3\3h2", 5, &h2, &http1), -EBADMSG);
	assert_int_equal(tls_hello_alpn((const unsigned char *)"\0\1\0", 3, &h2, &http1), -EBADMSG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hello_fields),  cmocka_unit_test(test_bad_files),
		cmocka_unit_test(test_echo),	      cmocka_unit_test(test_big),
		cmocka_unit_test(test_slow_reader),   cmocka_unit_test(test_stalled_plain),
		cmocka_unit_test(test_late_reader),
		cmocka_unit_test(test_names),	      cmocka_unit_test(test_alpn),
		cmocka_unit_test(test_gone_while_asked), cmocka_unit_test(test_never_answered),
		cmocka_unit_test(test_reload),	      cmocka_unit_test(test_deadline),
		cmocka_unit_test(test_many_idle),     cmocka_unit_test(test_too_many),
		cmocka_unit_test(test_not_tls),	      cmocka_unit_test(test_bad_records),
		cmocka_unit_test(test_endless),
		cmocka_unit_test(test_cut_by_client), cmocka_unit_test(test_cut_by_server),
		cmocka_unit_test(test_closed_plain),
		cmocka_unit_test(test_closed_full),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
