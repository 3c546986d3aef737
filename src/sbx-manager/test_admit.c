/*
 * The admission as a table: each refusal, and that not one byte reached the bridge. The program's
 * own socket, records, keys and leases; this process listens in the bridge's place, and answers
 * "verify" in node-manager's place (what it verifies is tested with it).
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "sbx-manager/job.h"

#define SANDBOX "i0123456789abcdefghij"
#define OTHER_SANDBOX "i9999999999abcdefghij"
#define WORKER "11111111-2222-4333-8444-555555555555"
#define WAIT_MS 10000

struct fixture {
	char dir[64];
	struct sbx s;
	struct ipc_server *nm;
	struct ipc_client *client;
	int bridge_fd;
	int verify_error;                    /* what node-manager answers */
	bool record_moves;                   /* while it is asked, the next execution is installed */
	unsigned verified;
	struct key_signer root, api, ctl, stranger;
	struct record rec;
	/* the last answer */
	bool answered;
	struct err e;
	struct sbx_admit_rep rep;
	uint64_t number;
	int fd;
	unsigned revoked;
};

static struct fixture *fx;

/* ---- In other programs' places ---- */

static void nm_verify(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	const struct nm_verify *v = req;
	struct err e = { 0 };

	fx->verified++;
	assert_string_equal(v->sandbox, SANDBOX);
	assert_int_equal(v->bridge_pid, getpid());
	if (fx->record_moves) {
		fx->rec.id.generation++;
		box_set(&fx->s, &fx->rec);
	}
	if (fx->verify_error) {
		err_set(&e, fx->verify_error, "not as recorded");
		ipc_fail(call, &e);
		return;
	}
	ipc_answer(call, NULL, NULL, 0);
}

static const struct ipc_handler nm_handlers[] = { { &nm_ops[NM_VERIFY], nm_verify },
						  { NULL, NULL } };

static void on_admit(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	fx->answered = true;
	fx->e = e ? *e : (struct err){ 0 };
	if (e)
		return;
	fx->rep = *(const struct sbx_admit_rep *)rep;
	assert_int_equal(n_fds, 1);
	fx->fd = TAKE_FD(fds[0]);
}

static void on_bundle(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	fx->answered = true;
	fx->e = e ? *e : (struct err){ 0 };
	fx->number = e ? 0 : ((const struct sbx_bundle_rep *)rep)->number;
}

static void on_plain(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	fx->answered = true;
	fx->e = e ? *e : (struct err){ 0 };
}

static void on_event(const char *name, json_t *a, void *arg)
{
	fx->revoked += str_eq(name, "revoked");
}

/* ---- Fixture ---- */

static void turn_until(bool *what)
{
	int64_t until = clock_mono_ms() + WAIT_MS;

	while (!*what && clock_mono_ms() < until)
		loop_turn(fx->s.loop, 50);
	assert_true(*what);
}

static void in_dir(char dst[PATH_MAX], const char *name)
{
	str_format(dst, PATH_MAX, "%s/%s", fx->dir, name);
}

static void make_dir(const char *name)
{
	char path[PATH_MAX];

	in_dir(path, name);
	assert_int_equal(fd_mkdir_p(path, 0755), 0);
}

static void add_key(struct key_bundle *b, const char *kid, struct key_signer *k, unsigned purposes)
{
	struct key_entry *x = &b->keys[b->n_keys++];

	assert_int_equal(key_generate(kid, k, x->public), 0);
	str_copy(x->kid, sizeof(x->kid), kid);
	x->purposes = purposes;
}

static int put_bundle(const struct key_bundle *b)
{
	static struct sbx_bundle q;
	autofree char *text = NULL;

	assert_int_equal(bundle_sign(b, &fx->root, &text, NULL), 0);
	str_copy(q.text, sizeof(q.text), text);
	fx->answered = false;
	ipc_client_call(fx->client, &sbx_ops[SBX_BUNDLE], "test", &q, NULL, 0, WAIT_MS, on_bundle,
			NULL);
	turn_until(&fx->answered);
	return fx->e.num;
}

static struct record running(void)
{
	struct record r = { .state = LIFE_RUNNING,
			    .installed_ms = 1,
			    .proc = { .bridge_uid = getuid(), .bridge_pid = (uint64_t)getpid() } };

