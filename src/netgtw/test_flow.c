/* Flows of the guest through the real processes: bytes, ends, resets, stalls, refusals, limits. */
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "netgtw/gtw.h"
#include "netgtw/test_rig.h"

#define SERVER "9.9.10.2"
#define SERVER6 "2a10:9999::2"

#define SILENT "9.9.11.5"                /* nobody answers there */

static const char *netgtw_path;
static struct rig rig;
static int servers[2];

static const char *field(json_t *log, const char *dir, const char *addr, const char *name)
{
	json_t *o = rig_find(log, dir, addr);

	if (!o)
		fail_msg("no record for %s", addr ? addr : dir);
	return json_string_value(json_object_get(o, name));
}

/* One connection through the gateway: *a in the guest, *b the server's. */
static void through(const char *addr, unsigned port, int *a, int *b)
{
	*a = rig_connect(&rig, RIG_GUEST, addr, port);
	assert_true(*a >= 0);
	*b = rig_accept(servers[strchr(addr, ':') != NULL]);
}

/* A refusal: the kernel may have answered before the reset is there, or the two come as one. */
static void refused(const char *addr, unsigned port)
{
	int64_t before = clock_mono_ms();
	int a = rig_connect(&rig, RIG_GUEST, addr, port);

	if (a != -ECONNRESET && (a < 0 || !rig_was_reset(a)))
		fail_msg("%s port %u: %s", addr, port, a < 0 ? strerror(-a) : "no reset");
	assert_true(clock_mono_ms() - before < RIG_WAIT_MS / 2);
	fd_close(a);
}

static void test_echo(void **state)
{
	const char *const addrs[] = { SERVER, SERVER6 };
	char got[6];

	for (int i = 0; i < 2; i++) {
		int a, b;

		through(addrs[i], 80, &a, &b);
		rig_send(a, "hello", 5);
		assert_int_equal(rig_recv(b, got, 5), 5);
		assert_memory_equal(got, "hello", 5);
		rig_send(b, "world", 5);
		assert_int_equal(rig_recv(a, got, 5), 5);
		assert_memory_equal(got, "world", 5);
		close(a);
		assert_true(rig_ended(b));
		close(b);
	}
}

static void test_half_close(void **state)
{
	char got[8];
	int a, b;

	through(SERVER, 80, &a, &b);
	rig_send(a, "question", 8);
	shutdown(a, SHUT_WR);
	assert_int_equal(rig_recv(b, got, 8), 8);
	assert_true(rig_ended(b));
	/* Whether it waits or has gone is found out: this server might never end. */
	rig_sh(&rig, RIG_SANDBOX_NS, "/bin/sh", "-s",
	       "ss -tno state close-wait src " SERVER " | grep -q timer:.keepalive\n");
	rig_send(b, "answer", 6);
	assert_int_equal(rig_recv(a, got, 6), 6);
	close(b);
	assert_true(rig_ended(a));
	close(a);
}

static void set_linger(int fd)
{
	struct linger l = { .l_onoff = 1 };

	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l)), 0);
}

static void test_reset(void **state)
{
	int a, b;

	through(SERVER, 80, &a, &b);
	set_linger(a);
	close(a);
	assert_true(rig_was_reset(b));
	close(b);
	through(SERVER, 80, &a, &b);
	set_linger(b);
	close(b);
	assert_true(rig_was_reset(a));
	close(a);
}

/*
 * A guest that has said all and ended, whose kernel has forgotten the connection and says so when
 * it is asked: its server still gets all, however slowly it reads.
 */
