/*
 * What a life-cycle request may do: whom its capability names against what is installed, what a
 * state allows, and how what was broken off comes to its end. And what is said of it all: an end
 * that was begun, a bridge that misbehaves, the report.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
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

#define DENY "refusal-deny"
#define REFRESH "refusal-refresh-route"

/* No process of it is recorded, so nobody is asked when it ends. */
static void put(enum life_state st, uint64_t generation)
{
	fx->rec = rig_running();
	fx->rec.proc = (struct nm_spawn_rep){ 0 };
	fx->rec.gateway = (struct nm_gateway_rep){ 0 };
	fx->rec.state = st;
	fx->rec.id.generation = generation;
	fx->rec.id.attempt = 2;
	assert_int_equal(record_put(fx->s.db, &fx->rec, NULL), 0);
	box_set(&fx->s, &fx->rec);
	/* As if one was at it: nothing begins by itself. */
	rig_box()->jobs = 1;
}

static struct record stored(void)
{
	struct record r = { 0 };

	assert_int_equal(record_get(fx->s.db, SANDBOX, &r, NULL), 0);
	return r;
}

/* ---- Whom the capability names ---- */

static void change_none(struct capability *c) { }
static void change_tenant(struct capability *c) { c->id.tenant[0] = 'z'; }
static void change_worker(struct capability *c) { c->id.worker[0] = '2'; }
static void change_substrate(struct capability *c)
{
	c->id.substrate = ID_SUBSTRATE_K8S;
	str_copy(c->id.pod_uid, sizeof(c->id.pod_uid), WORKER);
}
static void change_older(struct capability *c) { c->id.generation--; }
static void change_newer(struct capability *c) { c->id.generation++; }
static void change_activation(struct capability *c) { c->id.activation[3] ^= 1; }
static void change_attempt(struct capability *c) { c->id.attempt--; }
static void change_sandbox(struct capability *c)
{
	str_copy(c->id.sandbox, sizeof(c->id.sandbox), OTHER_SANDBOX);
}
static void change_purpose(struct capability *c)
{
	c->purpose = ID_PURPOSE_CONTROL;
	c->access = ID_ACCESS_WRITE;
}
static void change_kind(struct capability *c) { c->access = ID_ACCESS_CREATE; }

static const struct {
	const char *name;
	void (*change)(struct capability *c);
	int64_t age_s;
	const char *code;
} refusals[] = {
	{ "another tenant", change_tenant, 0, DENY },
	{ "another worker", change_worker, 0, REFRESH },
	{ "another substrate", change_substrate, 0, REFRESH },
	{ "another sandbox", change_sandbox, 0, "sandbox-not-found" },
	{ "an older generation", change_older, 0, "stale-generation" },
	{ "another activation", change_activation, 0, "stale-generation" },
	{ "an older attempt", change_attempt, 0, "stale-generation" },
	{ "another purpose", change_purpose, 0, DENY },
	{ "another operation", change_kind, 0, DENY },
	{ "expired", change_none, CAP_LIFETIME_S + CAP_SKEW_S + 1, DENY },
	/* A minute more: one second may pass before it is looked at. */
	{ "from the future", change_none, -CAP_SKEW_S - 60, DENY },
};

static void refused(const char *kind, const char *name, void (*change)(struct capability *c),
		    int64_t age_s, const char *code)
{
	struct capability c = { .id = fx->rec.id, .purpose = ID_PURPOSE_LIFECYCLE };
	struct record before = stored(), after;

	assert_int_equal(id_access_of(kind, &c.access), 0);
	change(&c);
	rig_lifecycle_as(&c, age_s, kind, json_object());
	if (!str_eq(fx->e.code, code))
		fail_msg("%s, %s: \"%s\" (%s), expected \"%s\"", kind, name, fx->e.code, fx->e.text,
			 code);
	after = stored();
	assert_memory_equal(&before, &after, sizeof(before));
	assert_int_equal(fx->destroyed, 0);
	assert_int_equal(fx->disks_deleted, 0);
}

