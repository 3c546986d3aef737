/*
 * The admission as a table: each refusal, and that not one byte reached the bridge or the gateway.
 * What node-manager verifies is tested with it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "sbx-manager/test_rig.h"

/* ---- The table ---- */

static struct capability good(bool port)
{
	struct capability c = { .id = rig_running().id,
				.purpose = ID_PURPOSE_CONTROL,
				.access = ID_ACCESS_WRITE };

	if (port) {
		c.purpose = ID_PURPOSE_SERVICE_PORT;
		c.port = 8080;
		c.protocol = ID_PROTOCOL_HTTP;
	}
	return c;
}

static void admit(const char *token, const char *purpose, const char *access)
{
	static struct sbx_admit q;

	q = (struct sbx_admit){ 0 };
	str_copy(q.capability, sizeof(q.capability), token);
	str_copy(q.purpose, sizeof(q.purpose), purpose);
	str_copy(q.access, sizeof(q.access), access);
	if (str_eq(purpose, "service-port")) {
		q.port = 8080;
		str_copy(q.protocol, sizeof(q.protocol), "http");
	}
	rig_admit(&q);
}

/* Whoever connected there meanwhile has sent nothing, and is gone. */
static void saw_nothing(int listen_fd)
{
	int fd, queued = -1;
	char c;

	for (unsigned i = 0; i < 3; i++)
		loop_turn(fx->s.loop, 0);
	fd_set_nonblock(listen_fd, true);
	while ((fd = accept(listen_fd, NULL, NULL)) >= 0) {
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
	c->port = 0;
	c->protocol = ID_PROTOCOL_NONE;
}
static void change_kind(struct capability *c)
{
	bool control = c->purpose == ID_PURPOSE_CONTROL;

	c->purpose = control ? ID_PURPOSE_SERVICE_PORT : ID_PURPOSE_CONTROL;
	c->port = control ? 8080 : 0;
	c->protocol = control ? ID_PROTOCOL_HTTP : ID_PROTOCOL_NONE;
}
static void change_port(struct capability *c) { c->port = 8081; }
static void change_protocol(struct capability *c) { c->protocol = ID_PROTOCOL_TCP; }
static void change_access(struct capability *c) { c->access = ID_ACCESS_READ; }
static void state_stopping(void) { fx->rec.state = LIFE_STOPPING; }
static void state_creating(void) { fx->rec.state = LIFE_CREATING; }
static void state_stopped(void) { fx->rec.state = LIFE_STOPPED; }
static void state_pausing(void) { fx->rec.state = LIFE_PAUSING; }
static void state_paused(void) { fx->rec.state = LIFE_PAUSED; }
static void state_resuming(void) { fx->rec.state = LIFE_RESUMING; }
static void state_ending(void) { rig_box()->ending = true; }
/* Whom the record and this program know is another one than who listens. */
static void state_peer_pid(void)
{
	fx->rec.proc.bridge_pid++;
	rig_box()->gateway.pid = ++fx->rec.gateway.pid;
}
static void state_peer_uid(void)
{
	fx->rec.proc.bridge_uid++;
	fx->rec.gateway.uid++;
}
static void state_gateway_away(void) { rig_box()->gateway.pid = 0; }
static void state_gateway_new(void) { fx->rec.gateway.pid++; }
static void state_gateway_silent(void)
{
	char path[PATH_MAX];

	rig_in_dir(path, "run/sbx/" SANDBOX ".7/gtw.sock");
	close(TAKE_FD(fx->gateway_fd));
	unlink(path);
	fx->gateway_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}
static void state_ports_full(void) { rig_box()->n_ports = rig_box()->n_leases = SBX_PORTS_PER_BOX_MAX; }
static void state_unverified(void) { fx->verify_error = -EACCES; }
static void state_gone(void) { fx->verify_error = -ESRCH; }
static void next_generation(void)
{
	fx->rec.id.generation++;
	box_set(&fx->s, &fx->rec);
}
static void state_moves(void) { fx->on_verify = next_generation; }
static void no_keys(void)
{
	fx->s.bundle.number++;
	fx->s.bundle.n_keys = 0;
	cap_cache_clear(fx->s.caps);
}
static void state_keys_move(void) { fx->on_verify = no_keys; }
static void marked(void) { rig_box()->ending = true; }
static void state_ends(void) { fx->on_verify = marked; }
static void filled(void) { fx->s.n_leases = SBX_LEASES_MAX; }
static void state_fills(void) { fx->on_verify = filled; }
static void next_gateway(void)
{
	fx->rec.gateway.pid++;
	box_set(&fx->s, &fx->rec);
	rig_box()->gateway.pid = fx->rec.gateway.pid;
}
static void state_gateway_moves(void) { fx->on_verify = next_gateway; }
static void state_gateway_none(void)
{
	fx->rec.gateway.pid = 0;
	rig_box()->gateway.pid = 0;
}
static void hang_up(void)
{
	const int fds[] = { fx->bridge_fd, fx->gateway_fd };

	for (unsigned i = 0; i < ARRAY_LEN(fds); i++) {
		fd_set_nonblock(fds[i], true);
		fd_close(accept(fds[i], NULL, NULL));
	}
}
static void state_hangs_up(void) { fx->on_verify = hang_up; }
static void state_admits_full(void) { fx->s.n_admits = SBX_ADMITS_PENDING_MAX; }
static void state_nm_late(void) { fx->verify_error = -ETIMEDOUT; }
static void state_node_full(void) { fx->s.n_leases = SBX_LEASES_MAX; }
static void state_box_full(void) { rig_box()->n_leases = SBX_LEASES_PER_BOX_MAX; }

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
	/* Of both purposes. */
	{ "another tenant", change_tenant, NULL, 0, DENY, false },
	{ "another sandbox", change_sandbox, NULL, 0, REFRESH, false },
	{ "another worker", change_worker, NULL, 0, REFRESH, false },
	{ "another substrate", change_substrate, NULL, 0, REFRESH, false },
	{ "generation 6 where 7 is", change_older, NULL, 0, REFRESH, false },
	{ "generation 8 where 7 is", change_newer, NULL, 0, REFRESH, false },
	{ "another activation", change_activation, NULL, 0, REFRESH, false },
	{ "another attempt", change_attempt, NULL, 0, REFRESH, false },
	{ "purpose life cycle", change_purpose, NULL, 0, DENY, false },
	{ "the other purpose", change_kind, NULL, 0, DENY, false },
	{ "access read where write is needed", change_access, NULL, 0, DENY, false },
	{ "expired", NULL, NULL, CAP_LIFETIME_S + CAP_SKEW_S + 1, DENY, false },
	/* A minute more: one second may pass before it is looked at. */
	{ "from the future", NULL, NULL, -CAP_SKEW_S - 60, DENY, false },
	{ "stopping", NULL, state_stopping, 0, REFRESH, false },
	{ "creating", NULL, state_creating, 0, REFRESH, false },
	{ "stopped", NULL, state_stopped, 0, REFRESH, false },
	{ "pausing", NULL, state_pausing, 0, REFRESH, false },
	{ "paused", NULL, state_paused, 0, REFRESH, false },
	{ "resuming", NULL, state_resuming, 0, REFRESH, false },
	{ "marked for its end", NULL, state_ending, 0, REFRESH, false },
	{ "another process listens", NULL, state_peer_pid, 0, DENY, false },
	{ "another user listens", NULL, state_peer_uid, 0, DENY, false },
	{ "not verified", NULL, state_unverified, 0, DENY, true },
	{ "replaced while it was verified", NULL, state_moves, 0, REFRESH, true },
	{ "its key was removed while it was verified", NULL, state_keys_move, 0, DENY, true },
	{ "its end began while it was verified", NULL, state_ends, 0, REFRESH, true },
	{ "the last stream went while it was verified", NULL, state_fills, 0, "limit", true },
	{ "too many admissions", NULL, state_admits_full, 0, "limit", false },
	{ "node-manager does not answer", NULL, state_nm_late, 0, "limit", true },
	{ "too many leases of the node", NULL, state_node_full, 0, "limit", false },
}, bridge_refusals[] = {
	{ "too many leases of the sandbox", NULL, state_box_full, 0, "limit", false },
	{ "a bridge that has ended", NULL, state_gone, 0, DENY, true },
	{ "a bridge that has hung up", NULL, state_hangs_up, 0, REFRESH, true },
}, port_refusals[] = {
	{ "another port", change_port, NULL, 0, DENY, false },
	{ "another protocol", change_protocol, NULL, 0, DENY, false },
	{ "too many of its ports", NULL, state_ports_full, 0, "limit", false },
	{ "no gateway", NULL, state_gateway_away, 0, "gateway-away", false },
	{ "no gateway, and none recorded", NULL, state_gateway_none, 0, "gateway-away", false },
	{ "another gateway while it was verified", NULL, state_gateway_moves, 0, "gateway-away",
	  true },
	{ "a gateway that has hung up", NULL, state_hangs_up, 0, "gateway-away", true },
	{ "a gateway that has not confirmed yet", NULL, state_gateway_new, 0, "gateway-away", false },
	{ "a gateway that has just ended", NULL, state_gone, 0, "gateway-away", true },
	{ "a gateway that does not listen", NULL, state_gateway_silent, 0, "gateway-away", false },
};

