/*
 * The QMP client against prepared answers (good, hostile, torn), and against a real QEMU without a
 * machine.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "vmm/qmp.h"
#include "vmm/qmp_peer.h"
#include "vmm/vmm.h"

#define GREETING                                                                                                \
	"{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 2, \"minor\": 0, \"major\": 10}, \"package\": \"x\"}, " \
	"\"capabilities\": [\"oob\"]}}\r\n"
#define NEXT QMP_PEER_NEXT
#define STRAY "{\"return\": {}, \"id\": 3}\r\n"
#define OK1 "{\"return\": {}, \"id\": 1}\r\n"

/* For what comes. A real QEMU may have to come from a slow disk first. */
#define COME_MS 60000

static char seen[256];

static void note(const char *name, json_t *data, void *arg)
{
	size_t n = strlen(seen);

	str_format(seen + n, sizeof(seen) - n, "%s%s ", name, data ? "+" : "");
}

/* A client whose other side plays the script (qmp_peer.h). */
static int open_script(struct qmp_peer *p, const char *script, bool linger, int timeout_ms,
		       struct qmp **ret, struct err *e)
{
	int r;

	seen[0] = '\0';
	*ret = NULL;
	r = qmp_open(qmp_peer_start(p, script, strlen(script), linger), note, NULL, timeout_ms, ret,
		     e);
	if (r < 0)
		qmp_peer_end(p);
	return r;
}

static void close_script(struct qmp_peer *p, struct qmp *q)
{
	qmp_free(q);
	qmp_peer_end(p);
}

static void test_calls(void **state)
{
	struct qmp_peer p;
	struct qmp *q;
	json_t *answer = NULL;
	struct err e = { 0 };

	assert_int_equal(
		open_script(
			&p,
			GREETING NEXT OK1 NEXT
			"{\"timestamp\": {\"seconds\": 1, \"microseconds\": 2}, \"event\": \"STOP\"}\r\n"
			"{\"return\": {\"status\": \"paused\"}, \"id\": 2}\n"
			"{\"event\": \"RESET\", \"data\": {\"guest\": true}}\r\n" NEXT
			"{\"error\": {\"class\": \"GenericError\", \"desc\": \"no \\u001b[2Jway\"}, \"id\": 3}\r\n" NEXT
			"{\"id\": 4, \"error\": {\"class\": \"CommandNotFound\", \"desc\": \"what\"}}\r\n" NEXT,
			true, COME_MS, &q, &e),
		0);
	assert_int_equal(qmp_call(q, "query-status", NULL, -1, COME_MS, &answer, &e), 0);
	assert_string_equal(json_string_value(json_object_get(answer, "status")), "paused");
	json_decref(answer);
	assert_int_equal(qmp_call(q, "x", json_pack("{s:i}", "a", 1), -1, COME_MS, NULL, &e),
			 -EREMOTEIO);
	assert_non_null(strstr(e.text, "way"));
	assert_null(strchr(e.text, '\033'));
	assert_int_equal(qmp_call(q, "y", NULL, -1, COME_MS, NULL, &e), -ENOSYS);
	assert_string_equal(seen, "STOP RESET+ ");
	/* The time-out of one call ends the connection: its answer could be taken for another's. */
	assert_int_equal(qmp_call(q, "z", NULL, -1, 20, NULL, &e), -ETIMEDOUT);
	assert_int_equal(qmp_call(q, "z", NULL, -1, 20, NULL, &e), -ETIMEDOUT);
	assert_int_equal(qmp_poll(q, &e), -ETIMEDOUT);
	close_script(&p, q);
	assert_string_equal(p.heard, "{\"execute\":\"qmp_capabilities\",\"id\":1}\r\n"
				     "{\"execute\":\"query-status\",\"id\":2}\r\n"
				     "{\"execute\":\"x\",\"id\":3,\"arguments\":{\"a\":1}}\r\n"
				     "{\"execute\":\"y\",\"id\":4}\r\n"
				     "{\"execute\":\"z\",\"id\":5}\r\n");
}

static void test_descriptor(void **state)
{
	struct qmp_peer p;
	struct qmp *q;
	int mem = memfd_create("x", MFD_CLOEXEC);

	assert_int_equal(open_script(&p,
				     GREETING NEXT OK1 NEXT
				     "{\"return\": {\"fdset-id\": 5, \"fd\": 9}, \"id\": 2}\r\n",
				     true, COME_MS, &q, NULL),
			 0);
	assert_int_equal(qmp_call(q, "add-fd", NULL, mem, COME_MS, NULL, NULL), 0);
	close_script(&p, q);
	assert_int_equal(p.n_fds, 1);
	close(mem);
}

struct talker { int fd; unsigned pause_us; };

static void *talk(void *arg)
{
	static const char event[] = "{\"event\": \"GUEST_CRASHLOADED\"}\r\n";
	const struct talker *t = arg;
	char line[256];

	if (fd_write_all(t->fd, GREETING, strlen(GREETING), COME_MS) < 0 ||
	    read(t->fd, line, sizeof(line)) <= 0 || fd_write_all(t->fd, OK1, strlen(OK1), COME_MS) < 0)
		return NULL;
	while (fd_write_all(t->fd, event, strlen(event), COME_MS) == 0)
		usleep(t->pause_us);
	return NULL;
}

