/*
 * The real agent: StreamInput, what a stream's head may say, and commands whose ends are unusual.
 * argv[1] = the agent.
 */
#include <arpa/inet.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "spaced-guest/test_host.h"

#define STREAM_INPUT "/process.Process/StreamInput"
#define TYPE "Content-Type: application/connect+json\r\n"
#define PID_ONLY "{\"process\":{\"pid\":%d}}"
#define KILL "{\"process\":{\"pid\":%d},\"signal\":\"SIGNAL_SIGKILL\"}"

static size_t envelope(char *dst, size_t size, const char *json)
{
	uint32_t be = htonl((uint32_t)strlen(json));

	assert_true(strlen(json) + 5 <= size);
	dst[0] = 0;
	memcpy(dst + 1, &be, 4);
	memcpy(dst + 5, json, strlen(json));
	return strlen(json) + 5;
}

static void send_json(struct call *c, const char *json)
{
	size_t n = strlen(json) + 5;
	autofree char *e = x_alloc(n);

	envelope(e, n, json);
	call_send(&host, c, e, n);
}

static struct call *open_input(int pid, const char *fields)
{
	char all[256], json[128];
	struct call *c;

	snprintf(all, sizeof(all), TYPE "%s", fields ? fields : "");
	snprintf(json, sizeof(json), "{\"start\":{\"process\":{\"pid\":%d}}}", pid);
	c = call_open(&host, STREAM_INPUT, all);
	send_json(c, json);
	return c;
}

static void send_text(struct call *c, const char *kind, const char *text)
{
	char b64[512], json[640];

	assert_true(STR_B64_LEN(strlen(text)) < sizeof(b64));
	str_b64(b64, text, strlen(text));
	snprintf(json, sizeof(json), "{\"data\":{\"input\":{\"%s\":\"%s\"}}}", kind, b64);
	send_json(c, json);
}

/* The one reply of a client stream: "" = {} and an end without an error. */
static const char *reply(struct call *c)
{
	static char text[512];
	const char *p;
	int flags;

	p = stream_next(&host, c, &flags);
	assert_non_null(p);
	if (!(flags & 2)) {
		assert_string_equal(p, "{}");
		p = stream_next(&host, c, &flags);
		assert_non_null(p);
		assert_int_equal(flags, 2);
		assert_string_equal(p, "{}");
		assert_null(stream_next(&host, c, &flags));
		text[0] = '\0';
	} else {
		const char *code = strstr(p, "\"code\":\""), *msg = strstr(p, "\"message\":\"");

		assert_non_null(code);
		assert_non_null(msg);
		snprintf(text, sizeof(text), "%.*s: %.*s", (int)strcspn(code + 8, "\""), code + 8,
			 (int)strcspn(msg + 11, "\""), msg + 11);
	}
	return text;
}

static void test_stream_input(void **state)
{
	struct call *c = run(&host, "cat; echo end", NULL, NULL), *in;
	int pid = stream_pid(&host, c);
	struct result r = { .started = true };

	in = open_input(pid, "Connect-Content-Encoding: identity\r\n");
	send_text(in, "stdin", "one\n");
	send_json(in, "{\"keepalive\":{}}");
	/* What was sent is there before the stream ends. */
	while (r.n_out < 4) {
		int flags;
		const char *p = stream_next(&host, c, &flags);

		assert_non_null(p);
		if (strstr(p, "b25lCg=="))
			break;
	}
	send_text(in, "stdin", "two\n");
	send_json(in, "{\"data\":{\"input\":{\"stdin\":\"\"}},\"unknown_field\":1}");
	call_finish(&host, in);
	assert_string_equal(reply(in), "");
	call_free(&host, in);
	/* The end of the stream does not close stdin; another one goes on. By tag, in one piece. */
	in = open_input(pid, NULL);
	send_text(in, "stdin", "three\n");
	call_finish(&host, in);
	assert_string_equal(reply(in), "");
	call_free(&host, in);
	assert_int_equal(about_pid(&host, "CloseStdin", PID_ONLY, pid, NULL), 200);
	stream_result(&host, c, &r);
	assert_string_equal(r.out, "two\nthree\nend\n");
	call_free(&host, c);
}

