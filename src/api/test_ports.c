/* The ports of sandboxes, against the rig: hosts, tokens, heads, tunnels, TLS. */
#include "api/test_rig.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "api/host.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "loop/test_cert.h"

#define BASE "{\"templateID\":\"base\"}"
#define PRIVATE "{\"templateID\":\"base\",\"network\":{\"allowPublicTraffic\":false}}"
#define ID "iaaaaaaaaaaaaaaaaaaaa"
#define PORT_HOST "Host: 3000-%s.box.test:4983\r\n"

static void test_hosts(void **state)
{
	static const struct { const char *host; enum host_kind kind; const char *id; unsigned port; } rows[] = {
		{ NULL, HOST_API, "", 0 },
		{ "x", HOST_API, "", 0 },
		{ "127.0.0.1:4983", HOST_API, "", 0 },
		{ "[::1]:4983", HOST_API, "", 0 },
		{ "box.test", HOST_API, "", 0 },
		{ "BOX.test:1", HOST_API, "", 0 },
		{ "api.box.test", HOST_API, "", 0 },
		{ "Api.Box.Test.:443", HOST_API, "", 0 },
		{ "sandbox.box.test", HOST_SHARED, "", 0 },
		{ "3000-" ID ".box.test", HOST_PREVIEW, ID, 3000 },
		{ "3000-" ID ".box.test:4983", HOST_PREVIEW, ID, 3000 },
		{ "3000-" ID ".box.test.", HOST_PREVIEW, ID, 3000 },
		{ "65535-IABC.BOX.TEST", HOST_PREVIEW, "iabc", 65535 },
		{ "1-a-b.box.test", HOST_PREVIEW, "a-b", 1 },
		{ "65536-" ID ".box.test", HOST_UNKNOWN, "", 0 },
		{ "0-" ID ".box.test", HOST_UNKNOWN, "", 0 },
		{ "03000-" ID ".box.test", HOST_UNKNOWN, "", 0 },
		{ "+1-" ID ".box.test", HOST_UNKNOWN, "", 0 },
		{ "3000-.box.test", HOST_UNKNOWN, "", 0 },
		{ "-" ID ".box.test", HOST_UNKNOWN, "", 0 },
		{ "www.box.test", HOST_UNKNOWN, "", 0 },
		{ "x.3000-" ID ".box.test", HOST_UNKNOWN, "", 0 },
		{ ".box.test", HOST_UNKNOWN, "", 0 },
		{ "3000-" ID ".other.test", HOST_API, "", 0 },
		{ "3000-" ID "xbox.test", HOST_API, "", 0 },
		{ "3000-" ID ".box.test.evil", HOST_API, "", 0 },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct host h = host_parse(rows[i].host, "box.test");

		if (h.kind != rows[i].kind || !str_eq(h.id, rows[i].id) || h.port != rows[i].port)
			fail_msg("%s: %d \"%s\" %u", rows[i].host, h.kind, h.id, h.port);
	}
	assert_true(host_same("A.b:1", "a.B"));
	assert_true(host_same("a.b.", "a.b"));
	assert_false(host_same("a.bc", "a.b"));
	assert_false(host_same(NULL, "a.b"));
}

static void has_head(struct rig *g, const char *want)
{
	if (!strstr(g->last_head, want))
		fail_msg("no \"%s\" in \"%s\"", want, g->last_head);
}

static void has_not(struct rig *g, const char *text)
{
	if (strstr(g->last_head, text))
		fail_msg("\"%s\" in \"%s\"", text, g->last_head);
}