static void test_selection(void **state)
{
	static const char *const kinds[] = { "start",  "stop",	  "pause",   "resume",
					     "console", "netlog", "netstats" };
	static const char *const exact[] = { "pause", "resume", "netlog", "netstats" };

	put(LIFE_RUNNING, 7);
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
		for (size_t i = 0; i < ARRAY_LEN(refusals); i++)
			refused(kinds[k], refusals[i].name, refusals[i].change, refusals[i].age_s,
				refusals[i].code);
	for (size_t i = 0; i < ARRAY_LEN(refusals); i++)
		if (refusals[i].change != change_sandbox)
			refused("delete", refusals[i].name, refusals[i].change, refusals[i].age_s,
				refusals[i].code);
	/*
	 * A newer generation is for those that begin or end something, and for the console, which is
	 * kept for the sandbox. The others look into an execution: it must be the named one (I-2).
	 */
	for (size_t k = 0; k < ARRAY_LEN(exact); k++)
		refused(exact[k], "a newer generation", change_newer, 0, "stale-generation");
	rig_lifecycle("console", json_object());
	assert_int_equal(fx->e.num, 0);
}

/* ---- States ---- */

/* Nothing revives a sandbox whose deletion has begun, not even under the same generation. */
static void test_deleting_is_final(void **state)
{
	static const struct { const char *kind, *code; } late[] = {
		{ "create", "sandbox-deleted" },   { "start", "sandbox-not-found" },
		{ "stop", "sandbox-not-found" },   { "pause", "sandbox-not-found" },
		{ "resume", "sandbox-not-found" }, { "console", "sandbox-not-found" },
	};
	static const enum life_state states[] = { LIFE_DELETING, LIFE_NONE };

	for (size_t s = 0; s < ARRAY_LEN(states); s++) {
		put(LIFE_DELETING, 7);
		fx->rec.state = states[s];
		fx->rec.installed_ms = 0;
		assert_int_equal(record_put(fx->s.db, &fx->rec, NULL), 0);
		box_set(&fx->s, &fx->rec);
		for (size_t i = 0; i < ARRAY_LEN(late); i++)
			refused(late[i].kind, life_state_names[states[s]], change_none, 0,
				late[i].code);
	}
	rig_lifecycle("delete", json_object());
	assert_int_equal(fx->e.num, 0);
	assert_int_equal(stored().state, LIFE_NONE);
}

/* The same request for the same execution: the same result, and nothing is done for it (L-3). */
static void test_again(void **state)
{
	static const struct { const char *kind; enum life_state st; } done[] = {
		{ "create", LIFE_RUNNING }, { "create", LIFE_STOPPED }, { "start", LIFE_RUNNING },
		{ "start", LIFE_STOPPED },  { "stop", LIFE_STOPPED },	{ "pause", LIFE_PAUSED },
		{ "resume", LIFE_RUNNING },
	};

	for (size_t i = 0; i < ARRAY_LEN(done); i++) {
		struct record before, after;

		put(done[i].st, 7);
		before = stored();
		rig_lifecycle(done[i].kind, json_object());
		assert_int_equal(fx->e.num, 0);
		assert_string_equal(json_string_value(json_object_get(fx->result, "state")),
				    life_state_names[done[i].st]);
		after = stored();
		assert_memory_equal(&before, &after, sizeof(before));
		assert_int_equal(fx->destroyed, 0);
	}
	/* An ID is made once. */
	refused("create", "the next generation", change_newer, 0, "sandbox-exists");
}

static bool job_ended;
static void on_done(struct job *j)
{
	job_ended = true;
	fx->e = j->e;
}

