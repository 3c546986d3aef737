#include "store/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "store/dialect.h"

#define LIST_LIMIT_DEFAULT 100
#define LIST_LIMIT_MAX 1000
#define LIST_STATES_MAX 300

#define SANDBOX_COLS                                                                                                           \
	"id, tenant, template, template_name, desired, observed, reason, generation, worker, activation, attempt, memory_mib," \
	" vcpus, disk_mib, created_ms, started_ms, end_ms, metadata, env, options, timeout_ms,"                               \
	" end_pauses, auto_resume, paused_ms, internet, public_traffic"

void store_sandbox_done(struct store_sandbox *b)
{
	free(b->metadata);
	free(b->env);
	free(b->options);
	*b = (struct store_sandbox){ 0 };
}

void store_sandbox_identity(const struct store_sandbox *b, struct identity *ret)
{
	*ret = (struct identity) { .substrate = ID_SUBSTRATE_MICROVM,
				   .generation = b->generation,
				   .attempt = b->attempt };
	str_copy(ret->tenant, sizeof(ret->tenant), b->tenant);
	str_copy(ret->sandbox, sizeof(ret->sandbox), b->id);
	str_copy(ret->worker, sizeof(ret->worker), b->worker);
	memcpy(ret->activation, b->activation, sizeof(ret->activation));
}

/*
 * A row that this program would not write was damaged or is of a newer version: it is refused, not
 * guessed.
 */
static int sandbox_read(const struct db_rows *q, struct store_sandbox *b, struct err *e)
{
	*b = (struct store_sandbox){
		.generation = (uint64_t)db_int(q, 7),
		.attempt = (uint64_t)db_int(q, 10),
		.memory_mib = (uint64_t)db_int(q, 11),
		.vcpus = (uint64_t)db_int(q, 12),
		.disk_mib = (uint64_t)db_int(q, 13),
		.created_ms = db_int(q, 14),
		.started_ms = db_int(q, 15),
		.end_ms = db_int(q, 16),
		.timeout_ms = db_int(q, 20),
		.end_pauses = db_int(q, 21) != 0,
		.auto_resume = db_int(q, 22) != 0,
		.paused_ms = db_int(q, 23),
		.internet = db_int(q, 24) != 0,
		.public_traffic = db_int(q, 25) != 0,
	};
	if (str_copy(b->id, sizeof(b->id), db_str(q, 0)) < 0 ||
	    str_copy(b->tenant, sizeof(b->tenant), db_str(q, 1)) < 0 ||
	    str_copy(b->template, sizeof(b->template), db_str(q, 2)) < 0 ||
	    str_copy(b->template_name, sizeof(b->template_name), db_str(q, 3)) < 0 ||
	    life_state_of(db_str(q, 4), &b->desired) < 0 ||
	    life_state_of(db_str(q, 5), &b->observed) < 0 ||
	    str_copy(b->reason, sizeof(b->reason), db_str(q, 6)) < 0 ||
	    str_copy(b->worker, sizeof(b->worker), db_str(q, 8)) < 0 ||
	    str_unhex(b->activation, sizeof(b->activation), db_str(q, 9)) < 0)
		return err_set(e, -EUCLEAN, "the row of sandbox \"%.30s\" is malformed",
			       db_str(q, 0));
	b->metadata = x_strdup(db_str(q, 17));
	b->env = x_strdup(db_str(q, 18));
	b->options = x_strdup(db_str(q, 19));
	return 0;
}

int sandbox_load(struct store *s, const char *id, const char *tenant, struct store_sandbox *ret,
		 struct err *e)
{
	autorows struct db_rows q = { 0 };
	int r = db_query(
		s->db, e, &q,
		"SELECT " SANDBOX_COLS
		" FROM sandboxes WHERE id = $1 AND ($2 = '' OR tenant = $2) AND deleted_ms = 0" DIALECT_LOCK_ROW,
		DB_STR(id), DB_STR(tenant));