static void reset_state(void)
{
	struct box *b = rig_box();

	/* A doubt about its gateway is looked into. */
	TURN_UNTIL(b->jobs == 0);
	gateway_forget(b);
	fx->verify_error = 0;
	fx->on_verify = NULL;
	if (fx->s.bundle.n_keys == 0) {
		fx->s.bundle.number++;
		fx->s.bundle.n_keys = 2;
	}
	fx->verified = 0;
	fx->s.n_admits = 0;
	fx->s.n_leases = 0;
	b->n_leases = b->n_ports = 0;
	b->ending = false;
	fx->rec = rig_running();
	box_set(&fx->s, &fx->rec);
	b->gateway.pid = fx->rec.gateway.pid;
}

static void refused(const struct refusal *rows, size_t n, bool port)
{
	for (size_t i = 0; i < n; i++) {
		const struct refusal *r = &rows[i];
		struct capability c = good(port);
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
		admit(token, port ? "service-port" : "control", "write");
		if (!str_eq(fx->e.code, r->code))
			fail_msg("%s: \"%s\" (%s), expected \"%s\"", r->name, fx->e.code,
				 fx->e.text, r->code);
		assert_int_equal(fx->e.num, str_starts(r->code, "refusal-") ? -EACCES : -EAGAIN);
		assert_int_equal(fx->verified, r->asks_nm);
		/* Nothing of it is left here. */
		assert_true(list_empty(&rig_box()->leases));
		assert_int_equal(fx->s.n_admits,
				 r->state == state_admits_full ? SBX_ADMITS_PENDING_MAX : 0);
		saw_nothing(fx->bridge_fd);
		saw_nothing(fx->gateway_fd);
	}
	reset_state();
}

