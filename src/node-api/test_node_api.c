/*
 * node-api against a real IPC server in sbx-manager's place; the test is space-api on one side and
 * the bridge on the other.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "ipc/gtw_ops.h"
#include "ipc/sbx_ops.h"
#include "node-api/node.h"

#define WAIT_MS 60000
#define SANDBOX "i0123456789abcdefghij"

struct rig {
	struct loop *loop;
	struct ipc_server *sbx;
	struct node *node;
	char dir[64], path[128];
	int client, bridge;
	struct buf in, guest;             /* what arrived at the client and at the bridge */
	bool client_eof, bridge_eof;
	unsigned admits, lease_ends, pages;
	uint64_t lease, ended_lease;
	struct sbx_admit last;
	struct err refuse;                /* admit and life cycle fail with this */
	struct sbx_lifecycle last_cycle;
	char *last_spec;
	bool hold;                        /* admissions wait */
	struct ipc_call *held;
};

static void grant(struct rig *g, struct ipc_call *call)
{
	struct sbx_admit_rep rep = { .lease = ++g->lease, .sandbox = SANDBOX, .generation = 7 };
	int sv[2];

	memset(rep.guest_token, 'f', 64);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv), 0);
	if (g->bridge >= 0)
		close(g->bridge);
	g->bridge = sv[1];
	g->bridge_eof = false;
	buf_clear(&g->guest);
	ipc_answer(call, &rep, &sv[0], 1);
	close(sv[0]);
}

static void do_admit(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	struct rig *g = arg;

	g->admits++;
	g->last = *(const struct sbx_admit *)req;
	if (g->refuse.num)
		ipc_fail(call, &g->refuse);
	else if (g->hold)
		g->held = call;
	else
		grant(g, call);
}

static void do_lease_end(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	struct rig *g = arg;
	const struct sbx_lease *a = req;

	g->lease_ends++;
	g->ended_lease = a->lease;
	ipc_answer(call, NULL, NULL, 0);
}

static void do_lifecycle(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	struct rig *g = arg;
	const struct sbx_lifecycle *a = req;
	struct sbx_lifecycle_rep rep = { 0 };

	free(g->last_spec);
	g->last_cycle = *a;
	g->last_spec = json_dumps(a->spec, JSON_COMPACT);
	if (g->refuse.num) {
		ipc_fail(call, &g->refuse);
		return;
	}
	rep.result = json_pack("{s:s}", "state", "running");
	ipc_answer(call, &rep, NULL, 0);
	json_decref(rep.result);
}

static void do_bundle(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	const struct sbx_bundle *a = req;
	struct sbx_bundle_rep rep = { .number = 9 };
	struct err e = { 0 };

	if (str_eq(a->text, "old")) {
		err_set(&e, -ESTALE, "An older bundle.");
		ipc_fail(call, &e);
	} else {
		ipc_answer(call, &rep, NULL, 0);
	}
}

static void do_report(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	struct rig *g = arg;
	const struct sbx_report *a = req;
	struct sbx_report_rep rep = { .node = json_pack("{s:i}", "bundle", 3),
				      .next = a->cursor < 2 ? a->cursor + 1 : 0 };

	g->pages++;
	rep.sandboxes = json_pack("[{s:I}]", "generation", (json_int_t)a->cursor);
	ipc_answer(call, &rep, NULL, 0);
	json_decref(rep.node);
	json_decref(rep.sandboxes);
}

static const struct ipc_handler handlers[] = {
	{ &sbx_ops[SBX_ADMIT], do_admit },	   { &sbx_ops[SBX_LEASE_END], do_lease_end },
	{ &sbx_ops[SBX_LIFECYCLE], do_lifecycle }, { &sbx_ops[SBX_BUNDLE], do_bundle },
	{ &sbx_ops[SBX_REPORT], do_report },	   { NULL, NULL },
};

static void connect_client(struct rig *g)
{
	int sv[2];

	if (g->client >= 0)
		close(g->client);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv), 0);
	g->client = sv[0];
	g->client_eof = false;
	buf_clear(&g->in);
	node_accept(g->node, sv[1]);
}

