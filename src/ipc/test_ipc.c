/* Server and clients over real sockets; hostile peers write raw packets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "ipc/ipc.h"

#define DEADLINE_MS 60000
#define HELD_MAX 4096

/* ---- The operations of these tests ---- */

struct echo { char text[64]; uint64_t n; json_t *j; };
struct big { uint64_t bytes; };
struct big_rep { json_t *text; };

static const struct ipc_field echo_fields[] = {
	IPC_F_STR(struct echo, text),
	IPC_F_U64(struct echo, n, 1000),
	IPC_F_JSON_OPT(struct echo, j),
	IPC_F_END,
};
static const struct ipc_field big_fields[] = { IPC_F_U64(struct big, bytes, 0), IPC_F_END };
static const struct ipc_field big_rep_fields[] = { IPC_F_JSON(struct big_rep, text), IPC_F_END };

static const struct ipc_op op_echo = {
	"echo", echo_fields, sizeof(struct echo), echo_fields, sizeof(struct echo), 2, 2
};
static const struct ipc_op op_hold = { "hold", NULL, 0, NULL, 0, 0, 0 };
static const struct ipc_op op_fail = { "fail", NULL, 0, NULL, 0, 0, 0 };
static const struct ipc_op op_big = {
	"big", big_fields, sizeof(struct big), big_rep_fields, sizeof(struct big_rep), 0, 0
};
static const struct ipc_op op_deep = {
	"deep", big_fields, sizeof(struct big), big_rep_fields, sizeof(struct big_rep), 0, 0
};
static const struct ipc_op op_leave = { "leave", NULL, 0, NULL, 0, 0, 0 };
/* Not served. */
static const struct ipc_op op_unknown = { "unknown", NULL, 0, NULL, 0, 0, 0 };

/* ---- One server ---- */

static char dir[] = "/tmp/space-ipc-XXXXXX";
static char path[64];
static struct loop *loop;
static struct ipc_server *server;
static struct ipc_call *held[HELD_MAX];
static unsigned n_held, n_joined, n_left;
static char last_fault[256], last_req_id[128];
static uid_t server_uids[2];
static pid_t peer_pid;

static void on_echo(struct ipc_call *c, const void *req, int *fds, size_t n_fds, void *arg)
{
	const struct echo *q = req;

	str_copy(last_req_id, sizeof(last_req_id), ipc_call_req_id(c));
	assert_int_equal(ipc_peer_cred(ipc_call_peer(c))->pid, peer_pid);
	ipc_answer(c, q, fds, n_fds);
	assert_true(strlen(q->text) < sizeof(q->text));          /* still there after the answer */
}

static void on_hold(struct ipc_call *c, const void *req, int *fds, size_t n_fds, void *arg)
{
	assert_true(n_held < HELD_MAX);
	held[n_held++] = c;
}

static void on_fail(struct ipc_call *c, const void *req, int *fds, size_t n_fds, void *arg)
{
	struct err e = { 0 };

	err_set_code(&e, -ENOENT, "nothing-here", "there is nothing \"here\"");
	ipc_fail(c, &e);
}

static void on_big(struct ipc_call *c, const void *req, int *fds, size_t n_fds, void *arg)
{
	const struct big *q = req;
	autofree char *text = x_alloc(q->bytes + 1);
	struct big_rep rep;

	memset(text, 'b', q->bytes);
	rep.text = json_string(text);
	ipc_answer(c, &rep, NULL, 0);
	json_decref(rep.text);
}

/* A value of so many levels, as it may come from somebody else. */
static void on_deep(struct ipc_call *c, const void *req, int *fds, size_t n_fds, void *arg)
{
	struct big_rep rep = { .text = json_array() };

	for (uint64_t i = 1; i < ((const struct big *)req)->bytes; i++)
		rep.text = json_pack("[o]", rep.text);
	ipc_answer(c, &rep, NULL, 0);
	json_decref(rep.text);
}

static void on_leave(struct ipc_call *c, const void *req, int *fds, size_t n_fds, void *arg)
{
	ipc_server_free(server);
	server = NULL;
	ipc_answer(c, NULL, NULL, 0);
}

static const struct ipc_handler handlers[] = {
	{ &op_echo, on_echo }, { &op_hold, on_hold },	{ &op_fail, on_fail },
	{ &op_big, on_big },   { &op_deep, on_deep },	{ &op_leave, on_leave },
	{ NULL, NULL },
};

static void on_joined(struct ipc_peer *p, void *arg)
{
	n_joined++;
}

static void on_left(struct ipc_peer *p, void *arg)
{
	n_left++;
	str_copy(last_fault, sizeof(last_fault), ipc_peer_fault(p) ? ipc_peer_fault(p) : "");
}

static void start_server(uid_t uid, size_t max_peers)
{
	struct ipc_server_conf conf = { handlers,  server_uids, 1,   max_peers,
					on_joined, on_left,	NULL };
	int fd = fd_unix_listen(path, SOCK_SEQPACKET, 0600, 64);

	assert_true(fd >= 0);
	server_uids[0] = uid;
	server = ipc_server_new(loop, fd, &conf);
	assert_non_null(server);
	n_held = n_joined = n_left = 0;
	last_fault[0] = last_req_id[0] = '\0';
}

