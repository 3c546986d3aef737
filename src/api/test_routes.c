/* E2B's control routes against the rig: what each option and header does, and what is refused. */
#include "api/test_rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "api/metrics.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "json/strict.h"

#define BASE "{\"templateID\":\"base\"}"
#define GET(path) "GET " path " HTTP/1.1\r\n" H "\r\n"
#define DELETE(path) "DELETE " path " HTTP/1.1\r\n" H "\r\n"
#define GET_OTHER(path) \
	"GET " path " HTTP/1.1\r\nHost: x\r\nX-API-Key: " OTHER_KEY "\r\n\r\n"
#define GET_OPEN(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"
#define POST_ONCE(key, body)                                                                  \
	"POST /v2/sandboxes HTTP/1.1\r\n" H "Idempotency-Key: " key "\r\nContent-Length: %zu" \
	"\r\n\r\n%s",                                                                         \
		strlen(body), body

/* The JSON of the last answer; json_decref it. */
static json_t *body_of(struct rig *g)
{
	autofree char *text = x_strndup(buf_data(&g->in), buf_len(&g->in));
	char *body = strstr(text, "\r\n\r\n");
	struct err e = { 0 };
	json_t *v;

	assert_non_null(body);
	v = strict_parse(body + 4, strlen(body + 4), 10, &e);
	if (!v)
		fail_msg("%s: %s", e.text, body);
	return v;
}

/* ---- Idempotency-Key ---- */

static void test_once(void **state)
{
	struct rig *g = *state;
	char first[64], id[64];

	assert_int_equal(rig_ask(g, POST_ONCE("0a-1", BASE)), 201);
	rig_field(g, "sandboxID", first, sizeof(first));
	assert_int_equal(g->calls, 1);
	assert_int_equal(rig_ask(g, POST_ONCE("0a-1", BASE)), 201);
	rig_field(g, "sandboxID", id, sizeof(id));
	assert_string_equal(id, first);
	HAS(g, "\"envdAccessToken\":\"");
	assert_int_equal(g->calls, 1);

	/* another body, another route, another tenant */
	assert_int_equal(rig_ask(g, POST_ONCE("0a-1", "{\"templateID\":\"base\" }")), 409);
	HAS(g, "\"error_code\":\"idempotency_request_mismatch\"");
	assert_int_equal(rig_ask(g,
				 "POST /sandboxes HTTP/1.1\r\n" H
				 "Idempotency-Key: 0a-1\r\nContent-Length: 21\r\n\r\n" BASE),
			 409);
	assert_int_equal(rig_ask(g,
				 "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: " OTHER_KEY
				 "\r\nIdempotency-Key: 0a-1\r\nContent-Length: 21\r\n\r\n" BASE),
			 201);
	rig_field(g, "sandboxID", id, sizeof(id));
	assert_string_not_equal(id, first);
	assert_int_equal(g->calls, 2);

	/* what is no key */
	assert_int_equal(rig_ask(g, POST_ONCE("a b", BASE)), 400);
	assert_int_equal(rig_ask(g, POST_ONCE("", BASE)), 400);
	assert_int_equal(rig_ask(g, POST_ONCE("a\r\nIdempotency-Key: b", BASE)), 400);
	assert_int_equal(g->calls, 2);

	/* it is gone: no other one under this key */
	assert_int_equal(rig_ask(g, DELETE("/sandboxes/%s"), first), 204);
	assert_int_equal(rig_ask(g, POST_ONCE("0a-1", BASE)), 409);
	HAS(g, "\"error_code\":\"idempotency_sandbox_gone\"");
}

/* A create that failed is no reason to fail again. */
static void test_once_failed(void **state)
{
	struct rig *g = *state;

	g->answers[0] = "507 X y {\"num\":-28,\"code\":\"no-space\",\"message\":\"Full.\"}";
	assert_int_equal(rig_ask(g, POST_ONCE("k", BASE)), 507);
	assert_int_equal(rig_ask(g, POST_ONCE("k", BASE)), 201);
}