/* What a command comes to while the VMM says events: its result. */
static int ask_talker(unsigned pause_us, int timeout_ms, struct err *e)
{
	struct talker talker = { .pause_us = pause_us };
	int s[2], r;
	pthread_t t;
	struct qmp *q;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s), 0);
	talker.fd = s[1];
	assert_int_equal(pthread_create(&t, NULL, talk, &talker), 0);
	seen[0] = '\0';
	assert_int_equal(qmp_open(s[0], note, NULL, COME_MS, &q, e), 0);
	r = qmp_call(q, "query-status", NULL, -1, timeout_ms, NULL, e);
	assert_int_equal(qmp_poll(q, e), r);
	qmp_free(q);
	pthread_join(t, NULL);
	close(s[1]);
	return r;
}

/* A VMM that never falls silent: the deadline of a call holds all the same. */
static void test_talkative(void **state)
{
	struct err e = { 0 };
	int64_t begun = clock_mono_ms();

	assert_int_equal(ask_talker(2000, 200, &e), -ETIMEDOUT);
	assert_in_range(clock_mono_ms() - begun, 150, COME_MS);
}

/* One that says more than anybody can listen to is given up long before the deadline. */
static void test_flood(void **state)
{
	struct err e = { 0 };

	assert_int_equal(ask_talker(0, 60000, &e), -EPROTO);
	assert_non_null(strstr(e.text, "events without end"));
}

/* Answers to a connection before this one: dropped, before and after our own. */
static void test_strays(void **state)
{
	struct err e = { 0 };
	struct qmp_peer p;
	struct qmp *q;

	assert_int_equal(open_script(&p,
				     GREETING STRAY NEXT STRAY OK1 NEXT
				     "{\"return\": {}, \"id\": 2}\r\n" STRAY,
				     true, COME_MS, &q, &e),
			 0);
	assert_int_equal(qmp_call(q, "x", NULL, -1, COME_MS, NULL, &e), 0);
	assert_int_equal(qmp_wait(q, 20, &e), -ETIMEDOUT);
	assert_int_equal(qmp_call(q, "y", NULL, -1, 20, NULL, &e), -ETIMEDOUT);
	close_script(&p, q);
}

/* What a VMM in a guest's hands may say: every time -EPROTO, and the connection stays dead. */
static void test_hostile(void **state)
{
	static const char *const bad[] = {
		STRAY STRAY STRAY STRAY STRAY, /* another id, once too often */
		"{\"return\": {}}\r\n",		   /* none */
		"{\"return\": {}, \"id\": \"2\"}\r\n",
		"{\"event\": 5}\r\n",
		"{\"event\": \"X\", \"data\": 1}\r\n",
		"{}\r\n",
		"[]\r\n",
		"\"x\"\r\n",
		"nonsense\r\n",
		"{\"return\": {}, \"id\": 2\r\n",
		GREETING,					   /* twice */
		"{\"return\": {}, \"return\": {}, \"id\": 2}\r\n", /* a key twice */
		"{\"return\": \"\\u0000\", \"id\": 2}\r\n",
		"{\"return\": 9007199254740993, \"id\": 2}\r\n",
		"{\"return\": {\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":"
		"{\"a\":{\"a\":{\"a\":{\"a\":{}}}}}}}}}}}}}}}}}}, \"id\": 2}\r\n",
		/* more answers than commands */
		"{\"return\": {}, \"id\": 2}\r\n" STRAY STRAY STRAY STRAY STRAY,
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		autofree char *script = x_asprintf("%s%s%s%s%s", GREETING, NEXT, OK1, NEXT, bad[i]);
		struct err e = { 0 };
		struct qmp_peer p;
		struct qmp *q;
		int r;

		assert_int_equal(open_script(&p, script, true, COME_MS, &q, &e), 0);
		r = qmp_call(q, "x", NULL, -1, COME_MS, NULL, &e);
		/* The second of two answers may come a moment later. */
		if (r == 0)
			r = qmp_wait(q, COME_MS, &e);
		assert_int_equal(r, -EPROTO);
		assert_int_equal(qmp_call(q, "x", NULL, -1, COME_MS, NULL, &e), -EPROTO);
		assert_true(e.text[0] != '\0');
		close_script(&p, q);
	}
}

static void test_greetings(void **state)
{
	static const struct {
		const char *script;
		bool linger;
		int r;
	} cases[] = {
		{ "", false, -ECONNRESET },
		{ "{\"QMP\": ", false, -ECONNRESET },
		{ "{\"QMP\": {}}\r\n", true, -EPROTO },
		{ "{\"return\": {}, \"id\": 0}\r\n", true, -EPROTO },
		{ GREETING OK1, true, -ETIMEDOUT }, /* answered before it was asked: not ours */
		{ GREETING NEXT, false, -ECONNRESET },
		{ GREETING NEXT
		  "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}, \"id\": 1}\r\n",
		  true, -EREMOTEIO },
		{ "", true, -ETIMEDOUT },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct qmp_peer p;
		struct qmp *q;
		struct err e = { 0 };

		assert_int_equal(open_script(&p, cases[i].script, cases[i].linger,
					     cases[i].r == -ETIMEDOUT ? 20 : COME_MS, &q, &e),
				 cases[i].r);
		assert_null(q);
	}
}

