/*
 * space-api whole: its own loop, workers and a real database; a node of the test's own stands in
 * for node-api behind a real socket. Pure parts (fields, tokens, routes) have tables of their own
 * first.
 */
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "api/fields.h"
#include "api/test_rig.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"

/* ---- fields ---- */

static const struct { const char *body, *error; } fields_rows[] = {
	{ "{\"templateID\":\"base\"}", NULL },
	{ "{\"templateID\":\"base\",\"timeout\":60,\"metadata\":{\"a\":\"b\"},\"envVars\":{\"X\":\"\"}}",
	  NULL },
	{ "{\"templateID\":\"base\",\"autoPause\":false,\"autoPauseMemory\":true,\"autoResume\":{\"enabled\":false},"
	  "\"allow_internet_access\":true,\"network\":{\"allowPublicTraffic\":true,\"allowOut\":[],\"egressProxy\":null},"
	  "\"iam\":{},\"mcp\":null,\"volumeMounts\":[],\"secure\":true}",
	  NULL },
	{ "{\"templateID\":\"base\",\"allow_internet_access\":false}", NULL },
	{ "{}", "\"templateID\" is missing" },
	{ "{\"templateID\":null}", "\"templateID\" is missing" },
	{ "{\"templateID\":\"\"}", "\"templateID\" must be" },
	{ "{\"templateID\":7}", "\"templateID\" must be" },
	{ "{\"templateID\":\"base\",\"timeout\":0}", "\"timeout\"" },
	{ "{\"templateID\":\"base\",\"timeout\":-1}", "\"timeout\"" },
	{ "{\"templateID\":\"base\",\"timeout\":1.5}", "\"timeout\"" },
	{ "{\"templateID\":\"base\",\"timeout\":\"60\"}", "\"timeout\"" },
	{ "{\"templateID\":\"base\",\"timeout\":99999999}", "\"timeout\"" },
	{ "{\"templateID\":\"base\",\"metadata\":{\"a\":1}}", "\"metadata\"" },
	{ "{\"templateID\":\"base\",\"metadata\":[]}", "\"metadata\"" },
	{ "{\"templateID\":\"base\",\"envVars\":{\"A=B\":\"x\"}}", "\"envVars\"" },
	{ "{\"templateID\":\"base\",\"envVars\":{\"\":\"x\"}}", "\"envVars\"" },
	{ "{\"templateID\":\"base\",\"autoPause\":true,\"autoResume\":{\"enabled\":true}}", NULL },
	{ "{\"templateID\":\"base\",\"autoPause\":\"no\"}", "\"autoPause\"" },
	{ "{\"templateID\":\"base\",\"autoPauseMemory\":false}", "\"autoPauseMemory\"" },
	{ "{\"templateID\":\"base\",\"autoResume\":{\"enabled\":1}}", "\"autoResume.enabled\"" },
	{ "{\"templateID\":\"base\",\"autoResume\":{\"x\":1}}", "\"autoResume.x\" is unknown" },
	{ "{\"templateID\":\"base\",\"allow_internet_access\":\"no\"}",
	  "\"allow_internet_access\"" },
	{ "{\"templateID\":\"base\",\"network\":{\"allowOut\":[\"1.1.1.1\"]}}",
	  "\"network.allowOut\"" },
	{ "{\"templateID\":\"base\",\"network\":{\"denyOut\":[\"0.0.0.0/0\"]}}",
	  "\"network.denyOut\"" },
	{ "{\"templateID\":\"base\",\"network\":{\"rules\":{\"a.b\":[]}}}", "\"network.rules\"" },
	{ "{\"templateID\":\"base\",\"network\":{\"egressProxy\":{\"address\":\"x\"}}}",
	  "\"network.egressProxy\"" },
	{ "{\"templateID\":\"base\",\"network\":{\"allowPublicTraffic\":false}}", NULL },
	{ "{\"templateID\":\"base\",\"network\":{\"allowPublicTraffic\":0}}",
	  "\"network.allowPublicTraffic\"" },
	{ "{\"templateID\":\"base\",\"network\":{\"maskRequestHost\":\"x\"}}",
	  "\"network.maskRequestHost\"" },
	{ "{\"templateID\":\"base\",\"network\":{\"httpsPorts\":[443]}}",
	  "\"network.httpsPorts\"" },
	{ "{\"templateID\":\"base\",\"network\":{\"new\":1}}", "\"network.new\" is unknown" },
	{ "{\"templateID\":\"base\",\"iam\":{\"tokens\":{\"a\":{}}}}", "\"iam.tokens\"" },
	{ "{\"templateID\":\"base\",\"iam\":{\"x\":{}}}", "\"iam.x\" is unknown" },
	{ "{\"templateID\":\"base\",\"mcp\":{}}", "\"mcp\"" },
	{ "{\"templateID\":\"base\",\"volumeMounts\":[{\"name\":\"v\",\"path\":\"/v\"}]}",
	  "\"volumeMounts\"" },
	{ "{\"templateID\":\"base\",\"secure\":false}", "\"secure\"" },
	{ "{\"templateID\":\"base\",\"cpuCount\":4}", "\"cpuCount\" is unknown" },
	{ "{\"templateID\":\"base\",\"templateID\":\"x\"}", "" },
	{ "{\"templateID\":\"base\"} x", "" },
	{ "[]", "" },
	{ "null", "" },
	{ "", "" },
	{ "{", "" },
	{ "{\"templateID\":\"a\\u0000b\"}", "" },
};