static int setup(void **state)
{
	struct rig *g = x_alloc(sizeof(*g));
	static uid_t uids[1];
	struct ipc_server_conf sc = {
		.handlers = handlers, .uids = uids, .n_uids = 1, .max_peers = 4, .arg = g
	};
	struct node_conf nc = {
		.sbx_uid = getuid(), .peers = { getuid() }, .n_peers = 1, .head_timeout_ms = WAIT_MS
	};
	int fd;

	uids[0] = getuid();
	g->client = g->bridge = -1;
	g->loop = loop_new();
	str_copy(g->dir, sizeof(g->dir), "/tmp/test-node-api-XXXXXX");
	assert_non_null(mkdtemp(g->dir));
	str_format(g->path, sizeof(g->path), "%s/sbx.sock", g->dir);
	fd = fd_unix_listen(g->path, SOCK_SEQPACKET, 0600, 8);
	assert_true(fd >= 0);
	g->sbx = ipc_server_new(g->loop, fd, &sc);
	nc.sbx_path = g->path;
	g->node = node_new(g->loop, &nc);
	buf_init(&g->in, 1 << 20);
	buf_init(&g->guest, 1 << 20);
	connect_client(g);
	*state = g;
	return 0;
}

static int teardown(void **state)
{
	struct rig *g = *state;

	node_free(g->node);
	ipc_server_free(g->sbx);
	for (int i = 0; i < 3; i++)
		loop_turn(g->loop, 0);
	loop_free(g->loop);
	if (g->client >= 0)
		close(g->client);
	if (g->bridge >= 0)
		close(g->bridge);
	buf_done(&g->in);
	buf_done(&g->guest);
	free(g->last_spec);
	unlink(g->path);
	rmdir(g->dir);
	free(g);
	return 0;
}

static void collect(int fd, struct buf *b, bool *eof)
{
	ssize_t r = -EAGAIN;

	while (fd >= 0 && !*eof && (r = buf_read_fd(b, fd, 65536)) > 0)
		;
	if (fd >= 0 && r != -EAGAIN)
		*eof = true;
}

static void turn(struct rig *g)
{
	loop_turn(g->loop, 1);
	collect(g->client, &g->in, &g->client_eof);
	collect(g->bridge, &g->guest, &g->bridge_eof);
}

#define WAIT(g, cond)                                                                              \
	do {                                                                                       \
		int64_t until_ = clock_mono_ms() + WAIT_MS;                                        \
		while (!(cond)) {                                                                  \
			turn(g);                                                                   \
			if (clock_mono_ms() > until_)                                              \
				fail_msg("waited in vain for: %s; client has \"%.*s\"", #cond,     \
					 (int)buf_len(&(g)->in), buf_data(&(g)->in));              \
		}                                                                                  \
	} while (0)

/* noipa: gcc 12 takes the one byte that stands for an empty buffer for all there is. */
static __attribute__((noipa)) bool has(struct buf *b, const char *want)
{
	return buf_len(b) >= strlen(want) && memmem(buf_data(b), buf_len(b), want, strlen(want));
}

static void put(int fd, const char *s)
{
	assert_int_equal(fd_write_all(fd, s, strlen(s), WAIT_MS), 0);
}

static void ask(struct rig *g, const char *op, const char *line, const char *fields,
		const char *body)
{
	autofree char *msg = x_asprintf(
		"%s HTTP/1.1\r\nHost: h\r\nSpace-Op: %s\r\nSpace-Request-Id: req-1\r\n%s\r\n%s",
		line, op, fields, body);

	buf_clear(&g->in);
	put(g->client, msg);
}

#define CAP "Space-Capability: cap-text\r\n"