static void test_forms(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, BASE);

	/* by host; what is for us or for the node does not reach the guest */
	assert_int_equal(rig_ask(g,
				 "POST /sandboxes?x=1 HTTP/1.1\r\n" PORT_HOST
				 "X-API-Key: " KEY "\r\nX-Access-Token: %s\r\n"
				 "E2B-Traffic-Access-Token: x\r\nSpace-Op: lifecycle\r\n"
				 "Space-Capability: x\r\nspace-tunnel: tcp\r\nE2b-Sandbox-Id: %s\r\n"
				 "E2b-Sandbox-Port: 3000\r\nAuthorization: Bearer mine\r\n"
				 "Cookie: a=b\r\nX-Request-Id: theirs\r\nOrigin: http://o\r\n"
				 "Content-Length: 2\r\n\r\nhi",
				 b.id, b.token, b.id),
			 200);
	HAS(g, "\r\n\r\nhi");
	assert_int_equal(g->cap.purpose, ID_PURPOSE_SERVICE_PORT);
	assert_int_equal(g->cap.port, 3000);
	assert_int_equal(g->cap.protocol, ID_PROTOCOL_HTTP);
	assert_int_equal(g->cap.access, ID_ACCESS_WRITE);
	assert_string_equal(g->cap.id.sandbox, b.id);
	has_head(g, "POST /sandboxes?x=1 ");
	has_head(g, "Space-Op: port\r\nSpace-Port: 3000\r\n");
	has_head(g, "Authorization: Bearer mine\r\n");
	has_head(g, "Cookie: a=b\r\n");
	has_head(g, "X-Request-Id: theirs\r\n");
	has_head(g, "Origin: http://o\r\n");
	has_head(g, ".box.test:4983\r\n");
	has_not(g, KEY);
	has_not(g, b.token);
	has_not(g, "Traffic");
	has_not(g, "unnel");
	has_not(g, "lifecycle");
	has_not(g, "E2b-");

	/* by header, and another port: another capability */
	assert_int_equal(rig_ask(g,
				 "GET / HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: %s\r\n"
				 "E2b-Sandbox-Port: 49999\r\n\r\n",
				 b.id),
			 200);
	assert_int_equal(g->cap.port, 49999);
	assert_int_equal(rig_ask(g,
				 "GET / HTTP/1.1\r\nHost: sandbox.box.test\r\nE2b-Sandbox-Id: %s\r\n"
				 "E2b-Sandbox-Port: 3000\r\n\r\n",
				 b.id),
			 200);
	assert_int_equal(g->cap.port, 3000);

	/* a guest says what it likes about origins, and its own 421 is its own */
	g->answers[g->n_answers] = "421 Access-Control-Allow-Origin http://o mine";
	assert_int_equal(rig_ask(g, "GET / HTTP/1.1\r\n" PORT_HOST "\r\n", b.id), 421);
	HAS(g, "Access-Control-Allow-Origin: http://o");
	HAS(g, "\r\n\r\nmine");
}

static void test_strict(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, BASE), other = rig_create(g, BASE);
	unsigned n;

	/* a sandbox's name leads there alone */
	assert_int_equal(rig_ask(g, "GET /v2/sandboxes HTTP/1.1\r\n" PORT_HOST "X-API-Key: " KEY
				    "\r\n\r\n", b.id),
			 200);
	HAS(g, "X-Guest: 1");
	assert_int_equal(rig_ask(g, "GET /health HTTP/1.1\r\n" PORT_HOST "\r\n", b.id), 200);
	HAS(g, "X-Guest: 1");
	n = g->forwards;
	assert_int_equal(rig_ask(g,
				 "GET / HTTP/1.1\r\n" PORT_HOST
				 "E2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: 3000\r\n\r\n",
				 b.id, other.id),
			 400);
	assert_int_equal(rig_ask(g,
				 "GET / HTTP/1.1\r\n" PORT_HOST
				 "E2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: 3001\r\n\r\n",
				 b.id, b.id),
			 400);
	assert_int_equal(rig_ask(g, "GET /v2/sandboxes HTTP/1.1\r\nHost: www.box.test\r\nX-API-Key: "
				    KEY "\r\n\r\n"),
			 404);
	HAS(g, "\"error_code\":\"no_such_host\"");
	assert_int_equal(rig_ask(g, "GET / HTTP/1.1\r\nHost: sandbox.box.test\r\n\r\n"), 400);
	assert_int_equal(rig_ask(g, "CONNECT x:1 HTTP/1.1\r\n" PORT_HOST "\r\n", b.id), 400);
	assert_int_equal(rig_ask(g, "GET / HTTP/1.1\r\nHost: 3000-" ID ".box.test\r\n\r\n"), 502);
	HAS(g, "{\"sandboxId\":\"" ID "\",\"message\":\"The sandbox was not found\",\"code\":502}");
	assert_int_equal(g->forwards, n);
	assert_int_equal(rig_ask(g, "GET /v2/sandboxes HTTP/1.1\r\nHost: api.box.test\r\nX-API-Key: "
				    KEY "\r\n\r\n"),
			 200);
	HAS(g, b.id);
}