static void send_to(struct rig *g, int *ret_fd, const char *text)
{
	int sv[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv), 0);
	*ret_fd = sv[0];
	api_accept(g->api, sv[1]);
	assert_int_equal(fd_write_all(sv[0], text, strlen(text), WAIT_MS), 0);
}

/* Several at once are one; a restart in between changes nothing. */
static void test_once_together(void **state)
{
	enum { N = 4 };
	struct rig *g = *state;
	autofree char *text = x_asprintf(POST_ONCE("same", BASE));
	int64_t until = clock_mono_ms() + WAIT_MS;
	struct buf in[N];
	char id[64], other[64];
	int fds[N], left = N;

	for (int i = 0; i < N; i++) {
		buf_init(&in[i], 65536);
		send_to(g, &fds[i], text);
	}
	while (left > 0 && clock_mono_ms() < until) {
		rig_turn(g);
		left = N;
		for (int i = 0; i < N; i++) {
			while (buf_read_fd(&in[i], fds[i], 4096) > 0)
				;
			left -= buf_len(&in[i]) > 0 && memchr(buf_data(&in[i]), '}', buf_len(&in[i]));
		}
	}
	assert_int_equal(left, 0);
	for (int i = 0; i < N; i++) {
		buf_clear(&g->in);
		buf_put(&g->in, buf_data(&in[i]), buf_len(&in[i]));
		HAS(g, "HTTP/1.1 201 ");
		rig_field(g, "sandboxID", i ? other : id, sizeof(id));
		assert_string_equal(i ? other : id, id);
		close(fds[i]);
		buf_done(&in[i]);
	}
	assert_int_equal(g->calls, 1);

	rig_restart_api(g);
	assert_int_equal(rig_ask(g, POST_ONCE("same", BASE)), 201);
	rig_field(g, "sandboxID", other, sizeof(other));
	assert_string_equal(other, id);
	assert_int_equal(g->calls, 1);
}

/* ---- options ---- */

static void test_options(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, "{\"templateID\":\"base\",\"autoPause\":true,\"timeout\":60,"
				     "\"autoResume\":{\"enabled\":true},\"allow_internet_access\":true}");
	struct store_sandbox row = { 0 };
	struct err e = { 0 };

	assert_int_equal(rig_ask(g, GET("/sandboxes/%s"), b.id), 200);
	HAS(g, "\"lifecycle\":{\"onTimeout\":\"pause\",\"autoResume\":true}");
	HAS(g, "\"allowInternetAccess\":true");
	assert_int_equal(store_sandbox_get(g->store, b.id, "", &row, &e), 0);
	assert_int_equal(row.timeout_ms, 60000);
	assert_true(row.end_pauses && row.auto_resume);
	store_sandbox_done(&row);

	assert_int_equal(rig_ask(g, "POST /sandboxes HTTP/1.1\r\n" H
				    "Content-Length: 21\r\n\r\n" BASE),
			 201);
	rig_field(g, "sandboxID", b.id, sizeof(b.id));
	assert_int_equal(store_sandbox_get(g->store, b.id, "", &row, &e), 0);
	assert_int_equal(row.timeout_ms, 15000);
	assert_false(row.end_pauses || row.auto_resume);
	store_sandbox_done(&row);

	assert_int_equal(rig_ask(g, "POST /v2/sandboxes HTTP/1.1\r\n" H
				    "Content-Length: 30\r\n\r\n{\"templateID\":\"base\",\"mcp\":{}}"),
			 400);
	HAS(g, "\\\"mcp\\\"");
	HAS(g, "\"error_code\":\"not_built_yet\"");
	HAS(g, "Should-Retry: false");
}

/* ---- logs ---- */

#define HOSTILE "\x1b[2J\\r\"}],{\"level\":\"error\""
#define HOSTILE_JSON "\\u001b[2J\\\\r\\\"}],{\\\"level\\\":\\\"error\\\""

static json_t *logs_of(struct rig *g, const char *path, const char *id, const char *query)
{
	if (rig_ask(g, GET("%s/%s/logs%s"), path, id, query) != 200)
		fail_msg("%s: %.*s", query, (int)buf_len(&g->in), buf_data(&g->in));
	return body_of(g);
}