static void turn_while(bool (*waiting)(void))
{
	int64_t end = clock_mono_ms() + DEADLINE_MS;

	while (waiting()) {
		assert_true(clock_mono_ms() < end);
		assert_int_equal(loop_turn(loop, 100), 0);
	}
}

static unsigned count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static unsigned fds_before;

static int set_up(void **st)
{
	fds_before = count_fds();
	loop = loop_new();
	peer_pid = getpid();
	start_server(getuid(), 8);
	return 0;
}

static int tear_down(void **st)
{
	ipc_server_free(server);
	server = NULL;
	loop_free(loop);
	unlink(path);
	if (count_fds() != fds_before)
		fail_msg("%u descriptors before, %u after", fds_before, count_fds());
	return 0;
}

/* ---- Raw peers ---- */

static int raw_connect(void)
{
	int fd = fd_unix_connect(path, SOCK_SEQPACKET, DEADLINE_MS);

	assert_true(fd >= 0);
	return fd;
}

static bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) > 0;
}

static int waited_fd;
static bool nothing_readable(void) { return !readable(waited_fd); }

/* Bytes of the next packet; 0 = closed. */
static ssize_t raw_read(int fd, char *buf, size_t n)
{
	waited_fd = fd;
	turn_while(nothing_readable);
	return recv(fd, buf, n, 0);
}

static void expect_closed(int fd, const char *fault)
{
	char buf[256];

	assert_true(raw_read(fd, buf, sizeof(buf)) <= 0);
	if (!strstr(last_fault, fault))
		fail_msg("fault \"%s\" instead of \"%s\"", last_fault, fault);
	close(fd);
	assert_int_equal(n_held, 0);
}

static void test_hostile_texts(void **st)
{
	static const struct { const char *text, *fault;
	} bad[] = {
		{ "x", "malformed request" },
		{ "{}", "malformed request" },
		{ "[]", "malformed request" },
		{ "{\"v\":1,\"op\":\"hold\",\"id\":1", "malformed request" },
		{ "{\"v\":1,\"op\":\"hold\",\"id\":1}}", "malformed request" },
		{ "{\"v\":1,\"v\":1,\"op\":\"hold\",\"id\":1}", "malformed request" },
		{ "{\"v\":2,\"op\":\"hold\",\"id\":1}", "version 2" },
		{ "{\"v\":0,\"op\":\"hold\",\"id\":1}", "version 0" },
		{ "{\"op\":\"hold\",\"id\":1}", "malformed request" },
		{ "{\"v\":1,\"op\":\"hold\"}", "malformed request" },
		{ "{\"v\":1,\"op\":\"hold\",\"id\":\"1\"}", "malformed request" },
		{ "{\"v\":1,\"op\":\"hold\",\"id\":9007199254740993}", "malformed request" },
		{ "{\"v\":1,\"op\":\"hold\",\"id\":1,\"extra\":1}", "malformed request" },
		{ "{\"v\":1,\"op\":\"hold\",\"id\":1,\"req\":\"0123456789012345678901234567890123456789012345678901234567890123456789\"}",
		  "malformed request" },
		{ "{\"v\":1,\"op\":\"hold\",\"id\":1,\"a\":[]}", "hold" },
		{ "{\"v\":1,\"op\":\"hold\",\"id\":1,\"a\":{\"x\":1}}", "hold" },
		{ "{\"v\":1,\"op\":\"hold\\u0000\",\"id\":1}", "malformed request" },
		{ "{\"v\":1,\"op\":\"Hold\",\"id\":1}", "unknown operation" },
		{ "{\"v\":1,\"op\":\"\",\"id\":1}", "unknown operation" },
		{ "{\"v\":1,\"op\":\"echo\",\"id\":1}", "echo" },
		{ "{\"v\":1,\"op\":\"echo\",\"id\":1,\"a\":{\"text\":\"a\",\"n\":1001}}", "echo" },
		{ "{\"v\":1,\"op\":\"echo\",\"id\":1,\"a\":{\"text\":\"a\",\"n\":1.0}}", "echo" },
		{ "{\"v\":1,\"op\":\"echo\",\"id\":1,\"a\":{\"text\":7,\"n\":1}}", "echo" },
		{ "{\"v\":1,\"op\":\"echo\",\"id\":1,\"a\":{\"text\":\"a\\u0000b\",\"n\":1}}",
		  "malformed request" },
		{ "{\"v\":1,\"op\":\"echo\",\"id\":1,\"a\":{\"text\":\"a\",\"n\":1,\"j\":[[[[[[[[1]]]]]]]]}}",
		  "malformed request" },
		{ "\xff\xfe", "malformed request" },
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		int fd = raw_connect();

		assert_int_equal(send(fd, bad[i].text, strlen(bad[i].text), 0),
				 strlen(bad[i].text));
		expect_closed(fd, bad[i].fault);
	}
	assert_int_equal(n_left, ARRAY_LEN(bad));
	/* A NUL inside, and one behind. */
	int fd = raw_connect();
	assert_true(send(fd, "{\"v\":1,\"op\":\"hold\",\"id\":1}\0", 27, 0) > 0);
	expect_closed(fd, "malformed request");
	/* The next well-behaved one is served. */
	static const char good[] =
		"{\"v\":1,\"op\":\"echo\",\"id\":5,\"req\":\"r-1\",\"a\":{\"text\":\"a\",\"n\":1}}";
	char buf[256];
	fd = raw_connect();
	assert_true(send(fd, good, strlen(good), 0) > 0);
	ssize_t n = raw_read(fd, buf, sizeof(buf) - 1);
	assert_true(n > 0);
	buf[n] = '\0';
	assert_string_equal(buf, "{\"id\":5,\"r\":{\"text\":\"a\",\"n\":1}}");
	assert_string_equal(last_req_id, "r-1");
	close(fd);
}

