/*
 * What a terminal's client and a sandbox may say. The first byte chooses the parser: a handshake
 * (fields of a request, or a query), a control message, an event of the sandbox. Checked beside
 * memory safety: what was accepted keeps the limits that the rest of the program relies on.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "api/terminal_text.h"
#include "base/alloc.h"
#include "base/str.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_hello(const char *p, size_t n)
{
	autofree char *text = x_asprintf("GET /t HTTP/1.1\r\nHost: a.b:1\r\n%.*s\r\n\r\n",
					 (int)(n < 8192 ? n : 8192), p);
	struct terminal_hello hello;
	struct http_head h;
	enum http_error why;
	struct err e = { 0 };

	if (http_parse_request(text, strlen(text), &h, &why) <= 0)
		return;
	if (terminal_hello(&h, &hello, &e) == 0) {
		assert(strlen(hello.accept) == TERMINAL_ACCEPT_LEN);
		assert(!hello.ticket[0] || hello.protocol);
		assert(!hello.ticket[0] || strlen(hello.ticket) == 2 * TERMINAL_SECRET_BYTES);
	} else {
		assert(e.num < 0 && e.text[0]);
	}
	if (terminal_origin(&h, "https://c.d", &e) == 0)
		assert(strstr(http_get(&h, "Origin"), "://"));
	http_head_done(&h);
}

static void check_ask(const char *p, size_t n)
{
	autofree char *target = x_asprintf("/t?%.*s", (int)(n < 8192 ? n : 8192), p);
	struct terminal_ask a;
	struct err e = { 0 };

	if (terminal_ask(target, &a, &e) < 0) {
		assert(e.num < 0 && e.text[0]);
		return;
	}
	assert(a.cols >= 1 && a.cols <= TERMINAL_SIZE_MAX);
	assert(a.rows >= 1 && a.rows <= TERMINAL_SIZE_MAX);
	assert(!a.window || (a.window >= TERMINAL_WINDOW_MIN && a.window <= TERMINAL_WINDOW_MAX));
	assert(!(a.pid && a.session[0]));
	assert(!a.session[0] || strlen(a.session) == 2 * TERMINAL_SESSION_BYTES);
	assert(!strpbrk(a.user, ":\r\n "));
}

static void check_message(const char *p, size_t n)
{
	struct terminal_message m;
	struct err e = { 0 };

	if (terminal_message(p, n, &m, &e) < 0) {
		assert(e.num < 0 && e.text[0]);
		return;
	}
	assert(m.kind != TERMINAL_RESIZE || (m.cols >= 1 && m.cols <= TERMINAL_SIZE_MAX));
	assert(m.kind != TERMINAL_RESIZE || (m.rows >= 1 && m.rows <= TERMINAL_SIZE_MAX));
	assert(m.kind != TERMINAL_ACK || (m.bytes >= 1 && m.bytes <= TERMINAL_WINDOW_MAX));
}

static void check_event(const char *p, size_t n, bool last)
{
	struct terminal_event ev;
	struct err e = { 0 };

	if (terminal_event(p, n, last, &ev, &e) < 0) {
		assert(e.num < 0 && e.text[0] && !ev.data);
		return;
	}
	assert(ev.kind != TERMINAL_EV_DATA || ev.len <= TERMINAL_WINDOW_MIN);
	assert(ev.kind != TERMINAL_EV_END || (ev.code >= -1 && ev.code <= 255));
	assert(last == (ev.kind == TERMINAL_EV_LAST || ev.kind == TERMINAL_EV_FAILED));
	terminal_event_done(&ev);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *p = (const char *)data + 1;

	if (size < 1)
		return 0;
	switch (data[0] % 5) {
	case 0:
		check_hello(p, size - 1);
		break;
	case 1:
		check_ask(p, size - 1);
		break;
	case 2:
		check_message(p, size - 1);
		break;
	default:
		check_event(p, size - 1, data[0] % 5 == 4);
		break;
	}
	return 0;
}