/* "message message" of the entries, in their order. */
static void messages(struct rig *g, const char *id, const char *query, const char *want)
{
	json_t *o = logs_of(g, "/v2/sandboxes", id, query), *en;
	char got[400] = "";
	size_t i;

	json_array_foreach(json_object_get(o, "logs"), i, en) {
		str_format(got + strlen(got), sizeof(got) - strlen(got), "%s%s", i ? " " : "",
			   json_string_value(json_object_get(en, "message")));
		assert_non_null(json_object_get(en, "timestamp"));
		assert_non_null(json_object_get(json_object_get(en, "fields"), "source"));
	}
	if (!str_eq(got, want))
		fail_msg("%s: \"%s\", not \"%s\"", query, got, want);
	json_decref(o);
}

static void test_logs(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, BASE);
	json_t *o, *en;

	/* 2 bytes came before the first mark that is kept; "two" was half there at 2000. */
	g->console = "{\"text\":\"a\\none\\r\\n\\ntwo\\nlast\",\"marks\":[{\"t\":1000,\"bytes\":5},"
		     "{\"t\":2000,\"bytes\":3},{\"t\":3000,\"bytes\":6}],\"events\":["
		     "{\"t\":500,\"text\":\"created\"},{\"t\":2500,\"text\":\"ended\"}]}";
	messages(g, b.id, "", "created a one ended two last");
	messages(g, b.id, "?limit=2", "created a");
	messages(g, b.id, "?limit=0", "");
	messages(g, b.id, "?direction=backward&limit=3", "last two ended");
	messages(g, b.id, "?cursor=1001", "ended two last");
	messages(g, b.id, "?cursor=1000", "a one ended two last");
	messages(g, b.id, "?cursor=1000&direction=backward", "one a created");
	messages(g, b.id, "?level=warn", "ended");
	messages(g, b.id, "?level=error", "");
	messages(g, b.id, "?level=debug&search=t", "created two last");
	messages(g, b.id, "?search=T", "");

	o = logs_of(g, "/sandboxes", b.id, "?start=3000");
	assert_int_equal(json_array_size(json_object_get(o, "logs")), 2);
	assert_int_equal(json_array_size(json_object_get(o, "logEntries")), 2);
	en = json_array_get(json_object_get(o, "logs"), 1);
	assert_string_equal(json_string_value(json_object_get(en, "timestamp")),
			    "1970-01-01T00:00:03.000Z");
	assert_string_equal(json_string_value(json_object_get(en, "line")),
			    "{\"level\":\"info\",\"logger\":\"console\",\"message\":\"last\"}");
	json_decref(o);

	static const char *const bad[] = { "cursor=-1", "cursor=x", "limit=1001", "direction=up",
					   "level=loud", "colour=red", "limit=1&limit=2",
					   "search=%zz" };
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(rig_ask(g, GET("/v2/sandboxes/%s/logs?%s"),
					 b.id, bad[i]),
				 400);
	assert_int_equal(rig_ask(g, GET_OTHER("/v2/sandboxes/%s/logs"), b.id),
			 404);
	assert_int_equal(rig_ask(g, GET("/sandboxes/%s/logs"), "x"), 404);
}

/* What a guest writes stays the text of one entry. */
static void test_hostile_logs(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, BASE);
	json_t *o, *line;
	const char *text;

	g->console = "{\"text\":\"" HOSTILE_JSON "\",\"marks\":[],\"events\":[]}";
	o = logs_of(g, "/sandboxes", b.id, "");
	assert_int_equal(json_array_size(json_object_get(o, "logEntries")), 1);
	text = json_string_value(
		json_object_get(json_array_get(json_object_get(o, "logEntries"), 0), "message"));
	assert_string_equal(text, HOSTILE);
	text = json_string_value(
		json_object_get(json_array_get(json_object_get(o, "logs"), 0), "line"));
	line = strict_parse(text, strlen(text), 4, NULL);
	assert_string_equal(json_string_value(json_object_get(line, "level")), "info");
	assert_string_equal(json_string_value(json_object_get(line, "message")), HOSTILE);
	assert_null(memchr(buf_data(&g->in), '\x1b', buf_len(&g->in)));
	json_decref(line);
	json_decref(o);
}