static void test_empty_and_oversized(void **st)
{
	autofree char *huge = x_alloc(IPC_MSG_MAX + 2);
	int fd = raw_connect();

	assert_int_equal(send(fd, "", 0, 0), 0);
	expect_closed(fd, "");
	memset(huge, ' ', IPC_MSG_MAX + 1);
	memcpy(huge, "{\"v\":1,\"op\":\"hold\",\"id\":1}", 26);
	fd = raw_connect();
	assert_true(send(fd, huge, IPC_MSG_MAX + 1, 0) > 0);
	expect_closed(fd, "too long");
	/* Exactly the limit is taken. */
	fd = raw_connect();
	assert_true(send(fd, huge, IPC_MSG_MAX, 0) > 0);
	while (n_held == 0)
		loop_turn(loop, 100);
	ipc_answer(held[0], NULL, NULL, 0);
	n_held = 0;
	close(fd);
}

/* As many descriptors as asked for, past the limit of fd_send. */
static void raw_send_fds(int sock, const char *text, unsigned n)
{
	union { char bytes[CMSG_SPACE(sizeof(int) * 64)]; struct cmsghdr align; } control = { 0 };
	struct iovec iov = { (void *)text, strlen(text) };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control.bytes,
			    .msg_controllen = CMSG_SPACE(sizeof(int) * n) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	int fds[64];

	for (unsigned i = 0; i < n; i++)
		fds[i] = 0;
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int) * n);
	memcpy(CMSG_DATA(c), fds, sizeof(int) * n);
	assert_true(sendmsg(sock, &m, 0) > 0);
}

static void test_too_many_fds(void **st)
{
	static const char hold[] = "{\"v\":1,\"op\":\"hold\",\"id\":1}";
	static const char echo[] =
		"{\"v\":1,\"op\":\"echo\",\"id\":1,\"a\":{\"text\":\"a\",\"n\":1}}";
	unsigned before = count_fds();
	int fd = raw_connect();

	raw_send_fds(fd, hold, 1);
	expect_closed(fd, "too many descriptors");
	fd = raw_connect();
	raw_send_fds(fd, echo, 3);
	expect_closed(fd, "too many descriptors");
	fd = raw_connect();
	raw_send_fds(fd, echo, 16);
	expect_closed(fd, "too many descriptors");
	fd = raw_connect();
	raw_send_fds(fd, echo, 64);
	expect_closed(fd, "too many descriptors");
	fd = raw_connect();
	raw_send_fds(fd, "garbage", 2);
	expect_closed(fd, "malformed");
	assert_int_equal(count_fds(), before);
}

static void test_wrong_uid(void **st)
{
	char c;

	ipc_server_free(server);
	start_server(getuid() + 1, 8);
	int fd = raw_connect();
	assert_true(raw_read(fd, &c, 1) <= 0);
	assert_int_equal(n_joined, 0);
	close(fd);
}

static bool fewer_than_two(void) { return n_joined < 2; }

static void test_max_peers(void **st)
{
	char c;

	ipc_server_free(server);
	start_server(getuid(), 2);
	int a = raw_connect(), b = raw_connect();
	turn_while(fewer_than_two);
	int d = raw_connect();
	assert_true(raw_read(d, &c, 1) <= 0);
	close(d);
	close(a);
	while (n_left < 1)
		loop_turn(loop, 100);
	a = raw_connect();
	while (n_joined < 3)
		loop_turn(loop, 100);
	close(a);
	close(b);
}

static bool nobody_left(void) { return n_left == 0; }

/* A peer that asks and never reads is closed when its answers pile up. */
static void test_does_not_read(void **st)
{
	static const char ask[] = "{\"v\":1,\"op\":\"big\",\"id\":1,\"a\":{\"bytes\":60000}}";
	int fd = raw_connect();

	fd_set_nonblock(fd, true);
	for (int i = 0; i < 200 && n_left == 0; i++) {
		send(fd, ask, strlen(ask), MSG_NOSIGNAL);
		loop_turn(loop, 10);
	}
	turn_while(nobody_left);
	assert_non_null(strstr(last_fault, "does not read"));
	close(fd);
}

static bool few_held(void) { return n_held < 1024; }
static unsigned wanted_held;
static bool held_below(void) { return n_held < wanted_held; }