/* All in one whole body, cut at every byte into two pieces. */
static void test_stream_input_pieces(void **state)
{
	char all[512];
	size_t n = 0;
	struct call *c = run(&host, "cat", ",\"tag\":\"pieces\"", NULL), *in;
	int pid = stream_pid(&host, c);
	struct result r = { .started = true };

	n += envelope(all, sizeof(all), "{\"start\":{\"process\":{\"tag\":\"pieces\"}}}");
	n += envelope(all + n, sizeof(all) - n, "{\"data\":{\"input\":{\"stdin\":\"YQ==\"}}}");
	n += envelope(all + n, sizeof(all) - n, "{\"keepalive\":{}}");
	n += envelope(all + n, sizeof(all) - n, "{\"data\":{\"input\":{\"stdin\":\"Yg==\"}}}");
	for (size_t cut = 0; cut <= n; cut++) {
		in = call_open(&host, STREAM_INPUT, TYPE);
		call_send(&host, in, all, cut);
		host_turn(&host, 0);
		call_send(&host, in, all + cut, n - cut);
		call_finish(&host, in);
		assert_string_equal(reply(in), "");
		call_free(&host, in);
	}
	in = call_new(&host, false, "POST", STREAM_INPUT, TYPE, all, n);
	assert_string_equal(reply(in), "");
	call_free(&host, in);
	about_pid(&host, "CloseStdin", PID_ONLY, pid, NULL);
	stream_result(&host, c, &r);
	assert_int_equal(r.n_out, 2 * (n + 2));
	for (size_t i = 0; i < r.n_out; i++)
		assert_int_equal(r.out[i], i % 2 ? 'b' : 'a');
	call_free(&host, c);
}

static void test_stream_input_refusals(void **state)
{
	static const struct { const char *messages[3], *error; } rows[] = {
		{ { "{\"start\":{\"process\":{\"pid\":1}}}" },
		  "not_found: process with pid 1 not found" },
		{ { "{\"start\":{\"process\":{\"tag\":\"none\"}}}" },
		  "not_found: process with tag 'none' not found" },
		{ { "{\"start\":{\"process\":{}}}" }, "invalid_argument: 'process' must have" },
		{ { "{\"data\":{\"input\":{\"stdin\":\"YQ==\"}}}" },
		  "invalid_argument: the first message must be a start message" },
		{ { "{}" }, "invalid_argument: a message must have one of" },
		{ { "{\"keepalive\":{},\"data\":{\"input\":{\"stdin\":\"YQ==\"}}}" },
		  "invalid_argument: a message must have one of" },
		{ { "[]" }, "invalid_argument: the message is no JSON object" },
		{ { "{" }, "invalid_argument: the message is no valid JSON" },
		{ { "" }, "invalid_argument: the message is no valid JSON" },
		{ { NULL }, "invalid_argument: there is no start message" },
		{ { "S", "{\"data\":{\"input\":{\"stdin\":\"*\"}}}" },
		  "invalid_argument: 'stdin' must be base64 text" },
		{ { "S", "{\"data\":{\"input\":{}}}" }, "invalid_argument: 'input' must have" },
		{ { "S", "{\"data\":{}}" }, "invalid_argument: 'input' is missing" },
		{ { "S", "{\"data\":{\"input\":{\"pty\":\"YQ==\"}}}" },
		  "failed_precondition: the process has no terminal" },
		{ { "S", "S" }, "invalid_argument: there is one start message only" },
	};
	struct call *c = run(&host, "cat", NULL, NULL), *in;
	int pid = stream_pid(&host, c);
	char start[128];

	snprintf(start, sizeof(start), "{\"start\":{\"process\":{\"pid\":%d}}}", pid);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const char *got;

		in = call_open(&host, STREAM_INPUT, TYPE);
		for (int k = 0; k < 3 && rows[i].messages[k]; k++)
			send_json(in, str_eq(rows[i].messages[k], "S") ? start
								       : rows[i].messages[k]);
		call_finish(&host, in);
		got = reply(in);
		if (!str_starts(got, rows[i].error))
			fail_msg("%s, not %s", got, rows[i].error);
		call_free(&host, in);
	}
	about_pid(&host, "SendSignal", KILL, pid, NULL);
	call_free(&host, c);
}