/* ---- metrics ---- */

#define METRICS(pct, more)                                                                     \
	"{\"ts\":1,\"cpu_count\":2,\"cpu_used_pct\":" pct                                        \
	",\"mem_total\":536870912,\"mem_used\":1000,\"mem_cache\":7,\"disk_used\":5,\"disk_total\":9" \
	",\"more\":[1]" more "}"

static void test_metrics_parse(void **state)
{
	static const struct { const char *text; int want; } rows[] = {
		{ METRICS("1.5", ""), 0 },
		{ METRICS("0", ",\"idle_ms\":12"), 0 },
		{ METRICS("-1", ""), -EBADMSG },
		{ METRICS("1e12", ""), -EBADMSG },
		{ METRICS("\"x\"", ""), -EBADMSG },
		{ "{\"cpu_count\":1,\"cpu_used_pct\":1}", -EBADMSG },
		{ "{}", -EBADMSG },
		{ "{\"cpu_count\":1,\"cpu_used_pct\":1,\"mem_total\":-1,\"mem_used\":1,\"mem_cache\":1,"
		  "\"disk_used\":1,\"disk_total\":1}",
		  -EBADMSG },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct metrics_sample m = { 0 };
		json_t *v = strict_parse(rows[i].text, strlen(rows[i].text), 4, NULL);

		assert_non_null(v);
		assert_int_equal(metrics_parse(v, 5000, &m), rows[i].want);
		if (rows[i].want == 0)
			assert_int_equal(m.t_ms, 5000);
		json_decref(v);
	}
}

static void test_metrics_kept(void **state)
{
	struct metrics_kept *k = metrics_kept_new();
	struct metrics_sample m = { 0 };
	json_t *l;

	assert_null(metrics_last(k, "a"));
	for (int i = 1; i <= METRICS_SAMPLES + 10; i++) {
		m.t_ms = i * 1000;
		metrics_keep(k, "a", &m);
	}
	l = metrics_list(k, "a", 0, INT64_MAX);
	assert_int_equal(json_array_size(l), METRICS_SAMPLES);
	assert_int_equal(json_integer_value(json_object_get(json_array_get(l, 0), "timestampUnix")),
			 11);
	json_decref(l);
	l = metrics_list(k, "a", 20000, 21999);
	assert_int_equal(json_array_size(l), 2);
	json_decref(l);
	/* More sandboxes than are kept: who was asked longest ago goes. */
	for (int i = 0; i < METRICS_BOXES_MAX; i++) {
		char name[20];

		str_format(name, sizeof(name), "b%d", i);
		m.t_ms = 1000000 + i;
		metrics_keep(k, name, &m);
	}
	assert_null(metrics_last(k, "a"));
	assert_non_null(metrics_last(k, "b0"));
	metrics_drop(k, "b0");
	assert_null(metrics_last(k, "b0"));
	metrics_kept_free(k);
}