static void try_fields(const char *body, const char *error, enum fields_version v)
{
	struct fields_create f = { 0 };
	struct err e = { 0 };
	int r = fields_create(v, body, strlen(body), &f, &e);

	if ((error == NULL) != (r == 0))
		fail_msg("%s: %d %s", body, r, e.text);
	if (error && (!strstr(e.text, error) || err_http_status(&e) != 400))
		fail_msg("%s: \"%s\", %d", body, e.text, err_http_status(&e));
	if (r == 0 && !strstr(body, "timeout"))
		assert_int_equal(f.timeout_s, v == FIELDS_V2 ? 300 : 15);
	fields_create_done(&f);
}

static void test_fields(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(fields_rows); i++) {
		try_fields(fields_rows[i].body, fields_rows[i].error, FIELDS_V1);
		try_fields(fields_rows[i].body, fields_rows[i].error, FIELDS_V2);
	}
}

static void test_token(void **state)
{
	struct token_key k = { .bytes = { 1, 2, 3 } }, other = { .bytes = { 1, 2, 4 } };
	const char *id = "iaaaaaaaaaaaaaaaaaaaa", *id2 = "iaaaaaaaaaaaaaaaaaaab";
	char t[TOKEN_TEXT_MAX], changed[TOKEN_TEXT_MAX], got[ID_SANDBOX_LEN + 1];

	assert_int_equal(key_init(), 0);
	token_make(&k, id, t);
	assert_true(token_ok(&k, id, t));
	assert_false(token_ok(&other, id, t));
	assert_false(token_ok(&k, id2, t));
	assert_false(token_ok(&k, id, ""));
	for (size_t i = 0; t[i]; i++) {
		memcpy(changed, t, sizeof(t));
		changed[i] ^= 1;
		assert_false(token_ok(&k, id, changed));
	}
	assert_int_equal(token_sandbox(t, got), 0);
	assert_string_equal(got, id);
	assert_true(token_sandbox("x.y", got) < 0);
	assert_true(token_sandbox("", got) < 0);
}

static void test_signature(void **state)
{
	/*
	 * E2B's published vector is over a token of its own form; the text that is hashed is the
	 * same.
	 */
	struct token_key k = { .bytes = { 9 } };
	const char *id = "iaaaaaaaaaaaaaaaaaaaa";
	char t[TOKEN_TEXT_MAX], b64[64], text[300], target[400];
	unsigned char hash[32];
	struct err e = { 0 };

	token_make(&k, id, t);
	str_format(text, sizeof(text), "a b.txt:read:user:%s:2000", t);
	crypto_hash_sha256(hash, (const unsigned char *)text, strlen(text));
	str_b64(b64, hash, 32);
	b64[strcspn(b64, "=")] = '\0';
	for (char *p = b64; *p; p++)
		if (*p == '+')
			*p = '-';                /* below: percent-encoded again */
	str_format(target, sizeof(target),
		   "/files?path=a+b.txt&username=user&signature_expiration=2000&signature=v1_%s",
		   b64);
	char fixed[600] = "";
	for (char *p = target; *p; p++)
		str_format(fixed + strlen(fixed), sizeof(fixed) - strlen(fixed),
			   *p == '-' ? "%%2B" : "%c", *p);
	assert_int_equal(token_signature_check(&k, id, "GET", fixed, 1999, &e), 0);
	assert_int_equal(token_signature_check(&k, id, "GET", fixed, 2001, &e), -EKEYEXPIRED);
	assert_string_equal(e.text, "signature is already expired");
	assert_int_equal(token_signature_check(&k, id, "POST", fixed, 1999, &e), -EKEYREJECTED);
	assert_int_equal(token_signature_check(&k, "iaaaaaaaaaaaaaaaaaaab", "GET", fixed, 1999, &e),
			 -EKEYREJECTED);
	assert_int_equal(token_signature_check(&k, id, "GET", "/files?path=a", 1999, &e), -ENOENT);
	assert_int_equal(token_signature_check(&k, id, "GET", "/envs?signature=x", 1999, &e),
			 -ENOENT);
}