/* Framing: each is refused when it is seen, though the client has not ended its stream. */
static void test_stream_input_framing(void **state)
{
	static const struct { const char *bytes; size_t n; const char *error; } rows[] = {
		{ "\1", 1, "unimplemented: compressed messages are not accepted" },
		{ "\2", 1, "invalid_argument: a message has the unknown flags 2" },
		{ "\0\0\x80\0\1", 5, "resource_exhausted: a message has 8388609 bytes" },
		{ "\0\xff\xff\xff\xff", 5, "resource_exhausted: a message has 4294967295 bytes" },
	};
	struct call *in;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const char *got;

		in = call_open(&host, STREAM_INPUT, TYPE);
		call_send(&host, in, rows[i].bytes, rows[i].n);
		got = reply(in);
		if (!str_starts(got, rows[i].error))
			fail_msg("%s, not %s", got, rows[i].error);
		call_free(&host, in);
	}
	in = call_open(&host, STREAM_INPUT, TYPE);
	call_send(&host, in, "\0\0\0\0\x09{}", 7);
	call_finish(&host, in);
	assert_string_equal(reply(in), "invalid_argument: the last message is cut short");
	call_free(&host, in);
}

/* What the head of any stream may say. */
static void test_stream_heads(void **state)
{
	static const struct { const char *fields, *error; } rows[] = {
		{ "Connect-Content-Encoding: gzip\r\n", "unimplemented: " },
		{ "Connect-Timeout-Ms: 1.5\r\n", "invalid_argument: Connect-Timeout-Ms" },
		{ "Connect-Timeout-Ms: -1\r\n", "invalid_argument: Connect-Timeout-Ms" },
		{ "Connect-Timeout-Ms: 99999999999999999999\r\n",
		  "invalid_argument: Connect-Timeout-Ms" },
	};
	static const char *const methods[] = { "Start", "Connect", "StreamInput" };
	struct result r;
	struct call *c;

	for (size_t m = 0; m < ARRAY_LEN(methods); m++) {
		for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
			r = (struct result){ 0 };
			c = stream_new(&host, methods[m], rows[i].fields, "{}");
			stream_result(&host, c, &r);
			if (!str_starts(r.error, rows[i].error))
				fail_msg("%s: %s", methods[m], r.error);
			call_free(&host, c);
		}
	}
	c = call_new(&host, false, "POST", STREAM_INPUT, "Content-Type: application/json\r\n", "{}",
		     2);
	call_wait(&host, c);
	assert_int_equal(call_status(c), 415);
	call_free(&host, c);
	/* A chunked Start, as newer SDKs send it; 0 = no time-out; a time-out of Connect's. */
	c = call_open(&host, "/process.Process/Start",
		      TYPE "Connect-Content-Encoding: identity\r\nConnect-Timeout-Ms: 0\r\n");
	send_json(c, "{\"process\":{\"cmd\":\"/bin/echo\",\"args\":[\"hi\"]}}");
	call_finish(&host, c);
	r = (struct result){ 0 };
	stream_result(&host, c, &r);
	assert_string_equal(r.out, "hi\n");
	call_free(&host, c);
	/* Two messages where one belongs. */
	c = call_open(&host, "/process.Process/Start", TYPE);
	send_json(c, "{\"process\":{\"cmd\":\"/bin/true\"}}");
	send_json(c, "{}");
	call_finish(&host, c);
	r = (struct result){ 0 };
	stream_result(&host, c, &r);
	assert_string_equal(r.error, "invalid_argument: there must be exactly one whole message");
	call_free(&host, c);
}

static void test_unary_bodies(void **state)
{
	static const char *const bad[] = { "", "{", "[]", "nothing", "\x80\x81", "{\"a\":1}}" };
	static const char *const methods[] = { "List", "SendInput", "CloseStdin", "SendSignal",
					       "Update" };
	char path[64];
	const char *body;

	for (size_t m = 0; m < ARRAY_LEN(methods); m++) {
		for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
			snprintf(path, sizeof(path), "process.Process/%s", methods[m]);
			assert_int_equal(rpc(&host, path, bad[i], &body), 400);
			assert_non_null(strstr(body, "\"code\":\"invalid_argument\""));
		}
	}
	assert_int_equal(rpc(&host, "process.Process/List", "{\"unknown\":[1]}", &body), 200);
	assert_int_equal(rpc(&host, "process.Process/SendInput",
			     "{\"process\":{\"pid\":1},\"input\":{\"stdin\":\"\",\"pty\":\"\"}}",
			     &body),
			 400);
}