static void test_forward(void **state)
{
	struct rig *g = *state;

	ask(g, "forward", "POST /process.Process/Start?x=1",
	    CAP
	    "X-Keep: yes\r\nx-access-token: stolen\r\nSPACE-evil: 1\r\nX-Request-Id: fake\r\nContent-Length: 4\r\n",
	    "body");
	WAIT(g, has(&g->guest, "\r\n\r\nbody"));
	assert_string_equal(g->last.capability, "cap-text");
	assert_string_equal(g->last.purpose, "control");
	assert_string_equal(g->last.access, "write");
	assert_true(has(&g->guest, "POST /process.Process/Start?x=1 HTTP/1.1\r\n"));
	assert_true(has(&g->guest, "X-Keep: yes\r\n"));
	assert_true(has(&g->guest, "Connection: close\r\n"));
	assert_true(has(&g->guest, "X-Request-Id: req-1\r\n"));
	assert_true(has(&g->guest, "X-Access-Token: ffffffff"));
	assert_false(has(&g->guest, "stolen"));
	assert_false(has(&g->guest, "evil"));
	assert_false(has(&g->guest, "fake"));
	assert_false(has(&g->guest, "cap-text"));
	put(g->bridge,
	    "HTTP/1.1 200 OK\r\nSPACE-REFUSAL: deny\r\nspace-error: x\r\nX-Mine: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
	    "2\r\nok\r\n0\r\nSpace-Refusal: deny\r\n\r\n");
	WAIT(g, g->lease_ends == 1 && has(&g->in, "0\r\n\r\n"));
	assert_int_equal(g->ended_lease, 1);
	assert_true(has(&g->in, "X-Mine: 1\r\n"));
	assert_false(has(&g->in, "pace-"));
	assert_false(has(&g->in, "PACE-"));
	WAIT(g, g->bridge_eof);

	/*
	 * the connection is kept, the next request is admitted anew and read access is enough for
	 * it
	 */
	ask(g, "forward", "GET /files?path=a", CAP, "");
	WAIT(g, g->admits == 2 && has(&g->guest, "GET /files?path=a"));
	assert_string_equal(g->last.access, "read");
	put(g->bridge, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
	WAIT(g, g->lease_ends == 2);
	assert_int_equal(g->node->n_streams, 0);
}

static void test_refusals(void **state)
{
	static const struct { int num; const char *code, *want, *also;
	} rows[] = {
		{ -EACCES, "refusal-refresh-route", "HTTP/1.1 421 ",
		  "Space-Refusal: refresh-route\r\n" },
		{ -EACCES, "refusal-deny", "HTTP/1.1 421 ", "Space-Refusal: deny\r\n" },
		{ -EAGAIN, "limit", "HTTP/1.1 429 ", "Retry-After: 1\r\n" },
		{ -ESTALE, "stale-generation", "HTTP/1.1 409 ",
		  "Space-Error: stale-generation\r\n" },
		{ -ENOSPC, "", "HTTP/1.1 507 ", "Space-Error: no-space\r\n" },
	};
	struct rig *g = *state;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		err_set_code(&g->refuse, rows[i].num, rows[i].code, "No.");
		ask(g, "forward", "POST /files", CAP "Content-Length: 5\r\n", "12345");
		WAIT(g, has(&g->in, rows[i].want));
		assert_true(has(&g->in, rows[i].also));
		WAIT(g, has(&g->in, "\"message\":\"No.\""));
		ask(g, "lifecycle", "POST /lifecycle/stop", CAP "Content-Length: 2\r\n", "{}");
		WAIT(g, has(&g->in, rows[i].want) && has(&g->in, rows[i].also));
	}
	assert_int_equal(g->bridge, -1);
	assert_int_equal(g->lease_ends, 0);
}

static void test_misuse(void **state)
{
	static const struct { const char *op, *line, *fields, *want;
	} rows[] = {
		{ "forward", "GET /health", "", "HTTP/1.1 421 " }, /* no capability */
		{ "forward", "POST /init", CAP, "HTTP/1.1 404 " },
		{ "forward", "GET /%69nit", CAP, "HTTP/1.1 404 " },
		{ "forward", "GET /health", CAP CAP, "HTTP/1.1 400 " },
		{ "nonsense", "GET /health", CAP, "HTTP/1.1 400 " },
		{ "lifecycle", "GET /lifecycle/stop", CAP, "HTTP/1.1 404 " },
		{ "lifecycle", "POST /lifecycle/../x", CAP, "HTTP/1.1 404 " },
		{ "lifecycle", "POST /lifecycle/stop", "", "HTTP/1.1 421 " },
		{ "lifecycle", "POST /lifecycle/stop", CAP "Content-Length: 2\r\n",
		  "HTTP/1.1 400 " },
		{ "bundle", "PUT /bundle", "", "HTTP/1.1 400 " },
		{ "report", "POST /report", "", "HTTP/1.1 404 " },
	};
	struct rig *g = *state;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		ask(g, rows[i].op, rows[i].line, rows[i].fields,
		    strstr(rows[i].fields, "Length") ? "[]" : "");
		WAIT(g, buf_len(&g->in) > 12);
		if (!has(&g->in, rows[i].want))
			fail_msg("row %zu: %.*s", i, (int)buf_len(&g->in), buf_data(&g->in));
		if (g->client_eof)
			connect_client(g);
	}
	assert_int_equal(g->admits, 0);
}

