/*
 * TLS for commands that work with plain descriptors. After the handshake a thread carries bytes
 * between the connection and its half of a pair; the other half is the caller's. The pair is one of
 * TCP over the loopback interface and not a Unix one, because a cut must stay a cut: a connection
 * that ends without close_notify is a reset there, and a reset from there ends the connection
 * without close_notify. A half-close goes through as one.
 *
 * The certificate must lead to an authority that the machine trusts (SSL_CERT_FILE and SSL_CERT_DIR
 * as everywhere with OpenSSL) and be for the host of the URL.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli/cli.h"
#include "loop/tls.h"
#include "loop/tls_cert.h"

/* One direction: what was read and not written yet; its source has ended; the end was passed on. */
struct half { char data[TLS_RECORD]; size_t at, n; bool eof, done; };

struct pump {
	SSL *ssl;
	int net, own;
	struct half up, down;            /* to the server, to the caller */
	bool drop_up;                    /* the server takes no more; what it says is still read */
	bool cut, moved;
	short net_events;
};

/* ---- the carrying ---- */

/* After an SSL_ call that gave r <= 0: false when it is no matter of waiting. */
static bool waits(struct pump *p, int r)
{
	int why = SSL_get_error(p->ssl, r);

	ERR_clear_error();
	if (why == SSL_ERROR_WANT_READ)
		p->net_events |= POLLIN;
	else if (why == SSL_ERROR_WANT_WRITE)
		p->net_events |= POLLOUT;
	else
		return false;
	return true;
}

static void take_own(struct pump *p)
{
	ssize_t n = recv(p->own, p->up.data, sizeof(p->up.data), MSG_DONTWAIT);

	if (n < 0) {
		p->cut = errno != EAGAIN && errno != EINTR;
		return;
	}
	p->moved = true;
	p->up.at = 0;
	p->up.n = p->drop_up ? 0 : (size_t)n;
	p->up.eof = n == 0;
}

static void go_up(struct pump *p)
{
	struct half *h = &p->up;
	int r;

	if (!h->n && !h->eof)
		take_own(p);
	if (h->n) {
		r = SSL_write(p->ssl, h->data + h->at, (int)h->n);
		if (r > 0) {
			p->moved = true;
			h->at += (size_t)r;
			h->n -= (size_t)r;
		} else if (!waits(p, r)) {
			p->drop_up = true;
			h->n = 0;
		}
	}
	if (h->eof && !h->n && !h->done) {
		r = p->drop_up ? 0 : SSL_shutdown(p->ssl);
		h->done = r >= 0;
		p->cut |= r < 0 && !waits(p, r);
	}
}

static void go_down(struct pump *p)
{
	struct half *h = &p->down;

	if (!h->n && !h->eof) {
		int r = SSL_read(p->ssl, h->data, sizeof(h->data));

		h->at = 0;
		h->n = r > 0 ? (size_t)r : 0;
		h->eof = r <= 0 && SSL_get_error(p->ssl, r) == SSL_ERROR_ZERO_RETURN;
		p->moved |= r > 0 || h->eof;
		p->cut |= r <= 0 && !h->eof && !waits(p, r);
	}
	if (h->n) {
		ssize_t n = send(p->own, h->data + h->at, h->n, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n > 0) {
			p->moved = true;
			h->at += (size_t)n;
			h->n -= (size_t)n;
		}
		p->cut |= n < 0 && errno != EAGAIN && errno != EINTR;
	}
	if (h->eof && !h->n && !h->done) {
		shutdown(p->own, SHUT_WR);
		h->done = true;
	}
}

