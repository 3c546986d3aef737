/*
 * /v1 against docs/openapi.json: which routes there are, and how errors look. What the answers hold
 * is tested against a whole node in tests/test_openapi.py.
 */
#include "api/test_rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "api/problem.h"
#include "api/query.h"
#include "api/v1_fields.h"
#include "base/alloc.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"

/* ---- the document ---- */

static json_t *document(void)
{
	json_error_t je;
	json_t *doc = json_loads(v1_document, JSON_REJECT_DUPLICATES, &je);

	if (!doc)
		fail_msg("docs/openapi.json: %s", je.text);
	return doc;
}

static void test_every_route_is_documented(void **state)
{
	json_t *doc = document(), *paths = json_object_get(doc, "paths");
	unsigned n = 0;

	for (size_t i = 0; i < control_routes_len; i++) {
		const struct control_route *r = &control_routes[i];
		char method[16];
		json_t *op;

		if (!str_starts(r->path, "/v1/"))
			continue;
		assert_int_equal(str_copy(method, sizeof(method), r->method), 0);
		for (char *p = method; *p; p++)
			*p |= 0x20;
		op = json_object_get(json_object_get(paths, r->path), method);
		if (!op)
			fail_msg("%s %s is not in docs/openapi.json", r->method, r->path);
		n++;
		/* a body is read where one is documented, and a key is asked for where it is */
		if (!json_object_get(op, "requestBody") != !(r->flags & CONTROL_BODY))
			fail_msg("%s %s: the body", r->method, r->path);
		if (!json_object_get(op, "security") != !(r->flags & CONTROL_OPEN))
			fail_msg("%s %s: the key", r->method, r->path);
	}
	assert_true(n > 10);
	json_decref(doc);
}

/* The query parameters of an operation, as the route has them. */
static void check_query(json_t *doc, json_t *op, const struct control_route *r)
{
	json_t *params = json_object_get(json_object_get(doc, "components"), "parameters"), *p;
	size_t i, documented = 0, known = 0;

	json_array_foreach(json_object_get(op, "parameters"), i, p) {
		const char *ref = json_string_value(json_object_get(p, "$ref"));
		json_t *param = ref ? json_object_get(params, strrchr(ref, '/') + 1) : p;
		autofree char *target = NULL;

		assert_non_null(param);
		if (!str_eq(json_string_value(json_object_get(param, "in")), "query"))
			continue;
		documented++;
		target = x_asprintf("/x?%s=1",
				    json_string_value(json_object_get(param, "name")));
		if (!r->query || query_only(target, r->query, NULL) < 0)
			fail_msg("%s %s does not know %s", r->method, r->path, target);
	}
	while (r->query && r->query[known])
		known++;
	if (known != documented)
		fail_msg("%s %s: %zu parameters are known, %zu documented", r->method, r->path,
			 known, documented);
}

static void test_everything_documented_is_routed(void **state)
{
	json_t *doc = document(), *methods, *op;
	const char *path, *method;

	json_object_foreach(json_object_get(doc, "paths"), path, methods) {
		json_object_foreach(methods, method, op) {
			char id[ID_SANDBOX_LEN + 1], upper[16];
			bool wrong;
			const struct control_route *r;

			assert_int_equal(str_copy(upper, sizeof(upper), method), 0);
			for (char *p = upper; *p; p++)
				*p &= (char)~0x20;
			r = control_find(upper, path, id, &wrong);
			if (!r || !str_eq(r->path, path) || (!r->run && !(r->flags & (CONTROL_TERMINAL | CONTROL_TUNNEL))))
				fail_msg("%s %s is not routed", upper, path);
			check_query(doc, op, r);
		}
	}
	json_decref(doc);
}

