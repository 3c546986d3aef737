/*
 * Pause, resume, connect and the time of a sandbox: E2B's routes (facts: e2b-protocol, 1.2 to 1.4)
 * and what they share with ours. In worker threads.
 *
 * Whatever happens to the sandbox at that moment is waited for, then the row is looked at again: a
 * resume right behind a pause, two resumes at once, a connect while its time ends all find what
 * they asked for. A change that lost such a race was not written (store_submit), so nothing is done
 * twice.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "api/api.h"
#include "api/fields.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "json/strict.h"

#define LIFE_NAP_FIRST_MS 10
#define LIFE_NAP_MOST_MS 200
#define LIFE_BODY_DEPTH_MAX 4
#define LIFE_REFRESH_MIN_S 15            /* E2B's */
#define LIFE_REFRESH_MAX_S 3600

/* ---- one look after the other ---- */

struct life_wait { int64_t until_ms, nap_ms; };

static void life_wait_begin(struct life_wait *w)
{
	*w = (struct life_wait){ clock_mono_ms() + API_OP_WAIT_MS, LIFE_NAP_FIRST_MS };
}

/* -EAGAIN when it has taken too long. */
static int life_wait_more(struct life_wait *w, struct err *e)
{
	if (clock_mono_ms() >= w->until_ms)
		return err_set_code(e, -EAGAIN, "in-progress",
				    "The sandbox is still changing; try again.");
	change_nap(w->nap_ms);
	w->nap_ms = w->nap_ms * 2 < LIFE_NAP_MOST_MS ? w->nap_ms * 2 : LIFE_NAP_MOST_MS;
	return 0;
}

static bool in_transition(const struct err *e)
{
	return e->num == -EBUSY && str_eq(e->code, "in-transition");
}

/* The state after whatever happens now. One that goes away or has failed is an error. */
static int life_settle(struct call *c, struct store *s, struct life_wait *w, enum life_state *ret)
{
	for (;;) {
		struct store_sandbox b = { 0 };
		int r = call_load(c, s, &b);
		enum life_state st = b.observed;
		bool going = st == LIFE_DELETING || b.desired == LIFE_NONE;

		store_sandbox_done(&b);
		if (r < 0)
			return r;
		if (st == LIFE_FAILED)
			return call_not_found(c);
		if (going)
			return err_set_code(&c->err, -EBUSY, "in-transition",
					    "The sandbox is being deleted.");
		if (!life_in_transition(st)) {
			*ret = st;
			return 0;
		}
		r = life_wait_more(w, &c->err);
		if (r < 0)
			return r;
	}
}

/* 1: somebody else was faster, look again; 0: done. */
static int life_change(struct call *c, struct store *s, struct life_wait *w, enum life_event kind,
		       int64_t timeout_ms)
{
	struct store_op op;
	int r = change_ask(c, s, kind, timeout_ms, &op);

	if (r == 0 && op.id != 0)
		return change_complete(c, s, &op);
	if (r < 0 && !in_transition(&c->err))
		return r;
	c->err = (struct err){ 0 };
	r = life_wait_more(w, &c->err);
	return r < 0 ? r : 1;
}

int life_set_timeout(struct call *c, struct store *s, int64_t timeout_ms, bool only_extend)
{
	enum life_state st;
	struct life_wait w;
	int r;

	life_wait_begin(&w);
	for (;;) {
		r = life_settle(c, s, &w, &st);
		if (r < 0)
			return r;
		r = store_set_timeout(s, c->id, c->tenant, timeout_ms, only_extend, &c->err);
		if (r == -ENOENT)
			return call_not_found(c);
		/* It was running a moment ago: look again. */
		if (r != -EBUSY || st != LIFE_RUNNING || life_wait_more(&w, &c->err) < 0)
			return r;
		c->err = (struct err){ 0 };
	}
}

/* Of one that runs; 1: it does not any more. */
static int life_extend(struct call *c, struct store *s, int64_t timeout_ms)
{
	struct store_sandbox b = { 0 };
	int r = 0;

	if (timeout_ms == 0 && (r = call_load(c, s, &b)) == 0)
		timeout_ms = b.timeout_ms;
	store_sandbox_done(&b);
	if (r == 0 && timeout_ms)
		r = store_set_timeout(s, c->id, c->tenant, timeout_ms, true, &c->err);
	if (r == -ENOENT)
		return call_not_found(c);
	if (r != -EBUSY)
		return r;
	c->err = (struct err){ 0 };
	return 1;
}

int life_wake(struct call *c, struct store *s, int64_t timeout_ms, bool *ret_resumed)
{
	struct life_wait w;
	enum life_state st;
	int r;

	life_wait_begin(&w);
	do {
		r = life_settle(c, s, &w, &st);
		if (r < 0)
			return r;
		if (st == LIFE_RUNNING)
			r = life_extend(c, s, timeout_ms);
		else
			r = life_change(c, s, &w,
					st == LIFE_PAUSED ? LIFE_EV_RESUME : LIFE_EV_START,
					timeout_ms);
	} while (r == 1);
	if (r == 0)
		*ret_resumed = st != LIFE_RUNNING;
	return r;
}

