/*
 * Lists of sandboxes: filters, pages. A page is filled from the rows that match; its cursor names
 * the last row that was given, and there is one only if another row matches behind it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "api/api.h"
#include "api/fields.h"
#include "api/query.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"

#define LIST_LIMIT_MAX 100

/* How much of them an answer takes: pages are ended early for that (metadata can be large). */
#define LIST_BYTES_MAX (4 << 20)
#define LIST_BATCH 200
#define LIST_RUNNING_MAX 1000            /* GET /sandboxes knows no pages, so it has large ones */

struct list_query {
	bool native;                     /* ours under /v1, not E2B's */
	const char *states;              /* for the store: names of observed states */
	const char *const *params;       /* that are known; ends with NULL */
	char *state, *cursor, *template;
	json_t *metadata;                /* what a sandbox must have, NULL = nothing */
	bool newest_first;
	uint64_t limit, limit_max;
	int64_t started_after_ms;
	json_t *(*object)(struct api *a, const struct store_sandbox *b);
};

/* E2B's two states in ours (object.c has the other direction). */
#define STATES_RUNNING "running,creating,starting,resuming,restoring,moving,forking,rolling-back"
#define STATES_PAUSED "paused,pausing,suspended,suspending,stopped,stopping"

/* ---- the query ---- */

int query_only(const char *target, const char *const *known, struct err *e)
{
	const char *p = strchr(target, '?');
	uint64_t seen = 0;

	for (p = p ? p + 1 : ""; *p;) {
		size_t n = strcspn(p, "=&"), i = 0;

		while (known[i] && !(strlen(known[i]) == n && strncmp(known[i], p, n) == 0))
			i++;
		if ((n > 0 || *p == '=') && (!known[i] || (seen >> i & 1)))
			return err_set_code(e, -EINVAL, "unknown-parameter",
					    "The query parameter \"%.*s\" %s.",
					    (int)(n < 100 ? n : 100), p,
					    known[i] ? "stands twice" : "is unknown");
		if (n > 0)
			seen |= 1ull << i;
		p += strcspn(p, "&");
		p += *p == '&';
	}
	return 0;
}

int query_take(const char *target, const char *name, char **ret, struct err *e)
{
	if (http_query_get(target, name, ret) < 0)
		return err_set(e, -EINVAL, "The query parameter \"%s\" is malformed.", name);
	return 0;
}

int query_number(const char *target, const char *name, uint64_t min, uint64_t max, uint64_t *ret,
		 struct err *e)
{
	autofree char *text = NULL;
	uint64_t v;
	int r = query_take(target, name, &text, e);

	if (r < 0 || !text)
		return r;
	if (str_to_u64(text, max, &v) < 0 || v < min)
		return err_set(e, -EINVAL,
			       "The query parameter \"%s\" is a number from %llu to %llu.", name,
			       (unsigned long long)min, (unsigned long long)max);
	*ret = v;
	return 0;
}

static int take_states(const char *csv, struct list_query *q, struct err *e)
{
	bool running = false, paused = false;

	for (const char *p = csv; *p;) {
		size_t n = strcspn(p, ",");

		if (n == 7 && memcmp(p, "running", 7) == 0)
			running = true;
		else if (n == 6 && memcmp(p, "paused", 6) == 0)
			paused = true;
		else
			return err_set(e, -EINVAL,
				       "The query parameter \"state\" knows running and paused.");
		p += n + (p[n] == ',');
	}
	if (running != paused)
		q->states = running ? STATES_RUNNING : STATES_PAUSED;
	return 0;
}

/* Ours have all states, by their names; the store takes the list as it is. */
static int take_native_states(const char *csv, struct list_query *q, struct err *e)
{
	char name[32];
	enum life_state state;
	int count = 0;

	for (const char *p = csv;; p++) {
		size_t n = strcspn(p, ",");

		if (++count >= LIFE_STATE_COUNT)
			return err_set(e, -EINVAL,
				       "The query parameter \"state\" names more states than there are.");
		str_format(name, sizeof(name), "%.*s", (int)(n < 31 ? n : 31), p);
		if (life_state_of(name, &state) < 0 || state == LIFE_NONE)
			return err_set(e, -EINVAL,
				       "The query parameter \"state\" is a list of states, such as "
				       "running,stopped; \"%s\" is none.",
				       name);
		p += n;
		if (!*p)
			break;
	}
	q->states = csv;
	return 0;
}

