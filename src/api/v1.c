/*
 * The native API under /v1, as docs/openapi.json says it (tests/test_openapi.py holds the two
 * together); in worker threads, the document and the pages of problems excepted.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "api/api.h"
#include "api/metrics.h"
#include "api/problem.h"
#include "api/v1_fields.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"

#define V1_TIMEOUT_DEFAULT_S 300

/* ---- about the service ---- */

void run_v1_document(struct call *c, struct store *s)
{
	c->text = x_strdup(v1_document);
	c->status = 200;
}

void run_v1_problem(struct call *c, struct store *s)
{
	autofree char *code = x_strdup(c->target + strlen(PROBLEM_BASE));
	const struct problem *p;

	code[strcspn(code, "?")] = '\0';
	p = problem_find(code);
	if (p) {
		c->text = problem_page(p);
		c->type = "text/plain; charset=utf-8";
		c->status = 200;
	} else {
		err_set(&c->err, -ENOENT, "There is no problem of that name.");
	}
}

void run_v1_version(struct call *c, struct store *s)
{
	call_json(c, 200, json_pack("{s:s}", "version", SPACE_VERSION));
}

/* ---- one sandbox ---- */

static json_t *with_access(struct call *c, const struct store_sandbox *b)
{
	json_t *o = object_v1(c->api, b);

	object_v1_access(c->api, o, b);
	return o;
}

static void take_create(struct v1_body *body, struct fields_create *ret)
{
	str_copy(ret->template, sizeof(ret->template), body->template);
	ret->timeout_s = body->timeout_s ? body->timeout_s : V1_TIMEOUT_DEFAULT_S;
	ret->auto_pause = body->end_pauses;
	ret->auto_resume = body->auto_resume;
	ret->no_internet = body->no_internet;
	ret->no_public_traffic = body->no_public_traffic;
	ret->metadata = body->metadata ? TAKE(body->metadata) : json_object();
	ret->env = body->env ? TAKE(body->env) : json_object();
	ret->options = json_object();
}

void run_v1_create(struct call *c, struct store *s)
{
	struct v1_body body = { 0 };
	struct fields_create f = { 0 };
	struct store_sandbox b = { 0 };
	int r;

	if (v1_body_take(c->body, c->body_len, v1_create, &body, &c->err) == 0) {
		take_create(&body, &f);
		r = create_run(c, s, &f, &b);
		store_sandbox_done(&b);          /* as it was asked for; now as it is */
		if (r == 0 && call_load(c, s, &b) == 0)
			call_json(c, 201, with_access(c, &b));
	}
	store_sandbox_done(&b);
	fields_create_done(&f);
	v1_body_done(&body);
}

static void answer_sandbox(struct call *c, struct store *s)
{
	struct store_sandbox b = { 0 };

	if (call_load(c, s, &b) == 0)
		call_json(c, 200, object_v1(c->api, &b));
	store_sandbox_done(&b);
}

void run_v1_get(struct call *c, struct store *s)
{
	answer_sandbox(c, s);
}

/* ---- changes ---- */

static void change(struct call *c, struct store *s, enum life_event kind)
{
	struct v1_body b = { 0 };

	if (v1_body_take(c->body, c->body_len, v1_nothing, &b, &c->err) == 0 &&
	    change_run(c, s, kind) == 0)
		answer_sandbox(c, s);
}

void run_v1_stop(struct call *c, struct store *s)
{
	change(c, s, LIFE_EV_STOP);
}

void run_v1_start(struct call *c, struct store *s)
{
	change(c, s, LIFE_EV_START);
}

/* Pause and resume are about memory: one that has only a disk is started. */
static int need_memory(struct call *c, struct store *s)
{
	struct store_sandbox b = { 0 };
	int r = call_load(c, s, &b);

	if (r == 0 && (b.observed == LIFE_STOPPED || b.observed == LIFE_STOPPING))
		r = err_set_code(&c->err, -EBUSY, "wrong-state",
				 "The sandbox is %s: it has a disk and no memory, and can be started.",
				 life_state_names[b.observed]);
	store_sandbox_done(&b);
	return r;
}

