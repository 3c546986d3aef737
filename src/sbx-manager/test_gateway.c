/*
 * The life of a gateway as this program keeps it: started, told who it is, opened; checked when its
 * end was reported, started again when that is true, with pauses that grow; a new bundle reaches it
 * before it is acknowledged. This process is the gateway's control socket.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "sbx-manager/test_rig.h"

#define GATEWAY_TRIES_SEEN 7
#define EVENT_STARTED "the network gateway was started"
#define EVENT_AGAIN "the network gateway was started again; its connections have ended"

/* What the gateway in our hands was told. */
static struct gateway_place {
	struct ipc_server *server;
	unsigned starts, installs, opens, bundles, revokes, kills;
	unsigned fail_starts;                /* so many to come */
	struct gtw_install who;
	bool internet, closed, deaf, endless, refuse_bundle, deep;
	struct ipc_call *unanswered;
	uint64_t bundle, revoked[8];
	char order[64];                      /* of what came: I, O, B, R */
} gw;

static void note(char c)
{
	size_t n = strlen(gw.order);

	if (n + 1 < sizeof(gw.order))
		gw.order[n] = c;
}

static void do_install(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	struct gtw_bundle_rep rep = { 0 };
	struct key_bundle b;

	gw.who = *(const struct gtw_install *)req;
	gw.installs++;
	note('I');
	assert_int_equal(bundle_open(gw.who.bundle, strlen(gw.who.bundle), fx->s.root_public, &b,
				     NULL),
			 0);
	rep.number = gw.bundle = b.number;
	ipc_answer(call, &rep, NULL, 0);
}

/* Not acknowledged before all have it, and no report says so either: signers go by it. */
static void on_report(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	const struct sbx_report_rep *r = rep;
	struct gtw_bundle_rep taken = { .number = gw.bundle };

	assert_null(e);
	assert_int_equal(json_integer_value(json_object_get(r->node, "bundle")), gw.bundle - 1);
	assert_false(fx->answered);
	ipc_answer(arg, &taken, NULL, 0);
}

static void do_bundle(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	const struct gtw_bundle *q = req;
	const struct sbx_report report = { 0 };
	struct err e = { 0 };
	struct key_bundle b;

	note('B');
	assert_false(fx->answered);
	if (gw.refuse_bundle) {
		err_set(&e, -EIO, "no");
		ipc_fail(call, &e);
		return;
	}
	gw.bundles++;
	assert_int_equal(bundle_open(q->text, strlen(q->text), fx->s.root_public, &b, NULL), 0);
	gw.bundle = b.number;
	ipc_client_call(fx->client, &sbx_ops[SBX_REPORT], "test", &report, NULL, 0, WAIT_MS,
			on_report, call);
}

static void do_open(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	gw.opens++;
	note('O');
	ipc_answer(call, NULL, NULL, 0);
}

static void do_revoke(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	struct ipc_revoke_rep rep = { .ended = 1 };

	if (gw.revokes < ARRAY_LEN(gw.revoked))
		gw.revoked[gw.revokes] = ((const struct ipc_revoke *)req)->lease;
	gw.revokes++;
	note('R');
	if (gw.deaf)
		gw.unanswered = call;
	else
		ipc_answer(call, &rep, NULL, 0);
}

static void do_leases(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	const struct gtw_leases *q = req;
	struct gtw_leases_rep rep = { .generation = 7, .installed = true, .closed = gw.closed };

	rep.leases = q->after ? json_pack("[{s:i}]", "lease", 9)
			      : json_pack("[{s:i}, {s:i}]", "lease", 4, "lease", 5);
	rep.next = gw.endless ? q->after + 1 : q->after ? 0 : 5;
	ipc_answer(call, &rep, NULL, 0);
	json_decref(rep.leases);
}

static void do_log(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	struct gtw_log_rep rep = { .next = ((const struct gtw_log *)req)->after + 1,
				   .lost = 2,
				   .records = json_pack("[{s:i}]", "n", 1) };

	ipc_answer(call, &rep, NULL, 0);
	json_decref(rep.records);
}

static void do_stats(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	struct gtw_stats_rep rep = { .counters = gw.deep ? json_pack("{s:[[[[[]]]]]}", "flows")
							  : json_pack("{s:i}", "flows", 3) };

	ipc_answer(call, &rep, NULL, 0);
	json_decref(rep.counters);
}

