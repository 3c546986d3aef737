/* E2B's pause, resume, connect and time-outs against the rig (facts: e2b-protocol, 1.2 to 1.4). */
#include "api/test_rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"

#define BASE "{\"templateID\":\"base\"}"
#define BASE_100S "{\"templateID\":\"base\",\"timeout\":100}"

static int post(struct rig *g, const char *path, const char *id, const char *body)
{
	return rig_ask(g, "POST %s%s HTTP/1.1\r\n" H "Content-Length: %zu\r\n\r\n%s", id, path,
		       strlen(body), body);
}

#define POST(g, what, b, body) post(g, "/" what, x_path((b).id), body)

static const char *x_path(const char *id)
{
	static char path[64];

	str_format(path, sizeof(path), "/sandboxes/%s", id);
	return path;
}

static struct store_sandbox row(struct rig *g, const struct box *b)
{
	struct store_sandbox s = { 0 };
	struct err e = { 0 };

	if (store_sandbox_get(g->store, b->id, "", &s, &e) < 0)
		fail_msg("%s", e.text);
	/* Numbers only. */
	free(TAKE(s.metadata));
	free(TAKE(s.env));
	free(TAKE(s.options));
	return s;
}

#define ENDS_IN(g, b, ms) \
	assert_in_range(row(g, b).end_ms, clock_wall_ms() + (ms) - 5000, clock_wall_ms() + (ms))

static void expect(struct rig *g, const struct box *b, enum life_state want)
{
	assert_string_equal(life_state_names[row(g, b).observed], life_state_names[want]);
}

static void test_pause(void **state)
{
	static const struct { const char *body, *has; } bad[] = {
		{ "{\"memory\":false}", "\\\"memory\\\"" },
		{ "{\"memory\":1}", "\\\"memory\\\"" },
		{ "{\"requireHealthyGuest\":true}", "\\\"requireHealthyGuest\\\"" },
		{ "{\"x\":1}", "\\\"x\\\"" },
		{ "{\"timeout\":1}", "\\\"timeout\\\"" },
		{ "[]", "object" },
		{ "{", "\"code\":400" },
	};
	static const char *const good[] = { "", "{}", "{\"memory\":true}", "{\"memory\":null}",
					    "{\"requireHealthyGuest\":false}" };
	struct rig *g = *state;
	struct box b = rig_create(g, BASE);
	struct store_sandbox before = row(g, &b);

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		if (POST(g, "pause", b, bad[i].body) != 400)
			fail_msg("%s", bad[i].body);
		HAS(g, bad[i].has);
	}
	expect(g, &b, LIFE_RUNNING);
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		assert_int_equal(POST(g, "pause", b, good[i]), 204);
		assert_string_equal(g->last_kind, "pause");
		assert_int_equal(g->cap.access, ID_ACCESS_PAUSE);
		expect(g, &b, LIFE_PAUSED);
		assert_int_equal(row(g, &b).end_ms, 0);
		assert_int_equal(POST(g, "pause", b, good[i]), 409);
		HAS(g, "\"code\":409");
		assert_int_equal(rig_ask(g, "GET /sandboxes/%s HTTP/1.1\r\n" H "\r\n", b.id), 200);
		HAS(g, "\"state\":\"paused\"");
		assert_int_equal(POST(g, "connect", b, "{}"), 201);
		assert_int_equal(g->cap.access, ID_ACCESS_RESUME);
	}
	/* The same execution, all the time. */
	assert_int_equal(row(g, &b).generation, before.generation);
	assert_memory_equal(row(g, &b).activation, before.activation, ID_ACTIVATION_BYTES);
	assert_int_equal(rig_ask(g,
				 "POST /sandboxes/%s/pause HTTP/1.1\r\nHost: x\r\nX-API-KEY: "
				 OTHER_KEY "\r\n\r\n",
				 b.id),
			 404);
	HAS(g, "\"code\":404");
	assert_int_equal(rig_ask(g, "DELETE /sandboxes/%s HTTP/1.1\r\n" H "\r\n", b.id), 204);
	assert_int_equal(POST(g, "pause", b, ""), 404);
	assert_int_equal(POST(g, "connect", b, "{}"), 404);
	assert_int_equal(POST(g, "resume", b, "{}"), 404);
	assert_int_equal(POST(g, "timeout", b, "{\"timeout\":5}"), 404);
	assert_int_equal(POST(g, "refreshes", b, "{}"), 404);
}