	if (r == 0)
		r = db_next(&q, e);
	if (r < 0)
		return r;
	if (r == 0)
		return err_set_code(e, -ENOENT, "sandbox-not-found",
				    "there is no sandbox \"%.30s\"", id);
	return sandbox_read(&q, ret, e);
}

int store_sandbox_get(struct store *s, const char *id, const char *tenant,
		      struct store_sandbox *ret, struct err *e)
{
	return sandbox_load(s, id, tenant, ret, e);
}

int sandbox_insert(struct store *s, const struct store_sandbox *b, int64_t now_ms, struct err *e)
{
	char act[ID_ACTIVATION_HEX + 1];
	int r;

	str_hex(act, b->activation, sizeof(b->activation));
	r = db_exec(
		s->db, e,
		"INSERT INTO sandboxes (id, tenant, template, template_name, desired, observed, generation, worker, activation,"
		" attempt, memory_mib, vcpus, disk_mib, created_ms, end_ms, metadata, env, options,"
		" timeout_ms, end_pauses, auto_resume, internet, public_traffic)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,"
		" $19, $20, $21, $22, $23)",
		DB_STR(b->id), DB_STR(b->tenant), DB_STR(b->template), DB_STR(b->template_name),
		DB_STR(life_state_names[LIFE_RUNNING]), DB_STR(life_state_names[LIFE_CREATING]),
		DB_INT(b->generation), DB_STR(b->worker), DB_STR(act), DB_INT(b->attempt),
		DB_INT(b->memory_mib), DB_INT(b->vcpus), DB_INT(b->disk_mib), DB_INT(now_ms),
		DB_INT(b->end_ms), DB_STR(b->metadata ? b->metadata : "{}"),
		DB_STR(b->env ? b->env : "{}"), DB_STR(b->options ? b->options : "{}"),
		DB_INT(b->timeout_ms), DB_INT(b->end_pauses), DB_INT(b->auto_resume),
		DB_INT(b->internet), DB_INT(b->public_traffic));
	if (r == -EEXIST)
		return err_set_code(e, r, "sandbox-exists", "the sandbox ID \"%s\" was used before",
				    b->id);
	return r < 0 ? r : 0;
}

int execution_insert(struct store *s, const struct store_sandbox *b, int64_t now_ms, struct err *e)
{
	char act[ID_ACTIVATION_HEX + 1];
	int r;

	str_hex(act, b->activation, sizeof(b->activation));
	r = db_exec(
		s->db, e,
		"INSERT INTO executions (sandbox, generation, worker, activation, created_ms) VALUES ($1, $2, $3, $4, $5)",
		DB_STR(b->id), DB_INT(b->generation), DB_STR(b->worker), DB_STR(act),
		DB_INT(now_ms));
	return r < 0 ? r : 0;
}

int execution_end(struct store *s, const char *sandbox, int64_t now_ms, struct err *e)
{
	int r = db_exec(s->db, e,
			"UPDATE executions SET ended_ms = $2 WHERE sandbox = $1 AND ended_ms = 0",
			DB_STR(sandbox), DB_INT(now_ms));

	return r < 0 ? r : 0;
}

/* At most n bytes, and not cut inside a character. */
static void copy_utf8(char *dst, size_t dst_size, const char *src)
{
	size_t n;

	str_copy(dst, dst_size, src);
	for (n = strlen(dst); n > 0 && !str_utf8_ok(dst, n); n--)
		dst[n - 1] = '\0';
}

int sandbox_set(struct store *s, const char *id, enum life_state desired, enum life_state observed,
		const char *reason, struct err *e)
{
	char text[sizeof(((struct store_sandbox *)0)->reason)];
	int r;

	copy_utf8(text, sizeof(text), reason);
	r = db_exec(s->db, e,
		    "UPDATE sandboxes SET desired = $2, observed = $3, reason = $4 WHERE id = $1",
		    DB_STR(id), DB_STR(life_state_names[desired]),
		    DB_STR(life_state_names[observed]), DB_STR(text));
	return r < 0 ? r : 0;
}

/* ---- Lists ---- */

