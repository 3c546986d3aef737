/*
 * The real agent as an ordinary process over a socketpair: commands, terminals, flow, ends, cuts.
 * argv[1] = the agent.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "spaced-guest/cgroup.h"
#include "spaced-guest/test_host.h"

#define EVENTUALLY(cond) EVENTUALLY_ON(&host, cond)

static bool alive(int pid)
{
	return kill(pid, 0) == 0;
}

static void test_init(void **state)
{
	struct host h;
	const char *body;

	host_start(&h);
	assert_int_equal(host_call(&h, false, "GET", "/health", NULL, NULL, NULL), 503);
	assert_int_equal(rpc(&h, "process.Process/List", "{}", NULL), 503);
	assert_int_equal(host_call(&h, true, "GET", "/health", NULL, NULL, NULL), 204);
	assert_int_equal(host_call(&h, true, "POST", "/init", NULL, "{}", NULL), 400);
	assert_int_equal(host_call(&h, true, "POST", "/init", NULL, "{", NULL), 400);
	/* Well formed, but not the generation and activation that RESET said. */
	assert_int_equal(
		host_call(&h, true, "POST", "/init", NULL,
			  "{\"sandbox\":\"s\",\"generation\":9,"
			  "\"activation\":\"00000000000000000000000000000000\",\"hostname\":\"s\","
			  "\"machine_id\":\"0123456789abcdef0123456789abcdef\","
			  "\"boot_id\":\"00000000-0000-4000-8000-000000000000\",\"wall_ms\":1,"
			  "\"access_token\":\"" TOKEN "\",\"entropy\":"
			  "\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
			  "AAAAAAAAAAAAAAAA==\"}",
			  NULL),
		409);
	host_init(&h, "root");
	assert_int_equal(host_call(&h, false, "GET", "/health", NULL, NULL, NULL), 204);
	assert_int_equal(host_call(&h, false, "POST", "/init", NULL, "{}", NULL), 404);
	assert_int_equal(host_call(&h, true, "POST", "/process.Process/List", NULL, "{}", NULL),
			 501);
	assert_int_equal(host_call(&h, true, "GET", "/files", NULL, NULL, NULL), 404);
	assert_int_equal(host_call(&h, false, "PUT", "/files", NULL, NULL, NULL), 405);
	assert_int_equal(host_call(&h, false, "GET", "/envs", NULL, NULL, &body), 200);
	assert_non_null(strstr(body, "\"GLOBAL\":\"g1\""));
	assert_int_equal(host_call(&h, false, "GET", "/metrics", NULL, NULL, &body), 200);
	assert_non_null(strstr(body, "\"cpu_count\":"));
	/* The same epoch again: nothing to do. Another one: closed until its /init. */
	host_connect(&h);
	assert_int_equal(rpc(&h, "process.Process/List", "{}", &body), 200);
	h.epoch.generation++;
	host_connect(&h);
	assert_int_equal(rpc(&h, "process.Process/List", "{}", NULL), 503);
	host_init(&h, "root");
	assert_int_equal(rpc(&h, "process.Process/List", "{}", NULL), 200);
	assert_int_equal(host_call(&h, true, "POST", "/prepare", NULL, "{\"warm\":true}", NULL),
			 204);
	assert_int_equal(host_call(&h, true, "POST", "/shutdown", NULL, "{}", NULL), 204);
	host_stop(&h);
}

/* A request by hand, without the right token or with broken HTTP. */
static int raw_status(const char *request)
{
	struct call *c = x_alloc(sizeof(*c));
	int status;

	buf_init(&c->raw, CALL_MAX);
	buf_init(&c->body, CALL_MAX);
	assert_int_equal(mux_open(host.mux, false, &c->id), 0);
	mux_set_user(host.mux, c->id, c);
	assert_int_equal(mux_send(host.mux, c->id, request, strlen(request)), 0);
	mux_end(host.mux, c->id);
	call_wait(&host, c);
	status = call_status(c);
	call_free(&host, c);
	return status;
}