void run_v1_pause(struct call *c, struct store *s)
{
	struct v1_body b = { 0 };
	bool paused;

	if (v1_body_take(c->body, c->body_len, v1_nothing, &b, &c->err) == 0 &&
	    need_memory(c, s) == 0 && life_pause(c, s, &paused) == 0)
		answer_sandbox(c, s);
}

void run_v1_resume(struct call *c, struct store *s)
{
	struct v1_body b = { 0 };
	bool resumed;

	if (v1_body_take(c->body, c->body_len, v1_resume, &b, &c->err) == 0 &&
	    need_memory(c, s) == 0 && life_wake(c, s, b.timeout_s * 1000, &resumed) == 0)
		answer_sandbox(c, s);
}

void run_v1_connect(struct call *c, struct store *s)
{
	struct v1_body body = { 0 };
	struct store_sandbox b = { 0 };
	bool woken = false;
	json_t *o;

	if (v1_body_take(c->body, c->body_len, v1_resume, &body, &c->err) == 0 &&
	    life_wake(c, s, body.timeout_s * 1000, &woken) == 0 && call_load(c, s, &b) == 0) {
		o = with_access(c, &b);
		json_object_set_new(o, "woken", json_boolean(woken));
		call_json(c, 200, o);
	}
	store_sandbox_done(&b);
}

void run_v1_timeout(struct call *c, struct store *s)
{
	struct v1_body b = { 0 };

	if (v1_body_take(c->body, c->body_len, v1_timeout, &b, &c->err) == 0 &&
	    life_set_timeout(c, s, b.timeout_s * 1000, b.only_extend) == 0)
		answer_sandbox(c, s);
}

/* ---- what happened ---- */

/* The node's times are milliseconds. */
static json_t *event_object(json_t *ev)
{
	char iso[CLOCK_ISO_LEN];

	clock_iso(iso, json_integer_value(json_object_get(ev, "t")));
	return json_pack("{s:s,s:s}", "time", iso, "text",
			 json_string_value(json_object_get(ev, "text")) ?: "");
}

static json_t *logs_object(json_t *console)
{
	json_t *events = json_array(), *ev;
	size_t i;

	json_array_foreach(json_object_get(console, "events"), i, ev)
		json_array_append_new(events, event_object(ev));
	return json_pack("{s:s,s:o}", "text",
			 json_string_value(json_object_get(console, "text")) ?: "", "events",
			 events);
}

void run_v1_logs(struct call *c, struct store *s)
{
	json_t *answer = NULL;

	if (logs_fetch(c, s, &answer) == 0)
		call_json(c, 200, logs_object(answer));
	json_decref(answer);
}

static json_t *metrics_object(const struct metrics_sample *m)
{
	char iso[CLOCK_ISO_LEN];
	json_t *o;

	clock_iso(iso, m->t_ms);
	o = json_pack("{s:s,s:I,s:f,s:I,s:I,s:I,s:I,s:I}", "time", iso, "cpuCount",
		      (json_int_t)m->cpu_count, "cpuUsedPercent", m->cpu_used_pct, "memoryUsedBytes",
		      (json_int_t)m->mem_used, "memoryTotalBytes", (json_int_t)m->mem_total,
		      "memoryCacheBytes", (json_int_t)m->mem_cache, "diskUsedBytes",
		      (json_int_t)m->disk_used, "diskTotalBytes", (json_int_t)m->disk_total);
	if (m->idle_ms >= 0)
		json_object_set_new(o, "idleSeconds", json_real((double)m->idle_ms / 1000));
	return o;
}

/* One sample, taken now; E2B's route keeps them. */
void run_v1_metrics(struct call *c, struct store *s)
{
	struct store_sandbox b = { 0 };
	struct metrics_sample m;
	int r = change_need_signer(c);

	if (r == 0)
		r = call_load(c, s, &b);
	if (r == 0 && !life_serves(b.observed))
		r = err_set_code(&c->err, -EBUSY, "not-running", "The sandbox is %s.",
				 life_state_names[b.observed]);
	if (r == 0 && metrics_ask(c, s, &b, METRICS_GUEST_MS, &m, &c->err) == 0)
		call_json(c, 200, metrics_object(&m));
	store_sandbox_done(&b);
}