static void test_control_find(void **state)
{
	static const struct { const char *method, *target; int want; const char *id;
	} rows[] = {
		/* 1 built, 0 none, 501, 405 */
		{ "POST", "/sandboxes", 1, "" },
		{ "POST", "/v2/sandboxes", 1, "" },
		{ "GET", "/v2/sandboxes?limit=1", 1, "" },
		{ "GET", "/sandboxes/iaaaaaaaaaaaaaaaaaaaa", 1, "iaaaaaaaaaaaaaaaaaaaa" },
		{ "DELETE", "/sandboxes/iaaaaaaaaaaaaaaaaaaaa-client", 1, "iaaaaaaaaaaaaaaaaaaaa" },
		{ "GET", "/sandboxes/x", 1, "" },
		{ "GET", "/sandboxes/", 0, "" },
		{ "PUT", "/sandboxes", 405, "" },
		{ "POST", "/v1/sandboxes/iaaaaaaaaaaaaaaaaaaaa/stop", 1, "iaaaaaaaaaaaaaaaaaaaa" },
		{ "GET", "/v1/sandboxes/iaaaaaaaaaaaaaaaaaaaa/stop", 405, "" },
		{ "POST", "/sandboxes/iaaaaaaaaaaaaaaaaaaaa/pause", 1, "iaaaaaaaaaaaaaaaaaaaa" },
		{ "GET", "/sandboxes/iaaaaaaaaaaaaaaaaaaaa/pause", 405, "" },
		{ "POST", "/v2/sandboxes/x/connect", 1, "" },
		{ "POST", "/sandboxes/x/fork", 501, "" },
		{ "DELETE", "/templates/a%2Fb", 501, "" },
		{ "GET", "/secrets/x/y", 501, "" },
		{ "GET", "/volumes", 501, "" },
		{ "GET", "/", 0, "" },
		{ "GET", "/sandboxesx", 0, "" },
		{ "GET", "/files", 0, "" },
		{ "GET", "/health", 0, "" },
		{ "GET", "/sandboxes/a/b/c", 0, "" },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char id[ID_SANDBOX_LEN + 1];
		bool wrong;
		const struct control_route *r =
			control_find(rows[i].method, rows[i].target, id, &wrong);
		int got = r ? r->run ? 1 : 501 : wrong ? 405 : 0;

		if (got != rows[i].want || (r && !str_eq(id, rows[i].id)))
			fail_msg("%s %s: %d, \"%s\"", rows[i].method, rows[i].target, got, id);
	}
}

/* ---- the whole ---- */

static void test_life(void **state)
{
	struct rig *g = *state;
	struct box b;

	/* a chunked body, as the JavaScript client sends it */
	assert_int_equal(rig_ask(g, "POST /v2/sandboxes HTTP/1.1\r\n" H
				"X-Request-Id: my-id\r\nTransfer-Encoding: chunked\r\n\r\n"
				"13\r\n{\"templateID\":\"base\r\n2\r\n\"}\r\n0\r\n\r\n"),
			 201);
	rig_field(g, "sandboxID", b.id, sizeof(b.id));
	HAS(g, "X-Request-Id: my-id\r\n");
	HAS(g, "\"templateID\":\"base-0123456789abcdef\"");
	HAS(g, "\"alias\":\"base\"");
	HAS(g, "\"clientID\":\"");
	HAS(g, "\"envdVersion\":\"0.6.13\"");
	HAS(g, "\"trafficAccessToken\":null");
	HAS(g, "\"domain\":\"box.test:4983\"");
	assert_string_equal(g->last_kind, "create");
	assert_non_null(strstr(g->last_spec, "\"template\":\"base-0123456789abcdef\""));
	assert_int_equal(g->cap.purpose, ID_PURPOSE_LIFECYCLE);
	assert_int_equal(g->cap.id.generation, 1);
	assert_string_equal(g->cap.id.sandbox, b.id);
	assert_string_equal(g->cap.id.tenant, "acme");

	assert_int_equal(rig_ask(g, "GET /sandboxes/%s HTTP/1.1\r\n" H "\r\n", b.id), 200);
	HAS(g, "\"state\":\"running\"");
	HAS(g, "\"cpuCount\":1");
	HAS(g, "\"memoryMB\":512");
	HAS(g, "\"diskSizeMB\":8192");
	HAS(g, "\"lifecycle\":{\"onTimeout\":\"kill\",\"autoResume\":false}");
	assert_int_equal(rig_ask(g,
			     "GET /sandboxes/%s HTTP/1.1\r\nHost: x\r\nX-API-KEY: " OTHER_KEY
			     "\r\n\r\n",
			     b.id),
			 404);
	HAS(g, "\"code\":404");
	assert_int_equal(rig_ask(g,
			     "DELETE /sandboxes/%s HTTP/1.1\r\nHost: x\r\nX-API-KEY: " OTHER_KEY
			     "\r\n\r\n",
			     b.id),
			 404);

	assert_int_equal(rig_ask(g, "POST /v1/sandboxes/%s/stop HTTP/1.1\r\n" H "\r\n", b.id), 200);
	HAS(g, "\"state\":\"stopped\"");
	assert_string_equal(g->last_kind, "stop");
	assert_int_equal(rig_ask(g, "GET /sandboxes/%s HTTP/1.1\r\n" H "\r\n", b.id), 200);
	HAS(g, "\"state\":\"paused\"");
	assert_int_equal(rig_ask(g,
			     "POST /v1/sandboxes/%s/start HTTP/1.1\r\n" H
			     "Content-Length: 2\r\n\r\n{}",
			     b.id),
			 200);
	HAS(g, "\"state\":\"running\"");
	HAS(g, "\"generation\":2");
	assert_int_equal(g->cap.id.generation, 2);
	assert_int_equal(rig_ask(g,
			     "POST /v1/sandboxes/%s/start HTTP/1.1\r\n" H
			     "Content-Length: 7\r\n\r\n{\"x\":1}",
			     b.id),
			 400);
	assert_int_equal(rig_ask(g, "GET /v1/sandboxes/%s/logs HTTP/1.1\r\n" H "\r\n", b.id), 200);
	HAS(g, "{\"text\":\"boot\",\"events\":[]}");
	assert_int_equal(rig_ask(g, "GET /v1/sandboxes/%s HTTP/1.1\r\n" H "\r\n", b.id), 200);

	assert_int_equal(rig_ask(g, "DELETE /sandboxes/%s HTTP/1.1\r\n" H "\r\n", b.id), 204);
	assert_string_equal(g->last_kind, "delete");
	assert_int_equal(rig_ask(g, "DELETE /sandboxes/%s HTTP/1.1\r\n" H "\r\n", b.id), 404);
	HAS(g, "\"code\":404");
	assert_int_equal(rig_ask(g, "GET /sandboxes/%s HTTP/1.1\r\n" H "\r\n", b.id), 404);
	assert_int_equal(rig_ask(g, "POST /v1/sandboxes/%s/start HTTP/1.1\r\n" H "\r\n", b.id), 404);
}