static void test_refusals(void **state)
{
	refused(refusals, ARRAY_LEN(refusals), false);
	refused(bridge_refusals, ARRAY_LEN(bridge_refusals), false);
}

static void test_port_refusals(void **state)
{
	refused(refusals, ARRAY_LEN(refusals), true);
	refused(port_refusals, ARRAY_LEN(port_refusals), true);
}

static void test_bad_signatures(void **state)
{
	struct capability c = good(false);
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
	saw_nothing(fx->bridge_fd);
	admit(token, "control", "write");
	assert_int_equal(fx->e.num, 0);
}

static void on_plain(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	fx->answered = true;
	fx->e = e ? *e : (struct err){ 0 };
}

static int admit_one(struct bridge_preamble *ret)
{
	struct capability c = good(false);
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
	TURN_UNTIL(fx->answered);
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
	assert_int_equal(rig_box()->n_leases, 0);
	close(fd);
	close(fd2);
}

/* Only the connection that got a lease ends it. */
static void test_anothers_lease(void **state)
{
	struct bridge_preamble p;
	int fd = admit_one(&p);
	struct ipc_client *mine = fx->client;
	char path[PATH_MAX];

	rig_in_dir(path, "run/sbx-manager/sbx.sock");
	fx->client = ipc_client_new(fx->s.loop, path, getuid());
	end_lease(p.lease);
	assert_int_equal(fx->s.n_leases, 1);
	ipc_client_free(fx->client);
	fx->client = mine;
	end_lease(p.lease);
	assert_int_equal(fx->s.n_leases, 0);
	close(fd);
}

/* A port: the gateway gets the epoch, port and protocol, and the capability itself. */
static int admit_port(char token[CAP_TEXT_MAX], struct gtw_preamble *ret)
{
	struct capability c = good(true);
	char seen[CAP_TEXT_MAX] = "";
	int fd;

	assert_int_equal(cap_sign(&c, &fx->api, clock_wall_ms() / 1000, token, NULL), 0);
	fd_close(TAKE_FD(fx->fd));
	admit(token, "service-port", "write");
	assert_int_equal(fx->e.num, 0);
	fd = accept(fx->gateway_fd, NULL, NULL);
	assert_true(fd >= 0);
	assert_int_equal(fd_read_full(fd, ret, sizeof(*ret), WAIT_MS), sizeof(*ret));
	assert_true(ret->token_len < sizeof(seen));
	assert_int_equal(fd_read_full(fd, seen, ret->token_len, WAIT_MS), ret->token_len);
	assert_string_equal(seen, token);
	return fd;
}