static const struct ipc_handler gw_handlers[] = {
	{ &gtw_ops[GTW_INSTALL], do_install }, { &gtw_ops[GTW_BUNDLE], do_bundle },
	{ &gtw_ops[GTW_OPEN], do_open },       { &gtw_ops[GTW_REVOKE], do_revoke },
	{ &gtw_ops[GTW_LEASES], do_leases },   { &gtw_ops[GTW_LOG], do_log },
	{ &gtw_ops[GTW_STATS], do_stats },     { NULL, NULL },
};

static void gw_path(char dst[PATH_MAX])
{
	rig_in_dir(dst, "run/sbx/" SANDBOX ".7/gtwctl.sock");
}

static void gw_dies(void)
{
	char path[PATH_MAX];

	gw_path(path);
	ipc_server_free(gw.server);
	gw.server = NULL;
	unlink(path);
	fx->verify_error = -ESRCH;
}

static void gw_lives(void)
{
	static uid_t me;
	char path[PATH_MAX];

	me = getuid();
	gw_path(path);
	gw.server = ipc_server_new(fx->s.loop, fd_unix_listen(path, SOCK_SEQPACKET, 0600, 8),
				   &(struct ipc_server_conf) { .handlers = gw_handlers,
							       .uids = &me,
							       .n_uids = 1,
							       .max_peers = 8 });
	assert_non_null(gw.server);
	fx->verify_error = 0;
}

static void nm_gateway(struct ipc_call *call, const struct nm_gateway *q)
{
	struct nm_gateway_rep rep = { .pid = (uint64_t)getpid(), .uid = getuid() };
	struct err e = { 0 };

	gw.starts++;
	rep.start = gw.starts;
	gw.internet = q->internet;
	assert_string_equal(q->sandbox, SANDBOX);
	assert_int_equal(q->generation, 7);
	if (gw.fail_starts > 0) {
		gw.fail_starts--;
		err_set(&e, -EIO, "it does not start");
		ipc_fail(call, &e);
		return;
	}
	if (gw.server)
		gw_dies();
	gw_lives();
	ipc_answer(call, &rep, NULL, 0);
}

static void nm_kill(struct ipc_call *call, const struct nm_kill *q)
{
	assert_string_equal(q->what, "gateway");
	gw.kills++;
}

static int setup(void **state)
{
	int r = rig_setup(state);

	gw = (struct gateway_place){ 0 };
	fx->on_gateway = nm_gateway;
	fx->on_kill = nm_kill;
	fx->rec.gateway = (struct nm_gateway_rep){ 0 };
	/* The bridge is not what is tested: nothing of it is recorded, so nothing is asked of it. */
	fx->rec.proc.bridge_pid = 0;
	return r;
}

static int teardown(void **state)
{
	ipc_server_free(gw.server);
	return rig_teardown(state);
}

/* ---- Helpers ---- */

static void put_record(void)
{
	assert_int_equal(record_put(fx->s.db, &fx->rec, NULL), 0);
	box_set(&fx->s, &fx->rec);
}

static bool idle(void)
{
	return rig_box()->jobs == 0;
}

static bool up(void)
{
	return idle() && rig_box()->gateway.pid == (uint64_t)getpid() && !rig_box()->gateway_doubt;
}

static void start(void)
{
	put_record();
	gateway_look(rig_box());
	TURN_UNTIL(up());
	fx->rec = rig_box()->rec;
}

static unsigned events(const char *text)
{
	json_t *a = NULL, *item;
	unsigned n = 0;
	size_t i;

	assert_int_equal(record_events(fx->s.db, SANDBOX, &a, NULL), 0);
	json_array_foreach(a, i, item)
		n += strstr(json_string_value(json_object_get(item, "text")), text) != NULL;
	json_decref(a);
	return n;
}

static void report_end(void)
{
	struct nm_exited x = { .generation = 7, .who = "gateway", .status = 9 };

	str_copy(x.sandbox, sizeof(x.sandbox), SANDBOX);
	ipc_server_event(fx->nm, "exited", nm_exited_fields, &x);
}

/* ---- Tests ---- */

static void test_start(void **state)
{
	struct record r;

	fx->rec.internet = false;
	start();
	assert_int_equal(gw.starts, 1);
	assert_false(gw.internet);
	assert_string_equal(gw.order, "IO");
	assert_string_equal(gw.who.tenant, "acme");
	assert_string_equal(gw.who.sandbox, SANDBOX);
	assert_string_equal(gw.who.worker, WORKER);
	assert_string_equal(gw.who.substrate, "microvm");
	assert_string_equal(gw.who.pod_uid, "");
	assert_string_equal(gw.who.activation, "07070707070707070707070707070707");
	assert_int_equal(gw.who.generation, 7);
	assert_int_equal(gw.who.attempt, 1);
	assert_int_equal(gw.bundle, 3);
	assert_true(rig_box()->gateway.open);
	/* It is recorded, so that another run of this program finds it. */
	assert_int_equal(record_get(fx->s.db, SANDBOX, &r, NULL), 0);
	assert_int_equal(r.gateway.pid, getpid());
	assert_int_equal(r.gateway.start, 1);
	assert_int_equal(r.state, LIFE_RUNNING);
	assert_int_equal(events(EVENT_STARTED), 1);
	assert_int_equal(events(EVENT_AGAIN), 0);
	/* Nothing is to be done now. */
	gateway_look(rig_box());
	gateway_look_all(&fx->s, false);
	assert_true(idle());
}