static void test_bad_requests(void **state)
{
	struct rig *g = *state;

	assert_int_equal(rig_ask(g, "GET /sandboxes HTTP/1.1\r\nHost: x\r\n\r\n"), 401);
	HAS(g, "\"code\":401");
	assert_int_equal(rig_ask(g, "GET /sandboxes HTTP/1.1\r\nHost: x\r\nX-API-KEY: e2b_00\r\n\r\n"),
			 401);
	assert_int_equal(rig_ask(g, "GET /sandboxes HTTP/1.1\r\n" H "X-API-KEY: x\r\n\r\n"), 401);
	assert_int_equal(rig_ask(g, "POST /sandboxes/x/fork HTTP/1.1\r\n" H "\r\n"), 501);
	assert_int_equal(rig_ask(g, "GET /templates HTTP/1.1\r\n" H "\r\n"), 501);
	assert_int_equal(rig_ask(g, "PATCH /sandboxes HTTP/1.1\r\n" H "\r\n"), 405);
	assert_int_equal(rig_ask(g, "GET /nowhere HTTP/1.1\r\n" H "\r\n"), 404);
	assert_int_equal(rig_ask(g, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), 200);
	HAS(g, "{\"status\":\"ok\"}");
	assert_int_equal(rig_ask(g, "POST /v2/sandboxes HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n{"),
			 400);
	assert_int_equal(rig_ask(g, "POST /v2/sandboxes HTTP/1.1\r\n" H "\r\n"), 400);
	assert_int_equal(rig_ask(g, "POST /v2/sandboxes HTTP/1.1\r\n" H
				"Content-Length: 22\r\n\r\n{\"templateID\":\"nosuch\"}" +
					0),
			 400);
	rig_connect_client(g);
	assert_int_equal(rig_ask(g, "POST /v2/sandboxes HTTP/1.1\r\n" H
				"Content-Length: 23\r\n\r\n{\"templateID\":\"nosuch\"}"),
			 404);
	HAS(g, "nosuch");
	assert_int_equal(rig_ask(g,
			     "POST /v2/sandboxes HTTP/1.1\r\n" H "Content-Length: 9999999\r\n\r\n"),
			 413);
	assert_int_equal(rig_ask(g, "GET /v2/sandboxes?limit=0 HTTP/1.1\r\n" H "\r\n"), 400);
	assert_int_equal(rig_ask(g, "GET /v2/sandboxes?state=stopped HTTP/1.1\r\n" H "\r\n"), 400);
	assert_int_equal(rig_ask(g, "GET /v2/sandboxes?nextToken=bad HTTP/1.1\r\n" H "\r\n"), 400);
	assert_int_equal(rig_ask(g, "GET /v2/sandboxes?colour=red HTTP/1.1\r\n" H "\r\n"), 400);
	HAS(g, "colour");
	assert_int_equal(g->calls, 0);
}

static void test_list(void **state)
{
	struct rig *g = *state;
	struct box a = rig_create(g, "{\"templateID\":\"base\",\"metadata\":{\"k 1\":\"v&2\"}}");
	struct box b = rig_create(
		g,
		"{\"templateID\":\"base\",\"metadata\":{\"k\":\"x\"},\"envVars\":{\"A\":\"1\"}}");
	struct box c = rig_create(g, "{\"templateID\":\"base-0123456789abcdef\"}");
	char next[64];

	assert_int_equal(rig_ask(g, "POST /v1/sandboxes/%s/stop HTTP/1.1\r\n" H "\r\n", b.id), 200);
	assert_int_equal(rig_ask(g, "GET /v2/sandboxes HTTP/1.1\r\n" H "\r\n"), 200);
	assert_true(rig_has(g, a.id) && rig_has(g, b.id) && rig_has(g, c.id));
	assert_false(rig_has(g, "X-Next-Token"));
	assert_false(rig_has(g, "envdAccessToken"));
	assert_int_equal(rig_ask(g, "GET /sandboxes HTTP/1.1\r\n" H "\r\n"), 200);
	assert_true(rig_has(g, a.id) && !rig_has(g, b.id) && rig_has(g, c.id));
	assert_int_equal(rig_ask(g, "GET /v2/sandboxes?state=paused HTTP/1.1\r\n" H "\r\n"), 200);
	assert_true(!rig_has(g, a.id) && rig_has(g, b.id) && !rig_has(g, c.id));
	assert_int_equal(
		rig_ask(g,
		    "GET /v2/sandboxes?state=running,paused&metadata=k%%2525201%%3Dv%%2525262 HTTP/1.1\r\n" H
		    "\r\n"),
		200);
	assert_true(rig_has(g, a.id) && !rig_has(g, b.id) && !rig_has(g, c.id));
	assert_int_equal(rig_ask(g, "GET /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-KEY: " OTHER_KEY
				"\r\n\r\n"),
			 200);
	HAS(g, "\r\n\r\n[]");

	assert_int_equal(rig_ask(g, "GET /v2/sandboxes?order=asc&limit=2 HTTP/1.1\r\n" H "\r\n"), 200);
	assert_true(rig_has(g, a.id) && rig_has(g, b.id) && !rig_has(g, c.id));
	HAS(g, "X-Next-Token: ");
	autofree char *text = x_strndup(buf_data(&g->in), buf_len(&g->in));
	char *p = strstr(text, "X-Next-Token: ") + 14;
	p[strcspn(p, "\r")] = '\0';
	str_copy(next, sizeof(next), p);
	assert_int_equal(rig_ask(g,
			     "GET /v2/sandboxes?order=asc&limit=2&nextToken=%s HTTP/1.1\r\n" H
			     "\r\n",
			     next),
			 200);
	assert_true(!rig_has(g, a.id) && !rig_has(g, b.id) && rig_has(g, c.id));
	assert_int_equal(rig_ask(g, "GET /v1/sandboxes HTTP/1.1\r\n" H "\r\n"), 200);
	assert_true(rig_has(g, a.id) && rig_has(g, "\"state\":\"stopped\""));
}