static void test_calls(void **state)
{
	struct rig *g = *state;

	ask(g, "lifecycle", "POST /lifecycle/create", CAP "Content-Length: 20\r\n",
	    "{\"template\":\"base-1\"}" + 0);
	WAIT(g, buf_len(&g->in) > 0);
	assert_true(has(&g->in, "400 Bad Request"));         /* the length cuts the JSON */
	connect_client(g);
	ask(g, "lifecycle", "POST /lifecycle/create", CAP "Content-Length: 21\r\n",
	    "{\"template\":\"base-1\"}");
	WAIT(g, has(&g->in, "{\"state\":\"running\"}"));
	assert_string_equal(g->last_cycle.kind, "create");
	assert_string_equal(g->last_cycle.capability, "cap-text");
	assert_string_equal(g->last_spec, "{\"template\":\"base-1\"}");
	ask(g, "bundle", "PUT /bundle", "Content-Length: 3\r\n", "new");
	WAIT(g, has(&g->in, "{\"number\":9}"));
	ask(g, "bundle", "PUT /bundle", "Content-Length: 3\r\n", "old");
	WAIT(g, has(&g->in, "HTTP/1.1 409 "));
	ask(g, "report", "GET /report", "", "");
	WAIT(g,
	     has(&g->in,
		 "{\"node\":{\"bundle\":3},\"sandboxes\":[{\"generation\":0},{\"generation\":1},{\"generation\":2}]}"));
	assert_int_equal(g->pages, 3);
}

/*
 * Full queues in both directions, then the lease is revoked: nothing more arrives, and the client
 * sees a cut.
 */
static void test_revoked(void **state)
{
	struct rig *g = *state;
	const struct sbx_lease ev = { .lease = 1 }, other = { .lease = 77 };
	static char junk[4096];
	size_t before;

	ask(g, "forward", "POST /files", CAP "Content-Length: 100000000\r\n", "");
	WAIT(g, has(&g->guest, "\r\n\r\n"));
	put(g->bridge, "HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
	WAIT(g, has(&g->in, "\r\n\r\n"));
	for (int i = 0; i < 300; i++) {
		(void)!send(g->bridge, junk, sizeof(junk), MSG_NOSIGNAL);
		(void)!send(g->client, junk, sizeof(junk), MSG_NOSIGNAL);
		loop_turn(g->loop, 0);
	}
	ipc_server_event(g->sbx, "revoked", sbx_revoked_fields, &other);
	for (int i = 0; i < 5; i++)
		loop_turn(g->loop, 1);
	assert_int_equal(g->node->n_streams, 1);
	ipc_server_event(g->sbx, "revoked", sbx_revoked_fields, &ev);
	int64_t until = clock_mono_ms() + WAIT_MS;
	while (g->node->n_streams > 0 && clock_mono_ms() < until)
		loop_turn(g->loop, 1);
	assert_int_equal(g->node->n_streams, 0);
	WAIT(g, g->client_eof && g->bridge_eof && g->lease_ends == 1);
	before = buf_len(&g->in) + buf_len(&g->guest);
	for (int i = 0; i < 5; i++)
		turn(g);
	assert_int_equal(buf_len(&g->in) + buf_len(&g->guest), before);
	assert_true(buf_len(&g->in) < 100000000);
}

static void test_client_leaves(void **state)
{
	struct rig *g = *state;

	/* while the admission is decided */
	g->hold = true;
	ask(g, "forward", "GET /health", CAP, "");
	WAIT(g, g->held);
	close(TAKE_FD(g->client));
	for (int i = 0; i < 3; i++)
		turn(g);
	grant(g, g->held);
	WAIT(g, g->lease_ends == 1 && g->bridge_eof);
	assert_int_equal(g->node->n_streams, 0);

	/* while the guest works */
	g->hold = false;
	connect_client(g);
	ask(g, "forward", "GET /health", CAP, "");
	WAIT(g, g->node->n_streams == 1);
	close(TAKE_FD(g->client));
	WAIT(g, g->lease_ends == 2 && g->bridge_eof);
}

static void test_guest_breaks(void **state)
{
	static const struct { const char *answer, *code;
	} rows[] = {
		{ "", "guest-lost" },
		{ "HTTP/1.1 200 O", "guest-lost" },
		{ "garbage\r\n\r\n", "guest-protocol" },
		{ "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
		  "guest-protocol" },
	};
	struct rig *g = *state;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		autofree char *want = x_asprintf("Space-Error: %s\r\n", rows[i].code);

		ask(g, "forward", "GET /health", CAP, "");
		WAIT(g, has(&g->guest, "\r\n\r\n"));
		put(g->bridge, rows[i].answer);
		shutdown(g->bridge, SHUT_RDWR);
		WAIT(g, has(&g->in, "HTTP/1.1 502 ") && has(&g->in, want));
		WAIT(g, g->lease_ends == i + 1);
		buf_clear(&g->guest);
	}
}

