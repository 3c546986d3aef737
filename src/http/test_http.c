/* Each rule of the strict head and of the body framing is a test here; docs/http.md lists them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "http/http.h"

static enum http_error request_error(const char *p, size_t n)
{
	struct http_head h;
	enum http_error err = HTTP_OK;
	ssize_t r = http_parse_request(p, n, &h, &err);

	if (r > 0) {
		assert_int_equal(r, n);
		http_head_done(&h);
		return HTTP_OK;
	}
	assert_int_equal(r, -EBADMSG);
	assert_int_not_equal(err, HTTP_OK);
	return err;
}

#define HOST "Host: a\r\n"
struct verdict { const char *text; enum http_error err; };

static void check_requests(const struct verdict *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		enum http_error err = request_error(v[i].text, strlen(v[i].text));
		if (err != v[i].err)
			fail_msg("\"%s\": got %d (%s), want %d", v[i].text, err,
				 http_error_text(err), v[i].err);
	}
}
#define CHECK_REQUESTS(...) do { \
	static const struct verdict v_[] = { __VA_ARGS__ }; \
	check_requests(v_, ARRAY_LEN(v_)); \
} while (0)

static void test_crlf_only(void **state)
{
	CHECK_REQUESTS({ "GET / HTTP/1.1\r\n" HOST "\r\n", HTTP_OK },
		       { "GET / HTTP/1.1\n" HOST "\r\n", HTTP_BAD_LINE },
		       { "GET / HTTP/1.1\r\nHost: a\n\r\n", HTTP_BAD_FIELD },
		       { "GET / HTTP/1.1\r\n" HOST "\n", HTTP_BAD_FIELD },
		       { "GET / HTTP/1.1\r\r\n" HOST "\r\n", HTTP_BAD_LINE },
		       { "GET / HTTP/1.1\r\n" HOST "A: b\rc\r\n\r\n", HTTP_BAD_FIELD },
		       { "GET / HTTP/1.1\rHost: a\r\n\r\n", HTTP_BAD_LINE },
		       { "\r\nGET / HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_LINE },
		       { " GET / HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_LINE });
}

static void test_fields(void **state)
{
	CHECK_REQUESTS({ "GET / HTTP/1.1\r\n" HOST "A: b\r\n c\r\n\r\n", HTTP_BAD_FIELD },       /* obs-fold */
		       { "GET / HTTP/1.1\r\n" HOST "A: b\r\n\tc: d\r\n\r\n", HTTP_BAD_FIELD },
		       { "GET / HTTP/1.1\r\n Host: a\r\n\r\n", HTTP_BAD_FIELD },
		       { "GET / HTTP/1.1\r\nHost : a\r\n\r\n", HTTP_BAD_FIELD },                  /* blank before the colon */
		       { "GET / HTTP/1.1\r\n" HOST "A\t: b\r\n\r\n", HTTP_BAD_FIELD },
		       { "GET / HTTP/1.1\r\n" HOST ": b\r\n\r\n", HTTP_BAD_FIELD },
		       { "GET / HTTP/1.1\r\n" HOST "A\r\n\r\n", HTTP_BAD_FIELD },
		       { "GET / HTTP/1.1\r\n" HOST "A(b): c\r\n\r\n", HTTP_BAD_FIELD },
		       { "GET / HTTP/1.1\r\n" HOST "\xc3\xa4: c\r\n\r\n", HTTP_BAD_FIELD },
		       { "GET / HTTP/1.1\r\n" HOST "A: b\x01\r\n\r\n", HTTP_BAD_FIELD },
		       { "GET / HTTP/1.1\r\n" HOST "A: b\x7f\r\n\r\n", HTTP_BAD_FIELD },
		       { "GET / HTTP/1.1\r\n" HOST "A: \xc3\xa4\tb\r\n\r\n", HTTP_OK },
		       { "GET / HTTP/1.1\r\n" HOST "A:\r\nB:   \r\n\r\n", HTTP_OK });
	static const char nul[] = "GET / HTTP/1.1\r\n" HOST "A: b\0c\r\n\r\n";
	assert_int_equal(request_error(nul, sizeof(nul) - 1), HTTP_BAD_FIELD);
	static const char nul_name[] = "GET / HTTP/1.1\r\n" HOST "A\0: c\r\n\r\n";
	assert_int_equal(request_error(nul_name, sizeof(nul_name) - 1), HTTP_BAD_FIELD);
	static const char nul_line[] = "GET /\0 HTTP/1.1\r\n" HOST "\r\n";
	assert_int_equal(request_error(nul_line, sizeof(nul_line) - 1), HTTP_BAD_LINE);
}