/* More than the limit of calls without an answer: the socket is not read, nothing is lost. */
static void test_many_calls(void **st)
{
	char text[64];
	int fd = raw_connect();
	unsigned sent = 0;

	fd_set_nonblock(fd, true);
	while (sent < 1500) {
		str_format(text, sizeof(text), "{\"v\":1,\"op\":\"hold\",\"id\":%u}", sent);
		if (send(fd, text, strlen(text), MSG_NOSIGNAL) < 0) {
			if (n_held >= 1024)
				break;
			loop_turn(loop, 10);
			continue;
		}
		sent++;
	}
	turn_while(few_held);
	for (int i = 0; i < 5; i++)
		loop_turn(loop, 5);
	assert_int_equal(n_held, 1024);
	for (unsigned i = 0; i < 1024; i++)
		ipc_answer(held[i], NULL, NULL, 0);
	wanted_held = sent;
	turn_while(held_below);
	assert_int_equal(n_left, 0);
	for (unsigned i = 1024; i < n_held; i++)
		ipc_answer(held[i], NULL, NULL, 0);
	close(fd);
}

static void test_answer_to_the_gone(void **st)
{
	static const char hold[] = "{\"v\":1,\"op\":\"hold\",\"id\":1}";
	int fd = raw_connect();

	for (int i = 0; i < 3; i++)
		assert_true(send(fd, hold, strlen(hold), 0) > 0);
	wanted_held = 3;
	turn_while(held_below);
	close(fd);
	turn_while(nobody_left);
	ipc_answer(held[0], NULL, NULL, 0);
	loop_turn(loop, 0);
	ipc_peer_event(ipc_call_peer(held[1]), "late", NULL, NULL);
	ipc_answer(held[1], NULL, NULL, 0);
	ipc_server_free(server);
	server = NULL;
	loop_turn(loop, 0);
	ipc_answer(held[2], NULL, NULL, 0);
}

static void test_server_freed_inside(void **st)
{
	static const char leave[] = "{\"v\":1,\"op\":\"leave\",\"id\":1}";
	char c;
	int fd = raw_connect();

	assert_true(send(fd, leave, strlen(leave), 0) > 0);
	assert_true(raw_read(fd, &c, 1) <= 0);
	assert_null(server);
	close(fd);
}

/* ---- The client in a loop ---- */

static struct ipc_client *client;
static struct {
	unsigned n;
	int num;
	char code[ERR_CODE_MAX];
	char text[64];
	uint64_t number;
	int fds[4];
	size_t n_fds;
} got;
static unsigned wanted_replies, n_events, n_up, n_down;

static void on_reply(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	got.n++;
	got.num = e ? e->num : 0;
	str_copy(got.code, sizeof(got.code), e ? e->code : "");
	got.n_fds = n_fds;
	for (size_t i = 0; i < n_fds; i++)
		got.fds[i] = fds[i];
	if (!e && arg == &op_echo) {
		str_copy(got.text, sizeof(got.text), ((const struct echo *)rep)->text);
		got.number = ((const struct echo *)rep)->n;
	}
}

static void on_event(const char *name, json_t *a, void *arg)
{
	assert_string_equal(name, "tick");
	assert_int_equal(json_integer_value(json_object_get(a, "n")), 7);
	n_events++;
}

static void on_state(bool connected, void *arg)
{
	if (connected)
		n_up++;
	else
		n_down++;
	assert_int_equal(connected, ipc_client_connected(client));
}

static bool few_replies(void) { return got.n < wanted_replies; }

static void start_client(uid_t server_uid)
{
	memset(&got, 0, sizeof(got));
	n_events = n_up = n_down = 0;
	client = ipc_client_new(loop, path, server_uid);
	ipc_client_on_event(client, on_event, NULL);
	ipc_client_on_state(client, on_state, NULL);
}

static void call(const struct ipc_op *op, const void *req, int timeout_ms)
{
	unsigned before = got.n;

	ipc_client_call(client, op, "req-7", req, NULL, 0, timeout_ms, on_reply, (void *)op);
	assert_int_equal(got.n, before);         /* never inside the call */
}

static void wait_replies(unsigned n)
{
	wanted_replies = n;
	turn_while(few_replies);
	assert_int_equal(got.n, n);
}

static void test_client(void **st)
{
	struct echo q = { .text = "h\"\xc3\xa4", .n = 5 };
	struct big b = { .bytes = 70000 };

	start_client(getuid());
	call(&op_echo, &q, DEADLINE_MS);
	wait_replies(1);
	assert_int_equal(got.num, 0);
	assert_string_equal(got.text, q.text);
	assert_int_equal(got.number, 5);
	assert_string_equal(last_req_id, "req-7");
	call(&op_fail, NULL, DEADLINE_MS);
	wait_replies(2);
	assert_int_equal(got.num, -ENOENT);
	assert_string_equal(got.code, "nothing-here");
	/* An answer that does not fit a packet is an error, not a broken connection. */
	call(&op_big, &b, DEADLINE_MS);
	wait_replies(3);
	assert_int_equal(got.num, -EMSGSIZE);
	q.n = 1001;
	call(&op_echo, &q, DEADLINE_MS);
	wait_replies(4);
	assert_int_equal(got.num, -EINVAL);
	/* Neither is one that is nested deeper than its reader would take. */
	b.bytes = IPC_DEPTH_MAX - 2;             /* {"r":{"text": */
	call(&op_deep, &b, 5000);
	wait_replies(5);
	assert_int_equal(got.num, 0);
	b.bytes++;
	call(&op_deep, &b, 5000);
	wait_replies(6);
	assert_int_equal(got.num, -EMSGSIZE);
	assert_int_equal(n_left, 0);
	ipc_client_free(client);
}

