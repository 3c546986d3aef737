/* What comes from outside to a terminal: handshakes, origins, queries, messages, events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <errno.h>
#include "api/terminal_text.h"
#include "base/alloc.h"
#include "base/str.h"

#define KEY "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
#define UPGRADE "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
#define V13 "Sec-WebSocket-Version: 13\r\n"
#define GOOD UPGRADE V13 KEY
#define T64 "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static struct http_head head_of(const char *fields)
{
	autofree char *text = x_asprintf("GET /t HTTP/1.1\r\nHost: space.example:4983\r\n%s\r\n",
					 fields);
	struct http_head h;
	enum http_error why;

	if (http_parse_request(text, strlen(text), &h, &why) <= 0)
		fail_msg("%s: %s", fields, http_error_text(why));
	return h;
}

static void test_hello(void **state)
{
	static const struct { const char *fields; int want; } rows[] = {
		{ GOOD, 0 },
		{ "Upgrade: WebSocket\r\nConnection: upgrade\r\n" V13 KEY, 0 },
		{ GOOD "Sec-WebSocket-Extensions: permessage-deflate\r\n", 0 },
		{ GOOD "Sec-WebSocket-Protocol: space.terminal.v1\r\n", 0 },
		{ GOOD "Sec-WebSocket-Protocol: space.terminal.v1,ticket." T64 "\r\n", 0 },
		{ GOOD "Content-Length: 0\r\n", 0 },
		{ "", -EPROTONOSUPPORT },
		{ V13 KEY, -EPROTONOSUPPORT },
		{ "Upgrade: h2c\r\nConnection: Upgrade\r\n" V13 KEY, -EPROTONOSUPPORT },
		{ "Upgrade: websocket\r\n" V13 KEY, -EPROTONOSUPPORT },
		{ UPGRADE KEY, -EPROTONOSUPPORT },
		{ UPGRADE KEY "Sec-WebSocket-Version: 8\r\n", -EPROTONOSUPPORT },
		{ GOOD V13, -EPROTONOSUPPORT },
		{ UPGRADE V13, -EINVAL },
		{ GOOD KEY, -EINVAL },
		{ UPGRADE V13 "Sec-WebSocket-Key: x\r\n", -EINVAL },
		{ UPGRADE V13 "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZSE=\r\n", -EINVAL },
		{ UPGRADE V13 "Sec-WebSocket-Key: !!!!IHNhbXBsZSBub25jZQ==\r\n", -EINVAL },
		{ GOOD "Content-Length: 3\r\n", -EINVAL },
		{ GOOD "Sec-WebSocket-Protocol: chat\r\n", -EINVAL },
		{ GOOD "Sec-WebSocket-Protocol: ticket." T64 "\r\n", -EINVAL },
		{ GOOD "Sec-WebSocket-Protocol: space.terminal.v1, ticket.00\r\n", -EINVAL },
		{ GOOD "Sec-WebSocket-Protocol: space.terminal.v1, ticket.X" T64 "\r\n", -EINVAL },
		{ GOOD "Sec-WebSocket-Protocol: space.terminal.v1, ticket." T64 ", ticket." T64 "\r\n",
		  -EINVAL },
		{ GOOD "Sec-WebSocket-Protocol: space.terminal.v1\r\n"
		       "Sec-WebSocket-Protocol: ticket." T64 "\r\n",
		  -EINVAL },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct http_head h = head_of(rows[i].fields);
		struct terminal_hello hello;
		struct err e = { 0 };
		int r = terminal_hello(&h, &hello, &e);

		if (r != rows[i].want || (r < 0 && !e.text[0]))
			fail_msg("%s: %d %s", rows[i].fields, r, e.text);
		if (r == 0) {
			/* RFC 6455 1.3 */
			assert_string_equal(hello.accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
			assert_int_equal(hello.protocol, strstr(rows[i].fields, "Protocol") != NULL);
			assert_string_equal(hello.ticket, strstr(rows[i].fields, "ticket.") ? T64 : "");
		}
		http_head_done(&h);
	}
}

static void test_origin(void **state)
{
	static const char allowed[] = "https://console.example https://other.example:8443";
	static const struct { const char *fields; int want; } rows[] = {
		{ "", -ENOENT },
		{ "Origin: http://space.example:4983\r\n", 0 },
		{ "Origin: https://space.example:4983\r\n", 0 },
		{ "Origin: https://SPACE.example:4983\r\n", 0 },
		{ "Origin: https://console.example\r\n", 0 },
		{ "Origin: https://other.example:8443\r\n", 0 },
		{ "Origin: http://space.example\r\n", -EACCES },
		{ "Origin: http://space.example:49830\r\n", -EACCES },
		{ "Origin: http://space.example:4983.evil.example\r\n", -EACCES },
		{ "Origin: http://evil.example\r\n", -EACCES },
		{ "Origin: http://console.example\r\n", -EACCES },
		{ "Origin: https://other.example\r\n", -EACCES },
		{ "Origin: https://console.example https://other.example:8443\r\n", -EACCES },
		{ "Origin: space.example:4983\r\n", -EACCES },
		{ "Origin: null\r\n", -EACCES },
		{ "Origin: \r\n", -EACCES },
		{ "Origin: http://space.example:4983\r\nOrigin: http://evil.example\r\n", -EACCES },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct http_head h = head_of(rows[i].fields);
		struct err e = { 0 };
		int r = terminal_origin(&h, allowed, &e);

		if (r != rows[i].want)
			fail_msg("%s: %d %s", rows[i].fields, r, e.text);
		http_head_done(&h);
	}
}

