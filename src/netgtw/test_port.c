/*
 * ServicePorts through the real processes: the second check, the ways into the guest, revocation.
 */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "loop/test_fill.h"
#include "netgtw/test_rig.h"

#define PORT 8080

static const char *netgtw_path;
static struct rig rig;
static int server;                   /* in the guest, on PORT */

static void swap(int a, int b)
{
	char got[6];

	rig_send(a, "hello", 5);
	assert_int_equal(rig_recv(b, got, 5), 5);
	assert_memory_equal(got, "hello", 5);
	rig_send(b, "world", 5);
	assert_int_equal(rig_recv(a, got, 5), 5);
	assert_memory_equal(got, "world", 5);
}

static void test_ok(void **state)
{
	unsigned verdict;
	int a = rig_port(&rig, PORT, &verdict), b;
	json_t *log, *o;

	assert_int_equal(verdict, GTW_OK);
	b = rig_accept(server);
	swap(a, b);
	shutdown(a, SHUT_WR);
	assert_true(rig_ended(b));
	rig_send(b, "late", 4);
	close(b);
	assert_int_equal(rig_recv(a, (char[8]){ 0 }, 8), 4);
	close(a);
	log = rig_log(&rig);
	o = rig_find(log, "in", GTW_GUEST_V4);
	assert_non_null(o);
	assert_int_equal(json_integer_value(json_object_get(o, "port")), PORT);
	assert_string_equal(json_string_value(json_object_get(o, "verdict")), "allow");
	json_decref(log);
}

/* What node-api closes altogether was cut on its side: no end for the guest, as one in order is. */
static void test_cut(void **state)
{
	struct capability c;
	struct gtw_preamble p;
	int a, b;

	rig_capability(&rig, PORT, ID_PROTOCOL_TCP, &c, &p);
	a = rig_port_open(&rig, &c, &rig.signer, &p);
	assert_int_equal(rig_verdict(a), GTW_OK);
	b = rig_accept(server);
	swap(a, b);
	close(a);
	assert_true(rig_was_reset(b));
	close(b);
}

static void test_v6(void **state)
{
	int listener = rig_listen(&rig, RIG_GUEST, GTW_GUEST_V6, 8081), a, b;
	unsigned verdict;

	a = rig_port(&rig, 8081, &verdict);
	assert_int_equal(verdict, GTW_OK);
	b = rig_accept(listener);
	swap(a, b);
	close(a);
	close(b);
	close(listener);
}

static void test_closed(void **state)
{
	unsigned verdict;
	int a = rig_port(&rig, 8082, &verdict);

	assert_int_equal(verdict, GTW_PORT_CLOSED);
	assert_true(rig_ended(a));
	close(a);
}

/* The agent's door leads to the guest's loopback; its word is what counts. */
static void test_door(void **state)
{
	int door = rig_listen(&rig, RIG_GUEST, GTW_GUEST_V4, GTW_DOOR_PORT), a, b;
	struct capability c;
	struct gtw_preamble p;
	char line[16] = "";

	for (char answer = 0; answer < 2; answer++) {
		rig_capability(&rig, 8083, ID_PROTOCOL_HTTP, &c, &p);
		a = rig_port_open(&rig, &c, &rig.signer, &p);
		b = rig_accept(door);
		assert_int_equal(rig_recv(b, line, 10), 10);
		assert_string_equal(line, "port 8083\n");
		rig_send(b, &answer, 1);
		assert_int_equal(rig_verdict(a), answer ? GTW_PORT_CLOSED : GTW_OK);
		if (!answer)
			swap(a, b);
		close(a);
		close(b);
	}
	close(door);
}

static void test_timeout(void **state)
{
	unsigned verdict;
	int a;

	rig_sh(&rig, RIG_GUEST, "/usr/sbin/ip", "-batch", "link set eth0 down\n");
	a = rig_port(&rig, PORT, &verdict);
	assert_int_equal(verdict, GTW_TIMEOUT);
	close(a);
	rig_sh(&rig, RIG_GUEST, "/usr/sbin/ip", "-batch",
	       "link set eth0 up\naddr replace fd53:5041:4345::15/64 dev eth0 nodad\n"
	       "route replace default via 10.0.2.2\n");
}

/* ---- What does not fit ---- */