static void test_client_fds(void **st)
{
	struct echo q = { .text = "fds", .n = 2 };
	int p[2];
	char c = 'x';

	start_client(getuid());
	assert_int_equal(pipe2(p, O_CLOEXEC), 0);
	/* The first waits for the connection with duplicates, the second is sent at once. */
	ipc_client_call(client, &op_echo, NULL, &q, p, 2, DEADLINE_MS, on_reply, (void *)&op_echo);
	for (unsigned i = 1; i <= 2; i++) {
		wait_replies(i);
		assert_int_equal(got.num, 0);
		assert_int_equal(got.n_fds, 2);
		assert_int_equal(write(got.fds[1], &c, 1), 1);
		assert_int_equal(read(got.fds[0], &c, 1), 1);
		assert_true(fcntl(got.fds[0], F_GETFD) & FD_CLOEXEC);
		close(got.fds[0]);
		close(got.fds[1]);
		if (i == 1)
			ipc_client_call(client, &op_echo, NULL, &q, p, 2, DEADLINE_MS, on_reply,
					(void *)&op_echo);
	}
	ipc_client_call(client, &op_hold, NULL, NULL, p, 1, DEADLINE_MS, on_reply, NULL);
	wait_replies(3);
	assert_int_equal(got.num, -EINVAL);
	close(p[0]);
	close(p[1]);
	ipc_client_free(client);
}

static bool no_event(void) { return n_events == 0; }
static bool not_up(void) { return n_up == 0; }
static bool not_up_twice(void) { return n_up < 2; }

static void test_events(void **st)
{
	struct echo tick = { .n = 7 };

	start_client(getuid());
	turn_while(not_up);
	while (n_joined == 0)
		loop_turn(loop, 100);
	ipc_server_event(server, "tick", echo_fields, &tick);
	turn_while(no_event);
	assert_int_equal(n_events, 1);
	ipc_client_free(client);
}

static bool few_events(void) { return n_events < 8; }

/* A server that says more than is asked for is read slowly; nothing is lost. */
static void test_pace(void **st)
{
	struct echo tick = { .n = 7 };
	int64_t begin;

	start_client(getuid());
	ipc_client_pace(client);
	turn_while(not_up);
	while (n_joined == 0)
		loop_turn(loop, 100);
	begin = clock_mono_ms();
	for (int i = 0; i < 8; i++)
		ipc_server_event(server, "tick", echo_fields, &tick);
	turn_while(few_events);
	assert_true(clock_mono_ms() - begin >= 7 * 100);
	/* Also what came before its end. */
	ipc_server_event(server, "tick", echo_fields, &tick);
	ipc_server_event(server, "tick", echo_fields, &tick);
	ipc_server_free(TAKE(server));
	while (n_down == 0)
		loop_turn(loop, 100);
	assert_int_equal(n_events, 10);
	ipc_client_free(client);
}

static void test_timeout(void **st)
{
	start_client(getuid());
	/* Connected, else its time may be over before it was sent. */
	turn_while(not_up);
	call(&op_hold, NULL, 30);
	wait_replies(1);
	assert_int_equal(got.num, -ETIMEDOUT);
	/* The late answer goes nowhere, and the connection stays. */
	wanted_held = 1;
	turn_while(held_below);
	ipc_answer(held[0], NULL, NULL, 0);
	struct echo q = { .text = "on", .n = 1 };
	call(&op_echo, &q, DEADLINE_MS);
	wait_replies(2);
	assert_int_equal(got.num, 0);
	assert_int_equal(n_left, 0);
	ipc_client_free(client);
}

static void test_reconnect(void **st)
{
	struct echo q = { .text = "again", .n = 1 };

	start_client(getuid());
	call(&op_hold, NULL, DEADLINE_MS);
	wanted_held = 1;
	turn_while(held_below);
	ipc_server_free(server);
	server = NULL;
	/* What was sent fails; what comes now waits for the next server. */
	wait_replies(1);
	assert_int_equal(got.num, -ECONNRESET);
	assert_int_equal(n_down, 1);
	ipc_answer(held[0], NULL, NULL, 0);
	call(&op_echo, &q, DEADLINE_MS);
	call(&op_hold, NULL, 30);
	wait_replies(2);
	assert_int_equal(got.num, -ETIMEDOUT);
	start_server(getuid(), 8);
	turn_while(not_up_twice);
	wait_replies(3);
	assert_int_equal(got.num, 0);
	assert_string_equal(got.text, "again");
	assert_int_equal(n_held, 0);
	ipc_client_free(client);
}

