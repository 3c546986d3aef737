/*
 * Activity in the real agent: each row of docs/activity.md in its own direction. argv[1] = the
 * agent.
 *
 * "Counts" is: the agent's idle time is no longer than what has passed here since before the
 * event. "Does not count" is: while it is done again and again, the idle time reaches IDLE_MS.
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

#define IDLE_MS 150
#define PID_ONLY "{\"process\":{\"pid\":%d}}"
#define KILL "{\"process\":{\"pid\":%d},\"signal\":\"SIGNAL_SIGKILL\"}"
#define PTY_INPUT(b64) "{\"process\":{\"pid\":%d},\"input\":{\"pty\":\"" b64 "\"}}"

struct seen { int64_t idle, requests, commands, init, request, command, input; };

static struct seen look(void)
{
	const char *body;
	struct seen s = { -1, -1, -1, -1, -1, -1, -1 };
	json_t *j, *since;

	assert_int_equal(host_call(&host, true, "GET", "/activity", NULL, NULL, &body), 200);
	j = json_loads(body, 0, NULL);
	assert_non_null(j);
	since = json_object_get(j, "since_ms");
#define GET(o, name) (json_object_get(o, name) ? json_integer_value(json_object_get(o, name)) : -1)
	s.idle = GET(j, "idle_ms");
	s.requests = GET(j, "requests");
	s.commands = GET(j, "commands");
	s.init = GET(since, "init");
	s.request = GET(since, "request");
	s.command = GET(since, "command");
	s.input = GET(since, "input");
#undef GET
	json_decref(j);
	return s;
}

static bool is_idle(void)
{
	return look().idle >= IDLE_MS;
}

/* Nobody does anything. */
static void rest(void)
{
	EVENTUALLY_ON(&host, is_idle());
}

/* The last activity was not before t0 of our clock; a millisecond for rounding. */
static void assert_since(int64_t since_ms, int64_t t0)
{
	if (since_ms < 0 || since_ms > clock_mono_ms() - t0 + 1)
		fail_msg("%lld ms ago, not %lld", (long long)since_ms,
			 (long long)(clock_mono_ms() - t0));
}

static void kill_pid(int pid)
{
	assert_int_equal(about_pid(&host, "SendSignal", KILL, pid, NULL), 200);
}

static void test_beginning(void **state)
{
	int64_t t0 = clock_mono_ms();
	struct seen s;

	host.epoch.generation++;
	host_connect(&host);
	host_init(&host, "root");
	s = look();
	assert_since(s.init, t0);
	assert_since(s.idle, t0);
	assert_int_equal(s.requests, 0);
	assert_int_equal(s.commands, 0);
	assert_int_equal(s.command, -1);
	rest();
}

static void test_command(void **state)
{
	struct call *c;
	int64_t t0;
	int pid;

	rest();
	c = run(&host, "sleep 1000", NULL, NULL);
	pid = stream_pid(&host, c);
	call_free(&host, c);
	/* Its client has left; still it runs. */
	EVENTUALLY_ON(&host, look().request >= IDLE_MS);
	assert_int_equal(look().idle, 0);
	assert_int_equal(look().commands, 1);
	t0 = clock_mono_ms();
	kill_pid(pid);
	EVENTUALLY_ON(&host, look().commands == 0);
	assert_since(look().command, t0);
	rest();
}

static void test_terminal(void **state)
{
	struct call *c = run(&host, "exec bash --norc --noprofile -i", ",\"pty\":{}", NULL);
	int64_t t0;
	int pid = stream_pid(&host, c);
	struct seen s;

	/* Open stream of a terminal: counts. */
	EVENTUALLY_ON(&host, look().commands == 0 && look().request >= IDLE_MS);
	assert_int_equal(look().idle, 0);
	assert_int_equal(look().requests, 1);
	t0 = clock_mono_ms();
	call_free(&host, c);
	EVENTUALLY_ON(&host, look().requests == 0);
	assert_since(look().request, t0);
	/* A shell at its prompt that nobody watches: does not. */
	rest();
	/* A program in the foreground, and input: both do. */
	t0 = clock_mono_ms();
	assert_int_equal(about_pid(&host, "SendInput", PTY_INPUT("c2xlZXAgMTAwMAo="), pid, NULL),
			 200);
	s = look();
	assert_since(s.input, t0);
	EVENTUALLY_ON(&host, look().commands == 1);
	EVENTUALLY_ON(&host, look().input >= IDLE_MS);
	assert_int_equal(look().idle, 0);
	/* Ctrl-C: back at the prompt. */
	assert_int_equal(about_pid(&host, "SendInput", PTY_INPUT("Aw=="), pid, NULL), 200);
	EVENTUALLY_ON(&host, look().commands == 0);
	rest();
	/* A key that starts nothing. */
	t0 = clock_mono_ms();
	assert_int_equal(about_pid(&host, "SendInput", PTY_INPUT("eA=="), pid, NULL), 200);
	assert_since(look().idle, t0);
	rest();
	kill_pid(pid);
	rest();
}