static void wrong_port(struct capability *c, struct gtw_preamble *p) { p->port++; }
static void wrong_port_cap(struct capability *c, struct gtw_preamble *p) { c->port++; }
static void wrong_protocol(struct capability *c, struct gtw_preamble *p)
{
	p->protocol = ID_PROTOCOL_H2;
}
static void no_protocol(struct capability *c, struct gtw_preamble *p) { p->protocol = 0; }
static void protocol_of_none(struct capability *c, struct gtw_preamble *p) { p->protocol = 99; }
static void other_sandbox(struct capability *c, struct gtw_preamble *p) { c->id.sandbox[5] ^= 1; }
static void other_tenant(struct capability *c, struct gtw_preamble *p) { c->id.tenant[0] = 'b'; }
static void other_generation(struct capability *c, struct gtw_preamble *p) { c->id.generation--; }
static void next_generation(struct capability *c, struct gtw_preamble *p)
{
	c->id.generation++;
	p->generation++;
}
static void other_activation(struct capability *c, struct gtw_preamble *p)
{
	c->id.activation[3] ^= 1;
}
static void other_attempt(struct capability *c, struct gtw_preamble *p) { c->id.attempt--; }
static void other_worker(struct capability *c, struct gtw_preamble *p) { c->id.worker[35] = '9'; }
static void preamble_generation(struct capability *c, struct gtw_preamble *p) { p->generation--; }
static void preamble_activation(struct capability *c, struct gtw_preamble *p)
{
	p->activation[0] ^= 1;
}
static void the_door(struct capability *c, struct gtw_preamble *p)
{
	c->port = p->port = GTW_DOOR_PORT;
}
static void magic(struct capability *c, struct gtw_preamble *p) { p->magic++; }
static void no_lease(struct capability *c, struct gtw_preamble *p) { p->lease = 0; }
static void not_zero(struct capability *c, struct gtw_preamble *p) { p->zero[4] = 1; }
static void cut_token(struct capability *c, struct gtw_preamble *p) { p->token_len = 100; }
static void control(struct capability *c, struct gtw_preamble *p)
{
	c->purpose = ID_PURPOSE_CONTROL;
	c->port = 0;
	c->protocol = ID_PROTOCOL_NONE;
}

static void test_wrong(void **state)
{
	static const struct {
		void (*fn)(struct capability *, struct gtw_preamble *);
		unsigned verdict;
	} cases[] = {
		{ wrong_port, GTW_DENY },
		{ wrong_port_cap, GTW_DENY },
		{ wrong_protocol, GTW_DENY },
		{ no_protocol, GTW_DENY },
		{ protocol_of_none, GTW_DENY },
		{ other_sandbox, GTW_DENY },
		{ other_tenant, GTW_DENY },
		{ other_generation, GTW_REFRESH },
		{ next_generation, GTW_REFRESH },
		{ other_activation, GTW_REFRESH },
		{ other_attempt, GTW_REFRESH },
		{ other_worker, GTW_REFRESH },
		{ preamble_generation, GTW_DENY },
		{ preamble_activation, GTW_DENY },
		{ the_door, GTW_DENY },
		{ magic, GTW_DENY },
		{ no_lease, GTW_DENY },
		{ not_zero, GTW_DENY },
		{ cut_token, GTW_DENY },
		{ control, GTW_DENY },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct capability c;
		struct gtw_preamble p;
		unsigned verdict;
		int a;

		rig_capability(&rig, PORT, ID_PROTOCOL_TCP, &c, &p);
		cases[i].fn(&c, &p);
		a = rig_port_open(&rig, &c, &rig.signer, &p);
		verdict = rig_verdict(a);
		if (verdict != cases[i].verdict)
			fail_msg("case %zu: %s", i,
				 gtw_code_names[verdict < GTW_CODE_END ? verdict : 0]);
		assert_true(rig_ended(a) || errno == ECONNRESET);
		close(a);
	}
	assert_false(rig_wait(server, POLLIN, 0));
}

static void test_signature(void **state)
{
	struct key_signer stranger;
	uint8_t public[KEY_PUBLIC_BYTES];
	struct capability c;
	struct gtw_preamble p;
	char token[CAP_TEXT_MAX];
	int a;

	assert_int_equal(key_generate("api-1", &stranger, public), 0);
	rig_capability(&rig, PORT, ID_PROTOCOL_TCP, &c, &p);
	a = rig_port_open(&rig, &c, &stranger, &p);
	assert_int_equal(rig_verdict(a), GTW_DENY);
	close(a);
	/* Signed 136 seconds ago, so it is over by more than the skew. */
	rig_capability(&rig, PORT, ID_PROTOCOL_TCP, &c, &p);
	assert_int_equal(cap_sign(&c, &rig.signer,
				  clock_wall_ms() / 1000 - CAP_LIFETIME_S - CAP_SKEW_S - 1, token,
				  NULL),
			 0);
	p.token_len = (uint32_t)strlen(token);
	a = fd_unix_connect(rig.stream, SOCK_STREAM, RIG_WAIT_MS);
	rig_send(a, &p, sizeof(p));
	rig_send(a, token, strlen(token));
	assert_int_equal(rig_verdict(a), GTW_DENY);
	close(a);
	assert_false(rig_wait(server, POLLIN, 0));
}