static void test_metrics(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, BASE), c = rig_create(g, BASE);
	json_t *v, *m;

	g->metrics = METRICS("12.5", "");
	assert_int_equal(rig_ask(g, GET("/sandboxes/%s/metrics"), b.id), 200);
	v = body_of(g);
	assert_int_equal(json_array_size(v), 1);
	m = json_array_get(v, 0);
	assert_int_equal(json_integer_value(json_object_get(m, "memTotal")), 536870912);
	assert_int_equal(json_integer_value(json_object_get(m, "cpuCount")), 2);
	assert_int_equal(json_integer_value(json_object_get(m, "diskTotal")), 9);
	assert_true(json_real_value(json_object_get(m, "cpuUsedPct")) == 12.5);
	assert_true(json_integer_value(json_object_get(m, "timestampUnix")) > 1000000);
	json_decref(v);
	assert_int_equal(g->cap.purpose, ID_PURPOSE_CONTROL);
	assert_int_equal(g->cap.access, ID_ACCESS_READ);
	assert_string_equal(g->cap.id.sandbox, b.id);

	/* The past is not asked of the guest; what is malformed is no sample. */
	assert_int_equal(rig_ask(g, GET("/sandboxes/%s/metrics?start=5&end=10"),
				 b.id),
			 200);
	HAS(g, "\r\n\r\n[]");
	assert_int_equal(g->forwards, 1);
	g->metrics = METRICS("\"x\"", "");
	assert_int_equal(rig_ask(g, GET("/sandboxes/%s/metrics"), b.id), 200);
	v = body_of(g);
	assert_int_equal(json_array_size(v), 1);
	json_decref(v);

	/* Stopped: its last values. */
	g->metrics = METRICS("1", "");
	assert_int_equal(rig_ask(g, "POST /v1/sandboxes/%s/stop HTTP/1.1\r\n" H "\r\n", b.id), 200);
	g->forwards = 0;
	assert_int_equal(rig_ask(g, "GET /sandboxes/metrics?sandbox_ids=%s,%s,i00000000000000000000,x "
				    "HTTP/1.1\r\n" H "\r\n", b.id, c.id),
			 200);
	v = body_of(g);
	m = json_object_get(v, "sandboxes");
	assert_int_equal(json_object_size(m), 2);
	assert_true(json_number_value(json_object_get(json_object_get(m, b.id), "cpuUsedPct")) == 12.5);
	assert_true(json_number_value(json_object_get(json_object_get(m, c.id), "cpuUsedPct")) == 1);
	json_decref(v);
	assert_int_equal(g->forwards, 1);

	/* Not those of others. */
	assert_int_equal(rig_ask(g, GET_OTHER("/sandboxes/metrics?sandbox_ids=%s"), b.id),
			 200);
	HAS(g, "{\"sandboxes\":{}}");
	assert_int_equal(rig_ask(g, GET_OTHER("/sandboxes/%s/metrics"), b.id),
			 404);
	assert_int_equal(rig_ask(g, GET("/sandboxes/metrics")), 400);
	assert_int_equal(rig_ask(g, GET("/sandboxes/%s/metrics?start=2&end=1"),
				 b.id),
			 400);
	assert_int_equal(rig_ask(g, GET("/sandboxes/%s/metrics?start=-2"), b.id),
			 400);
	/* milliseconds of the year 2223 */
	assert_int_equal(rig_ask(g, GET("/sandboxes/%s/metrics?start=8000000000000"), b.id), 200);
	HAS(g, "\r\n\r\n[]");
	assert_int_equal(rig_ask(g, GET("/sandboxes/%s/metrics?end=8000000000000"), b.id), 200);
	HAS(g, "cpuUsedPct");
	assert_int_equal(rig_ask(g, GET("/sandboxes/%s/metrics?start=9000000000000000"), b.id),
			 400);
}

/* ---- signed addresses ---- */

/* E2B's published vector. */
static void test_signature_vector(void **state)
{
	char got[TOKEN_SIGNATURE_MAX];

	token_signature("0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", "hello.txt", "read", "user", NULL, got);
	assert_string_equal(got, "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E");
}

#define GOOD "/files?signature=v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"

static void test_signed_parse(void **state)
{
	static const struct { const char *target; int want; } rows[] = {
		{ GOOD, 0 },
		{ GOOD "&path=a%20b&username=u&signature_expiration=5", 0 },
		{ "/files?path=x", -ENOENT },
		{ "/envs?signature=x", -ENOENT },
		{ GOOD "A", -EKEYREJECTED },
		{ "/files?signature=gUtH", -EKEYREJECTED },
		{ "/files?signature=v1_", -EKEYREJECTED },
		{ "/files?signature=", -EKEYREJECTED },
		{ GOOD "&signature_expiration=soon", -EINVAL },
		{ GOOD "&signature_expiration=-1", -EINVAL },
		{ GOOD "&signature_expiration=99999999999999999999", -EINVAL },
		{ GOOD "&path=%zz", -EINVAL },
		{ GOOD "&path=%00", -EINVAL },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct token_signed q = { 0 };
		struct err e = { 0 };
		int r = token_signed_parse("GET", rows[i].target, &q, &e);

		if (r != rows[i].want)
			fail_msg("%s: %d %s", rows[i].target, r, e.text);
		if (r == 0)
			assert_string_equal(q.op, "read");
		token_signed_done(&q);
	}
}