static void test_gone_after_its_end(void **state)
{
	static char block[65536];
	int a, b, small = 4096;
	uint64_t sent = 0, got = 0, before = rig_counter(&rig, "bytes_up");
	ssize_t n;

	through(SERVER, 80, &a, &b);
	assert_int_equal(setsockopt(b, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
	while (sent < 40000 && (n = send(a, block, 1000, 0)) > 0)
		sent += (uint64_t)n;
	while (rig_counter(&rig, "bytes_up") < before + sent)
		poll(NULL, 0, 5);
	shutdown(a, SHUT_WR);
	rig_sh(&rig, RIG_SANDBOX_NS, "/bin/sh", "-s",
	       "while ! ss -tno state close-wait src " SERVER " | grep -q timer:.keepalive; do :; done\n");
	set_linger(a);
	close(a);
	while (rig_counter(&rig, "flows_open") > 0)
		poll(NULL, 0, 5);
	while ((n = rig_recv(b, block, sizeof(block))) > 0)
		got += (uint64_t)n;
	assert_int_equal(got, sent);
	close(b);
}

/* A server that has gone without a word: nobody but the gateway can find out. */
static void test_asks_the_silent(void **state)
{
	int a, b;

	through(SERVER, 80, &a, &b);
	rig_sh(&rig, RIG_NODE, "/bin/sh", "-s",
	       "ss -tno state established dst " SERVER " | grep -q timer:.keepalive\n");
	/* One that has said all may go, and what it said is still read. */
	shutdown(b, SHUT_WR);
	assert_true(rig_ended(a));
	rig_sh(&rig, RIG_NODE, "/bin/sh", "-s",
	       "ss -tno state close-wait dst " SERVER " | grep " SERVER " | grep -vq timer:\n");
	close(a);
	assert_true(rig_ended(b));
	close(b);
}

static void test_server_refuses(void **state)
{
	json_t *log;

	refused(SERVER, 81);
	log = rig_log(&rig);
	assert_string_equal(field(log, "out", SERVER, "reason"), "unreachable");
	json_decref(log);
}

/* The guest's end of a dial that waits. */
static int waiting(const char *addr)
{
	int a = rig_connect(&rig, RIG_GUEST, addr, 80);

	assert_true(a >= 0);
	while (rig_counter(&rig, "dials_open") == 0)
		poll(NULL, 0, 5);
	return a;
}

/* Not GTW_CONNECT_MS. */
static void wait_no_dials(void)
{
	int64_t until = clock_mono_ms() + GTW_CONNECT_MS / 2;

	while (rig_counter(&rig, "dials_open") > 0 && clock_mono_ms() < until)
		poll(NULL, 0, 20);
	assert_int_equal(rig_counter(&rig, "dials_open"), 0);
	assert_int_equal(rig_counter(&rig, "flows_open"), 0);
}

/* A guest that gives up does not wait for a peer that does not answer. */
static void test_gives_up(void **state)
{
	struct rig_conf c = { .program = netgtw_path };
	json_t *log;
	int a, b;

	rig_fresh(&rig, &c);
	/* The oldest of them would end last. */
	a = waiting(SILENT);
	b = rig_connect(&rig, RIG_GUEST, SILENT, 80);
	set_linger(b);
	close(b);
	while (rig_counter(&rig, "flows_failed") == 0)
		poll(NULL, 0, 5);
	log = rig_log(&rig);
	assert_string_equal(field(log, "out", SILENT, "reason"), "reset");
	json_decref(log);
	rig_send(a, "question", 8);
	close(a);
	wait_no_dials();
	log = rig_log(&rig);
	assert_string_equal(field(log, "out", SILENT, "reason"), "unreachable");
	json_decref(log);
}

/* One that has said all and waits is served, also when the first SYN is lost. */
static void test_early_end(void **state)
{
	char got[8];
	int a, b;

	rig_sh(&rig, RIG_INTERNET, "/usr/sbin/nft", "-f",
	       "add table ip lossy\n"
	       "add chain ip lossy in { type filter hook input priority 0; }\n"
	       "add rule ip lossy in tcp flags syn numgen inc mod 2 0 drop\n");
	a = waiting(SERVER);
	rig_send(a, "question", 8);
	shutdown(a, SHUT_WR);
	b = rig_accept(servers[0]);
	rig_sh(&rig, RIG_INTERNET, "/usr/sbin/nft", "-f", "delete table ip lossy\n");
	assert_int_equal(rig_recv(b, got, 8), 8);
	assert_true(rig_ended(b));
	rig_send(b, "answer", 6);
	assert_int_equal(rig_recv(a, got, 6), 6);
	close(b);
	assert_true(rig_ended(a));
	close(a);
}

/* A writer without a reader stops; nothing is lost, and the other flows go on. */
static void test_stall(void **state)
{
	static char block[65536];
	uint64_t sent = 0, got = 0, sum_sent = 0, sum_got = 0;
	int a, b, c, d;
	ssize_t n;

	through(SERVER, 80, &a, &b);
	while (rig_wait(a, POLLOUT, 300)) {
		memset(block, (int)(sent / 4096 % 251), sizeof(block));
		n = send(a, block, sizeof(block), MSG_DONTWAIT);
		if (n <= 0)
			break;
		for (ssize_t i = 0; i < n; i++)
			sum_sent += (uint8_t)block[i] * (sent + (uint64_t)i);
		sent += (uint64_t)n;
		assert_true(sent < 1u << 30);
	}
	assert_true(rig_counter(&rig, "buffered_bytes") <= 65536);
	through(SERVER, 80, &c, &d);
	rig_send(c, "x", 1);
	assert_int_equal(rig_recv(d, block, 1), 1);
	shutdown(a, SHUT_WR);
	while (rig_wait(b, POLLIN, RIG_WAIT_MS) && (n = recv(b, block, sizeof(block), 0)) > 0) {
		for (ssize_t i = 0; i < n; i++)
			sum_got += (uint8_t)block[i] * (got + (uint64_t)i);
		got += (uint64_t)n;
	}
	assert_int_equal(sent, got);
	assert_true(sum_sent == sum_got);
	assert_int_equal(rig_counter(&rig, "buffered_bytes"), 0);
	close(a);
	close(b);
	close(c);
	close(d);
}

static void test_floor(void **state)
{
	static const char *const closed[] = {
		"10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
		"9.9.10.1" /* the node's own */, "10.0.2.2", "198.18.0.1", "240.0.0.1",
		"2a10:9999::1" /* the node's own */, "fd00::1", "64:ff9b::a00:1", "2002:a00:1::1",
		"2001:db8::1", "2a10:9999::5efe:a00:1",
	};

	for (size_t i = 0; i < ARRAY_LEN(closed); i++) {
		json_t *log;

		refused(closed[i], 80);
		log = rig_log(&rig);
		assert_string_equal(field(log, "out", closed[i], "verdict"), "refuse");
		assert_string_equal(field(log, "out", closed[i], "reason"), "floor");
		json_decref(log);
	}
}

static void test_log(void **state)
{
	json_t *log, *o, *first = NULL;
	int a, b;
	char c;

	through(SERVER, 80, &a, &b);
	rig_send(a, "hello", 5);
	for (int i = 0; i < 5; i++)
		assert_int_equal(rig_recv(b, &c, 1), 1);
	log = rig_log(&rig);
	first = json_incref(rig_find(log, "out", SERVER));
	assert_int_equal(json_integer_value(json_object_get(first, "end_ms")), 0);
	json_decref(log);
	rig_send(b, "yes", 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(rig_recv(a, &c, 1), 1);
	close(b);
	assert_true(rig_ended(a));
	close(a);
	/* Both ends are known to the gateway when its count has gone down. */
	for (int i = 0; i < 2000 && rig_counter(&rig, "flows_open") > 0; i++)
		poll(NULL, 0, 5);
	log = rig_log(&rig);
	o = rig_find(log, "out", SERVER);
	assert_true(json_equal(json_object_get(o, "flow"), json_object_get(first, "flow")));
	assert_int_equal(json_integer_value(json_object_get(o, "up")), 5);
	assert_int_equal(json_integer_value(json_object_get(o, "down")), 3);
	assert_int_equal(json_integer_value(json_object_get(o, "port")), 80);
	assert_true(json_integer_value(json_object_get(o, "end_ms")) > 0);
	json_decref(first);
	json_decref(log);
}

static void test_not_open(void **state)
{
	struct rig_conf c = { .program = netgtw_path };
	json_t *log;
	int a, b;

	rig_stop_processes(&rig);
	rig_start(&rig, &c);
	rig_install(&rig);
	refused(SERVER, 80);
	log = rig_log(&rig);
	assert_string_equal(field(log, "out", SERVER, "reason"), "not-open");
	json_decref(log);
	rig_open(&rig);
	through(SERVER, 80, &a, &b);
	assert_int_equal(rig_revoke(&rig, 0), 0);
	assert_true(rig_was_reset(a));
	assert_true(rig_was_reset(b));
	close(a);
	close(b);
	/* For good. */
	assert_int_equal(ipc_sync_call(rig.ctl, &gtw_ops[GTW_OPEN], "r", NULL, NULL, 0, NULL, NULL,
				       NULL, RIG_WAIT_MS, NULL),
			 -EACCES);
	refused(SERVER, 80);
}

static void test_no_internet(void **state)
{
	static const char *const args[] = { "--internet", "no", "--nameserver", "9.9.10.53", NULL };
	struct rig_conf c = { .program = netgtw_path, .outside_args = args };
	json_t *log;

	rig_fresh(&rig, &c);
	refused(SERVER, 80);
	log = rig_log(&rig);
	assert_string_equal(field(log, "out", SERVER, "reason"), "no-internet");
	json_decref(log);
}

static void test_ranges(void **state)
{
	static const char *const args[] = { "--internet", "yes",	 "--allow", "10.1.0.0/16",
					    "--allow",	  "9.9.10.1/32", "--deny", "8.8.8.0/24",
					    NULL };
	struct rig_conf c = { .program = netgtw_path, .outside_args = args };
	int a, b;

	rig_fresh(&rig, &c);
	through("10.1.2.3", 80, &a, &b);
	close(a);
	close(b);
	refused("10.2.2.3", 80);
	/* The node itself stays closed. */
	refused("9.9.10.1", 80);
	refused("8.8.8.8", 80);
	refused("64:ff9b::808:808", 80);
}

static void test_limits(void **state)
{
	static const char *const few[] = { "--limit", "connections=3", NULL };
	static const char *const slow[] = { "--limit", "connections-per-s=4", NULL };
	struct rig_conf c = { .program = netgtw_path, .main_args = few };
	int a[3], b[3], more[20];

	rig_fresh(&rig, &c);
	for (int i = 0; i < 3; i++)
		through(SERVER, 80, &a[i], &b[i]);
	refused(SERVER, 80);
	assert_int_equal(rig_counter(&rig, "limit"), 1);
	for (int i = 0; i < 3; i++) {
		close(a[i]);
		close(b[i]);
	}
	c.main_args = slow;
	rig_fresh(&rig, &c);
	/* Eight at once may pass, to where nobody listens; of twenty some do not. */
	for (size_t i = 0; i < ARRAY_LEN(more); i++)
		more[i] = rig_call(&rig, RIG_GUEST, SERVER, 81);
	for (size_t i = 0; i < ARRAY_LEN(more); i++) {
		assert_true(rig_was_reset(more[i]));
		close(more[i]);
	}
	assert_true(rig_counter(&rig, "limit") > 0);
}

static void test_bandwidth(void **state)
{
	static const char *const args[] = { "--limit", "bytes-up-per-s=1000000", NULL };
	struct rig_conf c = { .program = netgtw_path, .main_args = args };
	static char block[400000];
	int64_t start = clock_mono_ms();
	size_t sent = 0, got = 0;
	int a, b;

	rig_fresh(&rig, &c);
	through(SERVER, 80, &a, &b);
	while (got < sizeof(block)) {
		ssize_t n;

		if (sent < sizeof(block) &&
		    (n = send(a, block + sent, sizeof(block) - sent, MSG_DONTWAIT)) > 0)
			sent += (size_t)n;
		if (rig_wait(b, POLLIN, 20) && (n = recv(b, block, sizeof(block), 0)) > 0)
			got += (size_t)n;
		assert_true(clock_mono_ms() - start < RIG_WAIT_MS);
	}
	/* 0.1 s of it at once, the rest takes its time. */
	assert_true(clock_mono_ms() - start >= 250);
	close(a);
	close(b);
}

static uint32_t segments(int fd)
{
	struct tcp_info i = { 0 };
	socklen_t n = sizeof(i);

	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &n), 0);
	return i.tcpi_data_segs_in;
}

/*
 * Those that wait for bandwidth have it in turn, whether their bytes come in small pieces or fill
 * the windows; and what they get comes in packets that are worth it.
 */
static void test_bandwidth_is_shared(void **state)
{
	static const char *const args[] = { "--limit", "bytes-up-per-s=1000000", NULL };
	struct rig_conf c = { .program = netgtw_path, .main_args = args };
	size_t got[4] = { 0 }, all = 0;
	static char block[65536];
	int a[4], b[4];

	rig_fresh(&rig, &c);
	for (int i = 0; i < 4; i++)
		through(SERVER, 80, &a[i], &b[i]);
	while (all < 2000000) {
		for (int i = 0; i < 4; i++) {
			ssize_t n;

			send(a[i], block, i == 0 ? 1000 : sizeof(block), MSG_DONTWAIT);
			n = recv(b[i], block, sizeof(block), MSG_DONTWAIT);
			got[i] += n > 0 ? (size_t)n : 0;
			all += n > 0 ? (size_t)n : 0;
		}
		poll(NULL, 0, 1);
	}
	for (int i = 0; i < 4; i++) {
		assert_true(got[i] > all / 16);
		assert_true(segments(b[i]) < got[i] / 500);
		close(a[i]);
		close(b[i]);
	}
}

/* One of the things that the ends of a connection do to each other, at random. */
static void churn(int fd, bool *shut)
{
	static char block[200000];

	switch (rand() % 8) {
	case 0:
		set_linger(fd);
		break;
	case 1:
		shutdown(fd, SHUT_WR);
		*shut = true;
		break;
	case 2:
		(void)!recv(fd, block, sizeof(block), MSG_DONTWAIT);
		break;
	case 3:
		(void)!recv(fd, block, 100, MSG_DONTWAIT);
		break;
	default:
		if (!*shut)
			send(fd, block, (size_t)rand() % sizeof(block),
			     MSG_DONTWAIT | MSG_NOSIGNAL);
	}
}

/* Many connections that send, end, stall and break at random: nothing is left of them. */
static void test_churn(void **state)
{
	static const char *const args[] = { "--limit", "connections-per-s=0", NULL };
	struct rig_conf c = { .program = netgtw_path, .main_args = args };
	int fds[64][2];
	bool shut[64][2] = { 0 };
	size_t before;

	rig_fresh(&rig, &c);
	before = rig_main_fds(&rig);
	srand(1);
	for (int i = 0; i < 64; i++)
		through(SERVER, 80, &fds[i][0], &fds[i][1]);
	for (int round = 0; round < 6000; round++) {
		int i = rand() % 64, side = rand() % 2;

		churn(fds[i][side], &shut[i][side]);
		if (rand() % 12 != 0)
			continue;
		close(fds[i][side]);
		close(fds[i][!side]);
		shut[i][0] = shut[i][1] = false;
		through(rand() % 2 ? SERVER : SERVER6, 80, &fds[i][0], &fds[i][1]);
	}
	for (int i = 0; i < 64; i++) {
		close(fds[i][0]);
		close(fds[i][1]);
	}
	for (int i = 0; i < 4000 && rig_counter(&rig, "flows_open") > 0; i++)
		poll(NULL, 0, 5);
	assert_int_equal(rig_counter(&rig, "flows_open"), 0);
	assert_int_equal(rig_counter(&rig, "dials_open"), 0);
	assert_int_equal(rig_counter(&rig, "buffered_bytes"), 0);
	assert_int_equal(rig_main_fds(&rig), before);
}

/* With few descriptors there are fewer connections, and no harm. */
static void test_descriptors(void **state)
{
	struct rig_conf c = { .program = netgtw_path, .files = 1012 };
	int a[16], b[16];

	rig_fresh(&rig, &c);
	/* (1012 - 968) / 2 = 22, a quarter of them for leases. */
	for (int i = 0; i < 16; i++)
		through(SERVER, 80, &a[i], &b[i]);
	for (int i = 0; i < 30; i++) {
		int d = rig_connect(&rig, RIG_GUEST, SERVER, 80);

		assert_true(d == -ECONNRESET || d >= 0);
		assert_true(d < 0 || i == 0 || rig_was_reset(d));
		fd_close(d);
	}
	rig_send(a[0], "x", 1);
	assert_int_equal(rig_recv(b[0], (char[1]){ 0 }, 1), 1);
	for (int i = 0; i < 16; i++) {
		close(a[i]);
		close(b[i]);
	}
	while (rig_wait(servers[0], POLLIN, 0))
		close(rig_accept(servers[0]));
}

/* Bytes behind urgent data are no worse than others, and it is one of them (RFC 6093). */
static void test_urgent(void **state)
{
	char got[8] = "";
	int a, b;

	through(SERVER, 80, &a, &b);
	for (int i = 0; i < 2; i++) {
		int from = i ? b : a, to = i ? a : b;

		/* It finds them all at once: nothing that comes later tells of more. */
		kill(rig.pid[0], SIGSTOP);
		rig_send(from, "abc", 3);
		assert_int_equal(send(from, "d", 1, MSG_OOB), 1);
		rig_send(from, "efg", 3);
		kill(rig.pid[0], SIGCONT);
		assert_int_equal(rig_recv(to, got, 7), 7);
		assert_string_equal(got, "abcdefg");
	}
	close(a);
	close(b);
}

/* ---- Every byte of many connections that are used at random ---- */

struct side { int fd; uint64_t sent, got; bool shut, ended; };
struct talk { struct side side[2]; };

static uint8_t byte_at(uint64_t at) { return (uint8_t)(at * 31 + (at >> 8) * 7 + (at >> 16)); }

static void talk_write(struct side *x, size_t n, int flags)
{
	static uint8_t block[200000];
	ssize_t done;

	if (x->shut)
		return;
	for (size_t i = 0; i < n; i++)
		block[i] = byte_at(x->sent + i);
	done = send(x->fd, block, n, MSG_DONTWAIT | MSG_NOSIGNAL | flags);
	if (done < 0 && errno != EAGAIN)
		fail_msg("send: %s", strerror(errno));
	x->sent += done > 0 ? (uint64_t)done : 0;
}

/* false: there is nothing now. */
static bool talk_read(struct side *x, const struct side *from, size_t most)
{
	static uint8_t block[200000];
	ssize_t n = recv(x->fd, block, most, MSG_DONTWAIT);

	if (n < 0 && errno != EAGAIN)
		fail_msg("recv: %s", strerror(errno));
	for (ssize_t i = 0; i < n; i++, x->got++)
		if (block[i] != byte_at(x->got))
			fail_msg("byte %llu is another one", (unsigned long long)x->got);
	if (n == 0 && (!from->shut || x->got != from->sent))
		fail_msg("the end came after %llu bytes", (unsigned long long)x->got);
	x->ended |= n == 0;
	return n > 0;
}

static void talk_some(struct talk *t)
{
	int who = rand() % 2, what = rand() % 64;
	struct side *x = &t->side[who];

	if (what < 1 && rand() % 8 == 0) {
		shutdown(x->fd, SHUT_WR);
		x->shut = true;
	} else if (what < 4) {
		talk_write(x, 1, MSG_OOB);
	} else if (what < 16) {
		talk_write(x, 1 + (size_t)rand() % 100, 0);
	} else if (what < 36) {
		talk_write(x, 1 + (size_t)rand() % 200000, 0);
	} else {
		talk_read(x, &t->side[!who], 1 + (size_t)rand() % (what < 40 ? 2000 : 200000));
	}
}

/* To the end of both directions. Returns how many are not there yet. */
static int talk_end(struct talk *t)
{
	int left = 0;

	for (int who = 0; who < 2; who++) {
		struct side *x = &t->side[who];

		if (!x->shut)
			shutdown(x->fd, SHUT_WR);
		x->shut = true;
		while (!x->ended && talk_read(x, &t->side[!who], 200000))
			;
		left += !x->ended;
	}
	return left;
}

static void test_integrity(void **state)
{
	static const char *const args[] = { "--limit", "bytes-up-per-s=40000000", NULL };
	struct rig_conf c = { .program = netgtw_path, .main_args = args };
	int64_t until = clock_mono_ms() + RIG_WAIT_MS;
	struct talk talks[32] = { 0 };
	int left = 1;

	rig_fresh(&rig, &c);
	srand(2);
	for (size_t i = 0; i < ARRAY_LEN(talks); i++)
		through(i % 2 ? SERVER : SERVER6, 80, &talks[i].side[0].fd, &talks[i].side[1].fd);
	for (int i = 0; i < 4000; i++)
		talk_some(&talks[rand() % (int)ARRAY_LEN(talks)]);
	while (left > 0) {
		left = 0;
		for (size_t i = 0; i < ARRAY_LEN(talks); i++)
			left += talk_end(&talks[i]);
		if (clock_mono_ms() > until)
			fail_msg("%d directions do not end", left);
		poll(NULL, 0, left ? 1 : 0);
	}
	for (size_t i = 0; i < ARRAY_LEN(talks); i++) {
		close(talks[i].side[0].fd);
		close(talks[i].side[1].fd);
	}
	while (rig_counter(&rig, "flows_open") > 0)
		poll(NULL, 0, 5);
	assert_int_equal(rig_counter(&rig, "buffered_bytes"), 0);
}

/* The end of any of the three is the end of all. */
static void test_death(void **state)
{
	struct rig_conf c = { .program = netgtw_path };

	for (int victim = 0; victim < 3; victim++) {
		int a, b;

		rig_fresh(&rig, &c);
		through(SERVER, 80, &a, &b);
		kill(rig.pid[victim], SIGKILL);
		if (!rig_wait(a, POLLIN, RIG_WAIT_MS))
			fail_msg("the flow lives on without process %d", victim);
		for (int i = 0; i < 3; i++) {
			assert_int_equal(waitpid(rig.pid[i], NULL, 0), rig.pid[i]);
			rig.pid[i] = 0;
		}
		close(a);
		close(b);
	}
}

static int start(void **state)
{
	struct rig_conf c = { .program = netgtw_path };

	rig_net(&rig);
	servers[0] = rig_listen(&rig, RIG_INTERNET, "0.0.0.0", 80);
	servers[1] = rig_listen(&rig, RIG_INTERNET, "::", 80);
	rig_fresh(&rig, &c);
	return 0;
}

static int stop(void **state)
{
	close(servers[0]);
	close(servers[1]);
	rig_stop(&rig);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_echo),	    cmocka_unit_test(test_half_close),
		cmocka_unit_test(test_reset),	    cmocka_unit_test(test_server_refuses),
		cmocka_unit_test(test_stall),	    cmocka_unit_test(test_floor),
		cmocka_unit_test(test_log),	    cmocka_unit_test(test_not_open),
		cmocka_unit_test(test_no_internet), cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_limits),	    cmocka_unit_test(test_bandwidth),
		cmocka_unit_test(test_churn),	    cmocka_unit_test(test_descriptors),
		cmocka_unit_test(test_asks_the_silent), cmocka_unit_test(test_bandwidth_is_shared),
		cmocka_unit_test(test_urgent), cmocka_unit_test(test_gone_after_its_end), cmocka_unit_test(test_gives_up),
		cmocka_unit_test(test_early_end), cmocka_unit_test(test_integrity), cmocka_unit_test(test_death),
	};

	if (argc != 2)
		return 2;
	netgtw_path = argv[1];
	return cmocka_run_group_tests_name("flow", tests, start, stop);
}
