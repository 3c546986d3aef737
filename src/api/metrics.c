#include "api/metrics.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "api/api.h"
#include "api/query.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"

#define VALUE_MAX (1ll << 53)            /* what every JSON reader takes */
#define CPU_MAX 4096

/* ---- one sample ---- */

static int take(json_t *v, const char *name, int64_t max, uint64_t *ret)
{
	json_t *n = json_object_get(v, name);
	json_int_t i = json_integer_value(n);

	if (!json_is_integer(n) || i < 0 || i > max)
		return -EBADMSG;
	*ret = (uint64_t)i;
	return 0;
}

int metrics_parse(json_t *v, int64_t now_ms, struct metrics_sample *ret)
{
	struct metrics_sample s = { .t_ms = now_ms, .idle_ms = -1 };
	json_t *pct = json_object_get(v, "cpu_used_pct");
	uint64_t idle;

	s.cpu_used_pct = json_number_value(pct);
	if (!json_is_number(pct) || !isfinite(s.cpu_used_pct) || s.cpu_used_pct < 0 ||
	    s.cpu_used_pct > 100.0 * CPU_MAX || take(v, "cpu_count", CPU_MAX, &s.cpu_count) < 0 ||
	    take(v, "mem_used", VALUE_MAX, &s.mem_used) < 0 ||
	    take(v, "mem_total", VALUE_MAX, &s.mem_total) < 0 ||
	    take(v, "mem_cache", VALUE_MAX, &s.mem_cache) < 0 ||
	    take(v, "disk_used", VALUE_MAX, &s.disk_used) < 0 ||
	    take(v, "disk_total", VALUE_MAX, &s.disk_total) < 0)
		return -EBADMSG;
	if (take(v, "idle_ms", VALUE_MAX, &idle) == 0)
		s.idle_ms = (int64_t)idle;
	*ret = s;
	return 0;
}

json_t *metrics_json(const struct metrics_sample *s)
{
	char iso[CLOCK_ISO_LEN];

	clock_iso(iso, s->t_ms);
	return json_pack("{s:s,s:I,s:I,s:f,s:I,s:I,s:I,s:I,s:I}", "timestamp", iso,
			 "timestampUnix", (json_int_t)(s->t_ms / 1000), "cpuCount",
			 (json_int_t)s->cpu_count, "cpuUsedPct", s->cpu_used_pct, "memUsed",
			 (json_int_t)s->mem_used, "memTotal", (json_int_t)s->mem_total, "memCache",
			 (json_int_t)s->mem_cache, "diskUsed", (json_int_t)s->disk_used,
			 "diskTotal", (json_int_t)s->disk_total);
}

/* ---- what is kept ---- */

struct ring {
	struct metrics_sample v[METRICS_SAMPLES];
	size_t n, next;
};

struct metrics_kept { struct map *rings; };

struct metrics_kept *metrics_kept_new(void)
{
	struct metrics_kept *k = x_alloc(sizeof(*k));

	k->rings = map_new(METRICS_BOXES_MAX);
	return k;
}

static int free_ring(const char *key, void *value, void *arg)
{
	free(value);
	return 0;
}

void metrics_kept_free(struct metrics_kept *k)
{
	if (!k)
		return;
	map_each(k->rings, free_ring, NULL);
	map_free(k->rings);
	free(k);
}

void metrics_drop(struct metrics_kept *k, const char *sandbox)
{
	free(map_del(k->rings, sandbox));
}

static const struct metrics_sample *newest(const struct ring *r)
{
	return &r->v[(r->next + METRICS_SAMPLES - 1) % METRICS_SAMPLES];
}

struct oldest { int64_t t_ms; char sandbox[ID_SANDBOX_LEN + 1]; };

static int look_for_oldest(const char *key, void *value, void *arg)
{
	const struct metrics_sample *s = newest(value);
	struct oldest *o = arg;

	if (o->sandbox[0] && s->t_ms >= o->t_ms)
		return 0;
	o->t_ms = s->t_ms;
	str_copy(o->sandbox, sizeof(o->sandbox), key);
	return 0;
}