/* HTTP/2 without TLS: by prior knowledge a sentence, as an upgrade passed over. */
static void test_h2c(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, BASE);

	assert_int_equal(rig_ask(g, "GET / HTTP/1.1\r\n" PORT_HOST
				    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
				    "HTTP2-Settings: AAMAAABk\r\n\r\n", b.id),
			 200);
	has_not(g, "pgrade");
	has_not(g, "HTTP2");
	assert_int_equal(rig_ask(g, "GET / HTTP/1.1\r\n" PORT_HOST
				    "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", b.id),
			 200);
	has_head(g, "Upgrade: websocket\r\nConnection: Upgrade\r\n");
	assert_int_equal(rig_ask(g, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
	HAS(g, "ALPN h2");
}

static void test_traffic_token(void **state)
{
	struct rig *g = *state;
	struct box open = rig_create(g, BASE), b;
	char token[100];
	unsigned n;

	HAS(g, "\"trafficAccessToken\":null");
	b = rig_create(g, PRIVATE);
	rig_field(g, "trafficAccessToken", token, sizeof(token));
	assert_int_equal(strlen(token), 64);
	assert_int_equal(rig_ask(g, "GET /sandboxes/%s HTTP/1.1\r\n" H "\r\n", b.id), 200);
	HAS(g, "\"network\":{\"allowPublicTraffic\":false}");
	HAS(g, "\"allowInternetAccess\":true");

	n = g->forwards;
	assert_int_equal(rig_ask(g, "GET / HTTP/1.1\r\n" PORT_HOST "\r\n", b.id), 403);
	HAS(g, "E2B-Traffic-Access-Token");
	HAS(g, "\"code\":403");
	const char *const wrong[] = { "x", b.token, "" };
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		assert_int_equal(rig_ask(g, "GET / HTTP/1.1\r\n" PORT_HOST
					    "E2B-Traffic-Access-Token: %s\r\n\r\n", b.id, wrong[i]),
				 403);
	assert_int_equal(rig_ask(g, "GET / HTTP/1.1\r\n" PORT_HOST
				    "E2B-Traffic-Access-Token: %s\r\nE2B-Traffic-Access-Token: %s\r\n\r\n",
				 b.id, token, token),
			 403);
	assert_int_equal(rig_ask(g, "GET / HTTP/1.1\r\n" PORT_HOST "X-API-Key: " KEY
				    "\r\nX-Access-Token: %s\r\n\r\n", b.id, b.token),
			 403);
	assert_int_equal(g->forwards, n);
	assert_int_equal(rig_ask(g, "GET / HTTP/1.1\r\n" PORT_HOST
				    "E2B-Traffic-Access-Token: %s\r\n\r\n", b.id, token),
			 200);
	has_not(g, token);
	/* another's; where none is wanted it does no harm; the agent's port wants its own */
	assert_int_equal(rig_ask(g, "GET / HTTP/1.1\r\n" PORT_HOST
				    "E2B-Traffic-Access-Token: %s\r\n\r\n", open.id, token),
			 200);
	assert_int_equal(rig_ask(g, "GET /envs HTTP/1.1\r\nHost: 49983-%s.box.test\r\n"
				    "E2B-Traffic-Access-Token: %s\r\n\r\n", b.id, token),
			 401);
	assert_int_equal(rig_ask(g, "GET /envs HTTP/1.1\r\nHost: 49983-%s.box.test\r\n"
				    "X-Access-Token: %s\r\n\r\n", b.id, b.token),
			 200);
}

static void test_node_words(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, BASE);
	autofree char *closed = x_asprintf(
		"{\"sandboxId\":\"%s\",\"message\":\"The sandbox is running but port is not open\","
		"\"port\":3000,\"code\":502}", b.id);
	const struct { const char *says; int status; const char *has; } rows[] = {
		{ "502 Space-Error port-closed x", 502, closed },
		{ "429 Space-Error limit x", 429, "Retry-After: 1" },
		{ "504 Space-Error port-timeout x", 504, "did not answer" },
		{ "503 Space-Error gateway-lost x", 503, "Retry-After: 1" },
		{ "503 Space-Error gateway-away x", 503, "started again" },
		{ "421 Space-Refusal deny x", 502, "The sandbox was not found" },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		g->n_answers = 0;
		g->answers[0] = rows[i].says;
		g->answers[1] = NULL;
		assert_int_equal(rig_ask(g, "GET / HTTP/1.1\r\n" PORT_HOST "\r\n", b.id),
				 rows[i].status);
		HAS(g, rows[i].has);
	}
	/* once more where it runs now, whatever the method was */
	g->n_answers = 0;
	g->answers[0] = "421 Space-Refusal refresh-route x";
	assert_int_equal(rig_ask(g, "POST / HTTP/1.1\r\n" PORT_HOST "Content-Length: 3\r\n\r\nabc",
				 b.id),
			 200);
	HAS(g, "\r\n\r\nabc");
}