/* One that fails leaves it as it was, and says why. */
static void test_pause_fails(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, BASE);

	g->answers[0] = "500 X-A 1 {\"num\":-5,\"code\":\"\",\"message\":\"it does not stop\"}";
	assert_int_equal(POST(g, "pause", b, ""), 500);
	HAS(g, "it does not stop");
	expect(g, &b, LIFE_RUNNING);
	assert_int_equal(POST(g, "pause", b, ""), 204);
	g->answers[1] = "500 X-A 1 {\"num\":-5,\"code\":\"\",\"message\":\"it does not go on\"}";
	assert_int_equal(POST(g, "connect", b, "{}"), 500);
	expect(g, &b, LIFE_PAUSED);
	assert_int_equal(row(g, &b).end_ms, 0);
	assert_int_equal(POST(g, "connect", b, "{}"), 201);
	expect(g, &b, LIFE_RUNNING);
}

static void test_connect(void **state)
{
	static const char *const bad[] = { "{\"memory\":false}", "{\"timeout\":-1}",
					   "{\"timeout\":1.5}", "{\"timeout\":99999999}",
					   "{\"autoPause\":true}" };
	struct rig *g = *state;
	struct box b = rig_create(g, BASE_100S);
	int64_t end = row(g, &b).end_ms;

	/* A running one: its time is extended, never shortened, not by a millisecond. */
	assert_int_equal(POST(g, "connect", b, "{\"timeout\":5}"), 200);
	HAS(g, "\"envdAccessToken\":\"");
	HAS(g, b.id);
	assert_int_equal(row(g, &b).end_ms, end);
	assert_int_equal(POST(g, "connect", b, "{\"timeout\":900}"), 200);
	ENDS_IN(g, &b, 900000);
	assert_int_equal(POST(g, "connect", b, ""), 200);
	ENDS_IN(g, &b, 900000);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (POST(g, "connect", b, bad[i]) != 400)
			fail_msg("%s", bad[i]);
	/* A paused one: with what is asked, else with what the create asked for. */
	assert_int_equal(POST(g, "pause", b, ""), 204);
	assert_int_equal(rig_ask(g,
				 "POST /v2/sandboxes/%s/connect HTTP/1.1\r\n" H
				 "Content-Length: 29\r\n\r\n{\"timeout\":300,\"memory\":true}",
				 b.id),
			 201);
	ENDS_IN(g, &b, 300000);
	assert_int_equal(POST(g, "pause", b, ""), 204);
	assert_int_equal(POST(g, "connect", b, "{}"), 201);
	ENDS_IN(g, &b, 100000);
	/* What has no memory any more is started from its disk. */
	assert_int_equal(rig_ask(g, "POST /v1/sandboxes/%s/stop HTTP/1.1\r\n" H "\r\n", b.id), 200);
	assert_int_equal(POST(g, "pause", b, ""), 409);
	assert_int_equal(POST(g, "connect", b, "{\"timeout\":200}"), 201);
	assert_string_equal(g->last_kind, "start");
	assert_int_equal(row(g, &b).generation, 2);
	ENDS_IN(g, &b, 200000);
}

/* The verb of old clients. */
static void test_resume(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, BASE_100S);

	assert_int_equal(POST(g, "pause", b, ""), 204);
	assert_int_equal(POST(g, "resume", b, "{\"timeout\":400,\"autoPause\":true}"), 201);
	HAS(g, "\"sandboxID\":\"");
	ENDS_IN(g, &b, 400000);
	assert_true(row(g, &b).end_pauses);
	assert_int_equal(POST(g, "resume", b, "{}"), 201);
	assert_true(row(g, &b).end_pauses);              /* nobody said otherwise */
	assert_int_equal(POST(g, "resume", b, "{\"autoPause\":1}"), 400);
	assert_int_equal(POST(g, "resume", b, "{\"memory\":false}"), 400);
	assert_int_equal(POST(g, "resume", b, "{\"autoPause\":false}"), 201);
	assert_false(row(g, &b).end_pauses);
}

