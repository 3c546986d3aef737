/*
 * The real agent: what requests may take of the guest's memory, and what the processes of a user
 * can do to it. argv[1] = the agent.
 */
#include <fcntl.h>
#include <pwd.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "spaced-guest/serve.h"
#include "spaced-guest/test_host.h"

#define JSON "Content-Type: application/json\r\n"
#define LIST "/filesystem.Filesystem/ListDir"
#define CALLS 20
#define FILES 18000
#define BODY (7 << 20)
#define ATTACKED 4                       /* commands; each may be held for 20 s (spawn.c) */
#define PATH_PARTS 1000
/* Besides: listings on their way, and one request more. */
#define PEAK_KB_MAX ((REQS_HELD_MAX >> 10) + (80 << 10))
#define REST_KB_MAX (8 << 10)

/* AddressSanitizer keeps what was freed; then it is the refusals alone that tell. */
static void check_memory(const char *field, long max_kb)
{
#if !defined(__SANITIZE_ADDRESS__)
	autofree char *status = NULL;
	char path[64];
	const char *p;

	snprintf(path, sizeof(path), "/proc/%d/status", host.pid);
	assert_int_equal(fd_read_file(-1, path, 1 << 16, &status, NULL), 0);
	p = strstr(status, field);
	assert_non_null(p);
	if (atol(p + strlen(field)) > max_kb)
		fail_msg("%s %ld kB", field, atol(p + strlen(field)));
#endif
}

static void small_requests_work(void)
{
	const char *body;
	struct result r;

	assert_int_equal(
		rpc(&host, "filesystem.Filesystem/ListDir", "{\"path\":\"/proc/self\"}", &body),
		200);
	assert_int_equal(rpc(&host, "process.Process/List", "{}", &body), 200);
	run_wait(&host, "echo here", NULL, &r);
	assert_string_equal(r.out, "here\n");
}

/* Every answer is one of two; returns how many were given what they asked for. */
static int count(struct call *const c[CALLS], int good)
{
	int n = 0;

	for (int i = 0; i < CALLS; i++) {
		if (call_status(c[i]) != 429)
			assert_int_equal(call_status(c[i]), good);
		n += call_status(c[i]) == good;
	}
	return n;
}

static void make_files(void)
{
	char path[320];

	for (int i = 0; i < FILES; i++) {
		snprintf(path, sizeof(path), "%s/big/%0200d", dir, i);
		fd_close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
	}
}

/* Clients that ask for much and take nothing of it. */
static void test_listings(void **state)
{
	struct call *c[CALLS];
	char path[128], json[160];
	int n;

	snprintf(path, sizeof(path), "%s/big", dir);
	assert_int_equal(mkdir(path, 0755), 0);
	make_files();
	snprintf(json, sizeof(json), "{\"path\":\"%s\"}", path);
	for (int i = 0; i < CALLS; i++) {
		c[i] = call_new(&host, false, "POST", LIST, JSON, json, strlen(json));
		c[i]->hold = true;
	}
	for (int i = 0; i < CALLS; i++)
		EVENTUALLY_ON(&host, c[i]->held || c[i]->end);
	small_requests_work();
	for (int i = 0; i < CALLS; i++) {
		c[i]->hold = false;
		mux_taken(host.mux, c[i]->id, c[i]->held);
		call_wait(&host, c[i]);
	}
	n = count(c, 200);
	if (n < 3 || n == CALLS)
		fail_msg("%d listings of %d", n, CALLS);
	check_memory("VmHWM:", PEAK_KB_MAX);
	for (int i = 0; i < CALLS; i++)
		call_free(&host, c[i]);
}