static void test_refusals(void **state)
{
	const char *body;
	struct result r = { 0 };
	struct call *c;

	assert_int_equal(raw_status("GET /envs HTTP/1.1\r\nHost: x\r\n\r\n"), 401);
	assert_int_equal(
		raw_status("GET /envs HTTP/1.1\r\nHost: x\r\nX-Access-Token: 0011\r\n\r\n"), 401);
	assert_int_equal(raw_status("GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), 204);
	assert_int_equal(raw_status("GET /health HTTP/1.1\nHost: x\r\n\r\n"), 400);
	assert_int_equal(
		raw_status("POST /files HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabc"), 401);
	assert_int_equal(raw_status("GET / HT"), 400);
	assert_int_equal(rpc(&host, "process.Process/Nothing", "{}", &body), 501);
	assert_non_null(strstr(body, "\"code\":\"unimplemented\""));
	assert_int_equal(rpc(&host, "process.Process/SendSignal",
			     "{\"process\":{\"pid\":1},\"signal\":\"SIGNAL_SIGKILL\"}", &body),
			 404);
	assert_non_null(strstr(body, "\"code\":\"not_found\""));
	assert_int_equal(rpc(&host, "process.Process/SendSignal", "{\"process\":{}", &body), 400);
	assert_int_equal(host_call(&host, false, "POST", "/process.Process/List",
				   "Content-Type: text/plain\r\n", "{}", NULL),
			 415);
	c = stream_new(&host, "Start", NULL, "{\"process\":{}}");
	stream_result(&host, c, &r);
	assert_true(str_starts(r.error, "invalid_argument: 'cmd'"));
	call_free(&host, c);
}

static void test_commands(void **state)
{
	struct result r;

	run_wait(&host, "echo out; echo err >&2; exit 3", NULL, &r);
	assert_string_equal(r.out, "out\n");
	assert_string_equal(r.err, "err\n");
	assert_int_equal(r.code, 3);
	assert_true(r.exited);
	assert_string_equal(r.status, "exit status 3");
	run_wait(&host, "kill -SEGV $$", NULL, &r);
	assert_int_equal(r.code, -1);
	assert_false(r.exited);
	assert_true(str_starts(r.status, "signal: segmentation fault"));
	run_wait(&host, "true", NULL, &r);
	assert_true(r.started && r.ended && r.exited && r.code == 0);
	run_wait(&host, "cat", ",\"stdin\":false", &r);
	assert_int_equal(r.code, 0);
	run_wait(&host,
		 "echo $E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID $GLOBAL $BOTH $HOME $USER; "
		 "pwd; umask; ulimit -c",
		 NULL, &r);
	assert_true(str_starts(r.out, "true sbx1 base g1 global /var root\n/root\n0022\n"));
}

static void test_start_options(void **state)
{
	static const struct { const char *body, *error; } refused[] = {
		{ "{\"process\":{\"cmd\":\"/bin/true\",\"cwd\":\"/nowhere\"}}",
		  "invalid_argument: cwd '/nowhere' does not exist" },
		{ "{\"process\":{\"cmd\":\"/bin/true\",\"cwd\":\"/bin/true\"}}",
		  "invalid_argument: cwd '/bin/true' is not a directory" },
		{ "{\"process\":{\"cmd\":\"no-such-program\"}}",
		  "invalid_argument: error starting process 'no-such-program'" },
		{ "{\"process\":{\"cmd\":\"/etc/passwd\"}}",
		  "invalid_argument: error starting process '/etc/passwd'" },
		{ "{\"process\":{\"cmd\":7}}", "invalid_argument: 'cmd'" },
		{ "nothing", "invalid_argument: the message is no valid JSON" },
	};
	struct result r = { 0 };
	struct call *c;

	for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
		c = stream_new(&host, "Start", NULL, refused[i].body);
		r = (struct result){ 0 };
		stream_result(&host, c, &r);
		if (!str_starts(r.error, refused[i].error))
			fail_msg("%s: %s", refused[i].body, r.error);
		assert_false(r.started);
		call_free(&host, c);
	}
	/* Found in PATH; own environment wins; unknown fields are passed over. */
	c = stream_new(&host, "Start", NULL,
		       "{\"process\":{\"cmd\":\"env\",\"args\":[],\"envs\":{\"BOTH\":\"mine\","
		       "\"X\":\"a=b\"},"
		       "\"cwd\":\"/tmp\",\"future\":1},\"new_field\":{}}");
	r = (struct result){ 0 };
	stream_result(&host, c, &r);
	assert_non_null(strstr(r.out, "BOTH=mine\n"));
	assert_non_null(strstr(r.out, "X=a=b\n"));
	assert_null(strstr(r.out, "BOTH=global"));
	call_free(&host, c);
	c = run(&host, "id -un; id -Gn", NULL,
		"Authorization: Basic bm9ib2R5Og==\r\n"); /* nobody: */
	r = (struct result){ 0 };
	stream_result(&host, c, &r);
	assert_string_equal(r.out, getuid() == 0 ? "nobody\nnogroup\n" : r.out);
	call_free(&host, c);
	c = run(&host, "id", NULL, "Authorization: Basic bm8tb25lOg==\r\n"); /* no-one: */
	r = (struct result){ 0 };
	stream_result(&host, c, &r);
	assert_string_equal(r.error, "unauthenticated: invalid username: 'no-one'");
	call_free(&host, c);
}

static int start_pid(struct call *c)
{
	return stream_pid(&host, c);
}

/* A call about one process: BODY has one %d. */
static int about(const char *method, const char *body, int pid, const char **ret)
{
	return about_pid(&host, method, body, pid, ret);
}

#define STDIN(b64) "{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"" b64 "\"}}"
#define PID_ONLY "{\"process\":{\"pid\":%d}}"
#define KILL "{\"process\":{\"pid\":%d},\"signal\":\"SIGNAL_SIGKILL\"}"
#define TERM "{\"process\":{\"pid\":%d},\"signal\":\"SIGNAL_SIGTERM\"}"

static void test_stdin(void **state)
{
	struct call *c = run(&host, "cat; echo end", ",\"tag\":\"cats\"", NULL);
	int pid = start_pid(c);
	struct result r = { .started = true };
	const char *body;

	assert_int_equal(about("List", "{}", pid, &body), 200);
	assert_non_null(strstr(body, "\"tag\":\"cats\""));
	assert_non_null(strstr(body, "\"args\":[\"-l\",\"-c\",\"cat; echo end\"]"));
	assert_int_equal(about("SendInput", STDIN("aGVsbG8K"), pid, &body), 200);      /* hello */
	assert_string_equal(body, "{}");
	assert_int_equal(about("SendInput", STDIN("!!!!"), pid, &body), 400);
	assert_int_equal(rpc(&host, "process.Process/SendInput",
			     "{\"process\":{\"tag\":\"cats\"},\"input\":{\"stdin\":\"d29ybGQK\"}}",
			     &body),
			 200);
	assert_int_equal(about("SendInput",
			       "{\"process\":{\"pid\":%d},\"input\":{\"pty\":\"eA==\"}}", pid,
			       &body),
			 400);
	assert_int_equal(about("CloseStdin", PID_ONLY, pid, &body), 200);
	assert_int_equal(about("SendInput", STDIN("eA=="), pid, &body), 400);
	stream_result(&host, c, &r);
	assert_string_equal(r.out, "hello\nworld\nend\n");
	call_free(&host, c);
	assert_int_equal(about("SendInput", STDIN("eA=="), pid, &body), 404);
	assert_int_equal(rpc(&host, "process.Process/List", "{}", &body), 200);
	assert_string_equal(body, "{\"processes\":[]}");
	/* An open stdin does not delay the end. */
	run_wait(&host, "exit 0", ",\"stdin\":true", &r);
	assert_true(r.ended);
}

static void test_input_waits(void **state)
{
	/* A message longer than the pipe is answered only when the command has read it. */
	size_t n = 300000;
	autofree char *data = x_alloc(n), *b64 = x_alloc(STR_B64_LEN(n) + 1), *json = NULL;
	struct call *c = run(&host, "wc -c", NULL, NULL), *in;
	struct result r = { .started = true };
	int pid = start_pid(c);
	const char *body;

	memset(data, 'x', n);
	str_b64(b64, data, n);
	json = x_asprintf("{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"%s\"}}", pid, b64);
	/* Stopped, it takes two pipes full at most: what it has begun to read, and what waits. */
	assert_int_equal(kill(pid, SIGSTOP), 0);
	in = call_new(&host, false, "POST", "/process.Process/SendInput",
		      "Content-Type: application/json\r\n", json, strlen(json));
	for (int i = 0; i < 10; i++)
		host_turn(&host, 5);
	assert_false(in->has_head);
	assert_int_equal(kill(pid, SIGCONT), 0);
	call_wait(&host, in);
	assert_int_equal(call_status(in), 200);
	call_free(&host, in);
	assert_int_equal(about("CloseStdin", PID_ONLY, pid, &body), 200);
	stream_result(&host, c, &r);
	assert_string_equal(r.out, "300000\n");
	call_free(&host, c);
}

/* The first number in a text: what a child wrote may stand before it. */
static int number_in(const char *text)
{
	const char *digits = strpbrk(text, "0123456789");
	long n = digits ? strtol(digits, NULL, 10) : 0;

	assert_true(n > 1 && n < INT32_MAX);
	return (int)n;
}

static void test_end_and_children(void **state)
{
	struct result r;
	struct call *c;
	char json[64];
	int child;

	/*
	 * A child holds the pipes: the end comes at once, with all that the first process wrote;
	 * the child lives on.
	 */
	run_wait(&host, "sleep 1000 & echo $!; head -c 60000 /dev/zero | tr '\\0' x", NULL, &r);
	assert_true(r.ended && r.exited);
	child = number_in(r.out);
	assert_int_equal(r.n_out, 60000 + strlen("\n") + (size_t)snprintf(NULL, 0, "%d", child));
	assert_true(alive(child));
	/* A child that goes on writing does not get SIGPIPE, and does not delay the end. */
	run_wait(&host, "(while :; do echo y; done) & echo $! >&2", NULL, &r);
	assert_true(r.ended);
	child = number_in(r.err);
	for (int i = 0; i < 20; i++)
		host_turn(&host, 5);
	assert_true(alive(child));
	kill(child, SIGKILL);
	/* The end is kept for a late Connect. */
	snprintf(json, sizeof(json), PID_ONLY, r.pid);
	c = stream_new(&host, "Connect", NULL, json);
	r = (struct result){ 0 };
	stream_result(&host, c, &r);
	assert_true(r.started && r.ended && r.exited && r.code == 0 && r.n_out == 0);
	call_free(&host, c);
	c = stream_new(&host, "Connect", NULL, "{\"process\":{\"tag\":\"nothing\"}}");
	r = (struct result){ 0 };
	stream_result(&host, c, &r);
	assert_string_equal(r.error, "not_found: process with tag 'nothing' not found");
	call_free(&host, c);
}

static void test_signals(void **state)
{
	struct result r = { .started = true };
	struct call *c;
	int pid, flags, escaped = 0, child;
	const char *p, *body;

	/* SIGTERM: the whole group of the first process. */
	c = run(&host, "trap 'echo got; exit 9' TERM; echo ready; sleep 1000 & wait", NULL, NULL);
	pid = start_pid(c);
	p = stream_next(&host, c, &flags);
	assert_non_null(strstr(p, "cmVhZHkK"));
	assert_int_equal(about("SendSignal", TERM, pid, &body), 200);
	stream_result(&host, c, &r);
	assert_string_equal(r.out, "got\n");
	assert_int_equal(r.code, 9);
	call_free(&host, c);
	/* SIGKILL: the whole tree; setsid does not escape. */
	c = run(&host, "setsid bash -c 'echo $$; exec sleep 1000' & wait", NULL, NULL);
	pid = start_pid(c);
	p = stream_next(&host, c, &flags);
	{
		char b64[64] = "", raw[64] = "";
		size_t n;

		assert_int_equal(sscanf(p, "{\"event\":{\"data\":{\"stdout\":\"%63[^\"]", b64), 1);
		assert_int_equal(str_unb64(raw, sizeof(raw) - 1, b64, strlen(b64), &n), 0);
		escaped = number_in(raw);
	}
	assert_true(alive(escaped));
	assert_int_equal(about("SendSignal", KILL, pid, &body), 200);
	r = (struct result){ .started = true };
	stream_result(&host, c, &r);
	assert_string_equal(r.status, "signal: killed");
	assert_int_equal(r.code, -1);
	call_free(&host, c);
	if (host.cgroup[0])
		EVENTUALLY(!alive(escaped));
	else
		kill(escaped, SIGKILL);
	/* The time of a Start is the command's own: its cgroup ends. */
	c = run(&host, "sleep 1000 & echo $!; wait", NULL, "Connect-Timeout-Ms: 2000\r\n");
	r = (struct result){ 0 };
	stream_result(&host, c, &r);
	assert_true(str_starts(r.error, "deadline_exceeded:"));
	assert_false(r.ended);
	child = number_in(r.out);
	EVENTUALLY(!alive(r.pid));
	if (host.cgroup[0])
		EVENTUALLY(!alive(child));
	call_free(&host, c);
}

static void test_terminal(void **state)
{
	struct call *c = run(&host,
			     "stty size; tty | cut -c1-9; read x; stty size; echo $x; [ -t 0 ] && "
			     "[ -t 2 ] && echo tty; exit 4",
			     ",\"pty\":{\"size\":{\"cols\":101,\"rows\":33}}", NULL);
	int pid = start_pid(c);
	struct result r = { .started = true };
	const char *body;

	assert_int_equal(
		about("Update",
		      "{\"process\":{\"pid\":%d},\"pty\":{\"size\":{\"cols\":70,\"rows\":20}}}",
		      pid, &body),
		200);
	assert_int_equal(about("CloseStdin", PID_ONLY, pid, &body), 400);
	assert_int_equal(about("SendInput", STDIN("eA=="), pid, &body), 400);
	assert_int_equal(about("SendInput",
			       "{\"process\":{\"pid\":%d},\"input\":{\"pty\":\"d29yZAo=\"}}", pid,
			       &body),
			 200);
	stream_result(&host, c, &r);
	assert_true(r.ended);
	assert_int_equal(r.code, 4);
	/* The size was there before the first byte; "20 70" after the update. */
	if (!str_starts(r.out, "33 101\r\n") && !str_starts(r.out, "20 70\r\n") &&
	    !str_starts(r.out, "word\r\n"))
		fail_msg("terminal said: %s", r.out);
	assert_non_null(strstr(r.out, "/dev/pts/"));
	assert_non_null(strstr(r.out, "20 70\r\n"));
	assert_non_null(strstr(r.out, "word\r\ntty\r\n"));
	call_free(&host, c);
	/* Nobody updates: surely the size of Start. */
	run_wait(&host, "stty size", ",\"pty\":{\"size\":{\"cols\":132,\"rows\":50}}", &r);
	assert_string_equal(r.out, "50 132\r\n");
	run_wait(&host, "head -c 100000 /dev/zero | tr '\\0' a", ",\"pty\":{}", &r);
	assert_int_equal(r.n_out, 100000);
	/* A child that keeps the terminal does not delay the end. */
	run_wait(&host, "trap '' HUP; sleep 1000 & echo x", ",\"pty\":{}", &r);
	assert_true(r.ended);
	assert_int_equal(about("Update", "{\"process\":{\"pid\":%d},\"pty\":{}}", r.pid, &body),
			 404);
}

static long rss_kb(pid_t pid)
{
	char path[64];
	autofree char *status = NULL;
	const char *p;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	assert_int_equal(fd_read_file(-1, path, 1 << 16, &status, NULL), 0);
	p = strstr(status, "VmRSS:");
	return p ? atol(p + 6) : 0;
}

/* Takes nothing of the answer any more, until it stands at its credit. */
static void hold(struct call *c)
{
	size_t held;

	c->hold = true;
	do {
		held = c->held;
		for (int i = 0; i < 20; i++)
			host_turn(&host, 10);
	} while (c->held == 0 || c->held != held);
}

static void test_slow_reader(void **state)
{
	const size_t total = 30 << 20;
	struct call *c = run(&host, "head -c 31457280 /dev/zero; echo done >&2", NULL, NULL);
	struct result r = { .started = true };
	long before = rss_kb(host.pid);

	start_pid(c);
	/* The command stops with its stream; another one is not touched by it. */
	hold(c);
	assert_true(c->held <= MUX_CREDIT_INITIAL);
	{
		struct result other;

		run_wait(&host, "echo quick", NULL, &other);
		assert_string_equal(other.out, "quick\n");
	}
	if (rss_kb(host.pid) > before + 4096)
		fail_msg("the agent grew from %ld to %ld kB", before, rss_kb(host.pid));
	c->hold = false;
	mux_taken(host.mux, c->id, c->held);
	stream_result(&host, c, &r);
	assert_int_equal(r.n_out, total);
	assert_string_equal(r.err, "done\n");
	call_free(&host, c);
}

/* Bytes that a command has written to its output and the agent has not read yet. */
static int unread(int pid, int out)
{
	char path[64];
	autoclose int pipe_fd = -1;
	int n = -1;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, out);
	pipe_fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	assert_true(pipe_fd >= 0);
	assert_int_equal(ioctl(pipe_fd, FIONREAD, &n), 0);
	return n;
}

