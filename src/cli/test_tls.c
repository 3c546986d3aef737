/* tls_pump against a real server (OpenSSL, in a thread, over loopback). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
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
#include "loop/listen.h"
#include "loop/test_cert.h"
#include "loop/tls.h"
#include "loop/tls_cert.h"

#define BIG (8 << 20)
#define WAIT_MS 30000

struct rig {
	struct tls_cert *cert;
	char addr[64], file[64];
	int ln;
	pthread_t thread;
	void (*serve)(struct rig *r, SSL *ssl);
	size_t got;
	int end;                         /* SSL_get_error of the server's last read */
};

static void *server(void *arg)
{
	struct rig *r = arg;
	int fd = accept(r->ln, NULL, NULL);
	SSL *ssl = SSL_new(r->cert->ctx);

	SSL_set_fd(ssl, fd);
	if (SSL_accept(ssl) == 1)
		r->serve(r, ssl);
	ERR_clear_error();
	SSL_free(ssl);
	fd_close(fd);
	return NULL;
}

static void begin(struct rig *r, const char *names, void (*serve)(struct rig *r, SSL *ssl))
{
	autofree char *pem = make_pem(names, 1, true);
	struct sockaddr_in at;
	socklen_t n = sizeof(at);
	struct err e = { 0 };
	int fd;

	memset(r, 0, sizeof(*r));
	(void)str_copy(r->file, sizeof(r->file), "/tmp/space-test-ca-XXXXXX");
	fd = mkstemp(r->file);
	assert_int_equal(fd_write_all(fd, pem, strlen(pem), -1), 0);
	fd_close(fd);
	setenv("SSL_CERT_FILE", r->file, 1);
	assert_int_equal(tls_cert_load(pem, strlen(pem), &r->cert, &e), 0);
	r->ln = listen_addr("tcp:127.0.0.1:0", SOCK_STREAM, 0, &e);
	fd_set_nonblock(r->ln, false);
	assert_int_equal(getsockname(r->ln, (struct sockaddr *)&at, &n), 0);
	(void)str_format(r->addr, sizeof(r->addr), "tcp:127.0.0.1:%u", ntohs(at.sin_port));
	r->serve = serve;
	if (serve)
		assert_int_equal(pthread_create(&r->thread, NULL, server, r), 0);
}

static void finish(struct rig *r)
{
	if (r->serve)
		assert_int_equal(pthread_join(r->thread, NULL), 0);
	fd_close(r->ln);
	unlink(r->file);
	tls_cert_free(r->cert);
}

static int dial(struct rig *r, const char *name, int ms, struct err *e)
{
	int fd = dial_wait(r->addr, WAIT_MS, e);

	assert_true(fd >= 0);
	return tls_pump(fd, name, clock_mono_ms() + ms, e);
}

static void read_all(struct rig *r, SSL *ssl)
{
	static char data[16384];
	int n;

	while ((n = SSL_read(ssl, data, sizeof(data))) > 0)
		r->got += (size_t)n;
	r->end = SSL_get_error(ssl, n);
}

/* ---- what servers do ---- */

static void count_then_tell(struct rig *r, SSL *ssl)
{
	char text[32];

	read_all(r, ssl);
	(void)str_format(text, sizeof(text), "%zu", r->got);
	SSL_write(ssl, text, (int)strlen(text));
	SSL_shutdown(ssl);
}

static void send_big(struct rig *r, SSL *ssl)
{
	static const char zeros[16384];

	for (size_t n = 0; n < BIG; n += sizeof(zeros))
		if (SSL_write(ssl, zeros, sizeof(zeros)) <= 0)
			return;
	SSL_shutdown(ssl);
	read_all(r, ssl);
}

static void say_and_cut(struct rig *r, SSL *ssl)
{
	SSL_write(ssl, "half", 4);       /* and no close_notify */
}

/* An answer to who still sends, and the end. */
static void answer_early(struct rig *r, SSL *ssl)
{
	char one;

	SSL_read(ssl, &one, 1);
	SSL_write(ssl, "too large", 9);
	SSL_shutdown(ssl);
	shutdown(SSL_get_fd(ssl), SHUT_WR);
}

/* ---- the tests ---- */

static size_t drain(int fd, char *dst, size_t room, int *ret_error)
{
	static char data[65536];
	size_t all = 0;
	ssize_t n;

	while ((n = recv(fd, data, sizeof(data), 0)) > 0) {
		for (ssize_t i = 0; i < n && all + (size_t)i + 1 < room; i++)
			dst[all + (size_t)i] = data[i];
		all += (size_t)n;
	}
	if (room)
		dst[all < room ? all : room - 1] = '\0';
	*ret_error = n < 0 ? errno : 0;
	return all;
}