static void test_time(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, BASE);
	int64_t end;

	assert_int_equal(POST(g, "timeout", b, "{\"timeout\":1000}"), 204);
	ENDS_IN(g, &b, 1000000);
	assert_int_equal(POST(g, "timeout", b, "{\"timeout\":10}"), 204);
	ENDS_IN(g, &b, 10000);
	/* A refresh gives at least 15 s, and takes nothing. */
	assert_int_equal(POST(g, "refreshes", b, ""), 204);
	ENDS_IN(g, &b, 15000);
	assert_int_equal(POST(g, "refreshes", b, "{\"duration\":600}"), 204);
	ENDS_IN(g, &b, 600000);
	end = row(g, &b).end_ms;
	assert_int_equal(POST(g, "refreshes", b, "{\"duration\":20}"), 204);
	assert_int_equal(row(g, &b).end_ms, end);
	assert_int_equal(POST(g, "refreshes", b, "{\"duration\":3601}"), 400);
	assert_int_equal(POST(g, "timeout", b, "{}"), 400);
	HAS(g, "\\\"timeout\\\"");
	assert_int_equal(POST(g, "timeout", b, "{\"timeout\":\"5\"}"), 400);
	assert_int_equal(POST(g, "timeout", b, "{\"timeout\":5,\"x\":1}"), 400);
	assert_int_equal(POST(g, "timeout", b, "{\"timeout\":2592001}"), 400);
	assert_int_equal(row(g, &b).end_ms, end);
	assert_int_equal(POST(g, "timeout", b, "{\"timeout\":-3}"), 204);
	assert_true(row(g, &b).end_ms <= clock_wall_ms());
	/* The time of a paused one does not run. */
	assert_int_equal(POST(g, "timeout", b, "{\"timeout\":100}"), 204);
	assert_int_equal(POST(g, "pause", b, ""), 204);
	assert_int_equal(POST(g, "timeout", b, "{\"timeout\":100}"), 404);
	HAS(g, "\"code\":404");
	assert_int_equal(POST(g, "refreshes", b, "{}"), 404);
	assert_int_equal(row(g, &b).end_ms, 0);
}

/* ---- while something happens to it ---- */

static void send_post(struct rig *g, const char *what, const struct box *b)
{
	autofree char *msg =
		x_asprintf("POST /sandboxes/%s/%s HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}",
			   b->id, what);

	if (g->client_eof)
		rig_connect_client(g);
	buf_clear(&g->in);
	assert_int_equal(fd_write_all(g->client, msg, strlen(msg), WAIT_MS), 0);
	/* It waits: long enough that an answer would have come. */
	for (int i = 0; i < 200; i++)
		rig_turn(g);
	assert_int_equal(buf_len(&g->in), 0);
}

static int await(struct rig *g)
{
	int64_t until = clock_mono_ms() + WAIT_MS;
	autofree char *head = NULL;
	uint64_t status;

	while (buf_len(&g->in) == 0 && clock_mono_ms() < until)
		rig_turn(g);
	head = x_strndup(buf_data(&g->in), buf_len(&g->in));
	if (strlen(head) <= 12 || str_to_u64_n(head + 9, 3, 999, &status) < 0)
		return -1;               /* after "HTTP/1.1 " */
	return (int)status;
}

static struct store_op begin(struct rig *g, const struct box *b, enum life_event kind)
{
	struct store_op op;
	struct err e = { 0 };