static void test_version_and_limits_in_the_document(void **state)
{
	json_t *doc = document(), *schemas, *t;

	assert_string_equal(json_string_value(json_object_get(json_object_get(doc, "info"),
							      "version")),
			    SPACE_VERSION);
	schemas = json_object_get(json_object_get(doc, "components"), "schemas");
	t = json_object_get(json_object_get(json_object_get(schemas, "Timeout"), "properties"),
			    "timeoutSeconds");
	assert_int_equal(json_integer_value(json_object_get(t, "maximum")), FIELDS_TIMEOUT_MAX_S);
	json_decref(doc);
}

/* ---- bodies ---- */

static void test_bodies(void **state)
{
	static const struct {
		const struct v1_field *fields;
		const char *body, *error;        /* NULL: taken */
	} rows[] = {
		{ v1_nothing, "", NULL },
		{ v1_nothing, "{}", NULL },
		{ v1_nothing, "{\"a\":1}", "\"a\" is unknown" },
		{ v1_nothing, "[]", "object" },
		{ v1_nothing, "{", "" },
		{ v1_create, "{\"template\":\"base\"}", NULL },
		{ v1_create,
		  "{\"template\":\"base\",\"timeoutSeconds\":60.0,\"onTimeout\":\"pause\",\"autoResume\":true,"
		  "\"metadata\":{\"a\":\"b\"},\"env\":{\"X\":\"\"}}",
		  NULL },
		{ v1_create, "", "\"template\" is missing" },
		{ v1_create, "{\"template\":null}", "\"template\" must" },
		{ v1_create, "{\"template\":\"\"}", "\"template\" must" },
		{ v1_create, "{\"template\":\"base\",\"onTimeout\":\"sleep\"}", "\"onTimeout\"" },
		{ v1_create, "{\"template\":\"base\",\"onTimeout\":null}", "\"onTimeout\"" },
		{ v1_create, "{\"template\":\"base\",\"autoResume\":1}", "\"autoResume\"" },
		{ v1_create, "{\"template\":\"base\",\"metadata\":{\"a\":1}}", "\"metadata\"" },
		{ v1_create, "{\"template\":\"base\",\"env\":{\"A=B\":\"\"}}", "\"env\"" },
		{ v1_create, "{\"template\":\"base\",\"env\":{\"\":\"\"}}", "\"env\"" },
		{ v1_create, "{\"template\":\"base\",\"env\":7}", "\"env\"" },
		{ v1_create, "{\"template\":\"base\",\"cpuCount\":2}", "\"cpuCount\" is unknown" },
		{ v1_resume, "", NULL },
		{ v1_resume, "{\"timeoutSeconds\":1}", NULL },
		{ v1_resume, "{\"timeoutSeconds\":0}", "\"timeoutSeconds\"" },
		{ v1_resume, "{\"timeoutSeconds\":1.5}", "\"timeoutSeconds\"" },
		{ v1_resume, "{\"timeoutSeconds\":\"1\"}", "\"timeoutSeconds\"" },
		{ v1_resume, "{\"timeoutSeconds\":2592001}", "\"timeoutSeconds\"" },
		{ v1_resume, "{\"timeoutSeconds\":1e300}", "2^53" },
		{ v1_timeout, "{}", "\"timeoutSeconds\" is missing" },
		{ v1_timeout, "{\"timeoutSeconds\":2592000,\"onlyExtend\":true}", NULL },
		{ v1_timeout, "{\"timeoutSeconds\":2,\"onlyExtend\":0}", "\"onlyExtend\"" },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct v1_body b = { 0 };
		struct err e = { 0 };
		int r = v1_body_take(rows[i].body, strlen(rows[i].body), rows[i].fields, &b, &e);

		if ((r == 0) != (rows[i].error == NULL) ||
		    (rows[i].error && !strstr(e.text, rows[i].error)))
			fail_msg("%s: %d \"%s\"", rows[i].body, r, e.text);
		v1_body_done(&b);
	}
}

/* ---- errors ---- */