static void test_port_admitted(void **state)
{
	static const uint8_t none[sizeof(((struct gtw_preamble *)0)->zero)];
	char token[CAP_TEXT_MAX];
	struct bridge_preamble bp;
	struct gtw_preamble p;
	int fd, bridge;
	char c;

	reset_state();
	fd = admit_port(token, &p);
	assert_int_equal(p.magic, GTW_PREAMBLE_MAGIC);
	assert_int_equal(p.lease, fx->rep.lease);
	assert_int_equal(p.generation, 7);
	assert_memory_equal(p.activation, fx->rec.id.activation, sizeof(p.activation));
	assert_int_equal(p.port, 8080);
	assert_int_equal(p.protocol, ID_PROTOCOL_HTTP);
	assert_memory_equal(p.zero, none, sizeof(none));
	assert_string_equal(fx->rep.sandbox, SANDBOX);
	/* The guest's token is for the control routes alone. */
	assert_string_equal(fx->rep.guest_token, "");
	saw_nothing(fx->bridge_fd);
	fd_set_nonblock(fx->bridge_fd, false);
	bridge = admit_one(&bp);
	assert_int_equal(rig_box()->n_leases, 2);
	assert_int_equal(rig_box()->n_ports, 1);
	/* The end of a gateway cuts what went through it, and nothing else. */
	lease_cut_ports(rig_box());
	assert_int_equal(rig_box()->n_leases, 1);
	assert_int_equal(rig_box()->n_ports, 0);
	assert_int_equal(recv(fd, &c, 1, 0), 0);
	assert_int_equal(send(fx->fd, "a", 1, 0), 1);
	assert_int_equal(recv(bridge, &c, 1, 0), 1);
	TURN_UNTIL(fx->revoked == 1);
	/* As many ports as there are take no place of the control routes. */
	rig_box()->n_leases += SBX_PORTS_PER_BOX_MAX;
	rig_box()->n_ports += SBX_PORTS_PER_BOX_MAX;
	close(bridge);
	bridge = admit_one(&bp);
	reset_state();
	close(bridge);
	close(fd);
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
	lease_cut_all(rig_box());
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
	struct capability c = good(false);
	struct key_signer old = fx->api;
	uint8_t public[KEY_PUBLIC_BYTES];
	char token[CAP_TEXT_MAX];

	assert_int_equal(cap_sign(&c, &old, clock_wall_ms() / 1000, token, NULL), 0);
	admit(token, "control", "read");
	assert_int_equal(fx->e.num, 0);
	next = (struct key_bundle){ .number = 4 };
	rig_add_key(&next, "api-2", &fx->api, 1u << ID_PURPOSE_CONTROL);
	assert_int_equal(rig_put_bundle(&next), 0);
	/* The key is gone: so is what the cache knew of its tokens. */
	admit(token, "control", "read");
	assert_string_equal(fx->e.code, DENY);
	next.number = 3;
	assert_int_equal(rig_put_bundle(&next), -ESTALE);
	next.number = 4;
	next.keys[0].purposes = 7;
	assert_int_equal(rig_put_bundle(&next), -ESTALE);
	/* Not signed by the root key that was pinned. */
	assert_int_equal(key_generate("root", &fx->root, public), 0);
	next.number = 9;
	assert_true(rig_put_bundle(&next) < 0);
	assert_int_equal(fx->s.bundle.number, 4);
	/*
	 * It survives a restart, and so does the pinned root key, whatever lies in the keys'
	 * folder.
	 */
	rig_write_root_pub(public);
	memset(&fx->s.bundle, 0, sizeof(fx->s.bundle));
	memset(fx->s.root_public, 0, sizeof(fx->s.root_public));
	assert_int_equal(bundle_load(&fx->s, NULL), 0);
	assert_int_equal(fx->s.bundle.number, 4);
	assert_true(memcmp(fx->s.root_public, public, sizeof(public)) != 0);
}

/* Limits of time and place of the clock-less cache: the comparison is made each time. */
static void test_cached_signature_is_compared_anew(void **state)
{
	struct capability c = good(false);
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
		cmocka_unit_test_setup_teardown(test_refusals, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_bad_signatures, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_port_refusals, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_port_admitted, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_admitted, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_anothers_lease, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_hup_keeps_the_lease, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_broken_connection_ends_leases, rig_setup,
						rig_teardown),
		cmocka_unit_test_setup_teardown(test_cut_throws_away, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_bundle_never_goes_back, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_cached_signature_is_compared_anew, rig_setup,
						rig_teardown),
	};

	/* Refusals are what is tested: not said line by line. */
	log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