/* As an execution begins: it is asked for, then comes what else there is to do, then it is there. */
static int run_beside(struct job *j, struct err *e)
{
	struct nm_verify v = { .generation = 7, .gateway_pid = (uint64_t)getpid() };
	int r = record_get(j->s->db, SANDBOX, &j->rec, e);

	gateway_ask_for(j);
	str_copy(v.sandbox, sizeof(v.sandbox), SANDBOX);
	if (r == 0)
		r = job_nm(j, NM_VERIFY, &v, NULL, 0, NULL, NULL, NULL, SBX_NM_MS, e);
	gateway_begin(j);
	gateway_let_out(j);
	return r < 0 ? r : exec_announce(j, e);
}

static void test_beside_the_vmm(void **state)
{
	put_record();
	job_start(job_new(&fx->s, "beside", SANDBOX, "", run_beside));
	TURN_UNTIL(up());
	assert_int_equal(gw.starts, 1);
	assert_string_equal(gw.order, "IO");
	assert_true(rig_box()->gateway.open);
	/* One that did not come is asked for once more. */
	gateway_forget(rig_box());
	gw.fail_starts = 1;
	job_start(job_new(&fx->s, "beside", SANDBOX, "", run_beside));
	TURN_UNTIL(up());
	assert_int_equal(gw.starts, 3);
	assert_string_equal(gw.order, "IOIO");
}

/* It has ended: another one takes its place, and what went through it is cut. */
static void test_dies(void **state)
{
	struct err e = { 0 };
	int sv[2];
	char c;

	start();
	TURN_UNTIL(!list_empty(&fx->s.doors));
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
	assert_int_equal(lease_add(rig_box(),
				   CONTAINER_OF(fx->s.doors.next, struct door, node)->peer, 77,
				   true, sv[0], &e),
			 0);
	gw_dies();
	report_end();
	TURN_UNTIL(gw.starts == 2 && up());
	assert_string_equal(gw.order, "IOIO");
	assert_int_equal(rig_box()->n_leases, 0);
	assert_int_equal(recv(sv[1], &c, 1, 0), 0);
	TURN_UNTIL(fx->revoked == 1);
	assert_int_equal(events(EVENT_AGAIN), 1);
	assert_int_equal(rig_box()->rec.state, LIFE_RUNNING);
	assert_int_equal(rig_box()->rec.gateway.start, 2);
	close(sv[1]);
}

/* A report about the one before it: the one that is there was asked, and is kept. */
static void test_stale_report(void **state)
{
	start();
	report_end();
	TURN_UNTIL(gw.installs == 2 && up());
	assert_int_equal(gw.starts, 1);
	/* node-manager was away: the same. */
	gateway_look_all(&fx->s, true);
	TURN_UNTIL(gw.installs == 3 && up());
	assert_int_equal(gw.starts, 1);
	/* One that answers, and is not as recorded all the same, is of no use. */
	fx->verify_error = -EPERM;
	gateway_look_all(&fx->s, true);
	TURN_UNTIL(gw.starts == 2 && up());
	/* A report about another execution is about another one. */
	gateway_exited(&fx->s, SANDBOX, 6, "late");
	assert_false(rig_box()->gateway_doubt);
	/* Nor is one that was told to serve nothing any more. */
	gw.closed = true;
	gateway_look_all(&fx->s, true);
	TURN_UNTIL(gw.starts == 3);
	gw.closed = false;
	TURN_UNTIL(up());
}