static void test_stranger(void **state)
{
	struct rig *g = *state;
	int sv[2];
	char c;

	g->node->conf.peers[0] = getuid() + 1;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
	node_accept(g->node, sv[1]);
	assert_int_equal(read(sv[0], &c, 1), 0);
	close(sv[0]);
}

/* ---- Ports of the guest: the bridge's end is the gateway's here ---- */

static void verdict(struct rig *g, unsigned code)
{
	const struct gtw_verdict v = { .magic = GTW_VERDICT_MAGIC, .code = code };

	assert_int_equal(fd_write_all(g->bridge, &v, sizeof(v), WAIT_MS), 0);
}

#define PORT CAP "Space-Port: 8080\r\n"
#define TUNNEL PORT "Connection: Upgrade\r\nUpgrade: space-tunnel\r\nSpace-Tunnel: tcp\r\n"

static void test_port(void **state)
{
	struct rig *g = *state;

	ask(g, "port", "POST /init?x=1",
	    PORT
	    "X-Keep: yes\r\nAuthorization: Bearer mine\r\nX-Request-Id: mine-too\r\nX-Access-Token: stolen1\r\n"
	    "x-api-key: stolen2\r\nE2B-Traffic-Access-Token: stolen3\r\nE2b-Sandbox-Id: stolen4\r\n"
	    "E2b-Sandbox-Port: stolen5\r\nSpace-Evil: stolen6\r\nContent-Length: 4\r\n",
	    "body");
	WAIT(g, g->admits == 1 && g->node->n_streams == 1);
	assert_string_equal(g->last.purpose, "service-port");
	assert_string_equal(g->last.access, "write");
	assert_string_equal(g->last.protocol, "http");
	assert_int_equal(g->last.port, 8080);
	/* Not a byte before the gateway has said yes, and its word comes in pieces too. */
	assert_int_equal(fd_write_all(g->bridge, "gtv", 3, WAIT_MS), 0);
	for (int i = 0; i < 5; i++)
		turn(g);
	assert_int_equal(buf_len(&g->guest), 0);
	assert_int_equal(fd_write_all(g->bridge, "1\1\0\0\0", 5, WAIT_MS), 0);
	WAIT(g, has(&g->guest, "\r\n\r\nbody"));
	assert_true(has(&g->guest, "POST /init?x=1 HTTP/1.1\r\n"));
	assert_true(has(&g->guest, "X-Keep: yes\r\n"));
	assert_true(has(&g->guest, "Authorization: Bearer mine\r\n"));
	assert_true(has(&g->guest, "X-Request-Id: mine-too\r\n"));
	assert_true(has(&g->guest, "Connection: close\r\n"));
	assert_false(has(&g->guest, "stolen"));
	assert_false(has(&g->guest, "cap-text"));
	assert_false(has(&g->guest, "Space-"));
	/* What a guest says in the platform's name is its own word. */
	put(g->bridge,
	    "HTTP/1.1 421 Misdirected Request\r\nSpace-Refusal: refresh-route\r\nSpace-Error: port-closed\r\n"
	    "Content-Length: 2\r\n\r\nno");
	WAIT(g, has(&g->in, "\r\n\r\nno") && g->lease_ends == 1);
	assert_true(has(&g->in, "HTTP/1.1 421 "));
	assert_false(has(&g->in, "Space-"));
	/* The connection is kept. */
	ask(g, "port", "GET /", PORT, "");
	WAIT(g, g->admits == 2);
	verdict(g, GTW_OK);
	WAIT(g, has(&g->guest, "GET / HTTP/1.1\r\n"));
	put(g->bridge, "HTTP/1.1 204 No Content\r\n\r\n");
	WAIT(g, g->lease_ends == 2);
	assert_int_equal(g->node->n_streams, 0);
}