static void pause_box(struct rig *g, const char *id)
{
	assert_int_equal(rig_ask(g, "POST /sandboxes/%s/pause HTTP/1.1\r\n" H "\r\n", id), 204);
}

static void test_wakes(void **state)
{
	struct rig *g = *state;
	struct box plain = rig_create(g, BASE);
	struct box b = rig_create(g, "{\"templateID\":\"base\",\"autoResume\":{\"enabled\":true},"
				     "\"network\":{\"allowPublicTraffic\":false}}");
	char token[100];

	rig_field(g, "trafficAccessToken", token, sizeof(token));
	pause_box(g, plain.id);
	pause_box(g, b.id);
	assert_int_equal(rig_ask(g, "GET / HTTP/1.1\r\n" PORT_HOST "\r\n", plain.id), 502);
	str_copy(g->last_kind, sizeof(g->last_kind), "none");
	assert_int_equal(rig_ask(g, "GET / HTTP/1.1\r\n" PORT_HOST "\r\n", b.id), 403);
	assert_string_equal(g->last_kind, "none");       /* who may not come in wakes nobody */
	assert_int_equal(rig_ask(g, "GET / HTTP/1.1\r\n" PORT_HOST
				    "E2B-Traffic-Access-Token: %s\r\n\r\n", b.id, token),
			 200);
	assert_string_equal(g->last_kind, "resume");
	HAS(g, "X-Guest: 1");
}

/* ---- tunnels ---- */

#define TUNNEL_OF "GET /v1/sandboxes/%s/ports/5432/tunnel HTTP/1.1\r\nHost: x\r\n"
#define UP "Connection: Upgrade\r\nUpgrade: space-tunnel\r\n"

/* The node says yes, and what comes through it is turned round once. */
static struct conn *node_takes(struct rig *g)
{
	static const char yes[] = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
				  "Upgrade: space-tunnel\r\n\r\n";
	int64_t until = clock_mono_ms() + WAIT_MS;
	struct http_head h;
	struct conn *c;

	while (!g->held && clock_mono_ms() < until)
		rig_turn(g);
	assert_non_null(g->held);
	c = http_req_take(TAKE(g->held), &h);
	http_head_done(&h);
	conn_write(c, yes, sizeof(yes) - 1);
	return c;
}

static void until_in(struct rig *g, struct buf *b, const char *want)
{
	int64_t until = clock_mono_ms() + WAIT_MS;

	while (!memmem(buf_data(b), buf_len(b), want, strlen(want)) && clock_mono_ms() < until)
		rig_turn(g);
	assert_non_null(memmem(buf_data(b), buf_len(b), want, strlen(want)));
}

static void test_tunnel(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, PRIVATE);
	struct conn *node;
	autofree char *ask = x_asprintf(TUNNEL_OF UP "X-API-Key: " KEY "\r\n\r\nearly", b.id);

	g->hold = true;
	buf_clear(&g->in);
	assert_int_equal(fd_write_all(g->client, ask, strlen(ask), WAIT_MS), 0);
	node = node_takes(g);
	has_head(g, "GET / HTTP");
	has_head(g, "Space-Tunnel: tcp\r\n");
	has_head(g, "Space-Port: 5432\r\n");
	has_head(g, "Upgrade: space-tunnel\r\n");
	assert_int_equal(g->cap.port, 5432);
	assert_int_equal(g->cap.protocol, ID_PROTOCOL_TCP);
	until_in(g, &g->in, "HTTP/1.1 101 ");
	until_in(g, conn_in(node), "early");
	conn_write(node, "back", 4);
	until_in(g, &g->in, "\r\n\r\nback");
	/* half-close: what the guest still says arrives */
	shutdown(g->client, SHUT_WR);
	for (int i = 0; !conn_eof(node) && i < 1000; i++)
		rig_turn(g);
	assert_true(conn_eof(node));
	conn_write(node, "last", 4);
	until_in(g, &g->in, "backlast");
	conn_shutdown_write(node);
	for (int i = 0; !g->client_eof && i < 1000; i++)
		rig_turn(g);
	assert_true(g->client_eof);
	conn_free(node);
}