	str_copy(r.id.sandbox, sizeof(r.id.sandbox), SANDBOX);
	str_copy(r.id.tenant, sizeof(r.id.tenant), "acme");
	str_copy(r.id.worker, sizeof(r.id.worker), WORKER);
	r.id.generation = 7;
	r.id.attempt = 1;
	memset(r.id.activation, 7, sizeof(r.id.activation));
	memset(r.guest_token, 'f', 64);
	return r;
}

static void write_root_pub(const uint8_t public[KEY_PUBLIC_BYTES])
{
	char path[PATH_MAX], hex[2 * KEY_PUBLIC_BYTES + 1];

	in_dir(path, "state/keys/root.pub");
	str_hex(hex, public, KEY_PUBLIC_BYTES);
	assert_int_equal(fd_write_file(AT_FDCWD, path, hex, strlen(hex), 0644), 0);
}

static int setup(void **state)
{
	static const char *const dirs[] = {
		"run/nm",    "run/sbx-manager", "run/sbx/" SANDBOX ".7", "run/sbx/" SANDBOX ".8",
		"state/sbx", "state/keys"
	};
	static struct key_bundle b;
	uint8_t public[KEY_PUBLIC_BYTES];
	static uid_t me;
	char path[PATH_MAX];
	struct err e = { 0 };

	fx = x_alloc(sizeof(*fx));
	fx->fd = -1;
	str_copy(fx->dir, sizeof(fx->dir), "/tmp/test-admit-XXXXXX");
	assert_non_null(mkdtemp(fx->dir));
	for (unsigned i = 0; i < ARRAY_LEN(dirs); i++)
		make_dir(dirs[i]);
	assert_int_equal(key_init(), 0);
	assert_int_equal(key_generate("root", &fx->root, public), 0);
	write_root_pub(public);
	me = getuid();
	fx->s.loop = loop_new();
	fx->s.nm_uid = me;
	fx->s.conf.users[CONF_USER_NODE] = me;
	fx->s.conf.max_sandboxes = 16;
	str_copy(fx->s.conf.worker, sizeof(fx->s.conf.worker), WORKER);
	str_format(fx->s.conf.run_dir, sizeof(fx->s.conf.run_dir), "%s/run", fx->dir);
	str_format(fx->s.conf.state_dir, sizeof(fx->s.conf.state_dir), "%s/state", fx->dir);
	in_dir(path, "run/nm/nm.sock");
	fx->nm = ipc_server_new(fx->s.loop, fd_unix_listen(path, SOCK_SEQPACKET, 0600, 8),
				&(struct ipc_server_conf) { .handlers = nm_handlers,
							    .uids = &me,
							    .n_uids = 1,
							    .max_peers = 4 });
	if (sbx_open(&fx->s, &e) < 0 || sbx_serve(&fx->s, &e) < 0)
		fail_msg("%s", e.text);
	in_dir(path, "run/sbx-manager/sbx.sock");
	fx->client = ipc_client_new(fx->s.loop, path, me);
	ipc_client_on_event(fx->client, on_event, NULL);
	in_dir(path, "run/sbx/" SANDBOX ".7/bridge.sock");
	fx->bridge_fd = fd_unix_listen(path, SOCK_STREAM, 0600, 64);
	assert_true(fx->bridge_fd >= 0);
	b = (struct key_bundle){ .number = 3 };
	add_key(&b, "api-1", &fx->api, 1u << ID_PURPOSE_CONTROL | 1u << ID_PURPOSE_LIFECYCLE);
	add_key(&b, "ctl-1", &fx->ctl, 1u << ID_PURPOSE_LIFECYCLE);
	assert_int_equal(key_generate("api-1", &fx->stranger, public), 0);
	assert_int_equal(put_bundle(&b), 0);
	assert_int_equal(fx->number, 3);
	fx->rec = running();
	assert_non_null(box_set(&fx->s, &fx->rec));
	return 0;
}

static int teardown(void **state)
{
	ipc_client_free(fx->client);
	sbx_close(&fx->s);
	ipc_server_free(fx->nm);
	loop_turn(fx->s.loop, 0);
	loop_free(fx->s.loop);
	close(fx->bridge_fd);
	fd_close(fx->fd);
	if (fork() == 0) {
		execlp("rm", "rm", "-rf", fx->dir, (char *)NULL);
		_exit(127);
	}
	free(fx);
	return 0;
}