static void test_port_verdicts(void **state)
{
	static const struct { unsigned code; const char *status, *field, *body;
	} rows[] = {
		{ GTW_DENY, "HTTP/1.1 421 ", "Space-Refusal: deny\r\n", "refusal-deny" },
		{ GTW_REFRESH, "HTTP/1.1 421 ", "Space-Refusal: refresh-route\r\n",
		  "refusal-refresh-route" },
		{ GTW_PORT_CLOSED, "HTTP/1.1 502 ", "Space-Error: port-closed\r\n",
		  "{\"sandboxId\":\"" SANDBOX
		  "\",\"message\":\"The sandbox is running but port is not open\",\"port\":8080,\"code\":502}" },
		{ GTW_LIMIT, "HTTP/1.1 429 ", "Space-Error: limit\r\n", "\"limit\"" },
		{ GTW_TIMEOUT, "HTTP/1.1 504 ", "Space-Error: port-timeout\r\n", "port-timeout" },
		{ 0, "HTTP/1.1 503 ", "Space-Error: gateway-lost\r\n", "gateway-lost" },
		{ GTW_CODE_END, "HTTP/1.1 503 ", "Space-Error: gateway-lost\r\n", "gateway-lost" },
		{ UINT32_MAX, "HTTP/1.1 503 ", "Space-Error: gateway-lost\r\n", "gateway-lost" },
	};
	struct rig *g = *state;

	for (size_t i = 0; i < 2 * ARRAY_LEN(rows); i++) {
		ask(g, "port", "GET /", i % 2 ? TUNNEL : PORT, "");
		WAIT(g, g->admits == i + 1);
		verdict(g, rows[i / 2].code);
		WAIT(g, has(&g->in, rows[i / 2].body) && g->lease_ends == i + 1);
		assert_true(has(&g->in, rows[i / 2].status));
		assert_true(has(&g->in, rows[i / 2].field));
		assert_int_equal(buf_len(&g->guest), 0);
		assert_false(g->client_eof);
	}
	/* The gateway dies before it has said anything; a wrong first word is none. */
	ask(g, "port", "GET /", PORT, "");
	WAIT(g, g->node->n_streams == 1);
	close(TAKE_FD(g->bridge));
	WAIT(g, has(&g->in, "Space-Error: gateway-lost\r\n"));
	ask(g, "port", "GET /", PORT, "");
	WAIT(g, g->node->n_streams == 1);
	put(g->bridge, "HTTP/1.1 200 OK\r\n\r\n");
	WAIT(g, has(&g->in, "Space-Error: gateway-lost\r\n") && g->node->n_streams == 0);
}

static void test_port_misuse(void **state)
{
#define ASK_TUNNEL "Connection: Upgrade\r\nUpgrade: space-tunnel\r\n"
	static const char *const rows[] = {
		CAP, CAP "Space-Port: 0\r\n", CAP "Space-Port: 65536\r\n", CAP "Space-Port: 80a\r\n",
		CAP "Space-Port: -1\r\n", PORT "Space-Port: 8080\r\n",
		PORT "Space-Tunnel: tcp\r\n", PORT ASK_TUNNEL "Space-Tunnel: http\r\n",
		PORT ASK_TUNNEL "Space-Tunnel: udp\r\n",
		PORT ASK_TUNNEL "Space-Tunnel: tcp\r\nSpace-Tunnel: h2\r\n",
		PORT ASK_TUNNEL "Space-Tunnel: tcp\r\nContent-Length: 4\r\n",
		PORT "Connection: Upgrade\r\nUpgrade: websocket\r\nSpace-Tunnel: tcp\r\n",
	};
	struct rig *g = *state;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		ask(g, "port", "GET /", rows[i], strstr(rows[i], "Length") ? "body" : "");
		WAIT(g, has(&g->in, "\r\n\r\n"));
		if (!has(&g->in, "HTTP/1.1 400 "))
			fail_msg("row %zu: %.*s", i, (int)buf_len(&g->in), buf_data(&g->in));
		connect_client(g);
	}
	ask(g, "port", "GET /", "Space-Port: 80\r\n", "");
	WAIT(g, has(&g->in, "HTTP/1.1 421 "));
	assert_int_equal(g->admits, 0);
	/* An upgrade of that name without Space-Tunnel is the guest's own affair. */
	ask(g, "port", "GET /", PORT ASK_TUNNEL, "");
	WAIT(g, g->admits == 1);
	assert_string_equal(g->last.protocol, "http");
	verdict(g, GTW_OK);
	WAIT(g, has(&g->guest, "Upgrade: space-tunnel\r\n"));
}