static void test_tunnel_refused(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, BASE);
	static const struct { const char *fields; int status; const char *has; } rows[] = {
		{ "X-API-Key: " KEY "\r\n", 426, "Upgrade: space-tunnel" },
		{ "X-API-Key: " KEY "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n", 426, "" },
		{ UP, 401, "" },
		{ UP "X-API-Key: e2b_no\r\n", 401, "" },
		{ UP "X-Access-Token: no\r\n", 401, "" },
		{ UP "X-API-Key: " OTHER_KEY "\r\n", 404, "sandbox-not-found" },
		{ UP "X-API-Key: " KEY "\r\nContent-Length: 1\r\n", 400, "" },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		assert_int_equal(rig_ask(g, TUNNEL_OF "%s\r\n", b.id, rows[i].fields),
				 rows[i].status);
		HAS(g, rows[i].has);
		HAS(g, "application/problem+json");
	}
	assert_int_equal(g->forwards, 0);
	rig_connect_client(g);                   /* the last one's body never came */
	assert_int_equal(rig_ask(g, "GET /v1/sandboxes/%s/ports/0/tunnel HTTP/1.1\r\n" H UP "\r\n", b.id), 400);
	assert_int_equal(rig_ask(g, "GET /v1/sandboxes/%s/ports/65536/tunnel HTTP/1.1\r\n" H UP "\r\n", b.id), 400);
	assert_int_equal(rig_ask(g, "GET /v1/sandboxes/" ID "/ports/1/tunnel HTTP/1.1\r\n" H UP "\r\n"), 404);
	assert_int_equal(rig_ask(g, "POST /v1/sandboxes/%s/ports/1/tunnel HTTP/1.1\r\n" H "\r\n", b.id), 405);
	g->answers[g->n_answers] = "502 Space-Error port-closed x";
	assert_int_equal(rig_ask(g, TUNNEL_OF UP "X-Access-Token: %s\r\n\r\n", b.id, b.token), 502);
	HAS(g, "/v1/problems/port-closed");
	/* a node that answers without a tunnel is none */
	assert_int_equal(rig_ask(g, TUNNEL_OF UP "X-Access-Token: %s\r\n\r\n", b.id, b.token), 503);
}

/* ---- the flow log and the counters ---- */

static void test_net(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, BASE);

	g->net = "{\"epoch\":\"e1\",\"records\":[{\"n\":7,\"flow\":3,\"t_ms\":1000,\"end_ms\":0,\"dir\":\"out\","
		 "\"proto\":\"tcp\",\"addr\":\"9.9.9.9\",\"port\":443,\"name\":\"a.b\",\"up\":1,\"down\":2,"
		 "\"verdict\":\"allow\",\"reason\":\"\"}],\"next\":7,\"lost\":2}";
	assert_int_equal(rig_ask(g, "GET /v1/sandboxes/%s/net/log?after=6 HTTP/1.1\r\n" H "\r\n", b.id), 200);
	assert_string_equal(g->last_kind, "netlog");
	assert_string_equal(g->last_spec, "{\"after\":6}");
	HAS(g, "\"number\":7");
	HAS(g, "\"address\":\"9.9.9.9\"");
	HAS(g, "\"time\":\"1970-01-01T00:00:01.000Z\"");
	HAS(g, "\"next\":7,\"lost\":2");
	assert_false(rig_has(g, "endTime"));
	assert_int_equal(rig_ask(g, "GET /v1/sandboxes/%s/net/log?after=x HTTP/1.1\r\n" H "\r\n", b.id), 400);
	assert_int_equal(rig_ask(g, "GET /v1/sandboxes/%s/net/log?b=1 HTTP/1.1\r\n" H "\r\n", b.id), 400);
	g->net = "{\"epoch\":\"e1\",\"internet\":true,\"gateway\":\"up\",\"reason\":\"\",\"counters\":{\"flows\":3}}";
	assert_int_equal(rig_ask(g, "GET /v1/sandboxes/%s/net/stats HTTP/1.1\r\n" H "\r\n", b.id), 200);
	HAS(g, "\"gateway\":\"up\",\"internet\":true,\"reason\":\"\",\"counters\":{\"flows\":3}");
	assert_int_equal(rig_ask(g, "GET /v1/sandboxes/%s/net/stats HTTP/1.1\r\nHost: x\r\nX-API-Key: "
				    OTHER_KEY "\r\n\r\n", b.id),
			 404);
}