/* ---- The table ---- */

static struct capability good(void)
{
	struct capability c = { .id = running().id,
				.purpose = ID_PURPOSE_CONTROL,
				.access = ID_ACCESS_WRITE };

	return c;
}

static void admit(const char *token, const char *purpose, const char *access)
{
	static struct sbx_admit q;

	q = (struct sbx_admit){ 0 };
	str_copy(q.capability, sizeof(q.capability), token);
	str_copy(q.purpose, sizeof(q.purpose), purpose);
	str_copy(q.access, sizeof(q.access), access);
	fx->answered = false;
	ipc_client_call(fx->client, &sbx_ops[SBX_ADMIT], "test", &q, NULL, 0, WAIT_MS, on_admit,
			NULL);
	turn_until(&fx->answered);
}

/* Whoever connected to the bridge meanwhile has sent nothing, and is gone. */
static void bridge_saw_nothing(void)
{
	int fd, queued = -1;
	char c;

	for (unsigned i = 0; i < 3; i++)
		loop_turn(fx->s.loop, 0);
	fd_set_nonblock(fx->bridge_fd, true);
	while ((fd = accept(fx->bridge_fd, NULL, NULL)) >= 0) {
		assert_int_equal(ioctl(fd, FIONREAD, &queued), 0);
		assert_int_equal(queued, 0);
		assert_int_equal(recv(fd, &c, 1, MSG_DONTWAIT), 0);
		close(fd);
	}
}

static void change_tenant(struct capability *c)
{
	str_copy(c->id.tenant, sizeof(c->id.tenant), "evil");
}
static void change_sandbox(struct capability *c)
{
	str_copy(c->id.sandbox, sizeof(c->id.sandbox), OTHER_SANDBOX);
}
static void change_worker(struct capability *c) { c->id.worker[0] = '2'; }
static void change_substrate(struct capability *c)
{
	c->id.substrate = ID_SUBSTRATE_K8S;
	str_copy(c->id.pod_uid, sizeof(c->id.pod_uid), WORKER);
}
static void change_older(struct capability *c) { c->id.generation = 6; }
static void change_newer(struct capability *c) { c->id.generation = 8; }
static void change_activation(struct capability *c) { c->id.activation[3] ^= 1; }
static void change_attempt(struct capability *c) { c->id.attempt = 2; }
static void change_purpose(struct capability *c)
{
	c->purpose = ID_PURPOSE_LIFECYCLE;
	c->access = ID_ACCESS_START;
}
static void change_port(struct capability *c)
{
	c->purpose = ID_PURPOSE_SERVICE_PORT;
	c->port = 8080;
	c->protocol = ID_PROTOCOL_HTTP;
}
static void change_access(struct capability *c) { c->access = ID_ACCESS_READ; }
static void state_stopping(void) { fx->rec.state = LIFE_STOPPING; }
static void state_creating(void) { fx->rec.state = LIFE_CREATING; }
static void state_stopped(void) { fx->rec.state = LIFE_STOPPED; }
static void state_pausing(void) { fx->rec.state = LIFE_PAUSING; }
static void state_paused(void) { fx->rec.state = LIFE_PAUSED; }
static void state_resuming(void) { fx->rec.state = LIFE_RESUMING; }
static void state_ending(void) { box_find(&fx->s, SANDBOX)->ending = true; }
static void state_bridge_pid(void) { fx->rec.proc.bridge_pid++; }
static void state_bridge_uid(void) { fx->rec.proc.bridge_uid++; }
static void state_unverified(void) { fx->verify_error = -EACCES; }
static void state_moves(void) { fx->record_moves = true; }
static void state_nm_late(void) { fx->verify_error = -ETIMEDOUT; }
static void state_node_full(void) { fx->s.n_leases = SBX_LEASES_MAX; }
static void state_box_full(void) { box_find(&fx->s, SANDBOX)->n_leases = SBX_LEASES_PER_BOX_MAX; }

#define DENY "refusal-deny"
#define REFRESH "refusal-refresh-route"