#define LIST_WHERE                                                                                 \
	"SELECT " SANDBOX_COLS " FROM sandboxes WHERE deleted_ms = 0 AND ($1 = '' OR tenant = $1)" \
	" AND ($2 = '' OR $2 LIKE '%,' || observed || ',%') AND ($3 = 0 OR (end_ms > 0 AND end_ms < $3))"

static const char list_up[] = LIST_WHERE
	" AND (created_ms > $4 OR (created_ms = $4 AND id > $5)) ORDER BY created_ms, id LIMIT $6";
static const char list_down[] = LIST_WHERE
	" AND (created_ms < $4 OR (created_ms = $4 AND id < $5)) ORDER BY created_ms DESC, id DESC LIMIT $6";

/* A cursor is "<created_ms>.<id>" of the last row that was given. */
static int cursor_parse(const char *cursor, bool newest_first, int64_t *ret_ms, const char **ret_id)
{
	const char *dot;
	uint64_t ms;

	if (!cursor || !cursor[0]) {
		*ret_ms = newest_first ? INT64_MAX : -1;
		*ret_id = "";
		return 0;
	}
	dot = strchr(cursor, '.');
	if (!dot || strlen(cursor) >= STORE_CURSOR_MAX ||
	    str_to_u64_n(cursor, (size_t)(dot - cursor), INT64_MAX, &ms) < 0 ||
	    !id_sandbox_ok(dot + 1))
		return -EINVAL;
	*ret_ms = (int64_t)ms;
	*ret_id = dot + 1;
	return 0;
}

void store_cursor(const struct store_sandbox *b, char dst[STORE_CURSOR_MAX])
{
	str_format(dst, STORE_CURSOR_MAX, "%lld.%s", (long long)b->created_ms, b->id);
}

bool store_cursor_ok(const char *cursor)
{
	const char *id;
	int64_t ms;

	return cursor_parse(cursor, true, &ms, &id) == 0;
}

static void list_free(struct store_sandbox *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		store_sandbox_done(&list[i]);
	free(list);
}

static int list_rows(struct store *s, const struct store_list *q, int64_t after_ms,
		     const char *after_id, unsigned limit, struct store_sandbox **list, size_t *n,
		     struct err *e)
{
	autorows struct db_rows rows = { 0 };
	char states[LIST_STATES_MAX] = "";
	int r;

	if (q->state_csv && q->state_csv[0] &&
	    str_format(states, sizeof(states), ",%s,", q->state_csv) < 0)
		return err_set(e, -EINVAL, "the list of states is too long");
	r = db_query(s->db, e, &rows, q->newest_first ? list_down : list_up,
		     DB_STR(q->tenant ? q->tenant : ""), DB_STR(states),
		     DB_INT(q->expired_before_ms), DB_INT(after_ms), DB_STR(after_id),
		     DB_INT(limit));
	while (r >= 0 && (r = db_next(&rows, e)) > 0) {
		r = store_grow((void **)list, *n, sizeof(**list), e);
		if (r == 0)
			r = sandbox_read(&rows, &(*list)[*n], e);
		if (r == 0)
			(*n)++;
	}
	return r;
}

int store_sandbox_list(struct store *s, const struct store_list *q, struct store_sandbox **ret,
		       size_t *ret_n, char next_cursor[64], struct err *e)
{
	unsigned limit = q->limit == 0		     ? LIST_LIMIT_DEFAULT
			 : q->limit > LIST_LIMIT_MAX ? LIST_LIMIT_MAX
						     : q->limit;
	struct store_sandbox *list = NULL;
	const char *after_id;
	int64_t after_ms;
	size_t n = 0;
	int r;

	if (cursor_parse(q->cursor, q->newest_first, &after_ms, &after_id) < 0)
		return err_set_code(e, -EINVAL, "bad-cursor",
				    "the cursor is not one that a list has given");
	/* One row more than asked for shows whether there is a next page. */
	r = list_rows(s, q, after_ms, after_id, limit + 1, &list, &n, e);
	if (r < 0) {
		list_free(list, n);
		return r;
	}
	next_cursor[0] = '\0';
	if (n > limit) {
		store_sandbox_done(&list[--n]);
		store_cursor(&list[n - 1], next_cursor);
	}
	*ret = list;
	*ret_n = n;
	return 0;
}