static void open_tunnel(struct rig *g, const char *fields)
{
	unsigned before = g->admits;

	ask(g, "port", "GET /", fields, "");
	WAIT(g, g->admits == before + 1);
	for (int i = 0; i < 3; i++)
		turn(g);
	assert_int_equal(buf_len(&g->in), 0);
	verdict(g, GTW_OK);
	WAIT(g, has(&g->in, "\r\n\r\n"));
	assert_true(has(&g->in, "HTTP/1.1 101 "));
	assert_true(has(&g->in, "Upgrade: space-tunnel\r\n"));
	assert_int_equal(buf_len(&g->guest), 0);
	buf_clear(&g->in);
}

static void test_port_tunnel(void **state)
{
	struct rig *g = *state;

	open_tunnel(g, TUNNEL);
	assert_string_equal(g->last.protocol, "tcp");
	assert_int_equal(g->last.port, 8080);
	put(g->client, "up");
	put(g->bridge, "down");
	WAIT(g, has(&g->guest, "up") && has(&g->in, "down"));
	/* One way ends, the other goes on. */
	shutdown(g->client, SHUT_WR);
	WAIT(g, g->bridge_eof);
	put(g->bridge, "rest");
	WAIT(g, has(&g->in, "downrest"));
	assert_false(g->client_eof);
	shutdown(g->bridge, SHUT_WR);
	WAIT(g, g->client_eof && g->lease_ends == 1 && g->node->n_streams == 0);

	connect_client(g);
	open_tunnel(g, PORT ASK_TUNNEL "Space-Tunnel: h2\r\n");
	assert_string_equal(g->last.protocol, "h2");
	shutdown(g->bridge, SHUT_WR);
	WAIT(g, g->client_eof);
	put(g->client, "late");
	WAIT(g, has(&g->guest, "late"));
	close(TAKE_FD(g->client));
	WAIT(g, g->bridge_eof && g->lease_ends == 2);
}

/* A gateway that ends is no end of what went through it: whoever reads until the end sees a cut. */
static void test_port_broken(void **state)
{
	static const char head[] = "HTTP/1.1 200 OK\r\n\r\npart";
	struct rig *g = *state;

	for (int broken = 0; broken < 2; broken++) {
		connect_client(g);
		ask(g, "port", "GET /", PORT, "");
		WAIT(g, g->node->n_streams == 1);
		verdict(g, GTW_OK);
		WAIT(g, has(&g->guest, "\r\n\r\n"));
		put(g->bridge, head);
		WAIT(g, has(&g->in, "part"));
		if (broken)
			close(TAKE_FD(g->bridge));
		else
			shutdown(g->bridge, SHUT_WR);
		WAIT(g, g->node->n_streams == 0);
		for (int i = 0; i < 3; i++)
			turn(g);
		assert_int_equal(has(&g->in, "0\r\n\r\n"), !broken);
		assert_int_equal(g->client_eof, broken);
	}
	connect_client(g);
	open_tunnel(g, TUNNEL);
	put(g->bridge, "part");
	WAIT(g, has(&g->in, "part"));
	close(TAKE_FD(g->bridge));
	WAIT(g, g->node->n_streams == 0 && g->client_eof);
}

static void test_port_revoked(void **state)
{
	static char junk[4096];
	struct sbx_lease ev = { .lease = 1 };
	struct rig *g = *state;

	/* While its verdict is awaited: no answer, a cut. */
	ask(g, "port", "GET /", PORT, "");
	WAIT(g, g->node->n_streams == 1);
	ipc_server_event(g->sbx, "revoked", sbx_revoked_fields, &ev);
	WAIT(g, g->client_eof && g->bridge_eof && g->lease_ends == 1);
	assert_int_equal(buf_len(&g->in), 0);
	/* With full queues both ways. */
	connect_client(g);
	open_tunnel(g, TUNNEL);
	for (int i = 0; i < 300; i++) {
		(void)!send(g->bridge, junk, sizeof(junk), MSG_NOSIGNAL);
		(void)!send(g->client, junk, sizeof(junk), MSG_NOSIGNAL);
		loop_turn(g->loop, 0);
	}
	ev.lease = 2;
	ipc_server_event(g->sbx, "revoked", sbx_revoked_fields, &ev);
	while (g->node->n_streams > 0)
		loop_turn(g->loop, 1);
	WAIT(g, g->client_eof && g->bridge_eof && g->lease_ends == 2);
	/* Whoever leaves while its verdict is awaited ends its lease. */
	connect_client(g);
	ask(g, "port", "GET /", PORT, "");
	WAIT(g, g->node->n_streams == 1);
	close(TAKE_FD(g->client));
	WAIT(g, g->bridge_eof && g->lease_ends == 3 && g->node->n_streams == 0);
	assert_int_equal(buf_len(&g->guest), 0);
}