/* A line without end: refused at the limit, not stored on and on. */
static void test_too_long(void **state)
{
	autofree char *script = x_alloc(3 * QMP_MESSAGE_MAX);
	struct err e = { 0 };
	struct qmp_peer p;
	struct qmp *q;
	size_t n;
	int r;

	str_copy(script, 3 * QMP_MESSAGE_MAX, GREETING NEXT OK1 NEXT);
	n = strlen(script);
	memset(script + n, 'a', 2 * QMP_MESSAGE_MAX);
	assert_int_equal(open_script(&p, script, true, COME_MS, &q, &e), 0);
	r = qmp_call(q, "x", NULL, -1, COME_MS, NULL, &e);
	assert_int_equal(r, -EPROTO);
	assert_non_null(strstr(e.text, "too long"));
	close_script(&p, q);
}

/* ---- A real QEMU ---- */

static pid_t start_qemu(int *ret_conn)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	socklen_t n = sizeof(a);
	int listener = socket(AF_UNIX, SOCK_STREAM, 0),
	    conn = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pid_t pid;

	assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof(a.sun_family)), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &n), 0);
	assert_int_equal(connect(conn, (struct sockaddr *)&a, n), 0);
	pid = fork();
	if (pid == 0) {
		if (listener != 3)
			dup2(listener, 3);
		execlp("qemu-system-x86_64", "qemu-system-x86_64", "-M", "none", "-nodefaults",
		       "-display", "none", "-chardev", "ringbuf,id=con,size=65536", "-chardev",
		       "socket,id=qmp,fd=3,server=on,wait=off", "-mon", "chardev=qmp,mode=control",
		       (char *)NULL);
		_exit(127);
	}
	close(listener);
	*ret_conn = conn;
	return pid;
}

static void fill_console(struct qmp *q, const char *base64)
{
	assert_int_equal(qmp_call(q, "ringbuf-write",
				  json_pack("{s:s,s:s,s:s}", "device", "con", "data", base64,
					    "format", "base64"),
				  -1, COME_MS, NULL, NULL),
			 0);
}

static void test_real(void **state)
{
	enum vmm_run_state run;
	struct err e = { 0 };
	struct vmm *vm;
	struct qmp *q;
	char *text;
	size_t n;
	int conn, keep;
	pid_t pid = start_qemu(&conn);

	keep = dup(conn);
	assert_int_equal(vmm_open(&vmm_qemu, conn, COME_MS, &vm, &e), 0);
	assert_int_equal(vmm_status(vm, &run, COME_MS, &e), 0);
	assert_int_equal(run, VMM_RUN_RUNNING);
	assert_int_equal(vmm_stop(vm, COME_MS, &e), 0);
	assert_int_equal(vmm_status(vm, &run, COME_MS, &e), 0);
	assert_int_equal(run, VMM_RUN_PAUSED);
	assert_int_equal(vmm_console(vm, &text, &n, COME_MS, &e), 0);
	assert_int_equal(n, 0);
	free(text);
	vmm_close(vm);
	close(keep);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);

	pid = start_qemu(&conn);
	assert_int_equal(qmp_open(conn, note, NULL, COME_MS, &q, &e), 0);
	fill_console(q, "AAECA/8b");
	assert_int_equal(qmp_call(q, "no-such-command", NULL, -1, COME_MS, NULL, &e), -ENOSYS);
	assert_int_equal(qmp_call(q, "ringbuf-read", NULL, -1, COME_MS, NULL, &e), -EREMOTEIO);
	json_t *answer = NULL;
	assert_int_equal(qmp_call(q, "ringbuf-read",
				  json_pack("{s:s,s:i,s:s}", "device", "con", "size", 65536,
					    "format", "base64"),
				  -1, COME_MS, &answer, &e),
			 0);
	assert_string_equal(json_string_value(answer), "AAECA/8b");
	json_decref(answer);
	/* The VMM dies: every call says so. */
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	assert_int_equal(qmp_call(q, "query-status", NULL, -1, COME_MS, NULL, &e), -ECONNRESET);
	qmp_free(q);

	pid = start_qemu(&conn);
	assert_int_equal(vmm_open(&vmm_qemu, conn, COME_MS, &vm, &e), 0);
	assert_int_equal(vmm_quit(vm, COME_MS, &e), 0);
	vmm_close(vm);
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_calls),	  cmocka_unit_test(test_descriptor),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_strays),	  cmocka_unit_test(test_talkative),
		cmocka_unit_test(test_greetings), cmocka_unit_test(test_too_long),
		cmocka_unit_test(test_flood),	  cmocka_unit_test(test_real),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