/*
 * A command that does not read: its client waits when the pipe and one window of credit are full,
 * and the agent keeps no more than that.
 */
static void test_back_pressure(void **state)
{
	const size_t piece = 3000;
	autofree char *data = x_alloc(piece), *b64 = x_alloc(STR_B64_LEN(piece) + 1), *json = NULL;
	autofree char *e = NULL;
	struct call *c = run(&host, "read x; wc -c", NULL, NULL), *in;
	int pid = stream_pid(&host, c);
	struct result r = { .started = true };
	size_t sent = 0, n, before;
	char want[32];

	memset(data, 'x', piece);
	str_b64(b64, data, piece);
	json = x_asprintf("{\"data\":{\"input\":{\"stdin\":\"%s\"}}}", b64);
	e = x_alloc(strlen(json) + 5);
	n = envelope(e, strlen(json) + 5, json);
	/* `read` takes a byte at a time and finds no newline: it waits for one. */
	kill(pid, SIGSTOP);
	in = open_input(pid, NULL);
	do {
		before = sent;
		for (int i = 0; i < 20; i++) {
			while (call_try(&host, in, e, n))
				sent++;
			host_turn(&host, 10);
		}
	} while (sent != before);
	if (sent * n > 2 * MUX_CREDIT_INITIAL + 65536)
		fail_msg("%zu bytes were taken", sent * n);
	/* Others are not touched by it. */
	{
		struct result other;

		run_wait(&host, "echo quick", NULL, &other);
		assert_string_equal(other.out, "quick\n");
	}
	kill(pid, SIGCONT);
	for (size_t i = 0; i < 100; i++)
		call_send(&host, in, e, n);
	sent += 100;
	send_text(in, "stdin", "\n123456");
	call_finish(&host, in);
	assert_string_equal(reply(in), "");
	call_free(&host, in);
	about_pid(&host, "CloseStdin", PID_ONLY, pid, NULL);
	stream_result(&host, c, &r);
	snprintf(want, sizeof(want), "6\n");
	assert_string_equal(r.out, want);
	assert_true(sent > 100);
	call_free(&host, c);
}

/* Large messages, up to the limit. */
static void test_large_message(void **state)
{
	const size_t n = (8 << 20) / 4 * 3 - 300;
	autofree char *data = x_alloc(n), *b64 = x_alloc(STR_B64_LEN(n) + 1), *json = NULL;
	struct call *c = run(&host, "md5sum", NULL, NULL), *in;
	int pid = stream_pid(&host, c);
	struct result r = { .started = true };

	memset(data, 0, n);
	str_b64(b64, data, n);
	json = x_asprintf("{\"data\":{\"input\":{\"stdin\":\"%s\"}}}", b64);
	in = open_input(pid, NULL);
	send_json(in, json);
	send_json(in, json);
	call_finish(&host, in);
	assert_string_equal(reply(in), "");
	call_free(&host, in);
	about_pid(&host, "CloseStdin", PID_ONLY, pid, NULL);
	stream_result(&host, c, &r);
	{
		char cmd[128];
		struct result want;

		snprintf(cmd, sizeof(cmd), "head -c %zu /dev/zero | md5sum", 2 * n);
		run_wait(&host, cmd, NULL, &want);
		assert_string_equal(r.out, want.out);
	}
	call_free(&host, c);
}