int life_pause(struct call *c, struct store *s, bool *ret_paused)
{
	struct life_wait w;
	enum life_state st;
	int r;

	life_wait_begin(&w);
	do {
		r = life_settle(c, s, &w, &st);
		if (r < 0)
			return r;
		r = st == LIFE_RUNNING ? life_change(c, s, &w, LIFE_EV_PAUSE, 0) : 0;
	} while (r == 1);
	if (r == 0)
		*ret_paused = st == LIFE_RUNNING;
	return r;
}

/* ---- woken by a request to it ---- */

struct life_wake_job {
	struct call c;                   /* what a change needs: no request stands behind it */
	void (*fn)(void *arg, const struct err *e);
	void *arg;
};

static void wake_run(void *arg)
{
	struct life_wake_job *j = arg;
	struct store_sandbox b = { 0 };
	struct store *s = api_store(j->c.api, &j->c.err);
	bool resumed;

	if (!s || call_load(&j->c, s, &b) < 0)
		return;
	str_copy(j->c.tenant, sizeof(j->c.tenant), b.tenant);
	store_sandbox_done(&b);
	life_wake(&j->c, s, 0, &resumed);
}

static void wake_done(void *arg)
{
	struct life_wake_job *j = arg;

	if (j->c.err.num < 0)
		log_warn("not woken", F_REQ(j->c.req_id), F_STR("sandbox", j->c.id),
			 F_ERR(&j->c.err));
	key_signer_done(&j->c.signer);
	j->fn(j->arg, j->c.err.num < 0 ? &j->c.err : NULL);
	free(j);
}

/* Many at once queue behind the first, and find it awake. */
void life_wake_for(struct api *a, const char *sandbox, const char *req_id,
		   void (*fn)(void *arg, const struct err *e), void *arg)
{
	struct life_wake_job *j = x_alloc(sizeof(*j));
	const struct key_signer *k = keys_signer(a);
	int r;

	j->c.api = a;
	j->fn = fn;
	j->arg = arg;
	str_copy(j->c.id, sizeof(j->c.id), sandbox);
	str_copy(j->c.req_id, sizeof(j->c.req_id), req_id);
	j->c.signer_ok = k != NULL;
	if (k)
		j->c.signer = *k;
	r = work_add(a->slow, j->c.id, wake_run, wake_done, j);
	if (r == 0)
		return;
	err_set(&j->c.err, r, "Too many requests wait.");
	wake_done(j);
}

/* ---- E2B's bodies ---- */

struct life_body {
	int64_t seconds;
	bool has_seconds;
	bool auto_pause, has_auto_pause;
};

struct life_field {
	const char *name;
	int (*take)(const struct life_field *f, json_t *v, struct life_body *ret, struct err *e);
	bool only;                       /* the one value that is built */
	int64_t min, max;
};

static int take_seconds(const struct life_field *f, json_t *v, struct life_body *ret, struct err *e)
{
	if (!json_is_integer(v))
		return err_set(e, -EINVAL,
			       "The field \"%s\" must be a whole number of seconds.", f->name);
	ret->seconds = json_integer_value(v);
	ret->has_seconds = true;
	if (ret->seconds < f->min || ret->seconds > f->max)
		return err_set(e, -EINVAL,
			       "The field \"%s\" must be from %lld to %lld seconds.", f->name,
			       (long long)(f->min < 0 ? 0 : f->min), (long long)f->max);
	if (ret->seconds < 0)
		ret->seconds = 0;
	return 0;
}

static int take_only(const struct life_field *f, json_t *v, struct life_body *ret, struct err *e)
{
	if (!json_is_boolean(v))
		return err_set(e, -EINVAL, "The field \"%s\" must be true or false.", f->name);
	if (json_is_true(v) == f->only)
		return 0;
	return err_set_code(e, -EINVAL, "not-built-yet",
			    "The field \"%s\" can only be %s: more is not built yet.", f->name,
			    f->only ? "true" : "false");
}

static int take_auto_pause(const struct life_field *f, json_t *v, struct life_body *ret,
			   struct err *e)
{
	if (!json_is_boolean(v))
		return err_set(e, -EINVAL, "The field \"%s\" must be true or false.", f->name);
	ret->auto_pause = json_is_true(v);
	ret->has_auto_pause = true;
	return 0;
}