void metrics_keep(struct metrics_kept *k, const char *sandbox, const struct metrics_sample *s)
{
	struct ring *r = map_get(k->rings, sandbox);

	if (!r) {
		struct oldest o = { 0 };

		r = x_alloc(sizeof(*r));
		if (map_put(k->rings, sandbox, r) < 0) {
			map_each(k->rings, look_for_oldest, &o);
			metrics_drop(k, o.sandbox);
			map_put(k->rings, sandbox, r);
		}
	}
	r->v[r->next] = *s;
	r->next = (r->next + 1) % METRICS_SAMPLES;
	r->n += r->n < METRICS_SAMPLES;
}

const struct metrics_sample *metrics_last(struct metrics_kept *k, const char *sandbox)
{
	const struct ring *r = map_get(k->rings, sandbox);

	return r ? newest(r) : NULL;
}

json_t *metrics_list(struct metrics_kept *k, const char *sandbox, int64_t start_ms, int64_t end_ms)
{
	const struct ring *r = map_get(k->rings, sandbox);
	json_t *out = json_array();

	for (size_t i = 0; r && i < r->n; i++) {
		const struct metrics_sample *s =
			&r->v[(r->next + METRICS_SAMPLES - r->n + i) % METRICS_SAMPLES];

		if (s->t_ms >= start_ms && s->t_ms <= end_ms)
			json_array_append_new(out, metrics_json(s));
	}
	return out;
}

/* ---- the routes ---- */

/* What a worker found, for the loop's thread, which keeps it and makes the answer. */
struct metrics_asked {
	int64_t start_ms, end_ms;        /* of one */
	size_t n;
	struct { char id[ID_SANDBOX_LEN + 1]; struct metrics_sample sample; } box[METRICS_MANY_MAX];
};

int metrics_ask(struct call *c, struct store *s, const struct store_sandbox *b, int timeout_ms,
		struct metrics_sample *ret, struct err *e)
{
	struct identity id;
	char addr[200];
	json_t *v = NULL;
	int r = ops_node_addr(s, b->worker, addr, sizeof(addr), e);

	store_sandbox_identity(b, &id);
	if (r == 0)
		r = ops_guest_get(addr, &c->signer, &id, "/metrics", c->req_id, timeout_ms, &v, e);
	if (r == 0 && metrics_parse(v, clock_wall_ms(), ret) < 0)
		r = err_set(e, -EBADMSG, "The sandbox's metrics are malformed.");
	json_decref(v);
	return r;
}

/* A guest that gives none is no error of the request: what was kept is still true. */
static void try_sample(struct call *c, struct store *s, const struct store_sandbox *b,
		       int timeout_ms, struct metrics_asked *m)
{
	struct err e = { 0 };

	str_copy(m->box[m->n].id, sizeof(m->box[m->n].id), b->id);
	if (life_serves(b->observed) && timeout_ms > 0 &&
	    metrics_ask(c, s, b, timeout_ms, &m->box[m->n].sample, &e) < 0)
		log_info("no metrics of a sandbox", F_REQ(c->req_id), F_STR("sandbox", b->id),
			 F_ERR(&e));
	m->n++;
}

static void keep_all(struct api *a, const struct metrics_asked *m)
{
	for (size_t i = 0; i < m->n; i++)
		if (m->box[i].sample.t_ms)
			metrics_keep(a->metrics, m->box[i].id, &m->box[i].sample);
}

static void finish_one(struct call *c)
{
	const struct metrics_asked *m = c->found;

	keep_all(c->api, m);
	call_json(c, 200, metrics_list(c->api->metrics, m->box[0].id, m->start_ms, m->end_ms));
}