/* An admission that comes after the client was told no: its lease is ended, not forgotten. */
static void test_admitted_late(void **state)
{
	struct rig *g = *state;

	/* Connected, else its time may be over before the question was sent. */
	ask(g, "forward", "GET /health", CAP, "");
	WAIT(g, has(&g->guest, "GET /health"));
	put(g->bridge, "HTTP/1.1 204 No Content\r\n\r\n");
	WAIT(g, g->lease_ends == 1);
	g->node->conf.admit_timeout_ms = 50;
	g->hold = true;
	ask(g, "forward", "GET /health", CAP, "");
	WAIT(g, has(&g->in, "HTTP/1.1 504 ") && g->held);
	grant(g, g->held);
	WAIT(g, g->lease_ends == 2 && g->bridge_eof);
	assert_int_equal(g->ended_lease, g->lease);
	assert_int_equal(buf_len(&g->guest), 0);
	assert_int_equal(g->node->n_streams, 0);
	g->hold = false;
	g->node->conf.admit_timeout_ms = WAIT_MS;
	ask(g, "forward", "GET /health", CAP, "");
	WAIT(g, has(&g->guest, "GET /health"));
}

/*
 * sbx-manager dies: what waits for it is answered, and the next request works after it has come
 * back.
 */
static void test_sbx_restarts(void **state)
{
	struct rig *g = *state;
	static uid_t uids[1];
	struct ipc_server_conf sc = {
		.handlers = handlers, .uids = uids, .n_uids = 1, .max_peers = 4, .arg = g
	};

	uids[0] = getuid();
	g->hold = true;
	ask(g, "forward", "GET /health", CAP, "");
	WAIT(g, g->held);
	ipc_server_free(g->sbx);
	ipc_fail(TAKE(g->held), &(struct err){ .num = -ECANCELED });     /* to nobody */
	g->hold = false;
	g->sbx = ipc_server_new(g->loop, fd_unix_listen(g->path, SOCK_SEQPACKET, 0600, 8), &sc);
	WAIT(g, has(&g->in, "HTTP/1.1 502 "));
	ask(g, "forward", "GET /health", CAP, "");
	WAIT(g, has(&g->guest, "GET /health"));
	put(g->bridge, "HTTP/1.1 204 No Content\r\n\r\n");
	WAIT(g, has(&g->in, "HTTP/1.1 204 "));
}

/* What comes while the program ends its streams is refused. */
static void test_end_under_load(void **state)
{
	static const char late[] = "GET /health HTTP/1.1\r\nHost: h\r\nSpace-Op: forward\r\n" CAP "\r\n";
	struct rig *g = *state;
	char text[4096] = "";
	int sv[2];

	ask(g, "forward", "GET /health", CAP, "");
	WAIT(g, has(&g->guest, "GET /health"));
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
	node_accept(g->node, sv[1]);
	put(sv[0], late);
	node_free(TAKE(g->node));
	assert_true(read(sv[0], text, sizeof(text) - 1) > 0);
	assert_true(str_starts(text, "HTTP/1.1 503 "));
	close(sv[0]);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_forward),      T(test_refusals),	     T(test_misuse),
		T(test_calls),	      T(test_revoked),	     T(test_client_leaves),
		T(test_guest_breaks), T(test_admitted_late), T(test_stranger),
		T(test_sbx_restarts), T(test_port),	     T(test_port_verdicts),
		T(test_port_misuse),  T(test_port_tunnel),   T(test_port_broken),
		T(test_port_revoked), T(test_end_under_load),
	};

	log_open("test", "test");
	log_set_level(LOG_LEVEL_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