static void test_ask(void **state)
{
#define S32 "00112233445566778899aabbccddeeff"
	static const struct { const char *target; bool ok; } rows[] = {
		{ "/t", true },
		{ "/t?", true },
		{ "/t?cols=120&rows=40", true },
		{ "/t?cols=1&rows=1000&window=65536&user=root", true },
		{ "/t?session=" S32, true },
		{ "/t?pid=77&window=1048576", true },
		{ "/t?user=a%2Db", true },
		{ "/t?cols=0", false },
		{ "/t?cols=1001", false },
		{ "/t?cols=-1", false },
		{ "/t?cols=", false },
		{ "/t?cols", false },
		{ "/t?cols=80&cols=80", false },
		{ "/t?rows=1e2", false },
		{ "/t?window=1", false },
		{ "/t?window=2000000", false },
		{ "/t?pid=0", false },
		{ "/t?pid=2147483648", false },
		{ "/t?pid=1&session=" S32, false },
		{ "/t?session=0011", false },
		{ "/t?session=" S32 "0", false },
		{ "/t?session=zz112233445566778899aabbccddeeff", false },
		{ "/t?user=", false },
		{ "/t?user=a:b", false },
		{ "/t?user=a%0Ab", false },
		{ "/t?user=%zz", false },
		{ "/t?user=root&pid=1", false },
		{ "/t?user=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false },
		{ "/t?key=e2b_00", false },
		{ "/t?=1", false },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct terminal_ask a;
		struct err e = { 0 };
		int r = terminal_ask(rows[i].target, &a, &e);

		if ((r == 0) != rows[i].ok || (r < 0 && (r != -EINVAL || !e.text[0])))
			fail_msg("%s: %d %s", rows[i].target, r, e.text);
	}
	struct terminal_ask a;

	assert_int_equal(terminal_ask("/t?cols=120&rows=40&window=65536", &a, NULL), 0);
	assert_int_equal(a.cols, 120);
	assert_int_equal(a.rows, 40);
	assert_int_equal(a.window, 65536);
	assert_int_equal(terminal_ask("/t", &a, NULL), 0);
	assert_int_equal(a.cols, 80);
	assert_int_equal(a.rows, 24);
	assert_int_equal(a.pid, 0);
	assert_int_equal(a.window, 0);
}

static void test_message(void **state)
{
	static const struct { const char *text; int kind; } rows[] = {
		{ "{\"type\":\"resize\",\"cols\":1,\"rows\":1000}", TERMINAL_RESIZE },
		{ " { \"type\" : \"redraw\" } ", TERMINAL_REDRAW },
		{ "{\"bytes\":7,\"type\":\"ack\"}", TERMINAL_ACK },
		{ "{\"type\":\"ping\"}", TERMINAL_PING },
		{ "{\"type\":\"resize\",\"cols\":0,\"rows\":1}", -1 },
		{ "{\"type\":\"resize\",\"cols\":1}", -1 },
		{ "{\"type\":\"resize\",\"cols\":1,\"rows\":1001}", -1 },
		{ "{\"type\":\"resize\",\"cols\":1.5,\"rows\":1}", -1 },
		{ "{\"type\":\"resize\",\"cols\":\"1\",\"rows\":1}", -1 },
		{ "{\"type\":\"resize\",\"cols\":1,\"rows\":1,\"x\":1}", -1 },
		{ "{\"type\":\"ack\",\"bytes\":-1}", -1 },
		{ "{\"type\":\"ack\",\"bytes\":1048577}", -1 },
		{ "{\"type\":\"ping\",\"type\":\"ping\"}", -1 },
		{ "{\"type\":\"exit\"}", -1 },
		{ "{\"type\":[]}", -1 },
		{ "{\"type\":null}", -1 },
		{ "{}", -1 },
		{ "[]", -1 },
		{ "1", -1 },
		{ "", -1 },
		{ "{", -1 },
		{ "{\"type\":\"ping\"}x", -1 },
		{ "{\"type\":\"pi\\u0000ng\"}", -1 },
	};
	static char large[TERMINAL_TEXT_MAX + 2];
	struct terminal_message m;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct err e = { 0 };
		int r = terminal_message(rows[i].text, strlen(rows[i].text), &m, &e);

		if ((r == 0) != (rows[i].kind >= 0) || (r == 0 && (int)m.kind != rows[i].kind) ||
		    (r < 0 && !e.text[0]))
			fail_msg("%s: %d %s", rows[i].text, r, e.text);
	}
	memset(large, ' ', sizeof(large) - 1);
	memcpy(large, rows[3].text, strlen(rows[3].text));
	assert_int_equal(terminal_message(large, TERMINAL_TEXT_MAX, &m, NULL), 0);
	assert_int_equal(terminal_message(large, TERMINAL_TEXT_MAX + 1, &m, NULL), -EMSGSIZE);
}