/* A terminal whose program has exited waits for a slow reader as a pipe does. */
static void test_slow_reader_of_a_terminal(void **state)
{
	struct call *c = run(&host, "stty -echo; yes & read x", ",\"pty\":{}", NULL);
	struct result r = { .started = true };
	int pid = start_pid(c);
	char member[32];
	const char *body;
	int64_t until;

	hold(c);
	assert_int_equal(
		about("SendInput", "{\"process\":{\"pid\":%d},\"input\":{\"pty\":\"Cg==\"}}",
		      pid, NULL),
		200);
	EVENTUALLY(kill(pid, 0) < 0 && errno == ESRCH);
	/* Longer than the agent would wait for a terminal that never gets quiet (process.c). */
	until = clock_mono_ms() + 3500;
	while (clock_mono_ms() < until)
		host_turn(&host, 10);
	/* It has not ended, so nothing of its output was thrown away. */
	snprintf(member, sizeof(member), "\"pid\":%d", pid);
	assert_int_equal(rpc(&host, "process.Process/List", "{}", &body), 200);
	assert_non_null(strstr(body, member));
	c->hold = false;
	mux_taken(host.mux, c->id, c->held);
	stream_result(&host, c, &r);
	assert_true(r.ended);
	call_free(&host, c);
}

static void test_no_reader(void **state)
{
	struct call *c;
	char cmd[256], path[128], json[64];
	struct stat st;
	struct result r = { 0 };
	int pid;

	snprintf(path, sizeof(path), "%s/finished", dir);
	snprintf(cmd, sizeof(cmd),
		 "read x; head -c 8000000 /dev/zero; head -c 100 /dev/zero >&2; touch %s; read y",
		 path);
	c = run(&host, cmd, NULL, NULL);
	pid = start_pid(c);
	call_free(&host, c);                     /* RST: the command goes on */
	assert_int_equal(about("SendInput", STDIN("Cg=="), pid, NULL), 200);
	EVENTUALLY(stat(path, &st) == 0);
	EVENTUALLY(unread(pid, 1) == 0 && unread(pid, 2) == 0);
	/* Attached again: only what comes from now on. */
	snprintf(json, sizeof(json), PID_ONLY, pid);
	c = stream_new(&host, "Connect", NULL, json);
	assert_int_equal(about("SendInput", STDIN("Cg=="), pid, NULL), 200);
	stream_result(&host, c, &r);
	assert_true(r.ended);
	assert_int_equal(r.pid, pid);
	assert_int_equal(r.n_out, 0);
	assert_string_equal(r.err, "");
	call_free(&host, c);
}