/* What was broken off, and nobody asks for any more, comes to its own end. */
static void test_finish(void **state)
{
	static const struct { enum life_state from, to; unsigned disks; } ends[] = {
		{ LIFE_STARTING, LIFE_STOPPED, 0 }, { LIFE_STOPPING, LIFE_STOPPED, 0 },
		{ LIFE_DELETING, LIFE_NONE, 1 },    { LIFE_CREATING, LIFE_NONE, 1 },
		{ LIFE_STOPPED, LIFE_STOPPED, 0 },
	};

	for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
		struct job *j = job_new(&fx->s, "finish", SANDBOX, "", lifecycle_finish);
		struct record r = { 0 };
		int got;

		record_drop(fx->s.db, SANDBOX, NULL);
		put(ends[i].from, 7);
		fx->disks_deleted = 0;
		j->done = on_done;
		job_ended = false;
		job_start(j);
		TURN_UNTIL(job_ended);
		assert_int_equal(fx->e.num, 0);
		got = record_get(fx->s.db, SANDBOX, &r, NULL);
		assert_int_equal(r.state, ends[i].to);
		assert_int_equal(fx->disks_deleted, ends[i].disks);
		/* Of a create nothing stays: the same request may come again. */
		assert_int_equal(got, ends[i].from == LIFE_CREATING ? -ENOENT : 0);
		assert_int_equal(rig_box() == NULL, ends[i].to == LIFE_NONE);
	}
}

/* There is no machine of it that could stand still, go on, or have a network. */
static void test_not_running(void **state)
{
	static const char *const kinds[] = { "pause", "resume", "netlog", "netstats" };

	put(LIFE_STOPPED, 7);
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		refused(kinds[i], "stopped", change_none, 0, "not-running");
}

/* ---- A sandbox whose jobs take their time ---- */

static int gate[2];
static unsigned n_answered, n_limited;

static int wait_at_gate(struct job *j, struct err *e)
{
	char c;

	return read(gate[0], &c, 1) == 1 ? 0 : err_set(e, -EIO, "no gate");
}

static void on_console(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	n_answered++;
	n_limited += e && str_eq(e->code, "limit");
}

/* So many requests wait for it and no more: the queue is that of all sandboxes. */
static void test_a_queue_is_not_one_sandboxs(void **state)
{
	struct capability c = { .purpose = ID_PURPOSE_LIFECYCLE, .access = ID_ACCESS_CONSOLE };
	static struct sbx_lifecycle q;

	put(LIFE_STOPPED, 7);
	rig_box()->jobs = 0;
	c.id = fx->rec.id;
	assert_int_equal(pipe(gate), 0);
	job_start(job_new(&fx->s, "gate", SANDBOX, "", wait_at_gate));
	q = (struct sbx_lifecycle){ .kind = "console" };
	assert_int_equal(cap_sign(&c, &fx->api, clock_wall_ms() / 1000, q.capability, NULL), 0);
	n_answered = n_limited = 0;
	for (unsigned i = 0; i < 3 * SBX_JOBS_PER_BOX_MAX; i++)
		ipc_client_call(fx->client, &sbx_ops[SBX_LIFECYCLE], "test", &q, NULL, 0, WAIT_MS,
				on_console, NULL);
	TURN_UNTIL(n_answered == 2 * SBX_JOBS_PER_BOX_MAX + 1);
	assert_int_equal(n_limited, n_answered);
	assert_int_equal(write(gate[1], "g", 1), 1);
	TURN_UNTIL(n_answered == 3 * SBX_JOBS_PER_BOX_MAX);
	assert_int_equal(n_limited, 2 * SBX_JOBS_PER_BOX_MAX + 1);
	rig_lifecycle("console", json_object());
	assert_int_equal(fx->e.num, 0);
	close(gate[0]);
	close(gate[1]);
}

/* ---- An end that was begun ---- */

static void admit(void)
{
	struct capability c = { .id = fx->rec.id,
				.purpose = ID_PURPOSE_CONTROL,
				.access = ID_ACCESS_WRITE };
	static struct sbx_admit q;

	q = (struct sbx_admit){ .purpose = "control", .access = "write" };
	assert_int_equal(cap_sign(&c, &fx->api, clock_wall_ms() / 1000, q.capability, NULL), 0);
	rig_admit(&q);
}

/*
 * A hand-over on an unchanged resident (T-2): who drives it now asks for what is done already, under
 * the next attempt. From then on that one is admitted, and who drove it before is not heard.
 */