/* A create that fails on the node: the node's reason, and nothing stays. */
static void test_create_fails(void **state)
{
	struct rig *g = *state;

	g->answers[0] =
		"507 X y {\"num\":-28,\"code\":\"no-space\",\"message\":\"The disk is full.\"}";
	assert_int_equal(rig_ask(g, "POST /v2/sandboxes HTTP/1.1\r\n" H
				"Content-Length: 21\r\n\r\n{\"templateID\":\"base\"}"),
			 507);
	HAS(g, "The disk is full.");
	assert_string_equal(g->last_kind, "delete");
	/* Nothing of this passes by itself within the time that a client waits: said at once. */
	g->answers[1] =
		"503 X y {\"num\":-11,\"code\":\"node-full\",\"message\":\"The node is full.\"}";
	assert_int_equal(rig_ask(g, "POST /v2/sandboxes HTTP/1.1\r\n" H
				"Content-Length: 21\r\n\r\n{\"templateID\":\"base\"}"),
			 503);
	HAS(g, "Retry-After: 1\r\n");
	HAS(g, "\"error_code\":\"node_full\"");
	assert_int_equal(g->calls, 4);
	assert_int_equal(rig_ask(g, "GET /v1/sandboxes HTTP/1.1\r\n" H "\r\n"), 200);
	HAS(g, "\r\n\r\n[]");
}

static void test_data(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, "{\"templateID\":\"base\"}");

	assert_int_equal(
		rig_ask(g,
		    "POST /files?path=x HTTP/1.1\r\nHost: h\r\nE2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: 49983\r\nX-Access-Token: %s\r\n"
		    "Authorization: Basic dXNlcjo=\r\nX-API-Key: k\r\nE2B-Traffic-Access-Token: t\r\nSpace-Capability: forged\r\n"
		    "X-Request-Id: r-1\r\nConnection: X-Hop\r\nX-Hop: 1\r\nX-Keep: 1\r\nContent-Length: 4\r\n\r\nbody",
		    b.id, b.token),
		200);
	HAS(g, "\r\n\r\nbody");
	HAS(g, "X-Request-Id: r-1\r\n");
	HAS(g, "X-Guest: 1");
	assert_non_null(strstr(g->last_head, "Space-Op: forward\r\n"));
	assert_non_null(strstr(g->last_head, "Space-Request-Id: r-1\r\n"));
	assert_non_null(strstr(g->last_head, "Authorization: Basic dXNlcjo=\r\n"));
	assert_non_null(strstr(g->last_head, "X-Keep: 1\r\n"));
	assert_null(strstr(g->last_head, "forged"));
	assert_null(strstr(g->last_head, "X-API-K"));
	assert_null(strstr(g->last_head, "X-Access-Token"));
	assert_null(strcasestr(g->last_head, "E2b-"));
	assert_null(strstr(g->last_head, "X-Hop"));
	assert_int_equal(g->cap.purpose, ID_PURPOSE_CONTROL);
	assert_int_equal(g->cap.access, ID_ACCESS_WRITE);
	assert_string_equal(g->cap.id.sandbox, b.id);
	assert_int_equal(g->forwards, 1);
}

/* By host, by token alone, by fields. */
static void test_data_named(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, "{\"templateID\":\"base\"}");

	assert_int_equal(
		rig_ask(g,
		    "GET /envs HTTP/1.1\r\nHost: 49983-%s.box.test:99\r\nX-Access-Token: %s\r\nAuthorization: Bearer x\r\n\r\n",
		    b.id, b.token),
		200);
	assert_int_equal(g->cap.access, ID_ACCESS_READ);
	assert_null(strstr(g->last_head, "Bearer"));
	assert_int_equal(rig_ask(g, "GET /health HTTP/1.1\r\nHost: x\r\nX-Access-Token: %s\r\n\r\n",
			     b.token),
			 200);
	HAS(g, "X-Guest: 1");
	assert_int_equal(
		rig_ask(g,
		    "GET /health HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: 49983\r\n\r\n",
		    b.id),
		200);
	HAS(g, "X-Guest: 1");
	assert_int_equal(g->forwards, 3);
}