static void test_same_lease(void **state)
{
	struct capability c;
	struct gtw_preamble p;
	int a, b, again;

	rig_capability(&rig, PORT, ID_PROTOCOL_TCP, &c, &p);
	a = rig_port_open(&rig, &c, &rig.signer, &p);
	assert_int_equal(rig_verdict(a), GTW_OK);
	b = rig_accept(server);
	again = rig_port_open(&rig, &c, &rig.signer, &p);
	assert_int_equal(rig_verdict(again), GTW_DENY);
	close(again);
	swap(a, b);
	close(a);
	close(b);
}

/* Nobody but sbx-manager is served. */
static void test_stranger(void **state)
{
	int status;
	pid_t pid;

	chmod(rig.dir, 0755);
	chmod(rig.stream, 0666);
	pid = fork();
	if (pid == 0) {
		char c;
		int fd;

		if (setresuid(60001, 60001, 60001) < 0)
			_exit(2);
		fd = fd_unix_connect(rig.stream, SOCK_STREAM, RIG_WAIT_MS);
		_exit(fd >= 0 && rig_wait(fd, POLLIN, RIG_WAIT_MS) && recv(fd, &c, 1, 0) <= 0 ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* ---- Revocation ---- */

static void test_revoke(void **state)
{
	static char block[1 << 20];
	struct capability c;
	struct gtw_preamble p;
	size_t n = 0, sent = 0;
	int a, b;

	rig_capability(&rig, PORT, ID_PROTOCOL_TCP, &c, &p);
	a = rig_port_open(&rig, &c, &rig.signer, &p);
	assert_int_equal(rig_verdict(a), GTW_OK);
	b = rig_accept(server);
	/* Full queues both ways. */
	do {
		sent += fill_socket(a, rig.pid[0]);
		fill_socket(b, rig.pid[0]);
	} while (rig_wait(a, POLLOUT, 0));
	assert_int_equal(rig_revoke(&rig, p.lease), 1);
	assert_int_equal(rig_revoke(&rig, p.lease), 0);
	/* What reached the guest's kernel before may be read there, no more; then the reset. */
	while (rig_wait(b, POLLIN, RIG_WAIT_MS)) {
		ssize_t got = recv(b, block, sizeof(block), 0);

		if (got <= 0)
			break;
		n += (size_t)got;
	}
	assert_int_equal(errno, ECONNRESET);
	assert_true(n < sent);
	close(a);
	close(b);
}

static void test_revoke_dialling(void **state)
{
	struct capability c;
	struct gtw_preamble p;
	struct gtw_leases q = { 0 };
	struct gtw_leases_rep rep = { 0 };
	bool listed = false;
	int door = rig_listen(&rig, RIG_GUEST, GTW_GUEST_V4, GTW_DOOR_PORT), a, b;

	rig_capability(&rig, 8084, ID_PROTOCOL_TCP, &c, &p);
	a = rig_port_open(&rig, &c, &rig.signer, &p);
	b = rig_accept(door);
	/* Who was started again and asks must hear of it, or nobody would ever end it. */
	assert_int_equal(ipc_sync_call(rig.ctl, &gtw_ops[GTW_LEASES], "r", &q, NULL, 0, &rep, NULL,
				       NULL, RIG_WAIT_MS, NULL),
			 0);
	for (size_t i = 0; i < json_array_size(rep.leases); i++)
		listed |= (uint64_t)json_integer_value(json_object_get(
				  json_array_get(rep.leases, i), "lease")) == p.lease;
	ipc_done(gtw_ops[GTW_LEASES].rep, &rep);
	assert_true(listed);
	assert_int_equal(rig_revoke(&rig, p.lease), 1);
	rig_send(b, "\0", 1);
	assert_int_equal(rig_verdict(a), 0);
	/* The door says yes too late: what comes of it is reset. */
	while (rig_wait(b, POLLIN, RIG_WAIT_MS) && recv(b, (char[16]){ 0 }, 16, 0) > 0)
		;
	close(a);
	close(b);
	close(door);
}

static void test_leases(void **state)
{
	struct gtw_leases q = { 0 };
	struct gtw_leases_rep rep = { 0 };
	unsigned verdict;
	int a, b;

	rig_fresh(&rig, &(struct rig_conf){ .program = netgtw_path });
	a = rig_port(&rig, PORT, &verdict);
	b = rig_accept(server);
	swap(a, b);
	assert_int_equal(ipc_sync_call(rig.ctl, &gtw_ops[GTW_LEASES], "r", &q, NULL, 0, &rep, NULL,
				       NULL, RIG_WAIT_MS, NULL),
			 0);
	assert_int_equal(json_array_size(rep.leases), 1);
	assert_int_equal(json_integer_value(json_object_get(json_array_get(rep.leases, 0), "in")),
			 5);
	assert_true(rep.installed && rep.open && !rep.closed && rep.generation == RIG_GENERATION);
	ipc_done(gtw_ops[GTW_LEASES].rep, &rep);
	/* All and for good: the stream, the way in, the way out. */
	assert_int_equal(rig_revoke(&rig, 0), 1);
	assert_true(rig_was_reset(b));
	close(a);
	close(b);
	a = rig_port(&rig, PORT, &verdict);
	assert_int_equal(verdict, GTW_DENY);
	close(a);
	a = rig_connect(&rig, RIG_GUEST, "9.9.10.2", 80);
	assert_true(a == -ECONNRESET || (a >= 0 && rig_was_reset(a)));
	fd_close(a);
	assert_int_equal(ipc_sync_call(rig.ctl, &gtw_ops[GTW_OPEN], "r", NULL, NULL, 0, NULL, NULL,
				       NULL, RIG_WAIT_MS, NULL),
			 -EACCES);
}

static void test_limit(void **state)
{
	static const char *const args[] = { "--limit", "leases=2", NULL };
	int a[3], b[2];
	unsigned verdict;

	rig_fresh(&rig, &(struct rig_conf){ .program = netgtw_path, .main_args = args });
	for (int i = 0; i < 2; i++) {
		a[i] = rig_port(&rig, PORT, &verdict);
		assert_int_equal(verdict, GTW_OK);
		b[i] = rig_accept(server);
	}
	a[2] = rig_port(&rig, PORT, &verdict);
	assert_int_equal(verdict, GTW_LIMIT);
	for (int i = 0; i < 2; i++) {
		close(a[i]);
		close(b[i]);
	}
	close(a[2]);
}

/* Descriptors of inside that are used up say nothing about the guest's port. */
static void test_no_room_to_dial(void **state)
{
	struct rig_conf conf = { .program = netgtw_path, .part_files = 112 };
	int door = rig_listen(&rig, RIG_GUEST, GTW_GUEST_V4, GTW_DOOR_PORT), a[128];
	struct capability c;
	struct gtw_preamble p;

	rig_stop_processes(&rig);
	rig_start(&rig, &conf);
	rig_install(&rig);
	for (size_t i = 0; i < ARRAY_LEN(a); i++) {
		rig_capability(&rig, 8084, ID_PROTOCOL_TCP, &c, &p);
		a[i] = rig_port_open(&rig, &c, &rig.signer, &p);
	}
	/* The door takes them all and says nothing, until there is no descriptor for another. */
	assert_int_equal(rig_verdict(a[ARRAY_LEN(a) - 1]), GTW_LIMIT);
	for (size_t i = 0; i < ARRAY_LEN(a); i++)
		close(a[i]);
	close(door);
}

/* ---- Identity and key bundles ---- */

static int install(const struct identity *id, uint64_t number, const struct key_signer *root,
		   struct err *e)
{
	struct gtw_install i = { .generation = id->generation,
				 .attempt = id->attempt,
				 .substrate = "microvm" };
	struct key_bundle b = rig.bundle;
	struct gtw_bundle_rep rep;
	autofree char *text = NULL;

	b.number = number;
	str_copy(i.tenant, sizeof(i.tenant), id->tenant);
	str_copy(i.sandbox, sizeof(i.sandbox), id->sandbox);
	str_copy(i.worker, sizeof(i.worker), id->worker);
	str_hex(i.activation, id->activation, sizeof(id->activation));
	assert_int_equal(bundle_sign(&b, root, &text, NULL), 0);
	str_copy(i.bundle, sizeof(i.bundle), text);
	memset(e, 0, sizeof(*e));
	return ipc_sync_call(rig.ctl, &gtw_ops[GTW_INSTALL], "r", &i, NULL, 0, &rep, NULL, NULL,
			     RIG_WAIT_MS, e);
}

static void test_install(void **state)
{
	struct identity id;
	struct key_signer other;
	uint8_t public[KEY_PUBLIC_BYTES];
	struct err e;

	rig_fresh(&rig, &(struct rig_conf){ .program = netgtw_path });
	id = rig.id;
	assert_int_equal(key_generate("root", &other, public), 0);
	assert_int_equal(install(&id, 3, &rig.root, &e), 0);
	assert_int_equal(install(&id, 4, &rig.root, &e), 0);
	assert_int_equal(install(&id, 3, &rig.root, &e), -ESTALE);
	assert_string_equal(err_code(&e), "stale-bundle");
	assert_true(install(&id, 5, &other, &e) < 0);
	id.attempt++;
	assert_int_equal(install(&id, 4, &rig.root, &e), 0);
	id.attempt--;
	assert_int_equal(install(&id, 4, &rig.root, &e), -ESTALE);
	assert_string_equal(err_code(&e), "stale-attempt");
	id = rig.id;
	id.attempt += 2;
	id.tenant[0] = 'x';
	assert_int_equal(install(&id, 4, &rig.root, &e), -EACCES);
	assert_string_equal(err_code(&e), "wrong-identity");
	id = rig.id;
	id.generation++;
	assert_int_equal(install(&id, 4, &rig.root, &e), -EACCES);
	id = rig.id;
	id.activation[0]++;
	assert_int_equal(install(&id, 4, &rig.root, &e), -EACCES);
}

/* A new attempt of the same execution cuts nothing; what opens from then on names it (T-2, T-3). */
static void test_next_attempt(void **state)
{
	struct capability c;
	struct gtw_preamble p;
	struct err e;
	int a, b, late, listener;

	rig_fresh(&rig, &(struct rig_conf){ .program = netgtw_path });
	listener = rig_listen(&rig, RIG_GUEST, GTW_GUEST_V4, 8085);
	rig_capability(&rig, 8085, ID_PROTOCOL_TCP, &c, &p);
	a = rig_port_open(&rig, &c, &rig.signer, &p);
	assert_int_equal(rig_verdict(a), GTW_OK);
	b = rig_accept(listener);
	swap(a, b);
	rig.id.attempt++;
	assert_int_equal(install(&rig.id, 3, &rig.root, &e), 0);
	swap(a, b);
	p.lease += 1000;
	late = rig_port_open(&rig, &c, &rig.signer, &p);
	assert_int_equal(rig_verdict(late), GTW_REFRESH);
	close(late);
	rig_capability(&rig, 8085, ID_PROTOCOL_TCP, &c, &p);
	late = rig_port_open(&rig, &c, &rig.signer, &p);
	assert_int_equal(rig_verdict(late), GTW_OK);
	close(late);
	swap(a, b);
	close(a);
	close(b);
	close(listener);
}

/* Nothing is served before it knows what it is. */
static void test_before_install(void **state)
{
	struct rig_conf c = { .program = netgtw_path };
	unsigned verdict;
	int a;

	rig_stop_processes(&rig);
	rig_start(&rig, &c);
	a = rig_port(&rig, PORT, &verdict);
	assert_int_equal(verdict, GTW_DENY);
	close(a);
	assert_false(rig_wait(server, POLLIN, 0));
}

static int start(void **state)
{
	rig_net(&rig);
	server = rig_listen(&rig, RIG_GUEST, "0.0.0.0", PORT);
	rig_fresh(&rig, &(struct rig_conf){ .program = netgtw_path });
	return 0;
}

static int stop(void **state)
{
	close(server);
	rig_stop(&rig);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ok),		cmocka_unit_test(test_cut),	  cmocka_unit_test(test_v6),
		cmocka_unit_test(test_closed),	  cmocka_unit_test(test_door),
		cmocka_unit_test(test_timeout),	  cmocka_unit_test(test_wrong),
		cmocka_unit_test(test_signature), cmocka_unit_test(test_same_lease),
		cmocka_unit_test(test_stranger),  cmocka_unit_test(test_revoke),
		cmocka_unit_test(test_revoke_dialling), cmocka_unit_test(test_leases),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_no_room_to_dial),	  cmocka_unit_test(test_install),
		cmocka_unit_test(test_next_attempt),
		cmocka_unit_test(test_before_install),
	};

	if (argc != 2)
		return 2;
	netgtw_path = argv[1];
	return cmocka_run_group_tests_name("port", tests, start, stop);
}