static void test_several_readers(void **state)
{
	struct call *c = run(&host, "read x; seq 1 20000; echo e >&2", NULL, NULL), *more[3];
	struct result a = { .started = true }, b;
	int pid = start_pid(c);
	char json[64];

	snprintf(json, sizeof(json), PID_ONLY, pid);
	for (int i = 0; i < 3; i++) {
		more[i] = stream_new(&host, "Connect",
				     i == 2 ? "Connect-Timeout-Ms: 100\r\n" : NULL, json);
		assert_int_equal(start_pid(more[i]), pid);
	}
	/* The time of a Connect ends that stream alone. */
	b = (struct result){ .started = true };
	stream_result(&host, more[2], &b);
	assert_true(str_starts(b.error, "deadline_exceeded"));
	assert_true(alive(pid));
	assert_int_equal(about("SendInput", STDIN("Cg=="), pid, NULL), 200);
	stream_result(&host, c, &a);
	assert_int_equal(a.n_out, 108894);
	for (int i = 0; i < 2; i++) {
		b = (struct result){ .started = true };
		stream_result(&host, more[i], &b);
		assert_int_equal(b.n_out, a.n_out);
		assert_memory_equal(b.out, a.out, sizeof(a.out));
		assert_string_equal(b.err, "e\n");
		assert_true(b.ended);
	}
	for (int i = 0; i < 3; i++)
		call_free(&host, more[i]);
	call_free(&host, c);
}