/* Whoever goes first: the client, the command, its stdin; and the time of the call. */
static void test_stream_input_ends(void **state)
{
	struct call *c = run(&host, "cat", NULL, NULL), *in;
	int pid = stream_pid(&host, c);
	struct result r = { .started = true };

	/* The client goes in the middle of a message: whole ones count. */
	in = open_input(pid, NULL);
	send_text(in, "stdin", "whole\n");
	call_send(&host, in, "\0\0\0\0\x20{\"data\"", 12);
	while (!strstr(stream_next(&host, c, &(int){ 0 }), "d2hvbGUK"))
		;
	call_free(&host, in);
	/* The time of the call ends it, not the command. */
	in = open_input(pid, "Connect-Timeout-Ms: 100\r\n");
	assert_string_equal(reply(in), "deadline_exceeded: the time of this call is over");
	call_free(&host, in);
	/* stdin is closed while a stream is open. */
	in = open_input(pid, NULL);
	about_pid(&host, "CloseStdin", PID_ONLY, pid, NULL);
	stream_result(&host, c, &r);
	assert_true(r.ended && r.n_out == 0);
	send_text(in, "stdin", "late");
	assert_string_equal(reply(in), "failed_precondition: the process has ended");
	call_free(&host, in);
	call_free(&host, c);
	/* The command closes its stdin, or never had one. */
	c = run(&host, "exec <&-; echo closed; sleep 1000", NULL, NULL);
	pid = stream_pid(&host, c);
	assert_non_null(strstr(stream_next(&host, c, &(int){ 0 }), "Y2xvc2VkCg=="));
	in = open_input(pid, NULL);
	send_text(in, "stdin", "x");
	assert_string_equal(reply(in), "failed_precondition: the process has closed its stdin");
	call_free(&host, in);
	about_pid(&host, "SendSignal", KILL, pid, NULL);
	call_free(&host, c);
	c = run(&host, "sleep 1000", ",\"stdin\":false", NULL);
	pid = stream_pid(&host, c);
	in = open_input(pid, NULL);
	send_text(in, "stdin", "x");
	assert_string_equal(reply(in),
			    "failed_precondition: the stdin of the process is not open");
	call_free(&host, in);
	/* It dies while a message waits. */
	about_pid(&host, "SendSignal", KILL, pid, NULL);
	call_free(&host, c);
	c = run(&host, "sleep 1000", NULL, NULL);
	pid = stream_pid(&host, c);
	in = open_input(pid, NULL);
	{
		char b64[STR_B64_LEN(3000) + 1], json[STR_B64_LEN(3000) + 64], data[3000] = "";

		str_b64(b64, data, sizeof(data));
		snprintf(json, sizeof(json), "{\"data\":{\"input\":{\"stdin\":\"%s\"}}}", b64);
		for (int i = 0; i < 30; i++)
			send_json(in, json);
	}
	about_pid(&host, "SendSignal", KILL, pid, NULL);
	/* ... ended; or its stdin was seen closed first. */
	assert_true(str_starts(reply(in), "failed_precondition: the process has "));
	call_free(&host, in);
	call_free(&host, c);
}

static void test_terminal_stream(void **state)
{
	struct call *c = run(&host, "stty -echo; echo ready; read x; echo \"<$x>\"", ",\"pty\":{}",
			     NULL),
		    *in;
	int pid = stream_pid(&host, c);
	struct result r = { .started = true };

	while (!strstr(stream_next(&host, c, &(int){ 0 }), "cmVhZHkN"))
		;
	in = open_input(pid, NULL);
	send_text(in, "pty", "ab");
	send_text(in, "pty", "cd\n");
	call_finish(&host, in);
	assert_string_equal(reply(in), "");
	call_free(&host, in);
	stream_result(&host, c, &r);
	assert_string_equal(r.out, "<abcd>\r\n");
	call_free(&host, c);
}

/* Commands with a lot of environment: all are listed, those that would not fit by name. */
static void test_large_list(void **state)
{
	enum { N = 80 };
	autofree char *big = x_alloc(60001), *json = NULL;
	struct call *c[N];
	const char *body;
	int pids[N];
	json_t *j, *list;

	memset(big, 'x', 60000);
	big[60000] = '\0';
	json = x_asprintf("{\"process\":{\"cmd\":\"/bin/sleep\",\"args\":[\"1000\"],"
			  "\"envs\":{\"BIG\":\"%s\"}}}",
			  big);
	for (int i = 0; i < N; i++)
		c[i] = stream_new(&host, "Start", NULL, json);
	for (int i = 0; i < N; i++)
		pids[i] = stream_pid(&host, c[i]);
	assert_int_equal(rpc(&host, "process.Process/List", "{}", &body), 200);
	j = json_loads(body, 0, NULL);
	assert_non_null(j);
	list = json_object_get(j, "processes");
	assert_int_equal(json_array_size(list), N);
	for (size_t i = 0; i < N; i++) {
		json_t *p = json_array_get(list, i), *conf = json_object_get(p, "config");

		assert_int_equal(json_integer_value(json_object_get(p, "pid")), pids[i]);
		assert_string_equal(json_string_value(json_object_get(conf, "cmd")), "/bin/sleep");
		assert_true(i > 60 || json_object_get(conf, "args"));
		assert_true(i < N - 1 || !json_object_get(conf, "args"));
	}
	json_decref(j);
	for (int i = 0; i < N; i++) {
		about_pid(&host, "SendSignal", KILL, pids[i], NULL);
		call_free(&host, c[i]);
	}
}