/* It does not start: the sandbox lives on without, says so once, and the tries go on. */
static void test_does_not_start(void **state)
{
	gw.fail_starts = 5;
	put_record();
	gateway_look(rig_box());
	TURN_UNTIL(gw.starts == 5 && idle());
	assert_int_equal(rig_box()->gateway.pid, 0);
	assert_true(strstr(rig_box()->gateway_why, "it does not start") != NULL);
	assert_int_equal(rig_box()->rec.state, LIFE_RUNNING);
	assert_int_equal(events("does not start, the sandbox has no network"), 1);
	assert_true(rig_box()->gateway_timer.heap_pos > 0);
	TURN_UNTIL(up());
	assert_int_equal(gw.starts, 6);
	assert_int_equal(events("does not start, the sandbox has no network"), 1);
	assert_string_equal(rig_box()->gateway_why, "");
	/* The next time that it does not come back is said too, also when that is soon. */
	rig_box()->gateway_fails = GATEWAY_TRIES_SEEN;
	gw.fail_starts = 1000;
	gw_dies();
	gateway_look_all(&fx->s, true);
	TURN_UNTIL(events("does not start, the sandbox has no network") == 2 && idle());
}

/* One that ends again and again is started later each time, up to a limit. */
static void test_back_off(void **state)
{
	int64_t begin;

	start();
	begin = clock_mono_ms();
	for (unsigned i = 0; i < 3; i++) {
		gw_dies();
		report_end();
		TURN_UNTIL(gw.starts == i + 2 && up());
	}
	/* at once, 100 ms, 200 ms */
	assert_true(clock_mono_ms() - begin >= 300);
	rig_box()->gateway_fails = 60;
	gw_dies();
	report_end();
	TURN_UNTIL(rig_box()->gateway_timer.heap_pos > 0);
	for (unsigned i = 0; i < 5; i++)
		loop_turn(fx->s.loop, 10);
	assert_int_equal(gw.starts, 4);
	/* One that lived long had no failed start. */
	gateway_forget(rig_box());
	gw_lives();
	gateway_look(rig_box());
	TURN_UNTIL(up());
	rig_box()->gateway_fails = 60;
	rig_box()->gateway_since_ms -= 3600 * 1000;
	gw_dies();
	report_end();
	TURN_UNTIL(gw.starts == 5 && up());
}

/* Paused: it is kept, but not opened; that comes with the run. Stopped: there is none. */
static void test_states(void **state)
{
	fx->rec.state = LIFE_PAUSED;
	start();
	assert_string_equal(gw.order, "I");
	assert_false(rig_box()->gateway.open);
	fx->rec.state = LIFE_RUNNING;
	put_record();
	gateway_look(rig_box());
	TURN_UNTIL(gw.opens == 1 && up());
	assert_int_equal(gw.starts, 1);
	fx->rec.state = LIFE_STOPPED;
	put_record();
	assert_int_equal(rig_box()->gateway.pid, 0);
	gateway_look(rig_box());
	report_end();
	for (unsigned i = 0; i < 5; i++)
		loop_turn(fx->s.loop, 5);
	assert_true(idle());
	assert_int_equal(gw.starts, 1);
}

static void test_attempt(void **state)
{
	start();
	fx->rec.id.attempt = 2;
	put_record();
	gateway_look(rig_box());
	TURN_UNTIL(gw.who.attempt == 2 && up());
	assert_int_equal(gw.starts, 1);
}

static void put_next_bundle(uint64_t number)
{
	static struct key_bundle b;

	b = (struct key_bundle){ .number = number };
	rig_add_key(&b, "api-2", &fx->api, 1u << ID_PURPOSE_LIFECYCLE);
	assert_int_equal(rig_put_bundle(&b), 0);
}

static void test_bundle(void **state)
{
	start();
	put_next_bundle(4);
	assert_int_equal(gw.bundles, 1);
	assert_int_equal(gw.bundle, 4);
	assert_int_equal(rig_box()->gateway.bundle, 4);
	assert_true(idle());
	/* Who does not take it is looked at: it is installed anew. */
	gw.refuse_bundle = true;
	put_next_bundle(5);
	TURN_UNTIL(gw.bundle == 5 && up());
	assert_int_equal(gw.bundles, 1);
	assert_int_equal(gw.starts, 1);
	assert_int_equal(rig_box()->gateway.bundle, 5);
}

static int run_adopt(struct job *j, struct err *e)
{
	j->rec = fx->rec;
	gateway_adopt(j);
	return exec_announce(j, e);
}

/* After a restart of this program: nobody holds its streams any more. */
static void test_adopt(void **state)
{
	start();
	gateway_forget(rig_box());
	job_start(job_new(&fx->s, "adopt", SANDBOX, "", run_adopt));
	TURN_UNTIL(up());
	assert_int_equal(gw.starts, 1);
	assert_int_equal(gw.revokes, 3);
	assert_int_equal(gw.revoked[0], 4);
	assert_int_equal(gw.revoked[1], 5);
	assert_int_equal(gw.revoked[2], 9);
	/* One that has gone meanwhile. */
	gateway_forget(rig_box());
	gw_dies();
	job_start(job_new(&fx->s, "adopt", SANDBOX, "", run_adopt));
	TURN_UNTIL(gw.starts == 2 && up());
	/* One that is in a guest's hands, and always has another page. */
	gateway_forget(rig_box());
	gw.endless = true;
	job_start(job_new(&fx->s, "adopt", SANDBOX, "", run_adopt));
	TURN_UNTIL(up());
}