static void test_problem_json(void **state)
{
	autofree char *known = problem_json(404, "template-not-found", "no \"\xff\" here", "r-1"),
		      *unknown = problem_json(500, "odd", "", "r-2");

	assert_string_equal(known,
			    "{\"type\":\"/v1/problems/template-not-found\",\"title\":"
			    "\"The template was not found.\",\"status\":404,\"detail\":"
			    "\"No \\\"?\\\" here. Use the name or the ID of a template that exists, "
			    "such as \\\"base\\\".\",\"code\":\"template-not-found\","
			    "\"request_id\":\"r-1\"}");
	assert_string_equal(unknown,
			    "{\"type\":\"about:blank\",\"title\":\"Internal Server Error\","
			    "\"status\":500,\"detail\":\"Internal Server Error.\",\"code\":\"odd\","
			    "\"request_id\":\"r-2\"}");
}

static void test_problem_path(void **state)
{
	static const struct { const char *target; bool yes; } rows[] = {
		{ "/v1", true },   { "/v1/x", true }, { "/v1?x", true },      { "/v1 H", true },
		{ "/v10", false }, { "/", false },    { "/v2/v1/x", false }, { "", false },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (problem_path(rows[i].target, strlen(rows[i].target)) != rows[i].yes)
			fail_msg("%s", rows[i].target);
}

/* Each answer is a problem with this status and code, whatever gives it. */
static void problem(struct rig *g, int status, int want, const char *code)
{
	autofree char *member = x_asprintf("\"code\":\"%s\"", code),
		      *number = x_asprintf("\"status\":%d,", want);

	if (status != want)
		fail_msg("%d for %d: %.*s", status, want, (int)buf_len(&g->in), buf_data(&g->in));
	HAS(g, "Content-Type: application/problem+json\r\n");
	HAS(g, "X-Request-Id: ");
	HAS(g, "\"request_id\":\"");
	HAS(g, member);
	HAS(g, number);
}

#define NOBODY "/v1/sandboxes/i00000000000000000000"
#define FIVE ",paused,paused,paused,paused,paused"

static void test_problems(void **state)
{
	static const struct {
		const char *request;
		int status;
		const char *code;
	} rows[] = {
		{ "GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n", 401, "unauthenticated" },
		{ "GET /v1/version HTTP/1.1\r\nHost: x\r\nX-API-KEY: e2b_0\r\n\r\n", 401,
		  "unauthenticated" },
		{ "GET /v1/nothing HTTP/1.1\r\n" H "\r\n", 404, "no-such-route" },
		{ "GET /v1/nothing HTTP/1.1\r\n" H "X-Access-Token: i00000000000000000000.0\r\n\r\n",
		  404, "no-such-route" },
		{ "GET /v1/problems/odd HTTP/1.1\r\nHost: x\r\n\r\n", 404, "not-found" },
		{ "GET /v1/version?a=1 HTTP/1.1\r\n" H "\r\n", 400, "unknown-parameter" },
		{ "GET /v1/openapi.json?a=1 HTTP/1.1\r\nHost: x\r\n\r\n", 400,
		  "unknown-parameter" },
		{ "GET /v1/sandboxes?limit=1&limit=2 HTTP/1.1\r\n" H "\r\n", 400, "unknown-parameter" },
		{ "GET /v1/sandboxes?limit=0 HTTP/1.1\r\n" H "\r\n", 400, "invalid" },
		{ "GET /v1/sandboxes?state=running,asleep HTTP/1.1\r\n" H "\r\n", 400, "invalid" },
		{ "GET /v1/sandboxes?state= HTTP/1.1\r\n" H "\r\n", 400, "invalid" },
		{ "GET /v1/sandboxes?state=failed" FIVE FIVE FIVE ",failed HTTP/1.1\r\n" H "\r\n",
		  400, "invalid" },
		{ "GET /v1/sandboxes?nextToken=x HTTP/1.1\r\n" H "\r\n", 400, "bad-cursor" },
		{ "GET /v1/sandboxes?nextToken= HTTP/1.1\r\n" H "\r\n", 400, "bad-cursor" },
		{ "GET /v1/sandboxes?template= HTTP/1.1\r\n" H "\r\n", 400, "invalid" },
		{ "PUT /v1/sandboxes HTTP/1.1\r\n" H "\r\n", 405, "method-not-allowed" },
		{ "GET " NOBODY " HTTP/1.1\r\n" H "\r\n", 404, "sandbox-not-found" },
		{ "GET " NOBODY "-old HTTP/1.1\r\n" H "\r\n", 404, "sandbox-not-found" },
		{ "GET " NOBODY "/logs HTTP/1.1\r\n" H "\r\n", 404, "sandbox-not-found" },
		{ "POST " NOBODY "/stop HTTP/1.1\r\n" H "\r\n", 404, "sandbox-not-found" },
		{ "POST " NOBODY "/pause HTTP/1.1\r\n" H "\r\n", 404, "sandbox-not-found" },
		{ "POST " NOBODY "/stop HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\nx", 400,
		  "malformed" },
		{ "POST " NOBODY "/timeout HTTP/1.1\r\n" H "\r\n", 400, "invalid" },
		{ "POST " NOBODY "/stop HTTP/1.1\r\n" H "Content-Type: text/plain\r\n\r\n", 415,
		  "unsupported-media-type" },
		/* found by the HTTP server itself */
		{ "POST " NOBODY "/stop HTTP/1.1\r\n" H "Content-Length: 9999999\r\n\r\n", 413,
		  "too-large" },
		{ "GET /v1/version HTTP/1.1\r\n\r\n", 400, "malformed" },
		{ "GET /v1/version HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n", 400, "malformed" },
		{ "GET /v1/version HTTP/2.0\r\nHost: x\r\n\r\n", 505, "http-version" },
		{ "POST /v1/version HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501,
		  "not-implemented" },
	};
	struct rig *g = *state;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		rig_connect_client(g);
		problem(g, rig_ask(g, "%s", rows[i].request), rows[i].status, rows[i].code);
	}
	assert_int_equal(g->calls, 0);
	/* and nowhere else */
	rig_connect_client(g);
	assert_int_equal(rig_ask(g, "GET /v2/sandboxes HTTP/1.1\r\nHost: x\r\n\r\n"), 401);
	HAS(g, "{\"code\":401,");
	rig_connect_client(g);
	assert_int_equal(rig_ask(g, "GET /v2/sandboxes HTTP/1.1\r\n\r\n"), 400);
	HAS(g, "{\"code\":400,");
}