/* Seconds; what would be beyond the year 2242 is milliseconds, which the Python SDK 2.8 sends. */
static int take_seconds(const char *target, const char *name, int64_t *ret_ms, struct err *e)
{
	const uint64_t seconds_max = INT32_MAX * 4ull;
	uint64_t v = UINT64_MAX;
	int r = query_number(target, name, 0, seconds_max * 1000, &v, e);

	if (r == 0 && v != UINT64_MAX)
		*ret_ms = (int64_t)(v > seconds_max ? v / 1000 : v) * 1000;
	return r;
}

void run_metrics(struct call *c, struct store *s)
{
	static const char *const params[] = { "start", "end", NULL };
	struct metrics_asked *m = x_alloc(sizeof(*m));
	struct store_sandbox b = { 0 };
	int r = query_only(c->target, params, &c->err);

	m->end_ms = INT64_MAX;
	if (r == 0)
		r = take_seconds(c->target, "start", &m->start_ms, &c->err);
	if (r == 0)
		r = take_seconds(c->target, "end", &m->end_ms, &c->err);
	if (r == 0 && m->end_ms < m->start_ms)
		r = err_set(&c->err, -EINVAL,
			    "The query parameter \"end\" is before \"start\".");
	if (r == 0)
		r = change_need_signer(c);
	if (r == 0)
		r = call_load(c, s, &b);
	if (r == 0 && !object_visible(&b))
		r = call_not_found(c);
	if (r == 0) {
		/* The end is a whole second: its last millisecond counts. */
		if (m->end_ms != INT64_MAX)
			m->end_ms += 999;
		try_sample(c, s, &b, m->end_ms >= clock_wall_ms() ? METRICS_GUEST_MS : 0, m);
		c->found = m;
		c->finish = finish_one;
	} else {
		free(m);
	}
	store_sandbox_done(&b);
}

static void finish_many(struct call *c)
{
	const struct metrics_asked *m = c->found;
	json_t *o = json_object();

	keep_all(c->api, m);
	for (size_t i = 0; i < m->n; i++) {
		const struct metrics_sample *s = metrics_last(c->api->metrics, m->box[i].id);

		if (s)
			json_object_set_new(o, m->box[i].id, metrics_json(s));
	}
	call_json(c, 200, json_pack("{s:o}", "sandboxes", o));
}

static int take_ids(struct call *c, char **ret, struct err *e)
{
	static const char *const params[] = { "sandbox_ids", NULL };
	size_t n = 1;
	int r = query_only(c->target, params, e);

	if (r == 0)
		r = query_take(c->target, "sandbox_ids", ret, e);
	if (r < 0)
		return r;
	if (!*ret || !**ret)
		return err_set(e, -EINVAL, "The query parameter \"sandbox_ids\" is missing.");
	for (const char *p = *ret; *p; p++)
		n += *p == ',';
	return n > METRICS_MANY_MAX
		       ? err_set(e, -EINVAL,
				 "The query parameter \"sandbox_ids\" names more than %d sandboxes.",
				 METRICS_MANY_MAX)
		       : 0;
}

/* Those that are not there (any more), or another tenant's, have no entry in the answer. */
void run_metrics_many(struct call *c, struct store *s)
{
	struct metrics_asked *m = x_alloc(sizeof(*m));
	int64_t until = clock_mono_ms() + METRICS_MANY_MS;
	autofree char *ids = NULL;
	char *save = NULL;
	int r = take_ids(c, &ids, &c->err);

	if (r == 0)
		r = change_need_signer(c);
	for (char *id = r == 0 ? strtok_r(ids, ",", &save) : NULL; id;
	     id = strtok_r(NULL, ",", &save)) {
		int64_t left = until - clock_mono_ms();
		struct store_sandbox b = { 0 };
		struct err e = { 0 };

		if (id_sandbox_ok(id) && store_sandbox_get(s, id, c->tenant, &b, &e) == 0 &&
		    object_visible(&b))
			try_sample(c, s, &b,
				   (int)(left < METRICS_GUEST_MS ? left : METRICS_GUEST_MS), m);
		store_sandbox_done(&b);
	}
	if (r < 0) {
		free(m);
		return;
	}
	c->found = m;
	c->finish = finish_many;
}