static char *signed_query(const struct box *b, const char *path, const char *op, const char *user,
			  const char *expiration)
{
	char sig[TOKEN_SIGNATURE_MAX], quoted[3 * TOKEN_SIGNATURE_MAX + 1] = "";

	token_signature(b->token, path, op, user, expiration, sig);
	for (char *p = sig; *p; p++)
		str_format(quoted + strlen(quoted), sizeof(quoted) - strlen(quoted), "%%%02X", *p);
	return x_asprintf("path=%s&username=%s&signature=%s%s%s", path, user, quoted,
			  expiration ? "&signature_expiration=" : "", expiration ? expiration : "");
}

static void test_signed(void **state)
{
	struct rig *g = *state;
	struct box boxes[3];
	autofree char *q = NULL, *old = NULL, *other = NULL;

	for (size_t i = 0; i < ARRAY_LEN(boxes); i++)
		boxes[i] = rig_create(g, BASE);
	q = signed_query(&boxes[0], "/a", "read", "user", "4000000000");
	old = signed_query(&boxes[0], "/a", "read", "user", "1000000000");
	other = signed_query(&boxes[2], "/b", "write", "root", NULL);
	for (int again = 0; again < 2; again++) {
		assert_int_equal(rig_ask(g, GET_OPEN("/files?%s"), q), 200);
		assert_string_equal(g->cap.id.sandbox, boxes[0].id);
		assert_int_equal(g->cap.access, ID_ACCESS_READ);
		assert_int_equal(rig_ask(g,
					 "POST /files?%s HTTP/1.1\r\nHost: x\r\nContent-Length: 1"
					 "\r\n\r\nx", other),
				 200);
		assert_string_equal(g->cap.id.sandbox, boxes[2].id);
	}
	assert_int_equal(map_len(g->api->signed_known), 2);
	assert_int_equal(g->forwards, 4);

	/* Signed for a read, and not for ever. */
	assert_int_equal(rig_ask(g,
				 "POST /files?%s HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
				 q),
			 401);
	rig_connect_client(g);
	assert_int_equal(rig_ask(g, GET_OPEN("/files?%s"), old), 401);
	HAS(g, "\"code\":401,\"message\":\"signature is already expired\"");
	assert_int_equal(rig_ask(g,
				 "GET /files?%s HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: %s\r\n"
				 "E2b-Sandbox-Port: 49983\r\n\r\n", old, boxes[0].id),
			 401);
	HAS(g, "signature is already expired");
	assert_int_equal(rig_ask(g, GET_OPEN("/files?%s&path=/c"), other), 401);
	HAS(g, "invalid signature");

	/* A token that is right replaces the signature, one that is wrong does not pass with it. */
	assert_int_equal(rig_ask(g, "GET /files?%s HTTP/1.1\r\nHost: x\r\nX-Access-Token: %s\r\n\r\n",
				 old, boxes[0].token),
			 200);
	assert_int_equal(rig_ask(g, "GET /files?%s HTTP/1.1\r\nHost: x\r\nX-Access-Token: no\r\n\r\n",
				 q),
			 401);
	assert_int_equal(rig_ask(g, GET_OPEN("/files?path=x")), 401);
	HAS(g, "names no sandbox");

	/* Gone: what is remembered leads to no one. */
	assert_int_equal(rig_ask(g, DELETE("/sandboxes/%s"), boxes[0].id), 204);
	assert_int_equal(rig_ask(g, GET_OPEN("/files?%s"), q), 502);
}

/* ---- pages of other origins ---- */

#define ORIGIN "Origin: https://page.test\r\n"