static void test_one_host(void **state)
{
	CHECK_REQUESTS({ "GET / HTTP/1.1\r\n\r\n", HTTP_BAD_HOST },
		       { "GET / HTTP/1.0\r\n\r\n", HTTP_OK },
		       { "GET / HTTP/1.1\r\n" HOST HOST "\r\n", HTTP_BAD_HOST },
		       { "GET / HTTP/1.0\r\n" HOST "hOST: b\r\n\r\n", HTTP_BAD_HOST },
		       { "GET / HTTP/1.1\r\nHost:\r\n\r\n", HTTP_BAD_HOST },
		       { "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", HTTP_BAD_HOST },
		       { "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", HTTP_BAD_HOST },
		       { "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", HTTP_BAD_HOST },
		       { "GET / HTTP/1.1\r\nHost: a:\r\n\r\n", HTTP_BAD_HOST },
		       { "GET / HTTP/1.1\r\nHost: a:65536\r\n\r\n", HTTP_BAD_HOST },
		       { "GET / HTTP/1.1\r\nHost: a:000080\r\n\r\n", HTTP_BAD_HOST },
		       { "GET / HTTP/1.1\r\nHost: :80\r\n\r\n", HTTP_BAD_HOST },
		       { "GET / HTTP/1.1\r\nHost: []\r\n\r\n", HTTP_BAD_HOST },
		       { "GET / HTTP/1.1\r\nHost: [::1]x\r\n\r\n", HTTP_BAD_HOST },
		       { "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", HTTP_OK },
		       { "GET / HTTP/1.1\r\nHost: 49983-abc.example.com:443\r\n\r\n", HTTP_OK });
}

static void test_length(void **state)
{
	CHECK_REQUESTS(
		{ "POST / HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\n", HTTP_OK },
		{ "POST / HTTP/1.1\r\n" HOST "Content-Length: +5\r\n\r\n", HTTP_BAD_LENGTH },
		{ "POST / HTTP/1.1\r\n" HOST "Content-Length: -5\r\n\r\n", HTTP_BAD_LENGTH },
		{ "POST / HTTP/1.1\r\n" HOST "Content-Length: 0x5\r\n\r\n", HTTP_BAD_LENGTH },
		{ "POST / HTTP/1.1\r\n" HOST "Content-Length: 5 5\r\n\r\n", HTTP_BAD_LENGTH },
		{ "POST / HTTP/1.1\r\n" HOST "Content-Length: 5, 5\r\n\r\n", HTTP_BAD_LENGTH },
		{ "POST / HTTP/1.1\r\n" HOST "Content-Length:\r\n\r\n", HTTP_BAD_LENGTH },
		{ "POST / HTTP/1.1\r\n" HOST "Content-Length:\t5\r\n\r\n", HTTP_BAD_FIELD },
		{ "POST / HTTP/1.1\r\n" HOST "Content-Length: 5\r\nContent-length: 5\r\n\r\n",
		  HTTP_BAD_LENGTH },
		{ "POST / HTTP/1.1\r\n" HOST "Content-Length: 9223372036854775807\r\n\r\n",
		  HTTP_OK },
		{ "POST / HTTP/1.1\r\n" HOST "Content-Length: 9223372036854775808\r\n\r\n",
		  HTTP_BAD_LENGTH },
		{ "POST / HTTP/1.1\r\n" HOST "Content-Length: 18446744073709551617\r\n\r\n",
		  HTTP_BAD_LENGTH },
		{ "POST / HTTP/1.1\r\n" HOST
		  "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
		  HTTP_BAD_LENGTH },
		{ "POST / HTTP/1.1\r\n" HOST
		  "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
		  HTTP_BAD_LENGTH });
}