static const struct refusal {
	const char *name;
	void (*change)(struct capability *c);
	void (*state)(void);
	int64_t age_s;
	const char *code;
	bool asks_nm;
} refusals[] = {
	{ "another tenant", change_tenant, NULL, 0, DENY, false },
	{ "another sandbox", change_sandbox, NULL, 0, REFRESH, false },
	{ "another worker", change_worker, NULL, 0, REFRESH, false },
	{ "another substrate", change_substrate, NULL, 0, REFRESH, false },
	{ "generation 6 where 7 is", change_older, NULL, 0, REFRESH, false },
	{ "generation 8 where 7 is", change_newer, NULL, 0, REFRESH, false },
	{ "another activation", change_activation, NULL, 0, REFRESH, false },
	{ "another attempt", change_attempt, NULL, 0, REFRESH, false },
	{ "purpose life cycle", change_purpose, NULL, 0, DENY, false },
	{ "purpose service port", change_port, NULL, 0, DENY, false },
	{ "access read where write is needed", change_access, NULL, 0, DENY, false },
	{ "expired", NULL, NULL, CAP_LIFETIME_S + CAP_SKEW_S + 1, DENY, false },
	{ "from the future", NULL, NULL, -CAP_SKEW_S - 1, DENY, false },
	{ "stopping", NULL, state_stopping, 0, REFRESH, false },
	{ "creating", NULL, state_creating, 0, REFRESH, false },
	{ "stopped", NULL, state_stopped, 0, REFRESH, false },
	{ "pausing", NULL, state_pausing, 0, REFRESH, false },
	{ "paused", NULL, state_paused, 0, REFRESH, false },
	{ "resuming", NULL, state_resuming, 0, REFRESH, false },
	{ "marked for its end", NULL, state_ending, 0, REFRESH, false },
	{ "another process listens", NULL, state_bridge_pid, 0, DENY, false },
	{ "another user listens", NULL, state_bridge_uid, 0, DENY, false },
	{ "not verified", NULL, state_unverified, 0, DENY, true },
	{ "replaced while it was verified", NULL, state_moves, 0, REFRESH, true },
	{ "node-manager does not answer", NULL, state_nm_late, 0, "limit", true },
	{ "too many leases of the sandbox", NULL, state_box_full, 0, "limit", false },
	{ "too many leases of the node", NULL, state_node_full, 0, "limit", false },
};

static void reset_state(void)
{
	struct box *b = box_find(&fx->s, SANDBOX);

	fx->verify_error = 0;
	fx->record_moves = false;
	fx->verified = 0;
	fx->s.n_leases = 0;
	b->n_leases = 0;
	b->ending = false;
	fx->rec = running();
	box_set(&fx->s, &fx->rec);
}

static void test_refusals(void **state)
{
	for (unsigned i = 0; i < ARRAY_LEN(refusals); i++) {
		const struct refusal *r = &refusals[i];
		struct capability c = good();
		char token[CAP_TEXT_MAX];

		reset_state();
		if (r->change)
			r->change(&c);
		if (r->state) {
			r->state();
			box_set(&fx->s, &fx->rec);
		}
		if (r->state == state_ending)
			state_ending();
		assert_int_equal(cap_sign(&c, &fx->api, clock_wall_ms() / 1000 - r->age_s, token,
					  NULL),
				 0);
		admit(token, "control", "write");
		if (!str_eq(fx->e.code, r->code))
			fail_msg("%s: \"%s\" (%s), expected \"%s\"", r->name, fx->e.code,
				 fx->e.text, r->code);
		assert_int_equal(fx->e.num, str_eq(r->code, "limit") ? -EAGAIN : -EACCES);
		assert_int_equal(fx->verified, r->asks_nm);
		bridge_saw_nothing();
	}
	reset_state();
}