static void test_cors(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, BASE);
	static const struct { const char *line, *host; int status; bool open; } rows[] = {
		{ "/files?path=x", "x", 204, true },
		{ "/process.Process/Start", "x", 204, true },
		{ "/filesystem.Filesystem/WatchDir", "x", 204, true },
		{ "/health", "x", 204, true },
		{ "/anything", "49983-iaaaaaaaaaaaaaaaaaaaa.box.test", 204, true },
		{ "/init", "49983-iaaaaaaaaaaaaaaaaaaaa.box.test", 404, false },
		{ "/init", "x", 404, false },
		{ "/sandboxes", "x", 405, false },
		{ "/v2/sandboxes", "x", 405, false },
		{ "/v1/sandboxes", "x", 405, false },
		{ "/sandboxes/iaaaaaaaaaaaaaaaaaaaa/logs", "x", 405, false },
		{ "/nowhere", "x", 404, false },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		int status = rig_ask(g,
				     "OPTIONS %s HTTP/1.1\r\nHost: %s\r\n" ORIGIN
				     "Access-Control-Request-Method: POST\r\n"
				     "Access-Control-Request-Headers: authorization,x-access-token\r\n\r\n",
				     rows[i].line, rows[i].host);

		if (status != rows[i].status)
			fail_msg("%s at %s: %d", rows[i].line, rows[i].host, status);
		if (rows[i].open) {
			HAS(g, "Access-Control-Allow-Origin: *\r\n");
			HAS(g, "Access-Control-Allow-Methods: HEAD, GET, POST, PUT, PATCH, DELETE\r\n");
			HAS(g, "Access-Control-Allow-Headers: authorization,x-access-token\r\n");
			HAS(g, "Access-Control-Max-Age: 7200\r\n");
		} else {
			assert_false(rig_has(g, "Access-Control-Allow-Origin"));
		}
	}
	assert_int_equal(g->forwards, 0);

	/* Answers and refusals of the data surface; what the guest says about origins is dropped. */
	g->answers[0] = "200 Access-Control-Allow-Origin https://guest.test x";
	assert_int_equal(rig_ask(g, "GET /envs HTTP/1.1\r\nHost: x\r\n" ORIGIN
				    "X-Access-Token: %s\r\n\r\n", b.token),
			 200);
	HAS(g, "Access-Control-Allow-Origin: *\r\n");
	HAS(g, "Access-Control-Expose-Headers: Grpc-Status, ");
	assert_false(rig_has(g, "guest.test"));
	assert_int_equal(rig_ask(g, "GET /envs HTTP/1.1\r\nHost: x\r\nX-Access-Token: %s\r\n\r\n",
				 b.token),
			 200);
	assert_false(rig_has(g, "Access-Control"));
	assert_int_equal(rig_ask(g, "GET /envs HTTP/1.1\r\nHost: 49983-%s.box.test\r\n" ORIGIN "\r\n",
				 b.id),
			 401);
	HAS(g, "Access-Control-Allow-Origin: *\r\n");
	assert_int_equal(rig_ask(g, "GET /sandboxes HTTP/1.1\r\n" H ORIGIN "\r\n"), 200);
	assert_false(rig_has(g, "Access-Control"));
	assert_int_equal(rig_ask(g, "GET /sandboxes HTTP/1.1\r\nHost: x\r\n" ORIGIN "\r\n"), 401);
	assert_false(rig_has(g, "Access-Control"));
	/* A sandbox that is gone: a page may read that, too. */
	assert_int_equal(rig_ask(g, DELETE("/sandboxes/%s"), b.id), 204);
	assert_int_equal(rig_ask(g, "GET /envs HTTP/1.1\r\nHost: x\r\n" ORIGIN
				    "X-Access-Token: %s\r\n\r\n", b.token),
			 502);
	HAS(g, "Access-Control-Allow-Origin: *\r\n");
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)
	const struct CMUnitTest tests[] = {
		T(test_once),
		T(test_once_failed),
		T(test_once_together),
		T(test_options),
		T(test_logs),
		T(test_hostile_logs),
		cmocka_unit_test(test_metrics_parse),
		cmocka_unit_test(test_metrics_kept),
		T(test_metrics),
		cmocka_unit_test(test_signature_vector),
		cmocka_unit_test(test_signed_parse),
		T(test_signed),
		T(test_cors),
	};

	log_open("test", "test");
	log_set_level(LOG_LEVEL_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