static int run_revoke(struct job *j, struct err *e)
{
	j->rec = fx->rec;
	return revoke_execution(j, e);
}

/* What came of a revocation: 1 = the gateway was killed. */
static unsigned revoke_once(void)
{
	unsigned asked = gw.revokes, killed = gw.kills;

	rig_box()->ending = false;
	job_start(job_new(&fx->s, "revoke", SANDBOX, "", run_revoke));
	TURN_UNTIL(gw.revokes == asked + 1 && idle());
	return gw.kills - killed;
}

static void test_revoke(void **state)
{
	unsigned late = 0;

	start();
	/* In time, unless this process stood still for just that long. */
	while (revoke_once() > 0 && late++ < 20)
		;
	assert_in_range(late, 0, 20);
	assert_int_equal(gw.revoked[0], 0);
	/* It does not confirm: node-manager ends it. */
	gw.deaf = true;
	assert_int_equal(revoke_once(), 1);
	assert_true(rig_box()->ending);
	ipc_answer(gw.unanswered, &(struct ipc_revoke_rep){ 0 }, NULL, 0);     /* to nobody */
	/* What ends is not started again. */
	report_end();
	for (unsigned i = 0; i < 5; i++)
		loop_turn(fx->s.loop, 5);
	assert_int_equal(gw.starts, 1);
}

static const char *text_of(const char *name)
{
	const char *s = json_string_value(json_object_get(fx->result, name));

	return s ? s : "";
}

static void test_log_and_stats(void **state)
{
	char epoch[64];

	start();
	rig_lifecycle("netlog", json_pack("{s:i}", "after", 41));
	assert_int_equal(fx->e.num, 0);
	assert_int_equal(json_integer_value(json_object_get(fx->result, "next")), 42);
	assert_int_equal(json_integer_value(json_object_get(fx->result, "lost")), 2);
	assert_int_equal(json_array_size(json_object_get(fx->result, "records")), 1);
	str_copy(epoch, sizeof(epoch), text_of("epoch"));
	rig_lifecycle("netstats", json_object());
	assert_string_equal(text_of("gateway"), "up");
	assert_string_equal(text_of("epoch"), epoch);
	assert_true(json_is_true(json_object_get(fx->result, "internet")));
	assert_int_equal(json_integer_value(json_object_get(
				 json_object_get(fx->result, "counters"), "flows")),
			 3);
	/* One in a guest's hands says as much as a message holds: node-api's streams are not lost by it. */
	gw.deep = true;
	rig_lifecycle("netstats", json_object());
	assert_int_equal(fx->e.num, -EMSGSIZE);
	gw.deep = false;
	rig_lifecycle("netstats", json_object());
	assert_int_equal(fx->e.num, 0);
	/* Without a gateway the log waits, the counters say why. */
	gw.fail_starts = 1000;
	gw_dies();
	report_end();
	TURN_UNTIL(gw.starts >= 3 && idle());
	rig_lifecycle("netlog", json_object());
	assert_string_equal(fx->e.code, "gateway-away");
	rig_lifecycle("netstats", json_object());
	assert_int_equal(fx->e.num, 0);
	assert_string_equal(text_of("gateway"), "away");
	assert_true(strstr(text_of("reason"), "it does not start") != NULL);
	/* A new one counts anew, and says that. */
	gw.fail_starts = 0;
	TURN_UNTIL(up());
	rig_lifecycle("netlog", json_object());
	assert_int_equal(fx->e.num, 0);
	assert_string_not_equal(text_of("epoch"), epoch);
	fx->rec.state = LIFE_STOPPED;
	put_record();
	rig_lifecycle("netlog", json_object());
	assert_string_equal(fx->e.code, "not-running");
	/* A capability for one of them is none for the other. */
	fx->rec.id.tenant[0] = 'z';
	rig_lifecycle("netstats", json_object());
	assert_string_equal(fx->e.code, "refusal-deny");
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_start),	 T(test_dies),	  T(test_stale_report), T(test_does_not_start),
		T(test_back_off), T(test_states), T(test_attempt),	T(test_bundle),
		T(test_adopt),	 T(test_revoke),  T(test_log_and_stats), T(test_beside_the_vmm),
	};

	log_open("test", "test");
	log_set_level(getenv("SPACE_TEST_LOG") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