static void test_next_attempt(void **state)
{
	static const char *const kinds[] = { "create", "start", "resume" };
	struct record was;

	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		put(LIFE_RUNNING, 7);
		fx->rec.proc = rig_running().proc;
		assert_int_equal(record_put(fx->s.db, &fx->rec, NULL), 0);
		box_set(&fx->s, &fx->rec);
		was = fx->rec;
		fx->rec.id.attempt++;
		rig_lifecycle(kinds[i], json_object());
		assert_int_equal(fx->e.num, 0);
		assert_int_equal(stored().id.attempt, fx->rec.id.attempt);
		admit();
		assert_int_equal(fx->e.num, 0);
		fd_close(TAKE_FD(fx->fd));
		fx->rec = was;
		admit();
		assert_string_equal(fx->e.code, REFRESH);
		rig_lifecycle(kinds[i], json_object());
		assert_string_equal(fx->e.code, "stale-generation");
	}
}

/*
 * Its streams were revoked, and then the job failed; another one is queued, so that nothing clears
 * up yet. It serves nobody any more all the same.
 */
static void test_half_ended_serves_nobody(void **state)
{
	struct err e = { 0 };

	admit();
	assert_int_equal(fx->e.num, 0);
	assert_int_equal(record_put(fx->s.db, &fx->rec, NULL), 0);
	rig_box()->jobs = 1;
	rig_box()->ending = true;
	err_set(&e, -EIO, "no");
	crash_job_failed(rig_box(), &e);
	assert_true(rig_box()->crashed);
	admit();
	assert_string_equal(fx->e.code, REFRESH);
}

/* What is reported of an execution is of that one; of one whose end is under way it is no news. */
static void test_reports(void **state)
{
	struct box *b = rig_box();

	b->jobs = 1;
	crash_seen(&fx->s, SANDBOX, 6, LIFE_EV_CRASH, "late");
	assert_false(b->crashed);
	b->ending = true;
	crash_seen(&fx->s, SANDBOX, 7, LIFE_EV_CRASH, "known");
	assert_false(b->crashed);
	b->ending = false;
	crash_seen(&fx->s, SANDBOX, 7, LIFE_EV_GUEST_OFF, "first");
	assert_true(b->crashed && b->ending);
	crash_seen(&fx->s, SANDBOX, 7, LIFE_EV_CRASH, "second");
	assert_string_equal(b->crash_reason, "guest-off");
	/* The mark stays as long as that execution stands, whatever is written of it, and no longer. */
	fx->rec.state = LIFE_PAUSED;
	box_set(&fx->s, &fx->rec);
	assert_true(b->ending);
	fx->rec.state = LIFE_STOPPED;
	box_set(&fx->s, &fx->rec);
	assert_false(b->ending);
	b->ending = true;
	fx->rec = rig_running();
	fx->rec.id.generation = 8;
	box_set(&fx->s, &fx->rec);
	assert_false(b->ending);
}

/* ---- Revocation ---- */

static struct {
	unsigned revokes;
	bool deaf, marked;
	size_t leases;
	struct ipc_call *held;
	char kills[64];
} br;

static void do_revoke(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	struct ipc_revoke_rep rep = { .ended = 1 };

	assert_int_equal(((const struct ipc_revoke *)req)->lease, 0);
	br.revokes++;
	br.marked = rig_box()->ending;
	br.leases = rig_box()->n_leases;
	if (br.deaf)
		br.held = call;
	else
		ipc_answer(call, &rep, NULL, 0);
}

static void on_kill(struct ipc_call *call, const struct nm_kill *k)
{
	size_t n = strlen(br.kills);

	str_format(br.kills + n, sizeof(br.kills) - n, "%s ", k->what);
}

static int run_revoke(struct job *j, struct err *e)
{
	j->rec = fx->rec;
	return revoke_execution(j, e);
}

/* One lease, and its revocation. What was killed for it stands in br.kills. */
static void revoke_once(void)
{
	struct job *j = job_new(&fx->s, "revoke", SANDBOX, "", run_revoke);
	unsigned told = fx->revoked;

	fx->rec.state = LIFE_STOPPED;
	box_set(&fx->s, &fx->rec);
	fx->rec.state = LIFE_RUNNING;
	box_set(&fx->s, &fx->rec);
	fd_close(TAKE_FD(fx->fd));
	admit();
	assert_int_equal(fx->e.num, 0);
	assert_int_equal(rig_box()->n_leases, 1);
	br.revokes = 0;
	br.kills[0] = '\0';
	j->done = on_done;
	job_ended = false;
	job_start(j);
	TURN_UNTIL(job_ended && fx->revoked == told + 1);
	assert_int_equal(rig_box()->n_leases, 0);
	admit();
	assert_string_equal(fx->e.code, REFRESH);
}