static void test_bad_signatures(void **state)
{
	struct capability c = good();
	char token[CAP_TEXT_MAX];

	admit("", "control", "write");
	assert_string_equal(fx->e.code, DENY);
	admit("v4.public.AAAA.AAAA", "control", "write");
	assert_string_equal(fx->e.code, DENY);
	/* One that was made with another key under a known name. */
	assert_int_equal(cap_sign(&c, &fx->stranger, clock_wall_ms() / 1000, token, NULL), 0);
	admit(token, "control", "write");
	assert_string_equal(fx->e.code, DENY);
	/* The reconciler's key may not open streams. */
	assert_int_equal(cap_sign(&c, &fx->ctl, clock_wall_ms() / 1000, token, NULL), 0);
	admit(token, "control", "write");
	assert_string_equal(fx->e.code, DENY);
	/* One bit anywhere. */
	assert_int_equal(cap_sign(&c, &fx->api, clock_wall_ms() / 1000, token, NULL), 0);
	for (size_t i = 0; i < strlen(token); i += 7) {
		char old = token[i];

		token[i] = old == 'A' ? 'B' : 'A';
		admit(token, "control", "write");
		assert_string_equal(fx->e.code, DENY);
		token[i] = old;
	}
	bridge_saw_nothing();
	admit(token, "control", "write");
	assert_int_equal(fx->e.num, 0);
}

static int admit_one(struct bridge_preamble *ret)
{
	struct capability c = good();
	char token[CAP_TEXT_MAX];
	int fd;

	assert_int_equal(cap_sign(&c, &fx->api, clock_wall_ms() / 1000, token, NULL), 0);
	fd_close(TAKE_FD(fx->fd));
	admit(token, "control", "write");
	assert_int_equal(fx->e.num, 0);
	fd = accept(fx->bridge_fd, NULL, NULL);
	assert_true(fd >= 0);
	assert_int_equal(fd_read_full(fd, ret, sizeof(*ret), WAIT_MS), sizeof(*ret));
	return fd;
}

static void end_lease(uint64_t id)
{
	struct sbx_lease q = { .lease = id };

	fx->answered = false;
	ipc_client_call(fx->client, &sbx_ops[SBX_LEASE_END], "test", &q, NULL, 0, WAIT_MS, on_plain,
			NULL);
	turn_until(&fx->answered);
	assert_int_equal(fx->e.num, 0);
}

static void test_admitted(void **state)
{
	struct bridge_preamble p, p2;
	int fd = admit_one(&p), fd2 = admit_one(&p2);
	char c;

	assert_int_equal(p.magic, BRIDGE_PREAMBLE_MAGIC);
	assert_int_equal(p.kind, 0);
	assert_int_equal(p.generation, 7);
	assert_memory_equal(p.activation, fx->rec.id.activation, sizeof(p.activation));
	assert_int_not_equal(p.lease, 0);
	assert_int_not_equal(p.lease, p2.lease);
	assert_int_equal(fx->rep.lease, p2.lease);
	assert_int_equal(fx->rep.generation, 7);
	assert_string_equal(fx->rep.guest_token, fx->rec.guest_token);
	assert_string_equal(fx->rep.sandbox, SANDBOX);
	assert_int_equal(fx->s.n_leases, 2);
	assert_int_equal(fx->verified, 2);
	/* The stream works in both directions. */
	assert_int_equal(send(fx->fd, "a", 1, 0), 1);
	assert_int_equal(recv(fd2, &c, 1, 0), 1);
	/* Its end is reported, and cuts whatever was forgotten. */
	end_lease(p2.lease);
	assert_int_equal(fx->s.n_leases, 1);
	assert_int_equal(recv(fd2, &c, 1, 0), 0);
	end_lease(p2.lease);
	assert_int_equal(fx->s.n_leases, 1);
	end_lease(p.lease);
	assert_int_equal(fx->s.n_leases, 0);
	assert_int_equal(box_find(&fx->s, SANDBOX)->n_leases, 0);
	close(fd);
	close(fd2);
}

/*
 * The bridge has closed, node-api has not read all yet: the lease stays until its end is reported.
 */
static void test_hup_keeps_the_lease(void **state)
{
	struct bridge_preamble p;
	int fd = admit_one(&p);
	char in[8];

	assert_int_equal(send(fd, "last", 4, 0), 4);
	close(fd);
	for (unsigned i = 0; i < 5; i++)
		loop_turn(fx->s.loop, 5);
	assert_int_equal(fx->s.n_leases, 1);
	assert_int_equal(recv(fx->fd, in, sizeof(in), 0), 4);
	end_lease(p.lease);
	assert_int_equal(fx->s.n_leases, 0);
}