static void test_data_refused(void **state)
{
	static const struct {
		const char *line;
		int token;
		const char *port;
		int status;
		const char *body;
	} bad[] = {
		{ "GET /envs", 0, "49983", 401, "\"code\":401" },
		{ "GET /envs", 2, "49983", 401, "\"code\":401" },
		{ "GET /health/x", 0, "49983", 401, "" },
		{ "POST /health", 0, "49983", 401, "" },
		{ "GET /init", 1, "49983", 404, "" },
		{ "POST /%69nit", 1, "49983", 404, "" },
		{ "CONNECT x:1", 1, "3000", 400, "" },
		{ "GET /envs", 1, "0", 400, "" },
		{ "GET /envs", 1, "x", 400, "" },
	};
	struct rig *g = *state;
	struct box b = rig_create(g, "{\"templateID\":\"base\"}");

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		int status = rig_ask(
			g,
			"%s HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: %s\r\n%s%s%s\r\n",
			bad[i].line, b.id, bad[i].port, bad[i].token ? "X-Access-Token: " : "",
			bad[i].token == 1 ? b.token
			: bad[i].token	  ? "no"
					  : "",
			bad[i].token ? "\r\n" : "");

		assert_int_equal(status, bad[i].status);
		HAS(g, bad[i].body);
	}
	assert_int_equal(
		rig_ask(g,
		    "GET /envs HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: %s\r\nX-Access-Token: %s\r\n\r\n",
		    b.id, b.token),
		400);
	/* a control call that bears routing headers, as old Python SDKs send it */
	assert_int_equal(
		rig_ask(g,
		    "GET /sandboxes/%s HTTP/1.1\r\n" H "E2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: 49983\r\n\r\n",
		    b.id, b.id),
		200);
	HAS(g, b.token);
	assert_int_equal(g->forwards, 0);
}

/* Unknown, stopped: E2B's own words. */
static void test_data_gone(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, "{\"templateID\":\"base\"}");

	assert_int_equal(
		rig_ask(g,
		    "GET /health HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: nosuch\r\nE2b-Sandbox-Port: 49983\r\n\r\n"),
		502);
	HAS(g, "\"message\":\"The sandbox was not found\",\"code\":502}");
	assert_int_equal(rig_ask(g, "POST /v1/sandboxes/%s/stop HTTP/1.1\r\n" H "\r\n", b.id), 200);
	assert_int_equal(
		rig_ask(g,
		    "GET /health HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: 49983\r\n\r\n",
		    b.id),
		502);
	autofree char *want = x_asprintf(
		"{\"sandboxId\":\"%s\",\"message\":\"The sandbox was not found\",\"code\":502}",
		b.id);
	HAS(g, want);
	assert_int_equal(g->forwards, 0);
}

#define DATA(line) line " HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: 49983\r\nX-Access-Token: %s\r\n"

/*
 * What a client may not say with what it has: another user than the signed one; and that Host ends
 * here.
 */
static void test_client_fields(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, "{\"templateID\":\"base\"}");
	unsigned char hash[32];
	char b64[64], signature[200] = "";
	autofree char *text = x_asprintf("/x:read::%s", b.token);

	crypto_hash_sha256(hash, (const unsigned char *)text, strlen(text));
	str_b64(b64, hash, 32);
	b64[strcspn(b64, "=")] = '\0';
	for (char *p = b64; *p; p++)
		str_format(signature + strlen(signature), sizeof(signature) - strlen(signature),
			   "%%%02X", *p);
	assert_int_equal(
		rig_ask(g,
		    "GET /files?path=/x&signature=v1_%s HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: %s\r\n"
		    "E2b-Sandbox-Port: 49983\r\nAuthorization: Basic cm9vdDo=\r\nX-Keep: 1\r\n\r\n",
		    signature, b.id),
		200);
	assert_non_null(strstr(g->last_head, "X-Keep: 1\r\n"));
	assert_null(strstr(g->last_head, "Authorization"));

	/* The health of a sandbox is for everybody, a stream that is held open is not. */
	static const char *const held[] = { "Content-Length: 5\r\n\r\n",
					    "Transfer-Encoding: chunked\r\n\r\n",
					    "Connection: Upgrade\r\nUpgrade: x\r\n\r\n" };
	unsigned before = g->forwards;

	for (size_t i = 0; i < ARRAY_LEN(held); i++) {
		rig_connect_client(g);
		assert_int_equal(
			rig_ask(g,
			    "GET /health HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: 49983\r\n%s",
			    b.id, held[i]),
			401);
	}
	assert_int_equal(g->forwards, before);
	rig_connect_client(g);

	assert_int_equal(rig_ask(g, DATA("GET /envs") "Connection: Host\r\n\r\n", b.id, b.token), 200);
	assert_non_null(strstr(g->last_head, "Host: x\r\n"));
}