/* In the fixed order; and who is not the bridge that is recorded is not asked, but killed. */
static void test_revocation(void **state)
{
	static const struct ipc_handler handlers[] = { { &bridge_ops[BRIDGE_REVOKE], do_revoke },
						       { NULL, NULL } };
	static uid_t me;
	struct ipc_server *server;
	struct record real;
	char path[PATH_MAX];

	me = getuid();
	memset(&br, 0, sizeof(br));
	rig_in_dir(path, "run/sbx/" SANDBOX ".7/control.sock");
	server = ipc_server_new(fx->s.loop, fd_unix_listen(path, SOCK_SEQPACKET, 0600, 8),
				&(struct ipc_server_conf) { .handlers = handlers,
							    .uids = &me,
							    .n_uids = 1,
							    .max_peers = 8 });
	assert_non_null(server);
	fx->on_kill = on_kill;
	fx->rec.gateway = (struct nm_gateway_rep){ 0 };
	/* In time, unless this process stood still for just that long. */
	for (unsigned tries = 0; tries == 0 || (br.kills[0] && tries < 20); tries++)
		revoke_once();
	assert_string_equal(br.kills, "");
	assert_int_equal(br.revokes, 1);
	assert_true(br.marked);
	assert_int_equal(br.leases, 1);
	/* It does not confirm, and nobody listens in its gateway's place. */
	br.deaf = true;
	fx->rec.gateway.pid = (uint64_t)getpid();
	revoke_once();
	assert_string_equal(br.kills, "bridge gateway ");
	ipc_answer(br.held, &(struct ipc_revoke_rep){ 0 }, NULL, 0);   /* to nobody */
	ipc_server_free(server);
	unlink(path);
	/* Another process there, under the same user or not: it accepts, and hears nothing. */
	real = fx->rec;
	int ls = fd_unix_listen(path, SOCK_SEQPACKET, 0600, 8);

	fx->rec.gateway.pid = 0;
	for (int i = 0; i < 2; i++) {
		struct exec_peer peer = { "control.sock", "bridge", real.proc.bridge_pid + (i == 0),
					  real.proc.bridge_uid + (i == 1) };
		struct job *j = job_new(&fx->s, "peer", SANDBOX, "", run_revoke);
		struct ipc_sync *c = NULL;
		struct err e = { 0 };

		j->rec = fx->rec;
		assert_int_equal(exec_peer_open(j, &peer, 0, &c, &e), -EACCES);
		assert_null(c);
		job_free(j);
	}
	close(ls);
}

/* node-manager was away: what ended meanwhile is cleared up, and nothing else. */
static void test_sweep(void **state)
{
	static const struct { int error; bool ends; } says[] = {
		{ 0, false }, { -EPERM, false }, { -EIO, false }, { -ESRCH, true },
	};

	for (size_t i = 0; i < ARRAY_LEN(says); i++) {
		struct job *j = job_new(&fx->s, "sweep", "", "", adopt_sweep);

		/* Of the gateway there is no record, so nobody asks about it. */
		fx->rec.gateway = (struct nm_gateway_rep){ 0 };
		assert_int_equal(record_put(fx->s.db, &fx->rec, NULL), 0);
		box_set(&fx->s, &fx->rec);
		rig_box()->jobs = 1;
		fx->sweeps = true;
		fx->verify_error = says[i].error;
		fx->verified = 0;
		j->done = on_done;
		job_ended = false;
		job_start(j);
		TURN_UNTIL(job_ended);
		assert_int_equal(fx->verified, 1);
		assert_int_equal(rig_box()->crashed, says[i].ends);
	}
}

/* ---- A bridge that is in a guest's hands ---- */

