/*
 * Logs of a sandbox (E2B's two routes, and ours): what its console said and what the node noted
 * about it, as entries in order of time. A console has no clock: a line has the time at which the
 * node read its end, which is when somebody asked or when the execution ended. All text is the
 * guest's: it leaves here as JSON strings only.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "api/api.h"
#include "api/query.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "json/text.h"

#define LOGS_LIMIT 1000
#define LOGS_LIMIT_V1_MAX INT32_MAX      /* a console and its events hold fewer */
#define LOGS_SEARCH_MAX 256
#define LOGS_ENTRIES_MAX 70000               /* lines of a console of 64 KiB, and events */

enum logs_level { LOGS_DEBUG, LOGS_INFO, LOGS_WARN, LOGS_ERROR, LOGS_LEVEL_COUNT };
static const char *const logs_level_names[] = { "debug", "info", "warn", "error" };
_Static_assert(ARRAY_LEN(logs_level_names) == LOGS_LEVEL_COUNT, "names");

struct entry {
	int64_t t_ms;
	size_t order;                    /* of entries with one time */
	enum logs_level level;
	const char *source, *text;       /* text is not ended */
	size_t len;
};

struct logs_query {
	uint64_t cursor_ms, limit;
	bool backward, cursor_said;
	enum logs_level level;
	char *search;
};

struct logs {
	struct entry *v;
	size_t n, size;
};

/* ---- from the node ---- */

int logs_fetch(struct call *c, struct store *s, json_t **ret)
{
	json_t *spec = json_object();
	int r = net_ask(c, s, "console", spec, ret);

	json_decref(spec);
	return r;
}

/* ---- entries ---- */

static void add(struct logs *l, int64_t t_ms, enum logs_level level, const char *source,
		const char *text, size_t len)
{
	if (l->n >= LOGS_ENTRIES_MAX)
		return;
	if (l->n == l->size) {
		l->size = l->size ? 2 * l->size : 64;
		l->v = x_realloc(l->v, l->size * sizeof(*l->v));
	}
	l->v[l->n] = (struct entry){ t_ms, l->n, level, source, text, len };
	l->n++;
}

static size_t mark_bytes(json_t *mark)
{
	json_int_t v = json_integer_value(json_object_get(mark, "bytes"));

	return v > 0 ? (size_t)v : 0;
}

/*
 * The marks count back from the end of the text; what is older than the first has its time. A line
 * takes the time of the piece that ends it.
 */
static void add_console(struct logs *l, json_t *answer)
{
	json_t *text = json_object_get(answer, "text"), *marks = json_object_get(answer, "marks");
	const char *p = json_string_value(text);
	size_t n = json_string_length(text), n_marks = json_array_size(marks);
	size_t behind = 0, i_mark = 0;

	for (size_t i = 0; i < n_marks; i++)
		behind += mark_bytes(json_array_get(marks, i));
	for (size_t at = 0; at < n;) {
		const char *nl = memchr(p + at, '\n', n - at);
		size_t end = nl ? (size_t)(nl - p) : n, len = end - at;

		/* n - behind is where the piece of mark i_mark begins. */
		while (i_mark + 1 < n_marks &&
		       end + behind >= n + mark_bytes(json_array_get(marks, i_mark)))
			behind -= mark_bytes(json_array_get(marks, i_mark++));
		while (len > 0 && p[at + len - 1] == '\r')
			len--;
		if (len > 0)
			add(l,
			    json_integer_value(
				    json_object_get(json_array_get(marks, i_mark), "t")),
			    LOGS_INFO, "console", p + at, len);
		at = end + 1;
	}
}

static void add_events(struct logs *l, json_t *answer)
{
	json_t *events = json_object_get(answer, "events"), *ev;
	size_t i;

	json_array_foreach(events, i, ev) {
		json_t *text = json_object_get(ev, "text");
		const char *p = json_string_value(text);

		if (p)
			add(l, json_integer_value(json_object_get(ev, "t")),
			    strstr(p, "failed") || strstr(p, "ended") ? LOGS_WARN : LOGS_INFO,
			    "node", p, json_string_length(text));
	}
}

static int by_time(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	if (x->t_ms != y->t_ms)
		return x->t_ms < y->t_ms ? -1 : 1;
	return x->order < y->order ? -1 : x->order > y->order;
}

static bool wanted(const struct logs_query *q, const struct entry *en)
{
	if (en->level < q->level)
		return false;
	if (q->cursor_said && (q->backward ? en->t_ms > (int64_t)q->cursor_ms
					   : en->t_ms < (int64_t)q->cursor_ms))
		return false;
	return !q->search || memmem(en->text, en->len, q->search, strlen(q->search));
}

/* ---- as JSON ---- */