int store_sandbox_ids(struct store *s, char cursor[STORE_CURSOR_MAX], unsigned max,
		      char (*ids)[ID_SANDBOX_LEN + 1], size_t *ret_n, struct err *e)
{
	autorows struct db_rows q = { 0 };
	struct store_sandbox last = { 0 };
	const char *after_id;
	int64_t after_ms;
	size_t n = 0;
	int r;

	if (cursor_parse(cursor, true, &after_ms, &after_id) < 0)
		return err_set_code(e, -EINVAL, "bad-cursor",
				    "the cursor is not one that a list has given");
	r = db_query(s->db, e, &q,
		     "SELECT created_ms, id FROM sandboxes WHERE deleted_ms = 0"
		     " AND (created_ms < $1 OR (created_ms = $1 AND id < $2))"
		     " ORDER BY created_ms DESC, id DESC LIMIT $3",
		     DB_INT(after_ms), DB_STR(after_id), DB_INT(max));
	while (r >= 0 && (r = db_next(&q, e)) > 0 && n < max) {
		str_copy(ids[n++], ID_SANDBOX_LEN + 1, db_str(&q, 1));
		last.created_ms = db_int(&q, 0);
	}
	if (r < 0)
		return r;
	if (n > 0) {
		str_copy(last.id, sizeof(last.id), ids[n - 1]);
		store_cursor(&last, cursor);
	}
	*ret_n = n;
	return 0;
}

/* ---- What the node reports ---- */

int sandbox_set_times(struct store *s, const char *id, int64_t end_ms, int64_t paused_ms,
		      struct err *e)
{
	int r = db_exec(s->db, e,
			"UPDATE sandboxes SET end_ms = $2, paused_ms = $3 WHERE id = $1",
			DB_STR(id), DB_INT(end_ms), DB_INT(paused_ms));

	return r < 0 ? r : 0;
}

/* Time stands still while it is paused, and runs again when it is not. */
static int observed_times(struct store *s, const struct store_sandbox *b, enum life_state state,
			  int64_t now_ms, struct err *e)
{
	if (state == LIFE_PAUSED)
		return sandbox_set_times(s, b->id, 0, now_ms, e);
	if (b->observed != LIFE_PAUSED)
		return 0;
	return sandbox_set_times(
		s, b->id, state == LIFE_RUNNING && b->timeout_ms ? now_ms + b->timeout_ms : 0, 0,
		e);
}

static int observed_apply(struct store *s, const struct store_sandbox *b, enum life_state state,
			  const char *reason, struct err *e)
{
	int64_t now;
	int r;

	if (b->observed == state)
		return 0;
	if (b->observed == LIFE_FAILED)
		return err_set_code(e, -ESTALE, "stale-report",
				    "sandbox %s has failed; only a delete leads out", b->id);
	r = store_now(s, &now, e);
	if (r == 0)
		r = state == LIFE_STOPPED ? execution_end(s, b->id, now, e) : 0;
	if (r == 0)
		r = observed_times(s, b, state, now, e);
	if (r < 0)
		return r;
	/*
	 * An execution that ended by itself is not wanted back (the table's row for a crash): what
	 * is desired follows. Between running and paused it follows too: an operation whose answer
	 * was lost for good, and nobody is there any more who wants the other one.
	 */
	return sandbox_set(s, b->id, b->desired == LIFE_NONE ? LIFE_NONE : state, state, reason,
			   e);
}

/* 1: an operation has ended since then. */
static int observed_late(struct store *s, const char *id, int64_t asked_ms, struct err *e)
{
	autorows struct db_rows q = { 0 };
	int r = db_query(s->db, e, &q,
			 "SELECT 1 FROM operations WHERE sandbox = $1 AND finished_ms >= $2 LIMIT 1",
			 DB_STR(id), DB_INT(asked_ms));

	return r < 0 ? r : db_next(&q, e);
}