/* ---- TLS ---- */

struct client { SSL_CTX *ctx; SSL *ssl; int fd; };

static void client_open(struct rig *g, struct client *c, const char *name, const char *alpn)
{
	int sv[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv), 0);
	api_accept_tls(g->api, sv[1]);
	c->fd = sv[0];
	c->ctx = SSL_CTX_new(TLS_client_method());
	c->ssl = SSL_new(c->ctx);
	SSL_set_fd(c->ssl, c->fd);
	SSL_set_connect_state(c->ssl);
	if (name)
		SSL_set_tlsext_host_name(c->ssl, name);
	if (alpn)
		SSL_set_alpn_protos(c->ssl, (const unsigned char *)alpn, (unsigned)strlen(alpn));
}

/* 0, or the reason of the failure. */
static int client_handshake(struct rig *g, struct client *c)
{
	int64_t until = clock_mono_ms() + WAIT_MS;

	while (clock_mono_ms() < until) {
		int r, err;

		ERR_clear_error();
		r = SSL_connect(c->ssl);
		if (r == 1)
			return 0;
		err = SSL_get_error(c->ssl, r);
		if (err != SSL_ERROR_WANT_READ && err != SSL_ERROR_WANT_WRITE)
			return ERR_GET_REASON(ERR_peek_error());
		rig_turn(g);
	}
	return -1;
}

static void client_close(struct client *c)
{
	SSL_free(c->ssl);
	SSL_CTX_free(c->ctx);
	close(c->fd);
}

static void read_until(struct rig *g, struct client *c, struct buf *b, const char *want)
{
	int64_t until = clock_mono_ms() + WAIT_MS;
	char part[4096];

	while (!memmem(buf_data(b), buf_len(b), want, strlen(want))) {
		int n = SSL_read(c->ssl, part, sizeof(part));

		if (n > 0)
			buf_put(b, part, (size_t)n);
		if (clock_mono_ms() > until)
			fail_msg("no \"%s\" in \"%.*s\"", want, (int)buf_len(b), buf_data(b));
		rig_turn(g);
	}
}

static void ask_tls(struct rig *g, struct client *c, const char *text, const char *want)
{
	struct buf b;

	buf_init(&b, 65536);
	assert_int_equal(SSL_write(c->ssl, text, (int)strlen(text)), (int)strlen(text));
	read_until(g, c, &b, want);
	buf_done(&b);
}

static void test_tls(void **state)
{
	struct rig *g = *state;
	autofree char *pem = make_pem("DNS:api.box.test,DNS:*.box.test,DNS:other.test", 1, true);
	struct box b;
	struct client c;

	rig_use_tls(g, pem);
	b = rig_create(g, BASE);
	autofree char *name = x_asprintf("3000-%s.box.test", b.id);
	autofree char *to_port = x_asprintf("GET / HTTP/1.1\r\nHost: %s:443\r\n\r\n", name);

	client_open(g, &c, "api.box.test", NULL);
	assert_int_equal(client_handshake(g, &c), 0);
	ask_tls(g, &c, "GET /health HTTP/1.1\r\nHost: api.box.test\r\n\r\n", "\"status\":\"ok\"");
	/* one connection, another host: no */
	ask_tls(g, &c, to_port, " 421 ");
	client_close(&c);

	client_open(g, &c, name, "\2h2\10http/1.1");
	assert_int_equal(client_handshake(g, &c), 0);
	ask_tls(g, &c, to_port, "\r\n\r\nguest");
	ask_tls(g, &c, "GET /v2/sandboxes HTTP/1.1\r\nHost: api.box.test\r\nX-API-Key: " KEY "\r\n\r\n",
		" 421 ");
	client_close(&c);

	client_open(g, &c, NULL, NULL);                  /* by address */
	assert_int_equal(client_handshake(g, &c), 0);
	ask_tls(g, &c, to_port, "\r\n\r\nguest");
	client_close(&c);

	static const char *const unknown[] = { "evil.test", "www.box.test", "a.b.box.test" };
	for (size_t i = 0; i < ARRAY_LEN(unknown); i++) {
		client_open(g, &c, unknown[i], NULL);
		assert_int_equal(client_handshake(g, &c), SSL_R_TLSV1_UNRECOGNIZED_NAME);
		client_close(&c);
	}
}