/* As much of a VMM as vmm_open asks for. */
static void *greet(void *arg)
{
	static const char hello[] = "{\"QMP\":{\"version\":{\"qemu\":{\"major\":10}}}}\r\n",
			  done[] = "{\"return\":{},\"id\":1}\r\n";
	int fd = *(int *)arg;
	char line[256];

	if (write(fd, hello, strlen(hello)) < 0 || read(fd, line, sizeof(line)) < 0 ||
	    write(fd, done, strlen(done)) < 0)
		abort();
	return NULL;
}

/* Whatever it says by itself is its last word, and what it says is shown as text. */
static void test_bridge_says(void **state)
{
	static const struct { const char *text, *reason; } words[] = {
		{ "{\"ev\":\"channel-lost\",\"a\":{\"reason\":\"a\\u001b[2J\"}}",
		  "crashed: a\\x1b[2J" },
		{ "{\"ev\":\"tick\"}", "crashed: the bridge has broken its protocol" },
		{ "{\"ev\":\"channel-lost\",\"a\":{}}",
		  "crashed: the bridge has broken its protocol" },
	};
	char path[PATH_MAX];
	int ls;

	rig_in_dir(path, "run/sbx/" SANDBOX ".7/control.sock");
	ls = fd_unix_listen(path, SOCK_SEQPACKET, 0600, 8);
	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		struct box *b = rig_box();
		struct vmm *vm = NULL;
		pthread_t t;
		int p[2], fd = -1;

		b->jobs = 1;
		b->crashed = b->ending = false;
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p), 0);
		assert_int_equal(pthread_create(&t, NULL, greet, &p[1]), 0);
		assert_int_equal(vmm_open(vmm_driver_find("qemu"), p[0], WAIT_MS, &vm, NULL), 0);
		pthread_join(t, NULL);
		box_watch(b, vm);
		TURN_UNTIL(fd >= 0 || (fd = accept(ls, NULL, NULL)) >= 0);
		assert_true(send(fd, words[i].text, strlen(words[i].text), 0) > 0);
		TURN_UNTIL(b->crashed);
		assert_string_equal(b->crash_reason, words[i].reason);
		assert_null(b->control);
		box_unwatch(b);
		close(p[1]);
		close(fd);
	}
	close(ls);
}

/* ---- The report ---- */

static json_t *report_sandboxes;
static uint64_t report_next;

static void on_report(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	const struct sbx_report_rep *r = rep;

	fx->answered = true;
	fx->e = e ? *e : (struct err){ 0 };
	if (e)
		return;
	json_array_extend(report_sandboxes, r->sandboxes);
	report_next = r->next;
}

/* Reasons as long as they may be, all of it to be escaped: the pages become shorter. */
static void test_report_fits_its_packets(void **state)
{
	struct record r = rig_running();
	struct sbx_report q = { 0 };
	unsigned pages = 0;

	memset(r.reason, 1, sizeof(r.reason) - 1);
	r.state = LIFE_STOPPED;
	for (unsigned i = 0; i < 250; i++) {
		str_format(r.id.sandbox, sizeof(r.id.sandbox), "i%020u", i);
		assert_non_null(box_set(&fx->s, &r));
	}
	report_sandboxes = json_array();
	do {
		fx->answered = false;
		ipc_client_call(fx->client, &sbx_ops[SBX_REPORT], "test", &q, NULL, 0, WAIT_MS,
				on_report, NULL);
		TURN_UNTIL(fx->answered);
		if (fx->e.num < 0)
			fail_msg("%s", fx->e.text);
		q.cursor = report_next;
		pages++;
	} while (report_next);
	assert_int_equal(json_array_size(report_sandboxes), 251);
	assert_true(pages > 3);
	json_decref(report_sandboxes);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)
	const struct CMUnitTest tests[] = {
		T(test_selection),   T(test_deleting_is_final),	     T(test_finish),
		T(test_next_attempt), T(test_again),	     T(test_not_running), T(test_reports), T(test_revocation),
		T(test_bridge_says), T(test_half_ended_serves_nobody), T(test_report_fits_its_packets),
		T(test_sweep),	     T(test_a_queue_is_not_one_sandboxs),
	};

	log_open("test", "test");
	log_set_level(getenv("SPACE_TEST_LOG") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