static void test_unknown_op(void **st)
{
	start_client(getuid());
	call(&op_unknown, NULL, DEADLINE_MS);
	wait_replies(1);
	assert_int_equal(got.num, -ECONNRESET);
	assert_non_null(strstr(last_fault, "unknown operation"));
	ipc_client_free(client);
}

static void test_wrong_server_uid(void **st)
{
	struct echo q = { .text = "", .n = 1 };

	start_client(getuid() + 1);
	call(&op_echo, &q, 100);
	wait_replies(1);
	assert_int_equal(got.num, -ETIMEDOUT);
	assert_int_equal(n_up, 0);
	ipc_client_free(client);
}

static void test_too_many_in_flight(void **st)
{
	start_client(getuid());
	for (int i = 0; i < 1025; i++)
		ipc_client_call(client, &op_hold, NULL, NULL, NULL, 0, DEADLINE_MS, on_reply, NULL);
	wait_replies(1);
	assert_int_equal(got.num, -EAGAIN);
	wanted_held = 1024;
	turn_while(held_below);
	for (unsigned i = 0; i < 1024; i++)
		ipc_answer(held[i], NULL, NULL, 0);
	wait_replies(1025);
	assert_int_equal(got.num, 0);
	ipc_client_free(client);
}

static int slow_fd;

/* Reads what has come, and answers all of it. */
static bool unanswered_by_slow(void)
{
	char buf[512], text[64];
	ssize_t n;

	while ((n = recv(slow_fd, buf, sizeof(buf), MSG_DONTWAIT)) > 0) {
		json_t *v = json_loadb(buf, (size_t)n, 0, NULL);

		str_format(text, sizeof(text), "{\"id\":%llu,\"r\":{}}",
			   (unsigned long long)json_integer_value(json_object_get(v, "id")));
		json_decref(v);
		assert_true(send(slow_fd, text, strlen(text), 0) > 0);
		loop_turn(loop, 0);
	}
	return few_replies();
}

/*
 * A server that stands still for so long that the queue to it is full, and goes on: so do the calls,
 * those that found the queue full included.
 */
static void test_slow_server(void **st)
{
	unsigned n = 0;
	int ls;

	ipc_server_free(server);
	server = NULL;
	loop_turn(loop, 0);
	ls = fd_unix_listen(path, SOCK_SEQPACKET, 0600, 64);
	start_client(getuid());
	waited_fd = ls;
	turn_while(nothing_readable);
	slow_fd = accept4(ls, NULL, NULL, SOCK_CLOEXEC);
	/* More than IPC_OUT_MAX and what a socket takes; each has timed out before the next. */
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0; i < 1000; i++, n++)
			call(&op_hold, NULL, 1);
		wait_replies(n);
		assert_int_equal(got.num, -ETIMEDOUT);
	}
	call(&op_hold, NULL, DEADLINE_MS);
	wanted_replies = ++n;
	turn_while(unanswered_by_slow);
	assert_int_equal(got.num, 0);
	assert_int_equal(n_down, 0);
	ipc_client_free(client);
	close(slow_fd);
	close(ls);
}

static void on_reply_free(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	got.n++;
	ipc_client_free(client);
}

/* Freed with calls in every list, and from inside a callback: each fn is called exactly once. */
static void test_client_freed(void **st)
{
	struct echo q = { .text = "", .n = 1 }, bad = { .text = "", .n = 1001 };

	start_client(getuid());
	call(&op_echo, &q, DEADLINE_MS);
	call(&op_echo, &bad, DEADLINE_MS);
	ipc_client_free(client);
	assert_int_equal(got.n, 2);
	loop_turn(loop, 0);
	assert_int_equal(got.n, 2);

	start_client(getuid());
	ipc_client_call(client, &op_echo, NULL, &q, NULL, 0, DEADLINE_MS, on_reply_free, NULL);
	call(&op_hold, NULL, DEADLINE_MS);
	call(&op_hold, NULL, DEADLINE_MS);
	wanted_replies = 3;
	turn_while(few_replies);
	loop_turn(loop, 0);
	assert_int_equal(got.n, 3);
	while (n_left < 1)
		loop_turn(loop, 100);
	for (unsigned i = 0; i < n_held; i++)
		ipc_answer(held[i], NULL, NULL, 0);
	ipc_client_free(NULL);
}

/*
 * A server that talks nonsense: the connection is given up, the call fails, the next connection is
 * tried.
 */
static void test_hostile_server(void **st)
{
	static const char *const bad[] = { "x", "{}", "{\"id\":1}", "{\"ev\":\"\"}",
					   "{\"id\":7,\"r\":{},\"x\":1}",
					   /* Answers to what was never asked. */
					   "{\"id\":7,\"r\":{}}",
					   "{\"id\":9007199254740992,\"r\":{}}" };

	ipc_server_free(server);
	server = NULL;
	loop_turn(loop, 0);
	int ls = fd_unix_listen(path, SOCK_SEQPACKET, 0600, 64);
	assert_true(ls >= 0);
	start_client(getuid());
	for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
		char buf[512];

		waited_fd = ls;
		turn_while(nothing_readable);
		int fd = accept4(ls, NULL, NULL, SOCK_CLOEXEC);
		assert_true(fd >= 0);
		call(&op_hold, NULL, DEADLINE_MS);
		assert_true(raw_read(fd, buf, sizeof(buf)) > 0);
		assert_true(send(fd, bad[i], strlen(bad[i]), 0) > 0);
		wait_replies(i + 1);
		assert_int_equal(got.num, -ECONNRESET);
		close(fd);
	}
	ipc_client_free(client);
	close(ls);
}