static void test_broken_connection_ends_leases(void **state)
{
	struct bridge_preamble p;
	int fd = admit_one(&p);
	char c;

	ipc_client_free(fx->client);
	for (unsigned i = 0; i < 5; i++)
		loop_turn(fx->s.loop, 5);
	assert_int_equal(fx->s.n_leases, 0);
	/* Both ends, though this process still holds node-api's descriptor. */
	assert_int_equal(recv(fd, &c, 1, 0), 0);
	assert_int_equal(recv(fx->fd, &c, 1, 0), 0);
	close(fd);
	fx->client = NULL;
}

static void test_cut_throws_away(void **state)
{
	static char big[65536];
	struct bridge_preamble p;
	int fd = admit_one(&p), queued = -1;

	fd_set_nonblock(fd, true);
	while (send(fd, big, sizeof(big), MSG_NOSIGNAL) > 0)
		;
	assert_int_equal(ioctl(fx->fd, FIONREAD, &queued), 0);
	assert_true(queued > 100000);
	lease_cut_all(box_find(&fx->s, SANDBOX));
	assert_int_equal(recv(fx->fd, big, sizeof(big), 0), 0);
	assert_true(send(fd, "x", 1, MSG_NOSIGNAL) < 0);
	for (unsigned i = 0; i < 5; i++)
		loop_turn(fx->s.loop, 5);
	assert_int_equal(fx->revoked, 1);
	assert_int_equal(fx->s.n_leases, 0);
	/* A late report of its end is fine. */
	end_lease(p.lease);
	close(fd);
}

static void test_bundle_never_goes_back(void **state)
{
	static struct key_bundle next;
	struct capability c = good();
	struct key_signer old = fx->api;
	uint8_t public[KEY_PUBLIC_BYTES];
	char token[CAP_TEXT_MAX];

	assert_int_equal(cap_sign(&c, &old, clock_wall_ms() / 1000, token, NULL), 0);
	admit(token, "control", "read");
	assert_int_equal(fx->e.num, 0);
	next = (struct key_bundle){ .number = 4 };
	add_key(&next, "api-2", &fx->api, 1u << ID_PURPOSE_CONTROL);
	assert_int_equal(put_bundle(&next), 0);
	/* The key is gone: so is what the cache knew of its tokens. */
	admit(token, "control", "read");
	assert_string_equal(fx->e.code, DENY);
	next.number = 3;
	assert_int_equal(put_bundle(&next), -ESTALE);
	next.number = 4;
	next.keys[0].purposes = 7;
	assert_int_equal(put_bundle(&next), -ESTALE);
	/* Not signed by the root key that was pinned. */
	assert_int_equal(key_generate("root", &fx->root, public), 0);
	next.number = 9;
	assert_true(put_bundle(&next) < 0);
	assert_int_equal(fx->s.bundle.number, 4);
	/*
	 * It survives a restart, and so does the pinned root key, whatever lies in the keys'
	 * folder.
	 */
	write_root_pub(public);
	memset(&fx->s.bundle, 0, sizeof(fx->s.bundle));
	memset(fx->s.root_public, 0, sizeof(fx->s.root_public));
	assert_int_equal(bundle_load(&fx->s, NULL), 0);
	assert_int_equal(fx->s.bundle.number, 4);
	assert_true(memcmp(fx->s.root_public, public, sizeof(public)) != 0);
}

/* Limits of time and place of the clock-less cache: the comparison is made each time. */
static void test_cached_signature_is_compared_anew(void **state)
{
	struct capability c = good();
	char token[CAP_TEXT_MAX];

	assert_int_equal(cap_sign(&c, &fx->api, clock_wall_ms() / 1000, token, NULL), 0);
	admit(token, "control", "write");
	assert_int_equal(fx->e.num, 0);
	fx->rec.id.generation = 8;
	box_set(&fx->s, &fx->rec);
	admit(token, "control", "write");
	assert_string_equal(fx->e.code, REFRESH);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bad_signatures, setup, teardown),
		cmocka_unit_test_setup_teardown(test_admitted, setup, teardown),
		cmocka_unit_test_setup_teardown(test_hup_keeps_the_lease, setup, teardown),
		cmocka_unit_test_setup_teardown(test_broken_connection_ends_leases, setup,
						teardown),
		cmocka_unit_test_setup_teardown(test_cut_throws_away, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bundle_never_goes_back, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cached_signature_is_compared_anew, setup,
						teardown),
	};

	/* Refusals are what is tested: not said line by line. */
	log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
