/*
 * The client against a scripted peer in a thread: reads what the script says, then sends what the
 * script says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "http/client.h"
#include "loop/listen.h"

#define DEADLINE_MS 60000
#define SEEN_MAX (1 << 20)

struct script {
	const char *until;              /* read until this was seen; NULL = read nothing */
	const char *answer;
	bool hang;                      /* do not close until the client does */
};

struct peer {
	char dir[32], addr[64];
	int listen_fd;
	const struct script *script;
	struct buf seen;
	pthread_t thread;
};

static void read_until(struct peer *p, int fd, const char *until)
{
	char c;

	while (!memmem(buf_data(&p->seen), buf_len(&p->seen), until, strlen(until)) &&
	       fd_read_full(fd, &c, 1, DEADLINE_MS) == 1)
		buf_put(&p->seen, &c, 1);
}

static void *serve(void *arg)
{
	struct peer *p = arg;
	struct pollfd pfd = { .fd = p->listen_fd, .events = POLLIN };
	char c;

	if (poll(&pfd, 1, DEADLINE_MS) != 1)
		return NULL;
	autoclose int fd = accept4(p->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	if (p->script->until)
		read_until(p, fd, p->script->until);
	if (p->script->answer)
		fd_write_all(fd, p->script->answer, strlen(p->script->answer), DEADLINE_MS);
	while (p->script->hang && fd_read_full(fd, &c, 1, DEADLINE_MS) == 1)
		buf_put(&p->seen, &c, 1);
	return NULL;
}

static void peer_start(struct peer *p, const struct script *s)
{
	struct err e;

	*p = (struct peer){ .dir = "/tmp/test-client-XXXXXX", .script = s };
	assert_non_null(mkdtemp(p->dir));
	str_format(p->addr, sizeof(p->addr), "unix:%s/s", p->dir);
	p->listen_fd = listen_addr(p->addr, SOCK_STREAM, 0600, &e);
	assert_true(p->listen_fd >= 0);
	buf_init(&p->seen, SEEN_MAX);
	assert_int_equal(pthread_create(&p->thread, NULL, serve, p), 0);
}

static void peer_stop(struct peer *p)
{
	pthread_join(p->thread, NULL);
	fd_close(p->listen_fd);
	unlink(p->addr + 5);
	rmdir(p->dir);
}

static bool saw(struct peer *p, const char *text)
{
	return memmem(buf_data(&p->seen), buf_len(&p->seen), text, strlen(text)) != NULL;
}

static const struct {
	struct script s;
	const char *method;
	int r, status;
	const char *body;
} call_cases[] = {
	{ { "\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello" },
	  "GET", 0, 200, "hello" },
	{ { "\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more", true },
	  "GET", 0, 200, "hello" },
	{ { "\r\n\r\n",
	    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n" },
	  "GET", 0, 200, "hello" },
	{ { "\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\nhello" }, "GET", 0, 200, "hello" },
	{ { "\r\n\r\n",
	    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\nA: b\r\n\r\nHTTP/1.1 204 x\r\n\r\n" },
	  "GET", 0, 204, "" },
	{ { "\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" }, "HEAD", 0, 200, "" },
	{ { "\r\n\r\n", "HTTP/1.1 503 no\r\nContent-Length: 2\r\n\r\nno" }, "GET", 0, 503, "no" },
	{ { NULL, "HTTP/1.1 503 no\r\nContent-Length: 2\r\n\r\nno" }, "GET", 0, 503, "no" },
	{ { "\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello worlds" },
	  "GET", -EFBIG },
	{ { "\r\n\r\n",
	    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello wor\r\n2\r\n" },
	  "GET", -EFBIG },
	{ { "\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell" }, "GET", -ECONNRESET },
	{ { "\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n" },
	  "GET", -ECONNRESET },
	{ { "\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n" },
	  "GET", -EBADMSG },
	{ { "\r\n\r\n", "HTTP/1.1 200" }, "GET", -ECONNRESET },
	{ { "\r\n\r\n", NULL }, "GET", -ECONNRESET },
	{ { "\r\n\r\n", "SSH-2.0-OpenSSH\r\n\r\n" }, "GET", -EBADMSG },
	{ { "\r\n\r\n", "HTTP/1.1 200 OK\nContent-Length: 0\n\n" }, "GET", -EBADMSG },
};

static void test_calls(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(call_cases); i++) {
		struct peer p;
		struct http_answer a;
		struct err e = { 0 };
		peer_start(&p, &call_cases[i].s);
		int r = http_call(&(struct http_call) { .addr = p.addr,
							.method = call_cases[i].method,
							.target = "/x",
							.host = "h",
							.timeout_ms = DEADLINE_MS,
							.max_answer = 10 },
				  &a, &e);
		if (r != call_cases[i].r)
			fail_msg("case %zu: %d (%s)", i, r, e.text);
		if (r == 0) {
			assert_int_equal(a.head.status, call_cases[i].status);
			assert_string_equal(a.body, call_cases[i].body);
			assert_int_equal(a.body_len, strlen(call_cases[i].body));
			http_answer_done(&a);
		} else {
			assert_int_equal(e.num, r);
			assert_true(e.text[0]);
		}
		peer_stop(&p);
		buf_done(&p.seen);
	}
}

static void test_request_text(void **state)
{
	static const struct script s = { "\r\n\r\nbody",
					 "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" };
	struct peer p;
	struct http_answer a;
	struct err e;

	peer_start(&p, &s);
	assert_int_equal(http_call(&(struct http_call) { .addr = p.addr,
							 .method = "POST",
							 .target = "/a?b",
							 .host = "h",
							 .fields =
								 (const struct http_field[]) {
									 { "X-A", "1" },
									 { "X-B", "2" },
									 { 0 } },
							 .body = "body",
							 .body_len = 4,
							 .timeout_ms = DEADLINE_MS,
							 .max_answer = 0 },
				   &a, &e),
			 0);
	http_answer_done(&a);
	peer_stop(&p);
	assert_true(saw(
		&p,
		"POST /a?b HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nX-B: 2\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody"));
	buf_done(&p.seen);
}

static void test_refusals(void **state)
{
	static const struct script s = { "\r\n\r\n", NULL, true };
	struct peer p;
	struct http_answer a;
	struct err e = { 0 };

	peer_start(&p, &s);
	struct http_call c = {
		.addr = p.addr, .method = "GET", .target = "/", .timeout_ms = 50, .max_answer = 10
	};
	assert_int_equal(http_call(&c, &a, &e), -ETIMEDOUT);
	peer_stop(&p);
	buf_done(&p.seen);
	c.addr = "unix:/nonexistent/socket";
	assert_int_equal(http_call(&c, &a, &e), -ENOENT);
	peer_start(&p, &s);
	c.addr = p.addr;
	c.target = "/a b";
	assert_int_equal(http_call(&c, &a, &e), -EINVAL);
	peer_stop(&p);
	buf_done(&p.seen);
	peer_start(&p, &s);
	c.target = "/";
	c.fields = (const struct http_field[]){ { "A", "b\r\nC: d" }, { 0 } };
	assert_int_equal(http_call(&c, &a, &e), -EINVAL);
	peer_stop(&p);
	assert_int_equal(buf_len(&p.seen), 0);
	buf_done(&p.seen);
}

static void test_open_chunked(void **state)
{
	static const struct script s = { "0\r\n\r\n",
					 "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" };
	struct peer p;
	struct http_head h;
	struct buf b, rest;
	struct err e = { 0 };
	int fd;

	peer_start(&p, &s);
	assert_int_equal(http_call_open(&(struct http_call) { .addr = p.addr,
							      .method = "PUT",
							      .target = "/",
							      .host = "h",
							      .timeout_ms = DEADLINE_MS },
					true, &fd, NULL, NULL, &e),
			 0);
	buf_init(&b, 4096);
	buf_init(&rest, HTTP_HEAD_MAX);
	http_put_chunk(&b, "abc", 3);
	http_put_chunk(&b, NULL, 0);
	assert_int_equal(fd_write_all(fd, buf_data(&b), buf_len(&b), DEADLINE_MS), 0);
	assert_int_equal(http_call_answer(fd, "PUT", DEADLINE_MS, &h, &rest, &e), 0);
	assert_int_equal(h.status, 200);
	peer_stop(&p);
	assert_true(saw(&p, "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"));
	assert_false(saw(&p, "Content-Length"));
	http_head_done(&h);
	fd_close(fd);
	buf_done(&b);
	buf_done(&rest);
	buf_done(&p.seen);
}

static void test_open_tunnel(void **state)
{
	static const struct script s = {
		"\r\n\r\n", "HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: y\r\n\r\nearly", true
	};
	struct peer p;
	struct http_head h;
	struct buf rest;
	struct err e = { 0 };
	char more[5];
	int fd;

	peer_start(&p, &s);
	buf_init(&rest, HTTP_HEAD_MAX);
	assert_int_equal(http_call_open(&(struct http_call) { .addr = p.addr,
							      .method = "GET",
							      .target = "/",
							      .host = "h",
							      .timeout_ms = DEADLINE_MS,
							      .fields =
								      (const struct http_field[]) {
									      { "Connection",
										"upgrade" },
									      { "Upgrade", "y" },
									      { 0 } } },
					false, &fd, &h, &rest, &e),
			 0);
	assert_int_equal(h.status, 101);
	/* The bytes behind the head were read with it or are still in the socket. */
	size_t n = buf_len(&rest);
	assert_true(n <= sizeof(more));
	memcpy(more, buf_data(&rest), n);
	assert_int_equal(fd_read_full(fd, more + n, sizeof(more) - n, DEADLINE_MS),
			 sizeof(more) - n);
	assert_memory_equal(more, "early", 5);
	assert_int_equal(fd_write_all(fd, "through", 7, DEADLINE_MS), 0);
	fd_close(fd);
	peer_stop(&p);
	assert_true(saw(&p, "through"));
	http_head_done(&h);
	buf_done(&rest);
	buf_done(&p.seen);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_calls),	    cmocka_unit_test(test_request_text),
		cmocka_unit_test(test_refusals),    cmocka_unit_test(test_open_chunked),
		cmocka_unit_test(test_open_tunnel),
	};
	return cmocka_run_group_tests_name("client", tests, NULL, NULL);
}