static void test_encoding(void **state)
{
	CHECK_REQUESTS({ "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n", HTTP_OK },
		       { "POST / HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n",
			 HTTP_BAD_ENCODING },
		       { "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: Chunked\r\n\r\n",
			 HTTP_BAD_ENCODING },
		       { "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip, chunked\r\n\r\n",
			 HTTP_BAD_ENCODING },
		       { "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked, identity\r\n\r\n",
			 HTTP_BAD_ENCODING },
		       { "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: identity\r\n\r\n",
			 HTTP_BAD_ENCODING },
		       { "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: \"chunked\"\r\n\r\n",
			 HTTP_BAD_ENCODING },
		       { "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: x\x0b"
			 "chunked\r\n\r\n",
			 HTTP_BAD_FIELD },
		       { "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding:\r\n\r\n",
			 HTTP_BAD_ENCODING },
		       { "POST / HTTP/1.1\r\n" HOST "transfer-encoding: chunked\t\r\n\r\n",
			 HTTP_BAD_FIELD },
		       { "POST / HTTP/1.1\r\n" HOST
			 "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
			 HTTP_BAD_ENCODING });
}

static void test_line(void **state)
{
	CHECK_REQUESTS({ "GET /\r\n" HOST "\r\n", HTTP_BAD_LINE },
		       { "GET  / HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_LINE },
		       { "GET / HTTP/1.1 \r\n" HOST "\r\n", HTTP_BAD_LINE },
		       { "GET / HTTP/1.1 x\r\n" HOST "\r\n", HTTP_BAD_LINE },
		       { "GET /\tHTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_LINE },
		       { "GET / http/1.1\r\n" HOST "\r\n", HTTP_BAD_LINE },
		       { "GET / HTTP/1.10\r\n" HOST "\r\n", HTTP_BAD_LINE },
		       { "GET / HTTP/01.1\r\n" HOST "\r\n", HTTP_BAD_LINE },
		       { "GET / HTTP/1.2\r\n" HOST "\r\n", HTTP_BAD_VERSION },
		       { "GET / HTTP/2.0\r\n" HOST "\r\n", HTTP_BAD_VERSION },
		       { "GET / HTTP/0.9\r\n" HOST "\r\n", HTTP_BAD_VERSION },
		       { "get / HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_METHOD },
		       { "GE/T / HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_METHOD },
		       { "1GET / HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_METHOD },
		       { "M-SEARCH / HTTP/1.1\r\n" HOST "\r\n", HTTP_OK },
		       { "ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEF / HTTP/1.1\r\n" HOST "\r\n", HTTP_OK },
		       { "ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFG / HTTP/1.1\r\n" HOST "\r\n",
			 HTTP_BAD_METHOD });
}

static void test_target(void **state)
{
	CHECK_REQUESTS({ "GET /a?b=%20c HTTP/1.1\r\n" HOST "\r\n", HTTP_OK },
		       { "GET a HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_TARGET },
		       { "GET /\xc3\xa4 HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_TARGET },
		       { "GET /\x7f HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_TARGET },
		       { "GET /a#b HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_TARGET },
		       { "GET * HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_TARGET },
		       { "OPTIONS * HTTP/1.1\r\n" HOST "\r\n", HTTP_OK },
		       { "GET a:80 HTTP/1.1\r\n" HOST "\r\n",
			 HTTP_BAD_TARGET }, /* authority-form */
		       { "CONNECT a:80 HTTP/1.1\r\n" HOST "\r\n", HTTP_OK },
		       { "CONNECT [::1]:80 HTTP/1.1\r\n" HOST "\r\n", HTTP_OK },
		       { "CONNECT a HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_TARGET },
		       { "CONNECT / HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_TARGET },
		       { "CONNECT http://a/ HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_TARGET },
		       { "CONNECT a:80 HTTP/1.1\r\n" HOST "Content-Length: 1\r\n\r\n",
			 HTTP_BAD_LENGTH },
		       { "GET http://a/ HTTP/1.1\r\n" HOST "\r\n", HTTP_OK },
		       { "GET http://b/ HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_HOST },
		       { "GET http://u@a/ HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_TARGET },
		       { "GET http:/// HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_TARGET },
		       { "GET ftp://a/ HTTP/1.1\r\n" HOST "\r\n", HTTP_BAD_TARGET });
}

static void test_absolute_form(void **state)
{
	static const struct { const char *target, *host, *want_host, *want;
	} cases[] = {
		{ "http://ex.org/a/b?c", "EX.org", "EX.org", "/a/b?c" },
		{ "http://ex.org", "ex.org", "ex.org", "/" },
		{ "HTTPS://ex.org:8443?x=/y", "ex.org:8443", "ex.org:8443", "/?x=/y" },
		{ "http://[::1]:80/", "[::1]:80", "[::1]:80", "/" },
		{ "http://old/z", NULL, "old", "/z" },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct http_head h;
		enum http_error err;
		autofree char *text =
			cases[i].host ? x_asprintf("GET %s HTTP/1.1\r\nHost: %s\r\n\r\n",
						   cases[i].target, cases[i].host)
				      : x_asprintf("GET %s HTTP/1.0\r\n\r\n", cases[i].target);
		assert_true(http_parse_request(text, strlen(text), &h, &err) > 0);
		assert_string_equal(h.target, cases[i].want);
		assert_string_equal(h.host, cases[i].want_host);
		http_head_done(&h);
	}
}

/* A head of exactly `len` bytes. */
static char *long_head(size_t len)
{
	static const char start[] = "GET / HTTP/1.1\r\nHost: a\r\nA: ";
	char *p = x_alloc(len + 1);

	memset(p, 'x', len);
	memcpy(p, start, sizeof(start) - 1);
	memcpy(p + len - 4, "\r\n\r\n", 4);
	return p;
}

static void test_limits(void **state)
{
	struct http_head h;
	enum http_error err;
	autofree char *fits = long_head(HTTP_HEAD_MAX);
	autofree char *over = long_head(HTTP_HEAD_MAX + 1);

	assert_int_equal(request_error(fits, HTTP_HEAD_MAX), HTTP_OK);
	assert_int_equal(request_error(over, HTTP_HEAD_MAX + 1), HTTP_HEAD_TOO_LARGE);
	assert_int_equal(http_parse_request(over, HTTP_HEAD_MAX - 1, &h, &err), 0);
	assert_int_equal(request_error(over, HTTP_HEAD_MAX), HTTP_HEAD_TOO_LARGE);      /* before its end was seen */

	for (unsigned n = HTTP_FIELDS_MAX; n <= HTTP_FIELDS_MAX + 1; n++) {
		struct buf b;
		buf_init(&b, HTTP_HEAD_MAX);
		buf_puts(&b, "GET / HTTP/1.1\r\nHost: a\r\n");
		for (unsigned i = 1; i < n; i++)
			buf_puts(&b, "A: b\r\n");
		buf_puts(&b, "\r\n");
		assert_int_equal(request_error(buf_data(&b), buf_len(&b)),
				 n > HTTP_FIELDS_MAX ? HTTP_TOO_MANY_FIELDS : HTTP_OK);
		buf_done(&b);
	}
	assert_int_equal(http_error_status(HTTP_HEAD_TOO_LARGE), 431);
	assert_int_equal(http_error_status(HTTP_BODY_TOO_LARGE), 413);
	assert_int_equal(http_error_status(HTTP_BAD_ENCODING), 501);
	assert_int_equal(http_error_status(HTTP_BAD_VERSION), 505);
	assert_int_equal(http_error_status(HTTP_BAD_FIELD), 400);
}

static void test_every_cut(void **state)
{
	static const char text[] =
		"PUT /a HTTP/1.1\r\nHost: a:1\r\nX-A:  b c \t\r\nContent-Length: 3\r\n\r\nabcGET";
	struct http_head h;
	enum http_error err;
	size_t whole = sizeof(text) - 1 - 6;

	for (size_t n = 0; n < sizeof(text); n++) {
		ssize_t r = http_parse_request(text, n, &h, &err);
		assert_int_equal(r, n < whole ? 0 : whole);
		if (r == 0)
			continue;
		assert_string_equal(h.method, "PUT");
		assert_string_equal(h.target, "/a");
		assert_string_equal(http_get(&h, "x-a"), "b c");
		assert_string_equal(h.host, "a:1");
		assert_int_equal(h.length, 3);
		assert_int_equal(h.n_fields, 3);
		http_head_done(&h);
	}
}

static struct http_head parse_ok(const char *text)
{
	struct http_head h;
	enum http_error err;

	assert_true(http_parse_request(text, strlen(text), &h, &err) > 0);
	return h;
}

static void test_connection(void **state)
{
	static const struct { const char *text; bool keep_alive, upgrade, expect;
	} cases[] = {
		{ "GET / HTTP/1.1\r\n" HOST "\r\n", true, false, false },
		{ "GET / HTTP/1.1\r\n" HOST "Connection: Close\r\n\r\n", false, false, false },
		{ "GET / HTTP/1.1\r\n" HOST "Connection: a ,close\r\n\r\n", false, false, false },
		{ "GET / HTTP/1.1\r\n" HOST "Connection: closed\r\n\r\n", true, false, false },
		{ "GET / HTTP/1.0\r\n\r\n", false, false, false },
		{ "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true, false, false },
		{ "GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n", false, false, false },
		{ "GET / HTTP/1.1\r\n" HOST
		  "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n",
		  true, true, false },
		{ "GET / HTTP/1.1\r\n" HOST "Upgrade: websocket\r\n\r\n", true, false, false },
		{ "GET / HTTP/1.1\r\n" HOST "Connection: upgrade\r\n\r\n", true, false, false },
		{ "GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", false, false,
		  false },
		{ "PUT / HTTP/1.1\r\n" HOST "Expect: 100-Continue\r\nContent-Length: 1\r\n\r\n",
		  true, false, true },
		{ "PUT / HTTP/1.1\r\n" HOST "Expect: 100-continue\r\n\r\n", true, false, false },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct http_head h = parse_ok(cases[i].text);
		assert_int_equal(h.keep_alive, cases[i].keep_alive);
		assert_int_equal(h.upgrade, cases[i].upgrade);
		assert_int_equal(h.expect_continue, cases[i].expect);
		http_head_done(&h);
	}
}

static void test_response(void **state)
{
	static const struct {
		const char *text, *method;
		enum http_error err;
		int status;
		enum http_body body;
	} cases[] = {
		{ "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", "GET", HTTP_OK, 200,
		  HTTP_BODY_LENGTH },
		{ "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", "HEAD", HTTP_OK, 200,
		  HTTP_BODY_NONE },
		{ "HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n", "GET", HTTP_OK, 200,
		  HTTP_BODY_CHUNKED },
		{ "HTTP/1.1 200\r\n\r\n", "GET", HTTP_OK, 200, HTTP_BODY_UNTIL_CLOSE },
		{ "HTTP/1.1 204 x\r\nContent-Length: 4\r\n\r\n", "GET", HTTP_OK, 204,
		  HTTP_BODY_NONE },
		{ "HTTP/1.1 304 x\r\n\r\n", "GET", HTTP_OK, 304, HTTP_BODY_NONE },
		{ "HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n", "GET", HTTP_OK,
		  101, HTTP_BODY_NONE },
		{ "HTTP/1.1 200 x\r\n\r\n", "CONNECT", HTTP_OK, 200, HTTP_BODY_NONE },
		{ "HTTP/1.1 407 x\r\nContent-Length: 2\r\n\r\n", "CONNECT", HTTP_OK, 407,
		  HTTP_BODY_LENGTH },
		{ "HTTP/1.1 099 x\r\n\r\n", "GET", HTTP_BAD_STATUS },
		{ "HTTP/1.1 600 x\r\n\r\n", "GET", HTTP_BAD_STATUS },
		{ "HTTP/1.1 2x0 x\r\n\r\n", "GET", HTTP_BAD_STATUS },
		{ "HTTP/1.1 2000 x\r\n\r\n", "GET", HTTP_BAD_LINE },
		{ "HTTP/1.1  200 x\r\n\r\n", "GET", HTTP_BAD_STATUS },
		{ "HTTP/1.1 20\r\n\r\n", "GET", HTTP_BAD_LINE },
		{ "HTTP/1.1 200 a\x01\r\n\r\n", "GET", HTTP_BAD_LINE },
		{ "HTTP/2.0 200 x\r\n\r\n", "GET", HTTP_BAD_VERSION },
		{ "ICY 200 OK aaaa\r\n\r\n", "GET", HTTP_BAD_LINE },
		{ "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\n", "GET",
		  HTTP_BAD_LENGTH },
		{ "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "GET", HTTP_BAD_ENCODING },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct http_head h;
		enum http_error err = HTTP_OK;
		ssize_t r = http_parse_response(cases[i].text, strlen(cases[i].text),
						cases[i].method, &h, &err);
		assert_int_equal(err, cases[i].err);
		if (r < 0)
			continue;
		assert_int_equal(h.status, cases[i].status);
		assert_int_equal(h.body, cases[i].body);
		if (h.body == HTTP_BODY_UNTIL_CLOSE)
			assert_false(h.keep_alive);
		http_head_done(&h);
	}
}

/*
 * Decodes `in` in pieces of `step` bytes. Returns the last result; *ret_rest: bytes that were not
 * taken.
 */
static int decode(const char *in, size_t n, enum http_body kind, uint64_t length, uint64_t max,
		  size_t step, struct buf *out, size_t *ret_rest, enum http_error *ret_err)
{
	struct http_head h = { .body = kind, .length = length };
	struct http_dec d, skip;
	size_t at = 0, end = 0, used, n_data;
	const char *data;
	int r = 0;

	http_dec_init(&d, &h, max);
	http_dec_init(&skip, &h, max);
	buf_clear(out);
	do {
		if (at == end)
			end = end + step < n ? end + step : n;
		r = http_dec_feed(&d, in + at, end - at, &used, &data, &n_data, ret_err);
		assert_true(used <= end - at);
		if (n_data)
			buf_put(out, data, n_data);
		at += used;
	} while (r == 0 && at < n);
	*ret_rest = n - at;
	if (r == 0)
		r = http_dec_eof(&d) == 0 ? 1 : 0;

	enum http_error err;
	if (r >= 0) {
		http_dec_skip(&skip, in, n, &used, &err);
		assert_int_equal(used, at);
	}
	return r;
}

struct body_case { const char *in, *out; size_t rest; int r; enum http_error err; };

static void check_bodies(const struct body_case *cases, size_t n, enum http_body kind,
			 uint64_t length, uint64_t max)
{
	struct buf out;

	buf_init(&out, 4096);
	for (size_t i = 0; i < n; i++) {
		for (size_t step = 1; step <= strlen(cases[i].in) + 1; step++) {
			enum http_error err = HTTP_OK;
			size_t rest;
			int r = decode(cases[i].in, strlen(cases[i].in), kind, length, max, step,
				       &out, &rest, &err);
			if (r != cases[i].r || err != cases[i].err)
				fail_msg("case %zu step %zu: %d, error %d", i, step, r, err);
			if (r != 1)
				continue;
			assert_int_equal(rest, cases[i].rest);
			assert_int_equal(buf_len(&out), strlen(cases[i].out));
			if (buf_len(&out) > 0)
				assert_memory_equal(buf_data(&out), cases[i].out, buf_len(&out));
		}
	}
	buf_done(&out);
}

static void test_chunked(void **state)
{
	static const struct body_case cases[] = {
		{ "5\r\nhello\r\n0\r\n\r\nGET", "hello", 3, 1 },
		{ "0\r\n\r\n", "", 0, 1 },
		{ "A\r\n0123456789\r\na;x=y\r\nabcdefghij\r\n0;z\r\n\r\n", "0123456789abcdefghij",
		  0, 1 },
		{ "0000000000000001\r\nx\r\n0\r\n\r\n", "x", 0, 1 },
		{ "1\r\nx\r\n0\r\nA: b\r\nC:\r\n\r\nzz", "x", 2, 1 },
		{ "5\r\nhel", "", 0, 0 },
		{ "5\r\nhello\r\n0\r\n\r", "", 0, 0 },
		{ "", "", 0, 0 },
		{ "00000000000000001\r\nx\r\n0\r\n\r\n", "", 0, -EBADMSG,
		  HTTP_BAD_CHUNK }, /* 17 digits */
		{ "\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ ";a\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "+1\r\nx\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "0x1\r\nx\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ " 1\r\nx\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "1 \r\nx\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "1\nx\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "1\r\nx\n0\r\n\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "1\r\nxy\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "1;a\n\r\nx\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "1;a\rb\r\nx\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "0\r\n\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "0\r\nA\r\n\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "0\r\n A: b\r\n\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "0\r\nA : b\r\n\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "0\r\nA: b\n\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "0\r\n: b\r\n\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		/* extensions */
		{ "1;a=\"b;\\\" c\";d\r\nx\r\n0;e=f\r\n\r\n", "x", 0, 1 },
		{ "1; a\r\nx\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "1;a=\"b\r\nx\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "1;(\r\nx\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "1;a=\"\\\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "1;\r\nx\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "1;a;\r\nx\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "1;=a\r\nx\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "1;a=\r\nx\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "1;a=b=c\r\nx\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "1;a\"b\"\r\nx\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "1;a=\"b\"c\r\nx\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "1;a=b;c=\"\"\r\nx\r\n0\r\n\r\n", "x", 0, 1 },
		/* trailers that would change the message if somebody merged them */
		{ "0\r\nContent-Length: 5\r\n\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "0\r\nA: b\r\ntransfer-encoding: chunked\r\n\r\n", "", 0, -EBADMSG,
		  HTTP_BAD_CHUNK },
		{ "0\r\nHOST: b\r\n\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "0\r\nTrailer: b\r\n\r\n", "", 0, -EBADMSG, HTTP_BAD_CHUNK },
		{ "0\r\nHos: b\r\nHosts: c\r\nX-Host: d\r\n\r\n", "", 0, 1 },
		{ "15\r\n", "", 0, -EBADMSG, HTTP_BODY_TOO_LARGE },
		{ "ffffffffffffffff\r\n", "", 0, -EBADMSG, HTTP_BODY_TOO_LARGE },
		{ "14\r\n01234567890123456789\r\n1\r\n", "", 0, -EBADMSG, HTTP_BODY_TOO_LARGE },
	};
	check_bodies(cases, ARRAY_LEN(cases), HTTP_BODY_CHUNKED, 0, 20);
}

static void test_plain_bodies(void **state)
{
	static const struct body_case five[] = { { "helloGET", "hello", 3, 1 },
						 { "hell", "", 0, 0 } };
	static const struct body_case zero[] = { { "GET", "", 3, 1 } };
	static const struct body_case all[] = {
		{ "hello", "hello", 0, 1 }, { "0123456789x", "", 0, -EBADMSG, HTTP_BODY_TOO_LARGE }
	};
	static const struct body_case large[] = { { "", "", 0, -EBADMSG, HTTP_BODY_TOO_LARGE } };

	check_bodies(five, ARRAY_LEN(five), HTTP_BODY_LENGTH, 5, 10);
	check_bodies(zero, ARRAY_LEN(zero), HTTP_BODY_LENGTH, 0, 10);
	check_bodies(zero, ARRAY_LEN(zero), HTTP_BODY_NONE, 0, 10);
	check_bodies(all, ARRAY_LEN(all), HTTP_BODY_UNTIL_CLOSE, 0, 10);
	check_bodies(large, ARRAY_LEN(large), HTTP_BODY_LENGTH, 11, 10);
}

static void test_chunk_limits(void **state)
{
	struct buf in, out;
	enum http_error err = HTTP_OK;
	size_t rest;

	buf_init(&in, 65536);
	buf_init(&out, 65536);
	buf_puts(&in, "1;");
	for (unsigned i = 0; i < HTTP_CHUNK_LINE_MAX - 4; i++)
		buf_puts(&in, "a");
	buf_puts(&in, "\r\nx\r\n0\r\n\r\n");
	assert_int_equal(decode(buf_data(&in), buf_len(&in), HTTP_BODY_CHUNKED, 0, 9, 7, &out,
				&rest, &err),
			 1);
	buf_clear(&in);
	buf_puts(&in, "1;");
	for (unsigned i = 0; i < HTTP_CHUNK_LINE_MAX - 3; i++)
		buf_puts(&in, "a");
	buf_puts(&in, "\r\nx\r\n0\r\n\r\n");
	assert_int_equal(decode(buf_data(&in), buf_len(&in), HTTP_BODY_CHUNKED, 0, 9, 7, &out,
				&rest, &err),
			 -EBADMSG);
	assert_int_equal(err, HTTP_BAD_CHUNK);
	for (size_t size = HTTP_TRAILER_MAX; size <= HTTP_TRAILER_MAX + 1; size++) {
		buf_clear(&in);
		buf_puts(&in, "0\r\nA:");
		for (size_t i = 0; i < size - 6; i++)
			buf_puts(&in, "b");
		buf_puts(&in, "\r\n\r\n");
		err = HTTP_OK;
		assert_int_equal(decode(buf_data(&in), buf_len(&in), HTTP_BODY_CHUNKED, 0, 9, 99,
					&out, &rest, &err),
				 size > HTTP_TRAILER_MAX ? -EBADMSG : 1);
	}
	buf_done(&in);
	buf_done(&out);
}

static void test_query(void **state)
{
	static const struct { const char *target, *name; int r; const char *want;
	} cases[] = {
		{ "/a?path=%2Fx%20y&b=1+2", "path", 0, "/x y" },
		{ "/a?path=%2Fx&b=1+2", "b", 0, "1 2" },
		{ "/a?x", "x", 0, "" },
		{ "/a?x=", "x", 0, "" },
		{ "/a?xy=1&x=2", "x", 0, "2" },
		{ "/a", "x", 0, NULL },
		{ "/a?", "x", 0, NULL },
		{ "/a?&&x=1&x=2", "x", 0, "1" },
		{ "/a?%78=1", "x", 0, "1" },
		{ "/a?x=a=b", "x", 0, "a=b" },
		{ "/a?x=%2", "x", -EINVAL, NULL },
		{ "/a?x=%00", "x", -EINVAL, NULL },
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		autofree char *v = NULL;
		assert_int_equal(http_query_get(cases[i].target, cases[i].name, &v), cases[i].r);
		if (cases[i].want)
			assert_string_equal(v, cases[i].want);
		else
			assert_null(v);
	}
	autofree char *path = NULL;
	assert_int_equal(http_target_path("/a%2Fb?c", &path), 0);
	assert_string_equal(path, "/a%2Fb");
	assert_int_equal(http_target_path("*", &path), -EINVAL);
}

static bool skip_cookie(const char *name, void *arg)
{
	return strcmp(name, arg) == 0;
}

static void test_write(void **state)
{
	struct buf b;

	buf_init(&b, 4096);
	assert_int_equal(http_put_request(&b, "GET", "/a"), 0);
	assert_int_equal(http_put_field(&b, "Host", "x"), 0);
	assert_int_equal(http_put_fieldf(&b, "N", "%d-%s", 7, "z"), 0);
	assert_int_equal(http_put_field(&b, "A", "b\r\nC: d"), -EINVAL);
	assert_int_equal(http_put_field(&b, "A B", "b"), -EINVAL);
	assert_int_equal(http_put_field(&b, "", "b"), -EINVAL);
	assert_int_equal(http_put_request(&b, "GET", "/a b"), -EINVAL);
	assert_int_equal(http_put_request(&b, "GET\r\n", "/"), -EINVAL);
	assert_int_equal(http_put_status(&b, 99), -EINVAL);
	assert_int_equal(http_put_end(&b), 0);
	assert_int_equal(http_put_status(&b, 404), 0);
	assert_int_equal(http_put_chunk(&b, "0123456789abcdefX", 17), 0);
	assert_int_equal(http_put_chunk(&b, NULL, 0), 0);
	assert_int_equal(http_put_chunk(&b, "x", SIZE_MAX), -ENOBUFS);
	autofree char *s = buf_take_str(&b);
	assert_string_equal(s,
			    "GET /a HTTP/1.1\r\nHost: x\r\nN: 7-z\r\n\r\nHTTP/1.1 404 Not Found\r\n"
			    "11\r\n0123456789abcdefX\r\n0\r\n\r\n");
	buf_done(&b);
}

static void test_forward(void **state)
{
	struct http_head h = parse_ok(
		"POST / HTTP/1.1\r\nHost: a\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n"
		"TE: trailers\r\nTrailer: A\r\nUpgrade: x\r\nProxy-Authorization: p\r\nProxy-Connection: q\r\n"
		"Content-Length: 3\r\nCookie: c\r\nAccept: */*\r\nX-End: v\r\n\r\n");
	struct http_head chunked =
		parse_ok("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
	struct buf b;

	buf_init(&b, 4096);
	assert_int_equal(http_put_forward(&b, &h, skip_cookie, (void *)"Cookie"), 0);
	assert_int_equal(http_put_framing(&b, &h), 0);
	assert_int_equal(http_put_forward(&b, &chunked, NULL, NULL), 0);
	assert_int_equal(http_put_framing(&b, &chunked), 0);
	autofree char *s = buf_take_str(&b);
	assert_string_equal(s, "Host: a\r\nAccept: */*\r\nX-End: v\r\nContent-Length: 3\r\n"
			       "Host: a\r\nTransfer-Encoding: chunked\r\n");
	http_head_done(&h);
	http_head_done(&chunked);
	buf_done(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_crlf_only),    cmocka_unit_test(test_fields),
		cmocka_unit_test(test_one_host),     cmocka_unit_test(test_length),
		cmocka_unit_test(test_encoding),     cmocka_unit_test(test_line),
		cmocka_unit_test(test_target),	     cmocka_unit_test(test_absolute_form),
		cmocka_unit_test(test_limits),	     cmocka_unit_test(test_every_cut),
		cmocka_unit_test(test_connection),   cmocka_unit_test(test_response),
		cmocka_unit_test(test_chunked),	     cmocka_unit_test(test_plain_bodies),
		cmocka_unit_test(test_chunk_limits), cmocka_unit_test(test_query),
		cmocka_unit_test(test_write),	     cmocka_unit_test(test_forward),
	};
	return cmocka_run_group_tests_name("http", tests, NULL, NULL);
}