static int take_order(const char *order, struct list_query *q, struct err *e)
{
	if (!str_eq(order, "asc") && !str_eq(order, "desc"))
		return err_set(e, -EINVAL, "The query parameter \"order\" is asc or desc.");
	q->newest_first = str_eq(order, "desc");
	return 0;
}

/* n bytes that are encoded so many times. NULL: malformed. */
static char *decode(const char *p, size_t n, unsigned times)
{
	char *s = x_alloc(n + 1);
	int r = str_pct_decode(s, n + 1, p, n, true);

	if (r >= 0 && times > 1)
		r = str_pct_decode(s, n + 1, s, strlen(s), true);
	if (r >= 0 && str_utf8_ok(s, strlen(s)))
		return s;
	free(s);
	return NULL;
}

/*
 * "k=v&k2=v2". E2B's clients encode three times: each name and value, the pairs, the query; ours
 * twice, not the pairs. The last one is off already.
 */
int list_filter_parse(const char *filter, json_t **ret, struct err *e)
{
	return list_filter_take(filter, 2, ret, e);
}

int list_filter_take(const char *filter, unsigned times, json_t **ret, struct err *e)
{
	json_t *o = json_object();

	for (const char *p = filter; *p;) {
		size_t n = strcspn(p, "&"), key_len = strcspn(p, "=&");
		const char *v = p + key_len + (p[key_len] == '=');
		autofree char *key = decode(p, key_len, times),
			      *value = decode(v, n - (size_t)(v - p), times);

		if (!key || !value || (n > 0 && key_len == n)) {
			json_decref(o);
			return err_set(e, -EINVAL,
				       "The query parameter \"metadata\" must be name=value pairs "
				       "joined by \"&\", each percent-encoded.");
		}
		if (n > 0)
			json_object_set_new(o, key, json_string(value));
		p += n + (p[n] == '&');
	}
	*ret = o;
	return 0;
}

static int parse_query(const char *target, struct list_query *q, struct err *e)
{
	autofree char *after = NULL, *order = NULL, *metadata = NULL;
	int r = query_only(target, q->params, e);

	if (r == 0)
		r = query_take(target, "metadata", &metadata, e);
	if (r == 0)
		r = query_take(target, "state", &q->state, e);
	if (r == 0)
		r = query_take(target, "startedAfter", &after, e);
	if (r == 0)
		r = query_take(target, "template", &q->template, e);
	if (r == 0 && q->template &&
	    (!q->template[0] || strlen(q->template) > FIELDS_TEMPLATE_MAX))
		r = err_set(e, -EINVAL,
			    "The query parameter \"template\" has from 1 to %d bytes.",
			    FIELDS_TEMPLATE_MAX);
	if (r == 0)
		r = query_take(target, "order", &order, e);
	if (r == 0)
		r = query_take(target, "nextToken", &q->cursor, e);
	if (r == 0 && q->native && str_eq(q->cursor, ""))
		r = err_set_code(e, -EINVAL, "bad-cursor",
				 "The query parameter \"nextToken\" is empty.");
	if (r == 0)
		r = query_number(target, "limit", 1, q->limit_max, &q->limit, e);
	if (r == 0 && metadata)
		r = list_filter_take(metadata, q->native ? 1 : 2, &q->metadata, e);
	if (r == 0 && q->state)
		r = q->native ? take_native_states(q->state, q, e) : take_states(q->state, q, e);
	if (r == 0 && order)
		r = take_order(order, q, e);
	/* Every sandbox was started after what lies before 1970. */
	if (r == 0 && after && clock_parse_iso(after, &q->started_after_ms) == -EINVAL)
		r = err_set(e, -EINVAL,
			    "The query parameter \"startedAfter\" is no RFC 3339 time.");
	return r;
}

static void query_done(struct list_query *q)
{
	free(q->state);
	free(q->cursor);
	free(q->template);
	json_decref(q->metadata);
}

/* ---- what matches ---- */