/* Answers with other fields than the table has, or with descriptors that nobody asked for. */
static void test_hostile_answers(void **st)
{
	static const char *const bad[] = {
		"{\"id\":%llu,\"r\":{}}",
		"{\"id\":%llu,\"r\":{\"text\":\"a\",\"n\":1001}}",
		"{\"id\":%llu,\"r\":[]}",
		"{\"id\":%llu,\"r\":{\"text\":\"a\",\"n\":1,\"x\":1}}",
		"{\"id\":%llu,\"r\":{\"text\":\"a\",\"n\":1}}",
	};
	struct echo q = { .text = "", .n = 1 };
	unsigned before;

	ipc_server_free(server);
	server = NULL;
	loop_turn(loop, 0);
	int ls = fd_unix_listen(path, SOCK_SEQPACKET, 0600, 64);
	start_client(getuid());
	waited_fd = ls;
	turn_while(nothing_readable);
	int fd = accept4(ls, NULL, NULL, SOCK_CLOEXEC);
	before = count_fds();
	for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
		char buf[512], text[512];

		call(&op_echo, &q, DEADLINE_MS);
		ssize_t n = raw_read(fd, buf, sizeof(buf));
		json_t *v = json_loadb(buf, (size_t)n, 0, NULL);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
		str_format(text, sizeof(text), bad[i],
			   (unsigned long long)json_integer_value(json_object_get(v, "id")));
#pragma GCC diagnostic pop
		json_decref(v);
		raw_send_fds(fd, text, 3);
		wait_replies(i + 1);
		assert_int_equal(got.num, -EPROTO);
		assert_int_equal(count_fds(), before);
	}
	ipc_client_free(client);
	close(fd);
	close(ls);
}

/* ---- The blocking client ---- */

static pid_t fork_server(void)
{
	pid_t pid = fork();

	if (pid != 0)
		return pid;
	/* What the parent made stays the parent's; the child needs only its own loop. */
	peer_pid = getppid();
	loop = loop_new();
	start_server(getuid(), 8);
	loop_run(loop);
	_exit(0);
}

static void on_echo_sync(struct ipc_sync *c, struct echo *q)
{
	struct echo rep;
	struct err e = { 0 };
	int fds[2] = { 0, 1 }, back[2];
	size_t n_back = 2;

	if (ipc_sync_call(c, &op_echo, "s-1", q, fds, 2, &rep, back, &n_back, DEADLINE_MS, &e) < 0)
		fail_msg("%s", e.text);
	assert_string_equal(rep.text, q->text);
	assert_true(json_equal(rep.j, q->j));
	assert_int_equal(n_back, 2);
	close(back[0]);
	close(back[1]);
	ipc_done(echo_fields, &rep);
}

static struct ipc_sync *open_sync(void)
{
	int64_t end = clock_mono_ms() + DEADLINE_MS;
	struct ipc_sync *c = NULL;

	while (ipc_sync_open(path, getuid(), &c, NULL) < 0) {
		assert_true(clock_mono_ms() < end);
		poll(NULL, 0, 5);
	}
	return c;
}