static void test_refusals(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, "{\"templateID\":\"base\"}");
	uint64_t generation;
	struct store_op op;
	struct err e = { 0 };

	assert_int_equal(rig_ask(g, DATA("GET /envs") "\r\n", b.id, b.token), 200);
	assert_int_equal(g->cap.id.generation, 1);

	/*
	 * Replaced behind our back: refused once, then the new generation, with the body sent
	 * again.
	 */
	assert_int_equal(store_submit(g->store, b.id, "", LIFE_EV_START, "test", "r", &op, &e), 0);
	assert_int_equal(store_finish(g->store, &op, LIFE_RUNNING, NULL, &e), 0);
	g->answers[0] = "421 Space-Refusal refresh-route {}";
	g->n_answers = 0;
	assert_int_equal(rig_ask(g, DATA("POST /files") "Content-Length: 5\r\n\r\nagain", b.id,
			     b.token),
			 200);
	HAS(g, "again");
	generation = g->cap.id.generation;
	assert_int_equal(generation, 2);
	assert_int_equal(g->forwards, 3);

	/* Exactly one rebuilt attempt. */
	g->answers[0] = g->answers[1] = g->answers[2] = "421 Space-Refusal refresh-route {}";
	g->n_answers = 0;
	assert_int_equal(rig_ask(g, DATA("GET /envs") "\r\n", b.id, b.token), 502);
	HAS(g, "The sandbox was not found");
	assert_int_equal(g->n_answers, 2);
	assert_int_equal(g->forwards, 5);

	/* Not one for what names a process of the refused execution. */
	g->n_answers = 0;
	assert_int_equal(rig_ask(g,
			     DATA("POST /process.Process/SendInput") "Content-Length: 2\r\n\r\n{}",
			     b.id, b.token),
			 502);
	assert_int_equal(g->n_answers, 1);

	/* And none for a denial. */
	g->answers[0] = "421 Space-Refusal deny {}";
	g->n_answers = 0;
	assert_int_equal(rig_ask(g, DATA("GET /envs") "\r\n", b.id, b.token), 502);
	assert_int_equal(g->n_answers, 1);

	/*
	 * Of the node's own errors only status and sense come through; a guest's answer comes as it
	 * is.
	 */
	g->answers[0] = "429 Space-Error limit {\"num\":1}";
	g->answers[1] = "502 Space-Error guest-lost {\"num\":1}";
	g->answers[2] = "421 X-Mine y guest";
	g->n_answers = 0;
	assert_int_equal(rig_ask(g, DATA("GET /envs") "\r\n", b.id, b.token), 429);
	HAS(g, "Retry-After: 1");
	assert_false(rig_has(g, "Space-"));
	assert_int_equal(rig_ask(g, DATA("GET /envs") "\r\n", b.id, b.token), 502);
	assert_false(rig_has(g, "num"));
	assert_int_equal(rig_ask(g, DATA("GET /envs") "\r\n", b.id, b.token), 421);
	HAS(g, "\r\n\r\nguest");

	/* The row says that it is gone: no attempt. */
	g->answers[0] = "421 Space-Refusal refresh-route {}";
	g->answers[1] = NULL;
	g->n_answers = 0;
	assert_int_equal(store_submit(g->store, b.id, "", LIFE_EV_DELETE, "test", "r", &op, &e), 0);
	assert_int_equal(store_finish(g->store, &op, LIFE_NONE, NULL, &e), 0);
	g->forwards = 0;
	assert_int_equal(rig_ask(g, DATA("GET /envs") "\r\n", b.id, b.token), 502);
	assert_int_equal(g->forwards, 1);
	assert_int_equal(rig_ask(g, DATA("GET /envs") "\r\n", b.id, b.token), 502);
	assert_int_equal(g->forwards, 1);
}

static void on_refreshed(void *arg, const struct api_route *r, const struct err *e)
{
	*(bool *)arg = true;
}

static struct api_route *refused_as(struct rig *g, const struct identity *refused)
{
	int64_t end = clock_mono_ms() + WAIT_MS;
	bool done = false;

	route_refresh(g->api, refused, on_refreshed, &done);
	while (!done && clock_mono_ms() < end)
		rig_turn(g);
	assert_true(done);
	return map_get(g->api->routes, refused->sandbox);
}

/* What was refused is replaced, under its own expiry; a newer entry stays, whoever was refused late (V-3, V-4). */
static void test_late_refusals(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, "{\"templateID\":\"base\"}");
	struct identity first, newer;
	struct api_route *entry;
	struct store_op op;
	struct err e = { 0 };
	int64_t until;

	assert_int_equal(rig_ask(g, DATA("GET /envs") "\r\n", b.id, b.token), 200);
	entry = map_get(g->api->routes, b.id);
	assert_non_null(entry);
	first = entry->id;
	until = entry->until_ms -= API_ROUTE_TTL_MS / 2;
	assert_int_equal(store_submit(g->store, b.id, "", LIFE_EV_START, "test", "r", &op, &e), 0);
	assert_int_equal(store_finish(g->store, &op, LIFE_RUNNING, NULL, &e), 0);
	entry = refused_as(g, &first);
	assert_int_equal(entry->id.generation, 2);
	assert_int_equal(entry->until_ms, until);

	/* As if another request had found a third one meanwhile. */
	entry->id.generation = 3;
	newer = entry->id;
	assert_ptr_equal(refused_as(g, &first), entry);
	assert_int_equal(entry->id.generation, 3);
	entry = refused_as(g, &newer);
	assert_int_equal(entry->id.generation, 2);
	assert_int_equal(entry->until_ms, until);

	/* Gone: the entry goes with its own refusal, not with another's. */
	assert_int_equal(store_submit(g->store, b.id, "", LIFE_EV_DELETE, "test", "r", &op, &e), 0);
	assert_int_equal(store_finish(g->store, &op, LIFE_NONE, NULL, &e), 0);
	newer = entry->id;
	assert_ptr_equal(refused_as(g, &first), entry);
	assert_null(refused_as(g, &newer));
}

