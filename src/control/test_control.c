/*
 * space-control whole, with a real database; the test stands in for the node behind a real socket.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "control/control.h"
#include "http/server.h"
#include "loop/listen.h"

#define WAIT_MS 60000
#define WORKER "00000000-0000-4000-8000-000000000001"

struct rig {
	struct loop *loop;
	struct control *control;
	struct store *store;
	char dir[64], url[128], node_addr[128], keys[128], root_pub[128];
	struct key_signer root;
	struct key_bundle bundle;
	struct http_server *node;
	struct listener *listener;
	json_t *boxes;                    /* what the node reports */
	uint64_t node_bundle;
	bool refuse_bundle;
	unsigned calls, reports, bundles;
	char kinds[256];                  /* of the calls, in order: "create delete " */
	struct capability cap;
	bool hold;                        /* the next life-cycle call waits */
	struct http_req *held;
	int fail_status; unsigned fail_times; const char *fail_body;
};

/* ---- the node ---- */

static void on_body(struct http_req *r, const char *body, size_t len, void *arg)
{
	struct rig *g = arg;

	if (str_eq(http_get(http_req_head(r), "Space-Op"), "bundle")) {
		g->bundles++;
		if (g->refuse_bundle) {
			http_req_error(r, 503, NULL, "Not now.");
			return;
		}
		g->node_bundle = g->bundle.number;
		http_req_answer(r, 200, NULL, "application/json", "{\"number\":99}", 13);
		return;
	}
	if (g->hold) {
		g->held = r;
		g->hold = false;
		return;
	}
	if (g->fail_times > 0) {
		g->fail_times--;
		http_req_answer(r, g->fail_status, NULL, "application/json", g->fail_body,
				strlen(g->fail_body));
		return;
	}
	http_req_answer(r, 200, NULL, "application/json", "{\"state\":\"running\"}", 19);
}

static void report(struct rig *g, struct http_req *r)
{
	json_t *v = json_pack("{s:{s:s,s:I},s:O}", "node", "worker", WORKER, "bundle",
			      (json_int_t)g->node_bundle, "sandboxes", g->boxes);
	autofree char *text = json_dumps(v, 0);

	g->reports++;
	json_decref(v);
	http_req_answer(r, 200, NULL, "application/json", text, strlen(text));
}

static void on_request(struct http_req *r, void *arg)
{
	struct rig *g = arg;
	const struct http_head *h = http_req_head(r);
	const char *op = http_get(h, "Space-Op"), *cap = http_get(h, "Space-Capability");
	struct err e = { 0 };

	assert_non_null(op);
	if (str_eq(op, "report")) {
		report(g, r);
		return;
	}
	if (str_eq(op, "lifecycle")) {
		if (cap_verify(cap, strlen(cap), &g->bundle, &g->cap, &e) < 0)
			fail_msg("%s", e.text);
		assert_int_equal(g->cap.purpose, ID_PURPOSE_LIFECYCLE);
		g->calls++;
		str_format(g->kinds + strlen(g->kinds), sizeof(g->kinds) - strlen(g->kinds), "%s ",
			   h->target + strlen("/lifecycle/"));
	}
	http_req_read_body(r, on_body, g);
}

static void on_accept(int fd, void *arg)
{
	struct rig *g = arg;

	http_server_accept(g->node, fd);
}

/* ---- the rig ---- */

static void add_key(struct rig *g, const char *kid)
{
	struct key_signer k;
	struct key_entry *entry = &g->bundle.keys[g->bundle.n_keys++];
	autofree char *path = x_asprintf("%s/%s.key", g->keys, kid), *text = NULL;
	struct err e = { 0 };

	assert_int_equal(key_generate(kid, &k, entry->public), 0);
	str_copy(entry->kid, sizeof(entry->kid), kid);
	entry->purposes = 1u << ID_PURPOSE_LIFECYCLE;
	assert_int_equal(key_save(path, &k, &e), 0);
	key_signer_done(&k);
	g->bundle.number++;
	assert_int_equal(bundle_sign(&g->bundle, &g->root, &text, &e), 0);
	assert_int_equal(store_bundle_put(g->store, g->bundle.number, text, &e), 0);
}