static void *pump_main(void *arg)
{
	struct pump *p = arg;
	struct linger now = { .l_onoff = 1, .l_linger = 0 };

	while (!p->cut && !(p->up.done && p->down.done)) {
		short own = 0;

		p->moved = false;
		p->net_events = 0;
		go_up(p);
		if (!p->cut)
			go_down(p);
		if (p->moved || p->cut)
			continue;
		own |= !p->up.n && !p->up.eof ? POLLIN : 0;
		own |= p->down.n ? POLLOUT : 0;
		struct pollfd fds[] = { { .fd = own ? p->own : -1, .events = own },
					{ .fd = p->net_events ? p->net : -1,
					  .events = p->net_events } };

		poll(fds, ARRAY_LEN(fds), -1);
	}
	if (p->cut) {
		setsockopt(p->own, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
		setsockopt(p->net, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	}
	SSL_free(p->ssl);
	fd_close(p->net);
	fd_close(p->own);
	free(p);
	return NULL;
}

/* ---- the beginning ---- */

/* Two connected sockets; whoever else connects to the port meanwhile is turned away. */
static int tcp_pair(int ret[2], struct err *e)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) },
			   mine, peer;
	autoclose int ln = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
		      fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), other = -1;
	socklen_t n = sizeof(at);
	int on = 1;

	if (ln < 0 || fd < 0 || bind(ln, (struct sockaddr *)&at, sizeof(at)) < 0 ||
	    listen(ln, 1) < 0 || getsockname(ln, (struct sockaddr *)&at, &n) < 0 ||
	    connect(fd, (struct sockaddr *)&at, n) < 0 ||
	    getsockname(fd, (struct sockaddr *)&mine, &n) < 0)
		return err_errno(e, -errno, "no connection within this machine");
	do {
		fd_close(TAKE_FD(other));
		n = sizeof(peer);
		other = accept4(ln, (struct sockaddr *)&peer, &n, SOCK_CLOEXEC);
		if (other < 0)
			return err_errno(e, -errno, "no connection within this machine");
	} while (peer.sin_port != mine.sin_port || peer.sin_addr.s_addr != mine.sin_addr.s_addr);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(other, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	ret[0] = TAKE_FD(fd);
	ret[1] = TAKE_FD(other);
	return 0;
}

static SSL *new_ssl(int net, const char *name)
{
	static const unsigned char http1[] = "\x08http/1.1";
	struct in6_addr any;
	SSL_CTX *ctx;
	SSL *ssl;
	bool numeric = inet_pton(AF_INET, name, &any) == 1 || inet_pton(AF_INET6, name, &any) == 1,
	     ok;

	tls_openssl_init();
	ctx = SSL_CTX_new(TLS_client_method());
	if (!ctx)
		return NULL;
	SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
	SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	SSL_CTX_set_default_verify_paths(ctx);
	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
	ssl = SSL_new(ctx);
	SSL_CTX_free(ctx);               /* lives on in ssl */
	ok = ssl && SSL_set_fd(ssl, net) == 1 &&
	     SSL_set_alpn_protos(ssl, http1, sizeof(http1) - 1) == 0 &&
	     (numeric ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1
		      : SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1);
	if (ok)
		return ssl;
	SSL_free(ssl);
	return NULL;
}

static int refused(SSL *ssl, const char *name, struct err *e)
{
	long why = SSL_get_verify_result(ssl);
	char what[300];

	if (why == X509_V_OK) {
		(void)str_format(what, sizeof(what), "no TLS with %s", name);
		return tls_error(e, -EPROTO, what);
	}
	ERR_clear_error();
	return err_set_code(e, -EACCES, "certificate-refused",
			    "the certificate of %s is refused: %s; SSL_CERT_FILE=FILE names "
			    "authorities to trust", name, X509_verify_cert_error_string(why));
}

static int handshake(SSL *ssl, int net, const char *name, int64_t end_ms, struct err *e)
{
	int r;

	while ((r = SSL_connect(ssl)) <= 0) {
		int why = SSL_get_error(ssl, r);
		struct pollfd p = { .fd = net,
				    .events = why == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN };
		int64_t left = end_ms - clock_mono_ms();

		if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE)
			return refused(ssl, name, e);
		if (left <= 0)
			return err_set(e, -ETIMEDOUT, "no TLS with %s in time", name);
		poll(&p, 1, (int)left);
	}
	return 0;
}

/* Signals are for the thread that waits for them. */
static int start(struct pump *p)
{
	sigset_t all, before;
	pthread_t id;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&id, NULL, pump_main, p);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r == 0)
		pthread_detach(id);
	return -r;
}

int tls_pump(int net, const char *name, int64_t end_ms, struct err *e)
{
	autoclose int fd = net;
	SSL *ssl = new_ssl(net, name);
	int r = ssl ? fd_set_nonblock(net, true) : -ENOMEM, pair[2] = { -1, -1 };
	struct pump *p;

	if (r < 0)
		err_errno(e, r, "no TLS with %s", name);
	else
		r = handshake(ssl, net, name, end_ms, e);
	if (r >= 0)
		r = tcp_pair(pair, e);
	if (r < 0) {
		SSL_free(ssl);
		return r;
	}
	p = x_alloc(sizeof(*p));
	p->ssl = ssl;
	p->net = net;
	p->own = pair[1];
	r = start(p);
	if (r < 0) {
		SSL_free(ssl);
		free(p);
		fd_close(pair[0]);
		fd_close(pair[1]);
		return err_errno(e, r, "no thread for TLS");
	}
	(void)TAKE_FD(fd);
	return pair[0];
}