/* Clients that send much of a body, and not its end. */
static void test_bodies(void **state)
{
	static char piece[1 << 20];
	struct call *c[CALLS];
	int refused = 0;

	memset(piece, 'x', sizeof(piece));
	for (int i = 0; i < CALLS; i++) {
		EVENTUALLY_ON(&host, buf_len(mux_out(host.mux)) == 0);
		c[i] = call_open(&host, "/process.Process/SendInput", JSON);
		for (int k = 0; k < BODY >> 20 && !c[i]->end; k++)
			call_send(&host, c[i], piece, sizeof(piece));
		refused += c[i]->end;
	}
	small_requests_work();
	if (refused == 0 || refused > CALLS - 4)
		fail_msg("%d of %d were refused", refused, CALLS);
	check_memory("VmHWM:", PEAK_KB_MAX);
	for (int i = 0; i < CALLS; i++) {
		if (c[i]->end)
			assert_int_equal(call_status(c[i]), 429);
		call_free(&host, c[i]);
	}
	small_requests_work();
}

/* What large answers took is the guest's again: locked memory would be lost for it. */
static void test_memory_comes_back(void **state)
{
	char json[160];

	snprintf(json, sizeof(json), "{\"path\":\"%s/big\"}", dir);
	for (int i = 0; i < 4; i++)
		assert_int_equal(host_call(&host, false, "POST", LIST, JSON, json, NULL), 200);
	small_requests_work();
	check_memory("VmRSS:", REST_KB_MAX);
}

/* One body of the smallest values there are. */
static void test_values(void **state)
{
	const size_t n = 8 << 20;
	autofree char *body = x_alloc(n);
	struct call *c;

	memset(body, ' ', n);
	memcpy(body, "{\"x\":[", 6);
	for (size_t i = 6; i + 8 < n; i += 3)
		memcpy(body + i, "{},", 3);
	memcpy(body + n - 5, "{}]}", 4);
	c = call_new(&host, false, "POST", "/process.Process/SendInput", JSON, body, n);
	call_wait(&host, c);
	assert_int_equal(call_status(c), 400);
	assert_non_null(strstr(call_text(c), "values"));
	check_memory("VmHWM:", PEAK_KB_MAX);
	call_free(&host, c);
}

/* As the user, stops the children of the agent as soon as they are its own. */
static void stop_for_ever(const struct passwd *user)
{
	char path[64], text[4096], *save;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", host.pid, host.pid);
	if (setgid(user->pw_gid) < 0 || setuid(user->pw_uid) < 0)
		_exit(1);
	for (;;) {
		autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
		ssize_t n = read(fd, text, sizeof(text) - 1);

		text[n > 0 ? n : 0] = '\0';
		for (char *p = strtok_r(text, " ", &save); p; p = strtok_r(NULL, " ", &save))
			kill(atoi(p), SIGSTOP);
	}
}

/* A command is its user's before it has exec'ed: stopping it then must not stop the agent. */
static void test_stopped_before_exec(void **state)
{
	const struct passwd *user = getpwnam("nobody");
	char json[32 * PATH_PARTS] = "{\"process\":{\"cmd\":\"true\",\"envs\":{\"PATH\":\"";
	struct call *c[ATTACKED];
	pid_t attacker;

	if (!user || getuid() != 0)
		skip();
	/* A long way to the program. */
	for (int i = 0; i < PATH_PARTS; i++)
		strncat(json, "/no/such/folder:", sizeof(json) - strlen(json) - 1);
	strncat(json, "/bin\"}}}", sizeof(json) - strlen(json) - 1);
	attacker = fork();
	if (attacker == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		stop_for_ever(user);
	}
	for (int i = 0; i < ATTACKED; i++) {
		c[i] = stream_new(&host, "Start", "Authorization: Basic bm9ib2R5Og==\r\n", json);
		assert_int_equal(rpc(&host, "process.Process/List", "{}", NULL), 200);
	}
	kill(attacker, SIGKILL);
	waitpid(attacker, NULL, 0);
	for (int i = 0; i < ATTACKED; i++)
		call_free(&host, c[i]);
	/* They are stopped for good; the end of the agent is theirs. */
	small_requests_work();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_listings),
		cmocka_unit_test(test_bodies),
		cmocka_unit_test(test_memory_comes_back),
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_stopped_before_exec),
	};

	if (!host_args(argc, argv))
		return 2;
	return cmocka_run_group_tests(tests, host_setup, host_teardown);
}