static void test_keepalive(void **state)
{
	int64_t t0 = clock_mono_ms();
	struct call *c = run(&host, "read x", NULL, "Keepalive-Ping-Interval: 1\r\n");
	int flags, pid = start_pid(c);
	const char *p = stream_next(&host, c, &flags);

	assert_string_equal(p, "{\"event\":{\"keepalive\":{}}}");
	assert_true(clock_mono_ms() - t0 >= 900);
	about("SendSignal", KILL, pid, NULL);
	call_free(&host, c);
}

static void test_64_commands(void **state)
{
	struct call *c[64];

	for (int i = 0; i < 64; i++) {
		char cmd[64];

		snprintf(cmd, sizeof(cmd), "read x; echo number %d; exit %d", i, i);
		c[i] = run(&host, cmd, NULL, NULL);
	}
	for (int i = 0; i < 64; i++)
		assert_int_equal(about("CloseStdin", PID_ONLY, start_pid(c[i]), NULL), 200);
	for (int i = 0; i < 64; i++) {
		struct result r = { .started = true };
		char want[32];

		stream_result(&host, c[i], &r);
		snprintf(want, sizeof(want), "number %d\n", i);
		assert_string_equal(r.out, want);
		assert_int_equal(r.code, i);
		call_free(&host, c[i]);
	}
}