int store_sandbox_observed(struct store *s, const char *id, uint64_t generation,
			   enum life_state state, const char *reason, int64_t asked_ms,
			   struct err *e)
{
	autosandbox struct store_sandbox b = { 0 };
	autotx struct db_tx tx = { 0 };
	int r;

	if (state != LIFE_RUNNING && state != LIFE_PAUSED && state != LIFE_STOPPED)
		return err_set(e, -EINVAL, "a node reports running, paused or stopped");
	r = db_begin(s->db, &tx, e);
	if (r == 0)
		r = sandbox_load(s, id, "", &b, e);
	if (r < 0)
		return r;
	if (generation != b.generation)
		return err_set_code(e, -ESTALE, "stale-report",
				    "sandbox %s: generation %llu was reported, %llu is the newest",
				    id, (unsigned long long)generation,
				    (unsigned long long)b.generation);
	r = op_unfinished(s, id, 0, NULL, e);
	if (r < 0)
		return r;
	if (r > 0)
		return err_set_code(e, -EBUSY, "in-transition",
				    "sandbox %s has an unfinished operation, which decides", id);
	r = observed_late(s, id, asked_ms, e);
	if (r > 0)
		return err_set_code(e, -ESTALE, "stale-report",
				    "sandbox %s has changed since the node was asked", id);
	if (r == 0)
		r = observed_apply(s, &b, state, reason, e);
	return r < 0 ? r : db_commit(&tx, e);
}

int store_sandbox_set_end(struct store *s, const char *id, int64_t end_ms, struct err *e)
{
	int r = db_exec(s->db, e,
			"UPDATE sandboxes SET end_ms = $2 WHERE id = $1 AND deleted_ms = 0",
			DB_STR(id), DB_INT(end_ms));

	if (r < 0)
		return r;
	return r == 0 ? err_set_code(e, -ENOENT, "sandbox-not-found",
				     "there is no sandbox \"%.30s\"", id)
		      : 0;
}

/* Running, or going to run when what happens now has ended. */
static bool time_runs(const struct store_sandbox *b)
{
	return b->observed == LIFE_RUNNING || b->observed == LIFE_CREATING ||
	       b->observed == LIFE_STARTING;
}

int store_set_timeout(struct store *s, const char *id, const char *tenant, int64_t timeout_ms,
		      bool only_extend, struct err *e)
{
	autosandbox struct store_sandbox b = { 0 };
	autotx struct db_tx tx = { 0 };
	int64_t now;
	int r = db_begin(s->db, &tx, e);

	if (r == 0)
		r = store_now(s, &now, e);
	if (r == 0)
		r = sandbox_load(s, id, tenant, &b, e);
	if (r < 0)
		return r;
	if (!time_runs(&b))
		return err_set_code(e, -EBUSY, "not-running",
				    "the sandbox is %s: its time does not run",
				    life_state_names[b.observed]);
	if (timeout_ms < 0)
		timeout_ms = 0;
	/* One that never ends cannot be extended. */
	if (only_extend && (b.end_ms == 0 || b.end_ms >= now + timeout_ms))
		return 0;
	r = store_sandbox_set_end(s, id, now + timeout_ms, e);
	return r < 0 ? r : db_commit(&tx, e);
}

int store_set_end_pauses(struct store *s, const char *id, const char *tenant, bool end_pauses,
			 struct err *e)
{
	int r = db_exec(
		s->db, e,
		"UPDATE sandboxes SET end_pauses = $3 WHERE id = $1 AND ($2 = '' OR tenant = $2) AND deleted_ms = 0",
		DB_STR(id), DB_STR(tenant), DB_INT(end_pauses));

	if (r < 0)
		return r;
	return r == 0 ? err_set_code(e, -ENOENT, "sandbox-not-found",
				     "there is no sandbox \"%.30s\"", id)
		      : 0;
}