static void test_stream_input(void **state)
{
	struct call *c = run(&host, "cat", NULL, NULL), *in;
	int pid = stream_pid(&host, c);
	char json[64], e[128];
	uint32_t be;
	int64_t t0;

	call_free(&host, c);
	in = call_open(&host, "/process.Process/StreamInput",
		       "Content-Type: application/connect+json\r\n");
#define SEND(text) do { \
	be = htonl((uint32_t)strlen(text)); \
	e[0] = 0; \
	memcpy(e + 1, &be, 4); \
	str_copy(e + 5, sizeof(e) - 5, text); \
	call_send(&host, in, e, 5 + strlen(text)); \
} while (0)
	snprintf(json, sizeof(json), "{\"start\":{\"process\":{\"pid\":%d}}}", pid);
	SEND(json);
	/* Pings on a stream: nothing happens by them. */
	do
		SEND("{\"keepalive\":{}}");
	while (look().request < IDLE_MS);
	assert_int_equal(look().requests, 1);
	assert_true(look().input < 0 || look().input >= IDLE_MS);
	t0 = clock_mono_ms();
	SEND("{\"data\":{\"input\":{\"stdin\":\"YQ==\"}}}");
	EVENTUALLY_ON(&host, look().input >= 0 && look().input < clock_mono_ms() - t0 + 1);
	call_free(&host, in);
	kill_pid(pid);
	rest();
#undef SEND
}

/* Pings that the agent sends on a quiet stream. */
static void test_pings(void **state)
{
	struct call *c = run(&host, "exec bash --norc --noprofile -i", ",\"pty\":{}",
			     "Keepalive-Ping-Interval: 1\r\n");
	int flags, pid = stream_pid(&host, c);
	struct seen s;

	/* However long the shell needs until its prompt. */
	EVENTUALLY_ON(&host, look().commands == 0 && look().command >= IDLE_MS);
	while (!strstr(stream_next(&host, c, &flags), "keepalive"))
		;
	s = look();
	/* The stream counts, being open; the ping moved nothing. */
	assert_int_equal(s.idle, 0);
	assert_true(s.request >= 900 && s.command >= IDLE_MS);
	call_free(&host, c);
	kill_pid(pid);
}

static void test_files(void **state)
{
	char path[64], target[96];
	struct call *c;
	int64_t t0;

	snprintf(path, sizeof(path), "/tmp/space-test-activity.%d", getpid());
	snprintf(target, sizeof(target), "/files?path=%s", path);
	rest();
	t0 = clock_mono_ms();
	assert_int_equal(host_call(&host, false, "POST", target,
				   "Content-Type: application/octet-stream\r\n", "x", NULL),
			 200);
	assert_since(look().idle, t0);
	/* An upload that goes on. */
	c = call_open(&host, target, "Content-Type: application/octet-stream\r\n");
	EVENTUALLY_ON(&host, look().requests == 1 && look().request >= IDLE_MS);
	assert_int_equal(look().idle, 0);
	call_free(&host, c);
	EVENTUALLY_ON(&host, look().requests == 0);
	rest();
	/* Reading, and every other call. */
	t0 = clock_mono_ms();
	assert_int_equal(host_call(&host, false, "GET", target, NULL, NULL, NULL), 200);
	assert_since(look().idle, t0);
	rest();
	t0 = clock_mono_ms();
	assert_int_equal(rpc(&host, "process.Process/List", "{}", NULL), 200);
	assert_since(look().idle, t0);
	unlink(path);
}

static void test_checks(void **state)
{
	const char *body;

	do {
		assert_int_equal(host_call(&host, false, "GET", "/health", NULL, NULL, NULL), 204);
		assert_int_equal(host_call(&host, true, "GET", "/health", NULL, NULL, NULL), 204);
		assert_int_equal(host_call(&host, false, "GET", "/envs", NULL, NULL, NULL), 200);
		assert_int_equal(host_call(&host, true, "GET", "/metrics", NULL, NULL, NULL), 200);
		assert_int_equal(host_call(&host, false, "GET", "/metrics", NULL, NULL, &body),
				 200);
		/* The same number there. */
		assert_non_null(strstr(body, "\"idle_ms\":"));
		/* Nobody's request. */
		assert_int_equal(host_call(&host, false, "GET", "/activity", NULL, NULL, NULL),
				 404);
		assert_int_equal(host_call(&host, false, "DELETE", "/files", NULL, NULL, NULL),
				 405);
	} while (look().idle < IDLE_MS);
}

static void test_background(void **state)
{
	struct result r;
	uint64_t child;

	run_wait(&host, "(while :; do :; done) > /dev/null 2>&1 & echo $!", NULL, &r);
	r.out[strcspn(r.out, "\n")] = '\0';
	assert_int_equal(str_to_u64(r.out, INT32_MAX, &child), 0);
	assert_true(child > 1);
	rest();
	assert_int_equal(look().commands, 0);
	assert_int_equal(kill((pid_t)child, SIGKILL), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_beginning),  cmocka_unit_test(test_command),
		cmocka_unit_test(test_terminal),   cmocka_unit_test(test_stream_input),
		cmocka_unit_test(test_pings),	   cmocka_unit_test(test_files),
		cmocka_unit_test(test_checks),	   cmocka_unit_test(test_background),
	};

	if (!host_args(argc, argv))
		return 2;
	return cmocka_run_group_tests(tests, host_setup, host_teardown);
}