static void end_server(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void test_sync(void **st)
{
	struct echo q = { .text = "sync", .n = 3, .j = json_pack("[i]", 1) };
	struct err e = { 0 };
	struct ipc_sync *c;
	pid_t pid;

	ipc_server_free(server);
	server = NULL;
	loop_turn(loop, 0);
	unlink(path);
	assert_true(ipc_sync_open(path, getuid(), &c, &e) < 0);
	pid = fork_server();
	c = open_sync();
	on_echo_sync(c, &q);
	assert_int_equal(ipc_sync_call(c, &op_fail, NULL, NULL, NULL, 0, NULL, NULL, NULL, DEADLINE_MS, &e),
			 -ENOENT);
	assert_string_equal(e.code, "nothing-here");
	/* A time-out, and then the next call gets its own answer. */
	assert_int_equal(ipc_sync_call(c, &op_hold, NULL, NULL, NULL, 0, NULL, NULL, NULL, 20, &e),
			 -ETIMEDOUT);
	on_echo_sync(c, &q);
	/* Descriptors that the caller has no room for are closed. */
	unsigned before = count_fds();
	int two[2] = { 0, 1 };
	assert_int_equal(ipc_sync_call(c, &op_echo, NULL, &q, two, 2, NULL, NULL, NULL, DEADLINE_MS, &e),
			 -EPROTO);
	assert_int_equal(count_fds(), before);
	assert_int_equal(ipc_sync_call(c, &op_echo, NULL, &q, NULL, 0, NULL, NULL, NULL, DEADLINE_MS, &e),
			 0);
	assert_int_equal(ipc_sync_call(c, &op_unknown, NULL, NULL, NULL, 0, NULL, NULL, NULL, DEADLINE_MS, &e),
			 -ECONNRESET);
	on_echo_sync(c, &q);                     /* connected anew by itself */
	end_server(pid);
	pid = fork_server();
	struct ipc_sync *again = open_sync();
	on_echo_sync(c, &q);
	ipc_sync_close(again);
	ipc_sync_close(c);
	assert_int_equal(ipc_sync_open(path, getuid() + 1, &c, &e), -EPERM);
	end_server(pid);
	json_decref(q.j);
	ipc_sync_close(NULL);
}

static void test_sync_fd(void **st)
{
	static const char answer[] = "{\"ev\":\"x\"}", other[] = "{\"id\":999,\"r\":{}}",
			  mine[] = "{\"id\":1,\"r\":{}}";
	struct ipc_sync *c;
	struct err e = { 0 };
	int p[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p), 0);
	assert_int_equal(ipc_sync_open_fd(p[0], &c), 0);
	/* Events and answers to others stand before ours. */
	send(p[1], answer, strlen(answer), 0);
	send(p[1], other, strlen(other), 0);
	send(p[1], mine, strlen(mine), 0);
	assert_int_equal(ipc_sync_call(c, &op_hold, NULL, NULL, NULL, 0, NULL, NULL, NULL, DEADLINE_MS,
				       &e),
			 0);
	send(p[1], "junk", 4, 0);
	assert_int_equal(ipc_sync_call(c, &op_hold, NULL, NULL, NULL, 0, NULL, NULL, NULL, DEADLINE_MS,
				       &e),
			 -EPROTO);
	assert_int_equal(ipc_sync_call(c, &op_hold, NULL, NULL, NULL, 0, NULL, NULL, NULL, DEADLINE_MS,
				       &e),
			 -ECONNRESET);
	ipc_sync_close(c);
	close(p[1]);
}

static void *send_events(void *arg)
{
	static const char event[] = "{\"ev\":\"x\"}";

	while (send(*(int *)arg, event, strlen(event), MSG_NOSIGNAL) > 0)
		;
	return NULL;
}

/* Events without end: the deadline of a call holds all the same. */
static void test_sync_flooded(void **st)
{
	struct ipc_sync *c;
	struct err e = { 0 };
	int64_t begun;
	pthread_t t;
	int p[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p), 0);
	assert_int_equal(ipc_sync_open_fd(p[0], &c), 0);
	assert_int_equal(pthread_create(&t, NULL, send_events, &p[1]), 0);
	begun = clock_mono_ms();
	assert_int_equal(ipc_sync_call(c, &op_hold, NULL, NULL, NULL, 0, NULL, NULL, NULL, 200, &e),
			 -ETIMEDOUT);
	assert_in_range(clock_mono_ms() - begun, 150, DEADLINE_MS);
	ipc_sync_close(c);
	pthread_join(t, NULL);
	close(p[1]);
}

static int watch_reads(void *arg, struct err *e)
{
	char byte;

	assert_int_equal(read(*(int *)arg, &byte, 1), 1);
	return byte == 'x' ? err_set(e, -EIO, "it said x") : 0;
}

/* What else may end a call. */
static void test_sync_watch(void **st)
{
	struct ipc_sync *c;
	struct err e = { 0 };
	int p[2], w[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p), 0);
	assert_int_equal(pipe(w), 0);
	assert_int_equal(ipc_sync_open_fd(p[0], &c), 0);
	ipc_sync_watch(c, w[0], watch_reads, &w[0]);
	assert_int_equal(write(w[1], "abx", 3), 3);
	assert_int_equal(ipc_sync_call(c, &op_hold, NULL, NULL, NULL, 0, NULL, NULL, NULL, DEADLINE_MS, &e),
			 -EIO);
	assert_string_equal(e.text, "it said x");
	assert_int_equal(write(w[1], "a", 1), 1);
	assert_int_equal(ipc_sync_call(c, &op_hold, NULL, NULL, NULL, 0, NULL, NULL, NULL, 50, &e),
			 -ETIMEDOUT);
	ipc_sync_close(c);
	close(p[1]);
	close(w[0]);
	close(w[1]);
}

static int make_dir(void **st)
{
	return mkdtemp(dir) && str_format(path, sizeof(path), "%s/s", dir) == 0 ? 0 : -1;
}

static int drop_dir(void **st)
{
	return rmdir(dir);
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_hostile_texts),	  T(test_empty_and_oversized), T(test_too_many_fds),
		T(test_wrong_uid),	  T(test_max_peers),	       T(test_does_not_read),
		T(test_many_calls),	  T(test_answer_to_the_gone),  T(test_server_freed_inside),
		T(test_client),		  T(test_client_fds),	       T(test_events), T(test_pace),
		T(test_timeout),	  T(test_reconnect),	       T(test_unknown_op),
		T(test_wrong_server_uid), T(test_too_many_in_flight),  T(test_client_freed),
		T(test_slow_server),
		T(test_hostile_server),	  T(test_hostile_answers),     T(test_sync),
		T(test_sync_fd),	  T(test_sync_flooded),	       T(test_sync_watch),
	};

	return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