static int zombies_of(pid_t parent)
{
	char cmd[128];
	FILE *f;
	int n = -1;

	snprintf(cmd, sizeof(cmd), "/proc/%d/task/%d/children", parent, parent);
	f = fopen(cmd, "r");
	for (int pid; f && fscanf(f, "%d", &pid) == 1;) {
		char path[64];
		autofree char *stat = NULL;

		n = n < 0 ? 0 : n;
		snprintf(path, sizeof(path), "/proc/%d/stat", pid);
		if (fd_read_file(-1, path, 4096, &stat, NULL) == 0 && strstr(stat, ") Z "))
			n++;
	}
	if (f)
		fclose(f);
	return n < 0 ? 0 : n;
}

static void test_zombies(void **state)
{
	struct result r;

	run_wait(&host, "for i in $(seq 1000); do (:; true &) ; done; echo ok", NULL, &r);
	assert_string_equal(r.out, "ok\n");
	EVENTUALLY(zombies_of(host.pid) == 0);
	/* And no cgroup stays behind but those of living children and the pool. */
	if (host.cgroup[0]) {
		char path[160];
		struct stat st;

		snprintf(path, sizeof(path), "%s/w", host.cgroup);
		EVENTUALLY(stat(path, &st) == 0 && st.st_nlink <= 2 + 3 + CGROUP_POOL_MAX);
	}
}