static void both_ways_and_half_closed(void **state)
{
	autofree char *big = x_alloc(BIG);
	struct err e = { 0 };
	char text[32];
	struct rig r;
	int fd, error;

	begin(&r, "DNS:api.test", count_then_tell);
	fd = dial(&r, "api.test", WAIT_MS, &e);
	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, big, BIG, WAIT_MS), 0);
	shutdown(fd, SHUT_WR);
	drain(fd, text, sizeof(text), &error);
	assert_string_equal(text, "8388608");
	assert_int_equal(error, 0);
	fd_close(fd);
	finish(&r);
	assert_int_equal(r.end, SSL_ERROR_ZERO_RETURN);

	begin(&r, "IP:127.0.0.1", send_big);
	fd = dial(&r, "127.0.0.1", WAIT_MS, &e);
	assert_true(fd >= 0);
	assert_int_equal(drain(fd, NULL, 0, &error), BIG);
	assert_int_equal(error, 0);
	fd_close(fd);                    /* an orderly end too */
	finish(&r);
	assert_int_equal(r.end, SSL_ERROR_ZERO_RETURN);
}

static void a_cut_stays_a_cut(void **state)
{
	struct linger now = { .l_onoff = 1, .l_linger = 0 };
	struct err e = { 0 };
	char text[32];
	struct rig r;
	int fd, error;

	begin(&r, "DNS:api.test", say_and_cut);
	fd = dial(&r, "api.test", WAIT_MS, &e);
	drain(fd, text, sizeof(text), &error);
	assert_string_equal(text, "half");
	assert_int_equal(error, ECONNRESET);
	fd_close(fd);
	finish(&r);

	begin(&r, "DNS:api.test", count_then_tell);
	fd = dial(&r, "api.test", WAIT_MS, &e);
	assert_int_equal(send(fd, "x", 1, 0), 1);
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	fd_close(fd);
	finish(&r);
	assert_int_not_equal(r.end, SSL_ERROR_ZERO_RETURN);
}

static void what_was_said_early_is_read(void **state)
{
	autofree char *big = x_alloc(BIG);
	struct err e = { 0 };
	char text[32];
	struct rig r;
	int fd, error;

	begin(&r, "DNS:api.test", answer_early);
	fd = dial(&r, "api.test", WAIT_MS, &e);
	assert_int_equal(fd_write_all(fd, big, BIG, WAIT_MS), 0);
	shutdown(fd, SHUT_WR);
	drain(fd, text, sizeof(text), &error);
	assert_string_equal(text, "too large");
	fd_close(fd);
	finish(&r);
}

static void who_is_not_trusted(void **state)
{
	struct err e = { 0 };
	struct rig r;

	begin(&r, "DNS:api.test", say_and_cut);
	assert_int_equal(dial(&r, "other.test", WAIT_MS, &e), -EACCES);
	assert_non_null(strstr(e.text, "other.test"));
	assert_non_null(strcasestr(e.text, "hostname mismatch"));
	finish(&r);
	begin(&r, "DNS:localhost", say_and_cut);
	assert_int_equal(dial(&r, "127.0.0.1", WAIT_MS, &e), -EACCES);
	finish(&r);
	begin(&r, "DNS:api.test", say_and_cut);
	setenv("SSL_CERT_FILE", "/dev/null", 1);
	assert_int_equal(dial(&r, "api.test", WAIT_MS, &e), -EACCES);
	assert_non_null(strstr(e.text, "SSL_CERT_FILE"));
	assert_string_equal(e.code, "certificate-refused");
	finish(&r);
}

static void who_speaks_no_tls(void **state)
{
	static const char answer[] = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
	struct err e = { 0 };
	struct rig r;
	int net, fd;

	begin(&r, "DNS:api.test", NULL);
	net = dial_wait(r.addr, WAIT_MS, &e);
	fd = accept(r.ln, NULL, NULL);
	assert_int_equal(tls_pump(net, "api.test", clock_mono_ms() + 50, &e), -ETIMEDOUT);
	fd_close(fd);
	net = dial_wait(r.addr, WAIT_MS, &e);
	fd = accept(r.ln, NULL, NULL);
	assert_int_equal(send(fd, answer, sizeof(answer) - 1, 0), sizeof(answer) - 1);
	assert_int_equal(tls_pump(net, "api.test", clock_mono_ms() + WAIT_MS, &e), -EPROTO);
	assert_non_null(strstr(e.text, "api.test"));
	fd_close(fd);
	finish(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(both_ways_and_half_closed),
		cmocka_unit_test(a_cut_stays_a_cut),
		cmocka_unit_test(what_was_said_early_is_read),
		cmocka_unit_test(who_is_not_trusted),
		cmocka_unit_test(who_speaks_no_tls),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