static const struct life_field pause_fields[] = {
	{ .name = "memory", .take = take_only, .only = true },
	{ .name = "requireHealthyGuest", .take = take_only, .only = false },
	{ .name = NULL },
};
static const struct life_field connect_fields[] = {
	{ .name = "timeout", .take = take_seconds, .min = 0, .max = FIELDS_TIMEOUT_MAX_S },
	{ .name = "memory", .take = take_only, .only = true },
	{ .name = NULL },
};
static const struct life_field resume_fields[] = {
	{ .name = "timeout", .take = take_seconds, .min = 0, .max = FIELDS_TIMEOUT_MAX_S },
	{ .name = "memory", .take = take_only, .only = true },
	{ .name = "autoPause", .take = take_auto_pause },
	{ .name = NULL },
};
/* A negative time is none (the reference does so). */
static const struct life_field timeout_fields[] = {
	{ .name = "timeout", .take = take_seconds, .min = INT32_MIN, .max = FIELDS_TIMEOUT_MAX_S },
	{ .name = NULL },
};
static const struct life_field refresh_fields[] = {
	{ .name = "duration", .take = take_seconds, .min = 0, .max = LIFE_REFRESH_MAX_S },
	{ .name = NULL },
};

static int take_field(const struct life_field *fields, const char *key, json_t *v,
		      struct life_body *ret, struct err *e)
{
	for (const struct life_field *f = fields; f->name; f++)
		if (str_eq(f->name, key))
			return json_is_null(v) ? 0 : f->take(f, v, ret, e);
	return err_set_code(e, -EINVAL, "unknown-field", "The field \"%.100s\" is unknown.", key);
}

/* A body may be absent (old clients send none). */
static int life_body(struct call *c, const struct life_field *fields, struct life_body *ret)
{
	const char *key;
	json_t *obj, *v;
	int r = 0;

	*ret = (struct life_body){ 0 };
	if (c->body_len == 0)
		return 0;
	obj = strict_parse(c->body, c->body_len, LIFE_BODY_DEPTH_MAX, &c->err);
	if (!obj)
		return c->err.num;
	if (!json_is_object(obj))
		r = err_set(&c->err, -EBADMSG, "The body must be a JSON object.");
	json_object_foreach(obj, key, v)
		if (r == 0)
			r = take_field(fields, key, v, ret, &c->err);
	json_decref(obj);
	return r;
}

/* ---- E2B's routes ---- */

/* To E2B's clients, time can be set of what runs only: else they see "not found". */
static void life_not_running(struct call *c)
{
	if (str_eq(c->err.code, "not-running"))
		err_set_code(&c->err, -ENOENT, "not-running",
			     "The sandbox was not found: it is paused, its time stands still.");
}

void run_pause(struct call *c, struct store *s)
{
	struct life_body b;
	bool paused = false;

	if (life_body(c, pause_fields, &b) < 0 || life_pause(c, s, &paused) < 0)
		return;
	if (paused)
		c->status = 204;
	else
		err_set_code(&c->err, -EBUSY, "already-paused", "The sandbox is already paused.");
}

/* At least one: 0 would be "its own". */
static int64_t life_ms(const struct life_body *b)
{
	if (!b->has_seconds)
		return 0;
	return b->seconds > 0 ? b->seconds * 1000 : 1;
}

static void life_answer(struct call *c, struct store *s, int status)
{
	struct store_sandbox b = { 0 };

	if (call_load(c, s, &b) == 0)
		call_json(c, status, object_created(c->api, &b));
	store_sandbox_done(&b);
}

void run_connect(struct call *c, struct store *s)
{
	struct life_body b;
	bool resumed = false;

	if (life_body(c, connect_fields, &b) == 0 && life_wake(c, s, life_ms(&b), &resumed) == 0)
		life_answer(c, s, resumed ? 201 : 200);
}

/* The verb of old clients. One that runs already is as good (two of them at once). */
void run_resume(struct call *c, struct store *s)
{
	struct life_body b;
	bool resumed = false;
	int r = life_body(c, resume_fields, &b);

	if (r == 0 && b.has_auto_pause)
		r = store_set_end_pauses(s, c->id, c->tenant, b.auto_pause, &c->err);
	if (r == -ENOENT)
		call_not_found(c);
	else if (r == 0 && life_wake(c, s, life_ms(&b), &resumed) == 0)
		life_answer(c, s, 201);
}

void run_timeout(struct call *c, struct store *s)
{
	struct life_body b;

	if (life_body(c, timeout_fields, &b) < 0)
		return;
	if (!b.has_seconds)
		err_set(&c->err, -EINVAL, "The field \"timeout\" is missing.");
	else if (life_set_timeout(c, s, b.seconds * 1000, false) == 0)
		c->status = 204;
	else
		life_not_running(c);
}

void run_refreshes(struct call *c, struct store *s)
{
	struct life_body b;
	int64_t seconds;

	if (life_body(c, refresh_fields, &b) < 0)
		return;
	seconds = b.seconds > LIFE_REFRESH_MIN_S ? b.seconds : LIFE_REFRESH_MIN_S;
	if (life_set_timeout(c, s, seconds * 1000, true) == 0)
		c->status = 204;
	else
		life_not_running(c);
}