static void test_problem_fields(void **state)
{
	struct rig *g = *state;

	problem(g,
		rig_ask(g, "DELETE /v1/version HTTP/1.1\r\nHost: x\r\nX-Request-Id: my-1\r\n\r\n"),
		405, "method-not-allowed");
	HAS(g, "Allow: GET\r\n");
	HAS(g, "X-Request-Id: my-1\r\n");
	HAS(g, "\"request_id\":\"my-1\"");
	problem(g, rig_ask(g, "PUT /v1/sandboxes/x HTTP/1.1\r\nHost: x\r\n\r\n"), 405,
		"method-not-allowed");
	HAS(g, "Allow: GET, DELETE\r\n");
	assert_int_equal(rig_ask(g, "GET /v1/problems/try-again HTTP/1.1\r\nHost: x\r\n\r\n"), 200);
	HAS(g, "Content-Type: text/plain");
	HAS(g, "try-again (503 Service Unavailable)\n");
	assert_int_equal(rig_ask(g, "GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"), 200);
	HAS(g, "{\"openapi\":\"3.1.0\"");
}

/* ---- pages ---- */

static void test_next_page(void **state)
{
	struct rig *g = *state;
	struct box a = rig_create(g, "{\"templateID\":\"base\",\"metadata\":{\"k\":\"a&b\"}}"),
		   b = rig_create(g, "{\"templateID\":\"base\",\"metadata\":{\"k\":\"a&b\"}}");
	char target[200];

	assert_int_equal(rig_ask(g, "GET /v1/sandboxes?limit=1&metadata=k%%3Da%%2526b&order=asc "
				    "HTTP/1.1\r\n" H "\r\n"),
			 200);
	assert_true(rig_has(g, a.id) && !rig_has(g, b.id));
	HAS(g, "Link: </v1/sandboxes?nextToken=");
	HAS(g, "&limit=1&metadata=k%3Da%2526b&order=asc>; rel=\"next\"\r\n");
	autofree char *text = x_strndup(buf_data(&g->in), buf_len(&g->in));
	char *p = strstr(text, "Link: <") + 7;
	p[strcspn(p, ">")] = '\0';
	assert_int_equal(str_copy(target, sizeof(target), p), 0);
	assert_int_equal(rig_ask(g, "GET %s HTTP/1.1\r\n" H "\r\n", target), 200);
	assert_true(!rig_has(g, a.id) && rig_has(g, b.id));
	assert_false(rig_has(g, "Link: "));
	assert_int_equal(rig_ask(g, "GET /v1/sandboxes?state=stopped,paused HTTP/1.1\r\n" H "\r\n"),
			 200);
	HAS(g, "\r\n\r\n[]");
	assert_int_equal(rig_ask(g, "GET /v1/sandboxes?state=running HTTP/1.1\r\n" H "\r\n"), 200);
	assert_true(rig_has(g, a.id) && rig_has(g, b.id));
}