static bool metadata_matches(json_t *filter, const char *text)
{
	json_t *metadata;
	const char *key;
	json_t *value;
	bool ok = true;

	if (!filter || json_object_size(filter) == 0)
		return true;
	metadata = text ? json_loads(text, 0, NULL) : NULL;
	json_object_foreach(filter, key, value)
		ok = ok && json_equal(json_object_get(metadata, key), value);
	json_decref(metadata);
	return ok;
}

static bool wanted(const struct list_query *q, const struct store_sandbox *b)
{
	if (q->object == object_listed && !object_visible(b))
		return false;
	if (q->template && !str_eq(q->template, b->template) &&
	    !str_eq(q->template, b->template_name))
		return false;
	if (q->started_after_ms &&
	    (b->started_ms ? b->started_ms : b->created_ms) < q->started_after_ms)
		return false;
	return metadata_matches(q->metadata, b->metadata);
}

/* ---- pages ---- */

struct page {
	struct call *call;
	const struct list_query *q;
	json_t *out;
	size_t bytes;
	char last[STORE_CURSOR_MAX];     /* the cursor of the last row that was given */
	bool more;                       /* another row matches behind it */
};

static void page_take(struct page *p, const struct store_sandbox *b)
{
	if (p->more || !wanted(p->q, b))
		return;
	if (json_array_size(p->out) >= p->q->limit || p->bytes >= LIST_BYTES_MAX) {
		p->more = true;
		return;
	}
	json_array_append_new(p->out, p->q->object(p->call->api, b));
	p->bytes += 1024 + (b->metadata ? strlen(b->metadata) : 0);
	store_cursor(b, p->last);
}

static int page_fill(struct page *p, struct store *s)
{
	char cursor[STORE_CURSOR_MAX] = "", next[STORE_CURSOR_MAX] = "";
	struct err *e = &p->call->err;
	int r = p->q->cursor ? str_copy(cursor, sizeof(cursor), p->q->cursor) : 0;

	if (r < 0)
		return err_set(e, -EINVAL, "The query parameter \"nextToken\" is not one of ours.");
	do {
		const struct store_list sq = { .tenant = p->call->tenant,
					       .state_csv = p->q->states,
					       .cursor = cursor,
					       .limit = LIST_BATCH,
					       .newest_first = p->q->newest_first };
		struct store_sandbox *rows = NULL;
		size_t n = 0;

		r = store_sandbox_list(s, &sq, &rows, &n, next, e);
		for (size_t i = 0; i < n; i++) {
			page_take(p, &rows[i]);
			store_sandbox_done(&rows[i]);
		}
		free(rows);
		str_copy(cursor, sizeof(cursor), next);
	} while (r == 0 && next[0] && !p->more);
	return r;
}

static void list(struct call *c, struct store *s, struct list_query *q)
{
	struct page p = { .call = c, .q = q, .out = json_array() };
	int r = parse_query(c->target, q, &c->err);

	if (r == 0)
		r = page_fill(&p, s);
	if (r == 0 && p.more)
		str_copy(c->next, sizeof(c->next), p.last);
	if (r == 0)
		call_json(c, 200, json_incref(p.out));
	json_decref(p.out);
	query_done(q);
}

void run_list_v1(struct call *c, struct store *s)
{
	static const char *const params[] = { "metadata", "limit", "nextToken", NULL };
	struct list_query q = { .states = STATES_RUNNING,
				.params = params,
				.newest_first = true,
				.limit = LIST_RUNNING_MAX,
				.limit_max = LIST_RUNNING_MAX,
				.object = object_listed };

	list(c, s, &q);
}

const char *const list_params[] = { "metadata", "state", "startedAfter", "template",
				    "order",	"limit", "nextToken",	 NULL };

void run_list_v2(struct call *c, struct store *s)
{
	struct list_query q = { .states = STATES_RUNNING "," STATES_PAUSED,
				.params = list_params,
				.newest_first = true,
				.limit = LIST_LIMIT_MAX,
				.limit_max = LIST_LIMIT_MAX,
				.object = object_listed };

	list(c, s, &q);
}

void run_v1_list(struct call *c, struct store *s)
{
	struct list_query q = { .native = true,
				.params = list_params,
				.newest_first = true,
				.limit = LIST_LIMIT_MAX,
				.limit_max = LIST_LIMIT_MAX,
				.object = object_v1 };

	list(c, s, &q);
}