static void test_node_away(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, "{\"templateID\":\"base\"}");

	assert_int_equal(rig_ask(g, DATA("GET /envs") "\r\n", b.id, b.token), 200);
	rig_stop_node(g);
	assert_int_equal(rig_ask(g, DATA("GET /envs") "\r\n", b.id, b.token), 503);
	HAS(g, "Retry-After: 1");
	rig_start_node(g);
	assert_int_equal(rig_ask(g, DATA("GET /envs") "\r\n", b.id, b.token), 200);
}

/* A stop that this process drives cuts the streams of that execution, answered or not. */
static void test_cut(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, "{\"templateID\":\"base\"}");
	int waiting, sv[2];
	autofree char *msg = x_asprintf(DATA("GET /envs") "\r\n", b.id, b.token);
	int64_t until = clock_mono_ms() + WAIT_MS;
	char c;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv), 0);
	waiting = sv[0];
	api_accept(g->api, sv[1]);
	g->hold = true;
	assert_int_equal(fd_write_all(waiting, msg, strlen(msg), WAIT_MS), 0);
	while (!g->held && clock_mono_ms() < until)
		rig_turn(g);
	assert_non_null(g->held);
	g->hold = false;
	assert_int_equal(rig_ask(g, "POST /v1/sandboxes/%s/stop HTTP/1.1\r\n" H "\r\n", b.id), 200);
	while (read(waiting, &c, 1) < 0 && errno == EAGAIN && clock_mono_ms() < until)
		rig_turn(g);
	assert_int_equal(read(waiting, &c, 1), 0);
	assert_true(list_empty(&g->api->streams));
	http_req_answer(g->held, 204, NULL, NULL, NULL, 0);
	close(waiting);
}

/* What comes while the program ends its streams is refused, and holds nothing up. */
static void test_end_under_load(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, "{\"templateID\":\"base\"}");
	autofree char *held = x_asprintf(DATA("GET /envs") "\r\n", b.id, b.token);
	autofree char *change = x_asprintf("DELETE /sandboxes/%s HTTP/1.1\r\n" H "\r\n", b.id),
		      *look = x_asprintf("GET /v1/sandboxes/%s HTTP/1.1\r\n" H "\r\n", b.id);
	const char *const asked[] = { held, change, look, held };      /* all but the first too late */
	int clients[ARRAY_LEN(asked)], sv[2];
	int64_t until = clock_mono_ms() + WAIT_MS;
	char text[4096] = "";

	g->hold = true;
	for (size_t i = 0; i < ARRAY_LEN(clients); i++) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
		clients[i] = sv[0];
		api_accept(g->api, sv[1]);
	}
	for (size_t i = 0; i < ARRAY_LEN(clients); i++) {
		assert_int_equal(fd_write_all(clients[i], asked[i], strlen(asked[i]), WAIT_MS), 0);
		while (!g->held && clock_mono_ms() < until)
			rig_turn(g);
		assert_non_null(g->held);
	}
	api_free(TAKE(g->api));
	for (size_t i = 1; i < ARRAY_LEN(clients); i++) {
		assert_true(read(clients[i], text, sizeof(text) - 1) > 0);
		assert_true(str_starts(text, "HTTP/1.1 503 "));
	}
	http_req_answer(g->held, 204, NULL, NULL, NULL, 0);
	for (size_t i = 0; i < ARRAY_LEN(clients); i++)
		close(clients[i]);
}

static void test_key_revoked(void **state)
{
	struct rig *g = *state;
	struct store_key *keys = NULL;
	struct err e = { 0 };
	size_t n = 0;
	int64_t begin, asked;
	int status;

	assert_int_equal(rig_ask(g, "GET /sandboxes HTTP/1.1\r\n" H "\r\n"), 200);
	assert_int_equal(store_key_list(g->store, "acme", &keys, &n, &e), 0);
	assert_int_equal(n, 1);
	assert_int_equal(store_key_revoke(g->store, keys[0].id, &e), 0);
	free(keys);
	begin = clock_mono_ms();
	do {
		asked = clock_mono_ms();
		status = rig_ask(g, "GET /sandboxes HTTP/1.1\r\n" H "\r\n");
	} while (status == 200 && asked < begin + API_AUTH_TTL_MS);
	assert_int_equal(status, 401);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fields),
		cmocka_unit_test(test_token),
		cmocka_unit_test(test_signature),
		cmocka_unit_test(test_control_find),
		T(test_client_fields),
		T(test_life),
		T(test_bad_requests),
		T(test_list),
		T(test_create_fails),
		T(test_data),
		T(test_data_named),
		T(test_data_refused),
		T(test_data_gone),
		T(test_refusals),
		T(test_late_refusals),
		T(test_node_away),
		T(test_cut),
		T(test_end_under_load),
		T(test_key_revoked),
	};

	log_open("test", "test");
	log_set_level(LOG_LEVEL_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