static int setup(void **state)
{
	struct rig *g = x_alloc(sizeof(*g));
	const struct http_server_conf sc = { .head_timeout_ms = WAIT_MS,
					     .idle_timeout_ms = WAIT_MS,
					     .max_conns = 100,
					     .max_body = 1 << 20,
					     .handle = on_request,
					     .arg = g };
	uint8_t root_public[KEY_PUBLIC_BYTES];
	char hex[2 * KEY_PUBLIC_BYTES + 1];
	struct store_key key;
	struct err e = { 0 };

	g->loop = loop_new();
	g->boxes = json_array();
	str_copy(g->dir, sizeof(g->dir), "/tmp/test-control-XXXXXX");
	assert_non_null(mkdtemp(g->dir));
	str_format(g->url, sizeof(g->url), "sqlite:%s/space.db", g->dir);
	str_format(g->node_addr, sizeof(g->node_addr), "unix:%s/node.sock", g->dir);
	str_format(g->keys, sizeof(g->keys), "%s/keys", g->dir);
	str_format(g->root_pub, sizeof(g->root_pub), "%s/root.pub", g->dir);
	assert_int_equal(mkdir(g->keys, 0700), 0);
	assert_int_equal(key_init(), 0);
	if (store_open(g->url, &g->store, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(key_generate("root", &g->root, root_public), 0);
	str_hex(hex, root_public, sizeof(root_public));
	assert_int_equal(fd_write_file(AT_FDCWD, g->root_pub, hex, strlen(hex), 0644), 0);
	add_key(g, "ctl-000001");
	g->node_bundle = 1;
	assert_int_equal(store_node_put(g->store, WORKER, g->node_addr, &e), 0);
	assert_int_equal(
		store_key_add(g->store, "acme", "first",
			      "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
			      "e2b_00000000", &key, &e),
		0); /* makes the tenant */
	g->node = http_server_new(g->loop, &sc);
	if (listener_new(g->loop, "node", g->node_addr, 0600, on_accept, g, &g->listener, &e) < 0)
		fail_msg("%s", e.text);
	*state = g;
	return 0;
}

static void start(struct rig *g)
{
	const struct control_conf cc = { .store_url = g->url,
					 .keys_dir = g->keys,
					 .root_pub = g->root_pub };
	struct err e = { 0 };

	g->control = control_new(g->loop, &cc, &e);
	if (!g->control)
		fail_msg("%s", e.text);
}

static int teardown(void **state)
{
	static const char *const names[] = { "space.db",	   "space.db-wal",
					     "space.db-shm",	   "node.sock",
					     "root.pub",	   "keys/ctl-000001.key",
					     "keys/ctl-000002.key" };
	struct rig *g = *state;

	control_free(g->control);
	listener_free(g->listener);
	http_server_free(g->node);
	for (int i = 0; i < 3; i++)
		loop_turn(g->loop, 0);
	loop_free(g->loop);
	store_close(g->store);
	json_decref(g->boxes);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		autofree char *path = x_asprintf("%s/%s", g->dir, names[i]);

		unlink(path);
	}
	rmdir(g->keys);
	rmdir(g->dir);
	free(g);
	return 0;
}

#define WAIT(g, cond) do { \
	int64_t until_ = clock_mono_ms() + WAIT_MS; \
	while (!(cond)) { \
		loop_turn((g)->loop, 5); \
		if (clock_mono_ms() > until_) \
			fail_msg("waited in vain for: %s (calls: %s)", #cond, (g)->kinds); \
	} \
} while (0)

/* A sandbox whose create is finished (running) or was given back to the queue. */
static struct store_sandbox add_box(struct rig *g, bool done, int64_t end_ms)
{
	struct store_sandbox b = { .generation = 1,
				   .attempt = 1,
				   .memory_mib = 512,
				   .vcpus = 1,
				   .disk_mib = 8192,
				   .end_ms = end_ms };
	struct store_op op;
	struct err e = { 0 };

	assert_int_equal(id_new_sandbox(b.id), 0);
	assert_int_equal(id_new_activation(b.activation), 0);
	str_copy(b.tenant, sizeof(b.tenant), "acme");
	str_copy(b.template, sizeof(b.template), "base-1");
	str_copy(b.worker, sizeof(b.worker), WORKER);
	b.env = x_strdup("{\"A\":\"1\"}");
	if (store_create(g->store, &b, NULL, "dead", "req-1", &op, &e) < 0)
		fail_msg("%s", e.text);
	if (done)
		assert_int_equal(store_finish(g->store, &op, LIFE_RUNNING, NULL, &e), 0);
	else
		assert_int_equal(store_release(g->store, &op, 0, &e), 0);
	free(TAKE(b.env));
	return b;
}

static void put_box(struct rig *g, const struct store_sandbox *b, const char *state,
		    const char *reason)
{
	char activation[ID_ACTIVATION_HEX + 1];

	str_hex(activation, b->activation, sizeof(b->activation));
	json_array_append_new(g->boxes,
			      json_pack("{s:s,s:s,s:s,s:I,s:s,s:i,s:s,s:i}", "sandbox", b->id,
					"tenant", b->tenant, "state", state, "generation",
					(json_int_t)b->generation, "activation", activation,
					"attempt", 1, "reason", reason, "since_ms", 1));
}

static enum life_state observed(struct rig *g, const char *id, char reason[128],
				uint64_t *generation)
{
	struct store_sandbox b = { 0 };
	enum life_state s;

	if (store_sandbox_get(g->store, id, "", &b, NULL) < 0)
		return LIFE_NONE;
	s = b.observed;
	if (reason)
		str_copy(reason, 128, b.reason);
	if (generation)
		*generation = b.generation;
	store_sandbox_done(&b);
	return s;
}

/* ---- tests ---- */

static void test_leftover(void **state)
{
	struct rig *g = *state;
	struct store_sandbox b = add_box(g, false, 0);

	g->fail_times = 2;
	g->fail_status = 503;
	g->fail_body = "{\"num\":-11,\"code\":\"try-again\",\"message\":\"Not now.\"}";
	start(g);
	put_box(g, &b, "creating", "");
	WAIT(g, observed(g, b.id, NULL, NULL) == LIFE_RUNNING);
	assert_string_equal(g->kinds, "create create create ");
	assert_string_equal(g->cap.id.sandbox, b.id);
	assert_int_equal(g->cap.id.generation, 1);
}

static void test_fails_for_good(void **state)
{
	struct rig *g = *state;
	struct store_sandbox b = add_box(g, false, 0);
	char reason[128] = "";

	g->fail_times = 1;
	g->fail_status = 507;
	g->fail_body = "{\"num\":-28,\"code\":\"no-space\",\"message\":\"The disk is full.\"}";
	start(g);
	WAIT(g, observed(g, b.id, reason, NULL) == LIFE_FAILED);
	assert_string_equal(reason, "The disk is full.");
	assert_string_equal(g->kinds, "create ");
}

static void test_observed(void **state)
{
	struct rig *g = *state;
	struct store_sandbox b = add_box(g, true, 0), old = add_box(g, true, 0);
	char reason[128] = "";

	put_box(g, &b, "stopped", "crashed: the VMM was killed by signal 9");
	old.activation[0] ^= 1;                  /* another execution: says nothing about this row */
	put_box(g, &old, "stopped", "crashed");
	start(g);
	WAIT(g, observed(g, b.id, reason, NULL) == LIFE_STOPPED);
	assert_string_equal(reason, "crashed: the VMM was killed by signal 9");
	unsigned seen = g->reports;
	WAIT(g, g->reports >= seen + 2);
	assert_int_equal(observed(g, old.id, NULL, NULL), LIFE_RUNNING);
	assert_int_equal(g->calls, 0);
}

static void test_guest_reboot(void **state)
{
	struct rig *g = *state;
	struct store_sandbox b = add_box(g, true, 0);
	uint64_t generation = 0;

	put_box(g, &b, "stopped", "guest-reboot");
	start(g);
	WAIT(g, observed(g, b.id, NULL, &generation) == LIFE_RUNNING && generation == 2);
	assert_string_equal(g->kinds, "start ");
	assert_int_equal(g->cap.id.generation, 2);
	unsigned seen = g->reports;
	WAIT(g, g->reports >= seen + 2);         /* the old report starts nothing more */
	assert_string_equal(g->kinds, "start ");
}

static void test_unwanted(void **state)
{
	struct rig *g = *state;
	struct store_sandbox ghost = { .generation = 3 }, gone = { .generation = 1 };

	str_copy(ghost.id, sizeof(ghost.id), "iaaaaaaaaaaaaaaaaaaaa");
	str_copy(ghost.tenant, sizeof(ghost.tenant), "acme");
	str_copy(gone.id, sizeof(gone.id), "ibbbbbbbbbbbbbbbbbbbb");
	str_copy(gone.tenant, sizeof(gone.tenant), "acme");
	id_new_activation(ghost.activation);
	id_new_activation(gone.activation);
	put_box(g, &ghost, "running", "");
	put_box(g, &gone, "none", "");
	start(g);
	WAIT(g, g->calls > 0);
	assert_true(str_starts(g->kinds, "delete "));
	assert_string_equal(g->cap.id.sandbox, ghost.id);
	assert_int_equal(g->cap.id.generation, 3);
}

static void test_lost(void **state)
{
	struct rig *g = *state;
	struct store_sandbox b = add_box(g, true, 0), here = add_box(g, true, 0);
	char reason[128] = "";

	put_box(g, &here, "running", "");
	start(g);
	WAIT(g, observed(g, b.id, reason, NULL) == LIFE_STOPPED);
	assert_true(str_starts(reason, "lost"));
	assert_true(g->reports >= CONTROL_LOST_AFTER);
	assert_int_equal(observed(g, here.id, NULL, NULL), LIFE_RUNNING);
}

static void test_time_over(void **state)
{
	struct rig *g = *state;
	struct store_sandbox b = add_box(g, true, clock_wall_ms() - 1),
			     later = add_box(g, true, clock_wall_ms() + 3600000);

	put_box(g, &later, "running", "");
	start(g);
	WAIT(g, observed(g, b.id, NULL, NULL) == LIFE_NONE);
	assert_string_equal(g->kinds, "delete ");
	assert_string_equal(g->cap.id.sandbox, b.id);
	assert_int_equal(observed(g, later.id, NULL, NULL), LIFE_RUNNING);
}

/* Those whose time is over and that cannot be ended yet do not stand in the way of others. */
static void test_time_over_behind_many(void **state)
{
	struct rig *g = *state;
	struct store_sandbox last = { 0 };
	struct store_op op;

	/* Created by somebody who holds their operations still, the last one excepted. */
	for (int i = 0; i <= 120; i++) {
		last = add_box(g, i == 120, clock_wall_ms() - 1);
		if (i < 120)
			assert_int_equal(store_claim(g->store, "busy", &op, NULL), 0);
	}
	start(g);
	WAIT(g, observed(g, last.id, NULL, NULL) == LIFE_NONE);
	assert_string_equal(g->kinds, "delete ");
	assert_string_equal(g->cap.id.sandbox, last.id);
}

/* What has been over for long goes, without being asked for. */
static void test_purge(void **state)
{
	struct rig *g = *state;
	struct store_op op;

	clock_set_shift_ms(-STORE_KEEP_MS - 60000);
	add_box(g, true, 0);
	clock_set_shift_ms(0);
	assert_int_equal(store_op_get(g->store, 1, &op, NULL), 0);
	start(g);
	WAIT(g, store_op_get(g->store, 1, &op, NULL) == -ENOENT);
}

/* A key that a node does not know yet signs nothing; when all know it, it does. */
static void test_rotation(void **state)
{
	struct rig *g = *state;
	struct store_node *nodes = NULL;
	struct err e = { 0 };
	size_t n = 0;

	start(g);
	WAIT(g, g->control->have_signer && g->reports > 1);
	assert_string_equal(g->control->signer.kid, "ctl-000001");
	g->refuse_bundle = true;
	add_key(g, "ctl-000002");
	WAIT(g, g->bundles >= 2);
	assert_string_equal(g->control->signer.kid, "ctl-000001");
	g->refuse_bundle = false;
	WAIT(g, str_eq(g->control->signer.kid, "ctl-000002"));
	assert_int_equal(g->node_bundle, 2);
	assert_int_equal(store_node_list(g->store, &nodes, &n, &e), 0);
	assert_int_equal(n, 1);
	assert_true(nodes[0].bundle >= 2);
	free(nodes);
}

/*
 * A node that takes its time: the claim is renewed, and nobody else drives the operation meanwhile.
 */
static void test_renewal(void **state)
{
	struct rig *g = *state;
	struct store_sandbox b = add_box(g, false, 0);
	struct store_op op = { 0 };
	int64_t lease;

	g->hold = true;
	start(g);
	put_box(g, &b, "creating", "");
	WAIT(g, g->held);
	assert_int_equal(store_op_get(g->store, 1, &op, NULL), 0);
	assert_int_equal(op.state, STORE_OP_CLAIMED);
	lease = op.lease_until_ms;
	WAIT(g, store_op_get(g->store, 1, &op, NULL) == 0 && op.lease_until_ms > lease);
	assert_int_equal(g->calls, 1);
	http_req_answer(g->held, 200, NULL, "application/json", "{\"state\":\"running\"}", 19);
	WAIT(g, observed(g, b.id, NULL, NULL) == LIFE_RUNNING);
	assert_int_equal(g->calls, 1);
}

/* What a job finds as the program ends begins nothing: its lease runs out, then others have it. */
static void test_end_while_claiming(void **state)
{
	struct rig *g = *state;
	int64_t until = clock_mono_ms() + WAIT_MS;
	struct store_op op = { 0 };

	start(g);
	WAIT(g, g->control->have_signer && !g->control->claiming);
	add_box(g, false, 0);
	WAIT(g, g->control->claiming);
	while (op.state != STORE_OP_CLAIMED && clock_mono_ms() < until)
		assert_int_equal(store_op_get(g->store, 1, &op, NULL), 0);
	assert_int_equal(op.state, STORE_OP_CLAIMED);
	control_free(TAKE(g->control));
	assert_int_equal(g->calls, 0);
}

/* Two replicas: each operation is driven once. */
static void test_replicas(void **state)
{
	struct rig *g = *state;
	struct control *first;
	char ids[8][ID_SANDBOX_LEN + 1];

	for (int i = 0; i < 8; i++) {
		struct store_sandbox b = add_box(g, false, 0);

		put_box(g, &b, "creating", "");
		str_copy(ids[i], sizeof(ids[i]), b.id);
	}
	start(g);
	first = g->control;
	start(g);
	for (int i = 0; i < 8; i++)
		WAIT(g, observed(g, ids[i], NULL, NULL) == LIFE_RUNNING);
	assert_int_equal(g->calls, 8);
	control_free(first);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_leftover), T(test_fails_for_good), T(test_observed),  T(test_guest_reboot),
		T(test_unwanted), T(test_lost),		  T(test_time_over), T(test_renewal),
		T(test_rotation), T(test_replicas),	  T(test_end_while_claiming),
		T(test_time_over_behind_many), T(test_purge),
	};

	log_open("test", "test");
	log_set_level(LOG_LEVEL_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