/* ---- a life, as docs/openapi.json has it ---- */

static void test_life(void **state)
{
	static const struct { const char *call, *state; } changes[] = {
		{ "stop", "stopped" }, { "start", "running" }, { "connect", "running" },
		{ "timeout", "running" }, { "pause", "paused" }, { "resume", "running" },
	};
	struct rig *g = *state;
	char id[ID_SANDBOX_LEN + 1], again[ID_SANDBOX_LEN + 1];

	for (int i = 0; i < 2; i++) {            /* the second time the key finds the first one */
		assert_int_equal(rig_ask(g, "POST /v1/sandboxes HTTP/1.1\r\n" H
					    "Idempotency-Key: k\r\nContent-Length: 19\r\n\r\n"
					    "{\"template\":\"base\"}"),
				 201);
		HAS(g, "\"state\":\"running\"");
		HAS(g, "\"accessToken\":\"");
		rig_field(g, "id", i ? again : id, sizeof(id));
	}
	assert_string_equal(id, again);
	for (size_t i = 0; i < ARRAY_LEN(changes); i++) {
		const char *body = str_eq(changes[i].call, "timeout") ? "{\"timeoutSeconds\":9}" : "{}";

		assert_int_equal(rig_ask(g, "POST /v1/sandboxes/%s/%s HTTP/1.1\r\n" H
					    "Content-Length: %zu\r\n\r\n%s",
					 id, changes[i].call, strlen(body), body),
				 200);
		autofree char *want = x_asprintf("\"state\":\"%s\"", changes[i].state);
		HAS(g, want);
	}
	assert_int_equal(rig_ask(g, "DELETE /v1/sandboxes/%s HTTP/1.1\r\n" H "\r\n", id), 204);
	assert_int_equal(rig_ask(g, "GET /v1/sandboxes/%s HTTP/1.1\r\n" H "\r\n", id), 404);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_route_is_documented),
		cmocka_unit_test(test_everything_documented_is_routed),
		cmocka_unit_test(test_version_and_limits_in_the_document),
		cmocka_unit_test(test_bodies),
		cmocka_unit_test(test_problem_json),
		cmocka_unit_test(test_problem_path),
		cmocka_unit_test_setup_teardown(test_problems, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_problem_fields, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_next_page, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_life, rig_setup, rig_teardown),
	};

	log_open("test", "test");
	log_set_level(LOG_LEVEL_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