static void test_event(void **state)
{
	static const struct { const char *text; int kind; const char *data; } rows[] = {
		{ "{\"event\":{\"start\":{\"pid\":7}}}", TERMINAL_EV_START, NULL },
		{ "{\"event\":{\"data\":{\"pty\":\"aGk=\"}}}", TERMINAL_EV_DATA, "hi" },
		{ "{\"event\":{\"data\":{\"pty\":\"\"}}}", TERMINAL_EV_DATA, "" },
		{ "{\"event\":{\"keepalive\":{}}}", TERMINAL_EV_OTHER, NULL },
		{ "{\"event\":{\"new\":[1]}}", TERMINAL_EV_OTHER, NULL },
		{ "{}", TERMINAL_EV_OTHER, NULL },
		{ "{\"event\":{\"end\":{\"exitCode\":3,\"exited\":true,\"status\":\"exit status 3\"}}}",
		  TERMINAL_EV_END, NULL },
		{ "{\"event\":{\"end\":{}}}", TERMINAL_EV_END, NULL },
		{ "{\"event\":{\"end\":{\"exitCode\":-1,\"status\":\"signal: killed\"}}}",
		  TERMINAL_EV_END, NULL },
		{ "{\"event\":{\"start\":{}}}", -1, NULL },
		{ "{\"event\":{\"start\":{\"pid\":0}}}", -1, NULL },
		{ "{\"event\":{\"start\":{\"pid\":4294967296}}}", -1, NULL },
		{ "{\"event\":{\"data\":{}}}", -1, NULL },
		{ "{\"event\":{\"data\":{\"stdout\":\"aGk=\"}}}", -1, NULL },
		{ "{\"event\":{\"data\":{\"pty\":\"a\"}}}", -1, NULL },
		{ "{\"event\":{\"data\":{\"pty\":7}}}", -1, NULL },
		{ "{\"event\":{\"end\":{\"exitCode\":256}}}", -1, NULL },
		{ "{\"event\":{\"end\":{\"exitCode\":\"0\"}}}", -1, NULL },
		{ "[]", TERMINAL_EV_OTHER, NULL },
		{ "x", -1, NULL },
		{ "", -1, NULL },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct terminal_event ev;
		struct err e = { 0 };
		int r = terminal_event(rows[i].text, strlen(rows[i].text), false, &ev, &e);

		if ((r == 0) != (rows[i].kind >= 0) || (r == 0 && (int)ev.kind != rows[i].kind) ||
		    (r < 0 && !e.text[0]))
			fail_msg("%s: %d %s", rows[i].text, r, e.text);
		if (r == 0 && rows[i].data) {
			assert_int_equal(ev.len, strlen(rows[i].data));
			assert_memory_equal(ev.data, rows[i].data, ev.len);
		}
		terminal_event_done(&ev);
	}
}

static void event_of(const char *text, bool last, struct terminal_event *ev)
{
	assert_int_equal(terminal_event(text, strlen(text), last, ev, NULL), 0);
	terminal_event_done(ev);
}

static void test_event_ends(void **state)
{
	struct terminal_event ev;

	event_of("{\"event\":{\"end\":{\"exitCode\":3}}}", false, &ev);
	assert_int_equal(ev.code, 3);
	event_of("{\"event\":{\"end\":{\"exitCode\":-1,\"status\":\"signal: killed\"}}}", false, &ev);
	assert_int_equal(ev.code, -1);
	assert_string_equal(ev.signal, "SIGKILL");
	event_of("{\"event\":{\"end\":{\"exitCode\":-1,\"status\":\"signal: segmentation fault (core dumped)\"}}}",
		 false, &ev);
	assert_string_equal(ev.signal, "SIGSEGV");
	event_of("{\"event\":{\"end\":{\"exitCode\":-1,\"status\":\"<script>\"}}}", false, &ev);
	assert_string_equal(ev.signal, "unknown");
	event_of("{}", true, &ev);
	assert_int_equal(ev.kind, TERMINAL_EV_LAST);
	event_of("{\"error\":{\"code\":\"not_found\",\"message\":\"no\"}}", true, &ev);
	assert_int_equal(ev.kind, TERMINAL_EV_FAILED);
	assert_string_equal(ev.error, "not_found");
	assert_string_equal(ev.text, "no");
	event_of("{\"error\":7}", true, &ev);
	assert_int_equal(ev.kind, TERMINAL_EV_FAILED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hello),	cmocka_unit_test(test_origin),
		cmocka_unit_test(test_ask),	cmocka_unit_test(test_message),
		cmocka_unit_test(test_event),	cmocka_unit_test(test_event_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