	if (store_submit(g->store, b->id, "", kind, "somebody", "r", &op, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(op.state, STORE_OP_CLAIMED);
	return op;
}

/* Another process pauses it at that moment, or resumes it, or deletes it. */
static void test_transitions_are_waited_for(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, BASE);
	struct store_op op = begin(g, &b, LIFE_EV_PAUSE);
	struct err why = { .num = -EIO, .text = "no" };

	send_post(g, "connect", &b);
	assert_int_equal(store_finish(g->store, &op, LIFE_PAUSED, NULL, NULL), 0);
	assert_int_equal(await(g), 201);
	expect(g, &b, LIFE_RUNNING);

	op = begin(g, &b, LIFE_EV_PAUSE);
	send_post(g, "connect", &b);
	assert_int_equal(store_finish(g->store, &op, LIFE_RUNNING, &why, NULL), 0);
	assert_int_equal(await(g), 200);

	op = begin(g, &b, LIFE_EV_PAUSE);
	send_post(g, "pause", &b);
	assert_int_equal(store_finish(g->store, &op, LIFE_PAUSED, NULL, NULL), 0);
	assert_int_equal(await(g), 409);

	op = begin(g, &b, LIFE_EV_RESUME);
	send_post(g, "resume", &b);
	assert_int_equal(store_finish(g->store, &op, LIFE_RUNNING, NULL, NULL), 0);
	assert_int_equal(await(g), 201);

	op = begin(g, &b, LIFE_EV_DELETE);
	assert_int_equal(POST(g, "connect", b, "{}"), 409);
	assert_int_equal(POST(g, "pause", b, "{}"), 409);
	assert_int_equal(store_finish(g->store, &op, LIFE_NONE, NULL, NULL), 0);
	assert_int_equal(POST(g, "connect", b, "{}"), 404);
}

/* ---- requests to the sandbox itself ---- */

static int list(struct rig *g, const struct box *b, const char *path)
{
	return rig_ask(g,
		       "GET %s HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: "
		       "49983\r\nX-Access-Token: %s\r\n\r\n",
		       path, b->id, b->token);
}

static void test_asleep(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(g, BASE);
	autofree char *gone = x_asprintf(
		"{\"sandboxId\":\"%s\",\"message\":\"The sandbox was not found\",\"code\":502}",
		b.id);

	assert_int_equal(list(g, &b, "/envs"), 200);
	assert_int_equal(POST(g, "pause", b, ""), 204);
	assert_int_equal(list(g, &b, "/envs"), 502);
	HAS(g, gone);
	expect(g, &b, LIFE_PAUSED);
}

static void test_requests_wake(void **state)
{
	struct rig *g = *state;
	struct box b = rig_create(
		g, "{\"templateID\":\"base\",\"timeout\":100,\"autoResume\":{\"enabled\":true}}");
	struct box stranger = b;
	struct store_op op;
	struct err e = { 0 };

	assert_int_equal(POST(g, "pause", b, ""), 204);
	/* Neither a health check nor who may not. */
	assert_int_equal(list(g, &b, "/health"), 502);
	str_copy(stranger.token, sizeof(stranger.token), "x");
	assert_int_equal(list(g, &stranger, "/envs"), 401);
	expect(g, &b, LIFE_PAUSED);
	assert_int_equal(list(g, &b, "/envs"), 200);
	HAS(g, "guest");
	assert_string_equal(g->last_kind, "resume");
	expect(g, &b, LIFE_RUNNING);
	ENDS_IN(g, &b, 100000);
	assert_int_equal(list(g, &b, "/health"), 200);

	/* It does not wake: said, and the next request tries again. */
	assert_int_equal(POST(g, "pause", b, ""), 204);
	g->answers[0] = "500 X-A 1 {\"num\":-5,\"code\":\"\",\"message\":\"it does not go on\"}";
	assert_int_equal(list(g, &b, "/envs"), 503);
	expect(g, &b, LIFE_PAUSED);
	assert_int_equal(list(g, &b, "/envs"), 200);

	/* Paused by another process: the node refuses, the row says why. */
	op = begin(g, &b, LIFE_EV_PAUSE);
	if (store_finish(g->store, &op, LIFE_PAUSED, NULL, &e) < 0)
		fail_msg("%s", e.text);
	g->answers[1] = "421 Space-Refusal refresh-route {}";
	assert_int_equal(list(g, &b, "/envs"), 200);
	expect(g, &b, LIFE_RUNNING);

	/* Stopped is not paused. */
	assert_int_equal(rig_ask(g, "POST /v1/sandboxes/%s/stop HTTP/1.1\r\n" H "\r\n", b.id), 200);
	assert_int_equal(list(g, &b, "/envs"), 502);
	expect(g, &b, LIFE_STOPPED);
}

#define T(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_pause),
		T(test_pause_fails),
		T(test_connect),
		T(test_resume),
		T(test_time),
		T(test_transitions_are_waited_for),
		T(test_asleep),
		T(test_requests_wake),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