static json_t *entry_json(const struct entry *en)
{
	char iso[CLOCK_ISO_LEN];

	clock_iso(iso, en->t_ms);
	return json_pack("{s:s,s:s,s:s%,s:{s:s}}", "timestamp", iso, "level",
			 logs_level_names[en->level], "message", en->text, en->len, "fields",
			 "source", en->source);
}

/* E2B's older form: the line is itself the text of a JSON object, which its command line parses. */
static json_t *line_json(const struct entry *en)
{
	char iso[CLOCK_ISO_LEN];
	json_t *o = json_pack("{s:s,s:s,s:s%}", "level", logs_level_names[en->level], "logger",
			      en->source, "message", en->text, en->len);
	autofree char *line = o ? json_text(o) : NULL;

	json_decref(o);
	clock_iso(iso, en->t_ms);
	return json_pack("{s:s,s:s}", "timestamp", iso, "line", line ? line : "{}");
}

static json_t *pick(const struct logs *l, const struct logs_query *q,
		    json_t *(*make)(const struct entry *en))
{
	json_t *out = json_array();

	for (size_t i = 0; i < l->n && json_array_size(out) < q->limit; i++) {
		const struct entry *en = &l->v[q->backward ? l->n - 1 - i : i];

		if (wanted(q, en))
			json_array_append_new(out, make(en));
	}
	return out;
}

/* ---- the routes ---- */

static int take_words(const char *target, struct logs_query *q, struct err *e)
{
	autofree char *direction = NULL, *level = NULL;
	int r = query_take(target, "direction", &direction, e);

	if (r == 0)
		r = query_take(target, "level", &level, e);
	if (r == 0)
		r = query_take(target, "search", &q->search, e);
	if (r < 0)
		return r;
	if (direction && !str_eq(direction, "forward") && !str_eq(direction, "backward"))
		return err_set(e, -EINVAL,
			       "The query parameter \"direction\" is forward or backward.");
	q->backward = direction && str_eq(direction, "backward");
	while (level && q->level < LOGS_LEVEL_COUNT &&
	       !str_eq(level, logs_level_names[q->level]))
		q->level++;
	if (q->level == LOGS_LEVEL_COUNT)
		return err_set(e, -EINVAL,
			       "The query parameter \"level\" is debug, info, warn or error.");
	if (q->search && strlen(q->search) > LOGS_SEARCH_MAX)
		return err_set(e, -EINVAL,
			       "The query parameter \"search\" is longer than %d bytes.",
			       LOGS_SEARCH_MAX);
	return 0;
}

static int take_cursor(const char *target, const char *name, struct logs_query *q, struct err *e)
{
	int r;

	q->cursor_ms = UINT64_MAX;
	r = query_number(target, name, 0, INT64_MAX, &q->cursor_ms, e);
	q->cursor_said = q->cursor_ms != UINT64_MAX;
	return r;
}

static int collect(struct call *c, struct store *s, struct logs *l, json_t **ret_answer)
{
	int r = logs_fetch(c, s, ret_answer);

	if (r < 0)
		return r;
	add_console(l, *ret_answer);
	add_events(l, *ret_answer);
	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), by_time);
	return 0;
}

void run_logs_v2(struct call *c, struct store *s)
{
	static const char *const params[] = { "cursor", "limit",  "direction",
					      "level",	"search", NULL };
	struct logs_query q = { .limit = LOGS_LIMIT };
	struct logs l = { 0 };
	json_t *answer = NULL;
	int r = query_only(c->target, params, &c->err);

	if (r == 0)
		r = take_cursor(c->target, "cursor", &q, &c->err);
	if (r == 0)
		r = query_number(c->target, "limit", 0, LOGS_LIMIT, &q.limit, &c->err);
	if (r == 0)
		r = take_words(c->target, &q, &c->err);
	if (r == 0)
		r = collect(c, s, &l, &answer);
	if (r == 0)
		call_json(c, 200, json_pack("{s:o}", "logs", pick(&l, &q, entry_json)));
	json_decref(answer);
	free(q.search);
	free(l.v);
}

void run_logs_v1(struct call *c, struct store *s)
{
	static const char *const params[] = { "start", "limit", NULL };
	struct logs_query q = { .limit = LOGS_LIMIT };
	struct logs l = { 0 };
	json_t *answer = NULL;
	int r = query_only(c->target, params, &c->err);

	if (r == 0)
		r = take_cursor(c->target, "start", &q, &c->err);
	if (r == 0)
		r = query_number(c->target, "limit", 0, LOGS_LIMIT_V1_MAX, &q.limit, &c->err);
	if (r == 0)
		r = collect(c, s, &l, &answer);
	if (r == 0)
		call_json(c, 200,
			  json_pack("{s:o,s:o}", "logs", pick(&l, &q, line_json), "logEntries",
				    pick(&l, &q, entry_json)));
	json_decref(answer);
	free(l.v);
}