static void test_tls_h2(void **state)
{
	struct rig *g = *state;
	autofree char *pem = make_pem("DNS:*.box.test", 1, true);
	struct box open, shut;
	struct client c;
	struct conn *node;
	struct buf in;

	rig_use_tls(g, pem);
	open = rig_create(g, BASE);
	shut = rig_create(g, PRIVATE);
	autofree char *name = x_asprintf("50051-%s.box.test", open.id),
		      *agent = x_asprintf("49983-%s.box.test", open.id),
		      *private = x_asprintf("50051-%s.box.test", shut.id);

	const char *const none[] = { "api.box.test", agent, private };
	for (size_t i = 0; i < ARRAY_LEN(none); i++) {
		client_open(g, &c, none[i], "\2h2");
		assert_int_equal(client_handshake(g, &c), SSL_R_TLSV1_ALERT_NO_APPLICATION_PROTOCOL);
		client_close(&c);
	}

	/* one tunnel, of which nothing is read: not even a preface */
	g->hold = true;
	client_open(g, &c, name, "\2h2");
	assert_int_equal(client_handshake(g, &c), 0);
	assert_int_equal(SSL_write(c.ssl, "any bytes", 9), 9);
	node = node_takes(g);
	has_head(g, "Space-Tunnel: h2\r\n");
	assert_int_equal(g->cap.protocol, ID_PROTOCOL_H2);
	assert_int_equal(g->cap.port, 50051);
	until_in(g, conn_in(node), "any bytes");
	conn_write(node, "of any kind", 11);
	buf_init(&in, 4096);
	read_until(g, &c, &in, "of any kind");
	assert_int_equal(buf_len(&in), 11);              /* no head before it */
	buf_done(&in);
	client_close(&c);
	for (int i = 0; !conn_eof(node) && !conn_error(node) && i < 1000; i++)
		rig_turn(g);
	conn_free(node);
	g->hold = false;

	/* what we have to say is an answer to whatever was asked, and a farewell */
	static const char ask[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0\0\0\0\1\5\0\0\0\1";
	static const char *const hosts[] = { "50051-" ID ".box.test", NULL };
	for (size_t i = 0; i < 2; i++) {
		const char *sentence = i ? "port is not open" : "The sandbox was not found";

		g->answers[g->n_answers] = "502 Space-Error port-closed x";
		client_open(g, &c, hosts[i] ? hosts[i] : name, "\2h2");
		assert_int_equal(client_handshake(g, &c), 0);
		assert_int_equal(SSL_write(c.ssl, ask, sizeof(ask) - 1), sizeof(ask) - 1);
		buf_init(&in, 4096);
		read_until(g, &c, &in, sentence);
		assert_memory_equal(buf_data(&in), "\0\0\0\4\0\0\0\0\0\0\0\0\4\1", 14);
		assert_non_null(memmem(buf_data(&in), buf_len(&in), "502", 3));
		buf_clear(&in);
		read_until(g, &c, &in, sentence);        /* GOAWAY */
		while (SSL_read(c.ssl, &(char){ 0 }, 1) < 0)
			rig_turn(g);
		assert_int_equal(SSL_get_shutdown(c.ssl), SSL_RECEIVED_SHUTDOWN);
		buf_done(&in);
		client_close(&c);
	}
	/* who asks nothing keeps nothing from ending */
	client_open(g, &c, hosts[0], "\2h2");
	assert_int_equal(client_handshake(g, &c), 0);
	rig_turn(g);
	client_close(&c);
}

int main(void)
{
#define RIG(test) cmocka_unit_test_setup_teardown(test, rig_setup, rig_teardown)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hosts), RIG(test_forms),	RIG(test_strict),
		RIG(test_h2c),		      RIG(test_traffic_token), RIG(test_node_words),
		RIG(test_wakes),	      RIG(test_tunnel), RIG(test_tunnel_refused),
		RIG(test_net),		      RIG(test_tls),	RIG(test_tls_h2),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