/* ---- cuts ---- */

/* Small requests of all kinds, not waited for. */
static void small_session(struct call **c, size_t n)
{
	assert_true(n >= 4);
	c[0] = call_new(&host, false, "GET", "/health", NULL, NULL, 0);
	c[1] = call_new(&host, false, "POST", "/process.Process/List",
			"Content-Type: application/json\r\n", "{}", 2);
	c[2] = stream_new(&host, "Connect", NULL, "{\"process\":{\"pid\":1}}");
	c[3] = call_new(&host, true, "GET", "/health", NULL, NULL, 0);
}

static void check_works(void)
{
	const char *body;

	assert_int_equal(host_call(&host, false, "GET", "/health", NULL, NULL, NULL), 204);
	assert_int_equal(rpc(&host, "process.Process/List", "{}", &body), 200);
	assert_string_equal(body, "{\"processes\":[]}");
}

static void test_cut_everywhere(void **state)
{
	struct call *c[4];
	size_t whole_out, whole_in = 0;

	/* How long is the session, both ways? */
	small_session(c, 4);
	whole_out = buf_len(mux_out(host.mux));
	for (int i = 0; i < 4; i++) {
		call_wait(&host, c[i]);
		whole_in += 4 * 12 + 300;
		call_free(&host, c[i]);
	}
	assert_true(whole_out > 500);
	for (size_t cut = 0; cut <= whole_out; cut++) {
		small_session(c, 4);
		host.cut_out = cut;
		while (buf_len(mux_out(host.mux)))
			host_turn(&host, 50);
		/*
		 * Bytes of the guest for the old connection may be anywhere when the next host
		 * comes.
		 */
		if (cut % 3)
			host_turn(&host, 1);
		for (int i = 0; i < 4; i++)
			call_free(&host, c[i]);
		buf_clear(mux_out(host.mux));
		host_connect(&host);
		check_works();
	}
	for (size_t cut = 0; cut <= whole_in; cut++) {
		unsigned seen;

		small_session(c, 4);
		host.cut_in = cut;
		do {
			seen = host.seen;
			host_turn(&host, 2);
		} while (buf_len(mux_out(host.mux)) || host.seen != seen);
		for (int i = 0; i < 4; i++)
			call_free(&host, c[i]);
		buf_clear(mux_out(host.mux));
		host_connect(&host);
		check_works();
	}
}

