/*
 * Lists of sandboxes: filters, pages. A page is filled from the rows that match; its cursor names
 * the last row that was given, and there is one only if another row matches behind it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "api/api.h"
#include "base/clock.h"
#include "base/str.h"

#define LIST_LIMIT_MAX 100

struct list_query {
	const char *states;              /* for the store: names of observed states */
	char *cursor, *template, *metadata;
	bool newest_first;
	uint64_t limit;
	int64_t started_after_ms;
	json_t *(*object)(struct api *a, const struct store_sandbox *b);
};

/* E2B's two states in ours (object.c has the other direction). */
#define STATES_RUNNING "running,creating,starting,resuming,restoring,moving,forking,rolling-back"
#define STATES_PAUSED "paused,pausing,suspended,suspending,stopped,stopping"

static int only_known(const char *target, const char *const *known, struct err *e)
{
	const char *p = strchr(target, '?');

	for (p = p ? p + 1 : ""; *p;) {
		size_t n = strcspn(p, "=&"), i = 0;

		while (known[i] && !(strlen(known[i]) == n && strncmp(known[i], p, n) == 0))
			i++;
		if (!known[i] && n > 0)
			return err_set_code(e, -EINVAL, "unknown-parameter",
					    "The query parameter \"%.*s\" is unknown.",
					    (int)(n < 100 ? n : 100), p);
		p += strcspn(p, "&");
		p += *p == '&';
	}
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
				       "The parameter \"state\" knows running and paused.");
		p += n + (p[n] == ',');
	}
	if (running != paused)
		q->states = running ? STATES_RUNNING : STATES_PAUSED;
	return 0;
}

static int take_order(const char *order, struct list_query *q, struct err *e)
{
	if (!str_eq(order, "asc") && !str_eq(order, "desc"))
		return err_set(e, -EINVAL, "The parameter \"order\" is asc or desc.");
	q->newest_first = str_eq(order, "desc");
	return 0;
}

static int parse_query(const char *target, struct list_query *q, struct err *e)
{
	static const char *const known[] = { "metadata", "state", "startedAfter", "template",
					     "order",	 "limit", "nextToken",	  NULL };
	autofree char *state = NULL, *after = NULL, *order = NULL, *limit = NULL;
	int r = only_known(target, known, e);

	if (r < 0)
		return r;
	if (http_query_get(target, "metadata", &q->metadata) < 0 ||
	    http_query_get(target, "state", &state) < 0 ||
	    http_query_get(target, "startedAfter", &after) < 0 ||
	    http_query_get(target, "template", &q->template) < 0 ||
	    http_query_get(target, "order", &order) < 0 ||
	    http_query_get(target, "limit", &limit) < 0 ||
	    http_query_get(target, "nextToken", &q->cursor) < 0)
		return err_set(e, -EINVAL, "The query is malformed.");
	if (state)
		r = take_states(state, q, e);
	if (r == 0 && order)
		r = take_order(order, q, e);
	if (r == 0 && after && clock_parse_iso(after, &q->started_after_ms) < 0)
		r = err_set(e, -EINVAL, "The parameter \"startedAfter\" is no RFC 3339 time.");
	if (r == 0 && limit && (str_to_u64(limit, LIST_LIMIT_MAX, &q->limit) < 0 || q->limit == 0))
		r = err_set(e, -EINVAL, "The parameter \"limit\" is a number from 1 to %d.",
			    LIST_LIMIT_MAX);
	return r;
}

static void query_done(struct list_query *q)
{
	free(q->cursor);
	free(q->template);
	free(q->metadata);
}

/*
 * One "k=v" of the metadata filter; both sides are still encoded twice (E2B's clients encode three
 * times).
 */
static bool pair_matches(const char *p, size_t n, json_t *metadata)
{
	const char *eq = memchr(p, '=', n);
	size_t key_len = eq ? (size_t)(eq - p) : n;
	char key[1024], value[4096];

	if (str_pct_decode(key, sizeof(key), p, key_len, true) < 0 ||
	    str_pct_decode(key, sizeof(key), key, strlen(key), true) < 0 ||
	    str_pct_decode(value, sizeof(value), eq ? eq + 1 : "", eq ? n - key_len - 1 : 0, true) <
		    0 ||
	    str_pct_decode(value, sizeof(value), value, strlen(value), true) < 0)
		return false;
	return str_eq(json_string_value(json_object_get(metadata, key)), value);
}

static bool metadata_matches(const char *filter, const char *text)
{
	json_t *metadata = text ? json_loads(text, 0, NULL) : NULL;
	bool ok = true;

	while (ok && filter && *filter) {
		size_t n = strcspn(filter, "&");

		ok = pair_matches(filter, n, metadata);
		filter += n + (filter[n] == '&');
	}
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
	    (b->started_ms ? b->started_ms : b->created_ms) <= q->started_after_ms)
		return false;
	return metadata_matches(q->metadata, b->metadata);
}

/*
 * Never more rows are read than are still missing, so the store's cursor is right for the next
 * page.
 */
static int collect(struct call *c, struct store *s, const struct list_query *q, json_t *out)
{
	char cursor[64] = "", next[64] = "";
	int r = q->cursor ? str_copy(cursor, sizeof(cursor), q->cursor) : 0;

	if (r < 0)
		return err_set(&c->err, -EINVAL, "The parameter \"nextToken\" is not one of ours.");
	do {
		const struct store_list sq = { .tenant = c->tenant,
					       .state_csv = q->states,
					       .cursor = cursor,
					       .limit = (unsigned)(q->limit - json_array_size(out)),
					       .newest_first = q->newest_first };
		struct store_sandbox *rows = NULL;
		size_t n = 0;

		r = store_sandbox_list(s, &sq, &rows, &n, next, &c->err);
		for (size_t i = 0; i < n; i++) {
			if (wanted(q, &rows[i]))
				json_array_append_new(out, q->object(c->api, &rows[i]));
			store_sandbox_done(&rows[i]);
		}
		free(rows);
		str_copy(cursor, sizeof(cursor), next);
	} while (r == 0 && next[0] && json_array_size(out) < q->limit);
	if (r == 0)
		str_copy(c->next, sizeof(c->next), next);
	return r;
}

static void list(struct call *c, struct store *s, struct list_query *q)
{
	json_t *out = json_array();
	int r = parse_query(c->target, q, &c->err);

	if (r == 0)
		r = collect(c, s, q, out);
	if (r == 0)
		call_json(c, 200, out);
	else
		json_decref(out);
	query_done(q);
}

void run_list_v1(struct call *c, struct store *s)
{
	struct list_query q = { .states = STATES_RUNNING,
				.newest_first = true,
				.limit = LIST_LIMIT_MAX,
				.object = object_listed };

	list(c, s, &q);
}

void run_list_v2(struct call *c, struct store *s)
{
	struct list_query q = { .states = STATES_RUNNING "," STATES_PAUSED,
				.newest_first = true,
				.limit = LIST_LIMIT_MAX,
				.object = object_listed };

	list(c, s, &q);
}

void run_v1_list(struct call *c, struct store *s)
{
	struct list_query q = { .newest_first = true,
				.limit = LIST_LIMIT_MAX,
				.object = object_v1 };

	list(c, s, &q);
}