/* The end is the exit of the first process, whatever becomes of its pipes. */
static void test_closed_output(void **state)
{
	struct result r;
	uint64_t child;

	run_wait(&host, "echo a; exec >&- 2>&-; sleep 0.3; exit 4", NULL, &r);
	assert_string_equal(r.out, "a\n");
	assert_true(r.ended && r.exited);
	assert_int_equal(r.code, 4);
	/* A daemon as daemons are started; nobody but us knows it any more. */
	run_wait(&host, "nohup setsid sleep 1000 > /dev/null 2>&1 < /dev/null & echo $!", NULL, &r);
	assert_int_equal(r.code, 0);
	r.out[strcspn(r.out, "\n")] = '\0';
	assert_int_equal(str_to_u64(r.out, INT32_MAX, &child), 0);
	assert_true(child > 1);
	assert_int_equal(kill((pid_t)child, 0), 0);
	kill((pid_t)child, SIGKILL);
	EVENTUALLY_ON(&host, kill((pid_t)child, 0) < 0);
}

/* The time of a Start goes on when its client has left; a later Connect sees how it ended. */
static void test_deadline_without_client(void **state)
{
	struct call *c = run(&host, "sleep 1000", NULL, "Connect-Timeout-Ms: 400\r\n");
	int pid = stream_pid(&host, c);
	struct result r = { 0 };
	char json[64];

	call_free(&host, c);
	snprintf(json, sizeof(json), PID_ONLY, pid);
	c = stream_new(&host, "Connect", NULL, json);
	stream_result(&host, c, &r);
	assert_true(r.started && r.ended && !r.exited);
	assert_int_equal(r.code, -1);
	assert_string_equal(r.status, "signal: killed");
	assert_string_equal(r.error, "");
	call_free(&host, c);
}

/* A reader that stands still gets no pings on top of what waits for it. */
static void test_no_pings_for_a_stalled_reader(void **state)
{
	struct call *c = run(&host, "head -c 3000000 /dev/zero", NULL,
			     "Keepalive-Ping-Interval: 1\r\n");
	struct result r = { .started = true };
	int64_t until;

	stream_pid(&host, c);
	c->hold = true;
	for (until = clock_mono_ms() + 1500; clock_mono_ms() < until;)
		host_turn(&host, 50);
	c->hold = false;
	mux_taken(host.mux, c->id, c->held);
	/* The first events with data: not one ping among them. A slow beginning may have had some. */
	while (strstr(stream_next(&host, c, &(int){ 0 }), "keepalive"))
		;
	for (int flags, i = 1; i < 10; i++)
		assert_null(strstr(stream_next(&host, c, &flags), "keepalive"));
	stream_result(&host, c, &r);
	assert_int_equal(r.code, 0);
	call_free(&host, c);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stream_input),
		cmocka_unit_test(test_stream_input_pieces),
		cmocka_unit_test(test_stream_input_refusals),
		cmocka_unit_test(test_stream_input_framing),
		cmocka_unit_test(test_stream_heads),
		cmocka_unit_test(test_unary_bodies),
		cmocka_unit_test(test_back_pressure),
		cmocka_unit_test(test_large_message),
		cmocka_unit_test(test_stream_input_ends),
		cmocka_unit_test(test_terminal_stream),
		cmocka_unit_test(test_large_list),
		cmocka_unit_test(test_closed_output),
		cmocka_unit_test(test_deadline_without_client),
		cmocka_unit_test(test_no_pings_for_a_stalled_reader),
	};

	if (!host_args(argc, argv))
		return 2;
	return cmocka_run_group_tests(tests, host_setup, host_teardown);
}