/* Cuts in big transfers, both directions at once. */
static void test_cut_in_transfers(void **state)
{
	autofree char *big = x_alloc(400000);
	char target[160];
	struct stat st;

	snprintf(target, sizeof(target), "/files?path=%s/cut", dir);
	for (size_t cut = 1; cut < 400000; cut += 7919) {
		struct call *down = run(&host, "head -c 2000000 /dev/zero", NULL, NULL), *up;

		start_pid(down);
		host.cut_out = cut;
		up = call_new(&host, false, "POST", target,
			      "Content-Type: application/octet-stream\r\n", big, 400000);
		for (int i = 0; i < 20 && host.cut_out; i++)
			host_turn(&host, 5);
		call_free(&host, up);
		call_free(&host, down);
		buf_clear(mux_out(host.mux));
		host_connect(&host);
		assert_int_equal(host_call(&host, false, "GET", "/health", NULL, NULL, NULL), 204);
	}
	/* Nothing half made. */
	snprintf(target, sizeof(target), "%s/cut", dir);
	assert_int_equal(stat(target, &st), -1);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_init),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_commands),
		cmocka_unit_test(test_start_options),
		cmocka_unit_test(test_stdin),
		cmocka_unit_test(test_input_waits),
		cmocka_unit_test(test_cut_everywhere),
		cmocka_unit_test(test_end_and_children),
		cmocka_unit_test(test_signals),
		cmocka_unit_test(test_terminal),
		cmocka_unit_test(test_slow_reader),
		cmocka_unit_test(test_slow_reader_of_a_terminal),
		cmocka_unit_test(test_no_reader),
		cmocka_unit_test(test_several_readers),
		cmocka_unit_test(test_keepalive),
		cmocka_unit_test(test_64_commands),
		cmocka_unit_test(test_zombies),
		cmocka_unit_test(test_cut_in_transfers),
	};

	if (!host_args(argc, argv))
		return 2;
	return cmocka_run_group_tests(tests, host_setup, host_teardown);
}
