/*
 * Theory of operation. An operation is queued, then claimed (perhaps several times: a lease that
 * ran out, a release), then done or failed. A claim is (claimer, tries): `tries` grows with each
 * claim, so that a claimer whose lease ran out and who comes again later does not pass for the
 * newer claim, even when both have one name.
 *
 * Invariants, kept by one transaction each:
 *  - a sandbox is in a transition if and only if it has an unfinished operation (only the oldest one counts; behind it
 *    nothing but one delete can wait);
 *  - the transition begins when its operation is claimed first, which for all but a delete that waits is in the transaction
 *    that inserts it; it ends in store_finish;
 *  - generation and activation change only where an operation begins whose rule says so.
 */
#include "store/internal.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "store/dialect.h"

static const char *const op_state_names[] = { "queued", "claimed", "done", "failed" };
static_assert(ARRAY_LEN(op_state_names) == STORE_OP_STATE_COUNT, "names");

#define OP_COLS                                                                                                                    \
	"o.id, o.sandbox, o.tenant, o.kind, o.generation, o.state, o.claimer, o.lease_until_ms, o.tries, o.request_id, o.err_num," \
	" o.err_code, o.err_text, o.timeout_ms"
#define OP_UNFINISHED "o.state IN ('queued', 'claimed')"

#define CLAIM_WAIT_MAX_MS (4 * STORE_LEASE_MS)
#define END_RETRY_MS 30000               /* after a pause or delete that its end asked for and that failed */

/* What a request wants in the end. */
static enum life_state op_target(enum life_event kind)
{
	return kind == LIFE_EV_DELETE  ? LIFE_NONE
	       : kind == LIFE_EV_STOP  ? LIFE_STOPPED
	       : kind == LIFE_EV_PAUSE ? LIFE_PAUSED
				       : LIFE_RUNNING;
}

static int name_of(const char *s, const char *const *names, int n)
{
	for (int i = 0; i < n; i++)
		if (str_eq(s, names[i]))
			return i;
	return -EINVAL;
}

static int op_read(const struct db_rows *q, struct store_op *o, struct err *e)
{
	int kind = name_of(db_str(q, 3), life_event_names, LIFE_EVENT_COUNT);
	int state = name_of(db_str(q, 5), op_state_names, STORE_OP_STATE_COUNT);

	*o = (struct store_op){
		.id = db_int(q, 0),
		.kind = (enum life_event)kind,
		.generation = (uint64_t)db_int(q, 4),
		.state = (enum store_op_state)state,
		.lease_until_ms = db_int(q, 7),
		.tries = (unsigned)db_int(q, 8),
		.err_num = (int)db_int(q, 10),
		.timeout_ms = db_int(q, 13),
	};
	if (kind < 0 || state < 0 || str_copy(o->sandbox, sizeof(o->sandbox), db_str(q, 1)) < 0 ||
	    str_copy(o->tenant, sizeof(o->tenant), db_str(q, 2)) < 0 ||
	    str_copy(o->claimer, sizeof(o->claimer), db_str(q, 6)) < 0)
		return err_set(e, -EUCLEAN, "the row of operation %lld is malformed",
			       (long long)o->id);
	str_copy(o->request_id, sizeof(o->request_id), db_str(q, 9));
	str_copy(o->err_code, sizeof(o->err_code), db_str(q, 11));
	str_copy(o->err_text, sizeof(o->err_text), db_str(q, 12));
	return 0;
}

/* 1 and *ret, 0 = no row. */
static int op_one(struct db_rows *q, struct store_op *ret, struct err *e)
{
	struct store_op unused;
	int r = db_next(q, e);

	if (r <= 0)
		return r;
	r = op_read(q, ret ? ret : &unused, e);
	return r < 0 ? r : 1;
}

int op_unfinished(struct store *s, const char *sandbox, int64_t except, struct store_op *ret,
		  struct err *e)
{
	autorows struct db_rows q = { 0 };
	int r = db_query(s->db, e, &q,
			 "SELECT " OP_COLS
			 " FROM operations o WHERE o.sandbox = $1 AND o.id <> $2 AND " OP_UNFINISHED
			 " ORDER BY o.id DESC LIMIT 1",
			 DB_STR(sandbox), DB_INT(except));

	return r < 0 ? r : op_one(&q, ret, e);
}

int store_op_get(struct store *s, int64_t id, struct store_op *ret, struct err *e)
{
	autorows struct db_rows q = { 0 };
	int r = db_query(s->db, e, &q, "SELECT " OP_COLS " FROM operations o WHERE o.id = $1",
			 DB_INT(id));

	if (r == 0)
		r = op_one(&q, ret, e);
	if (r < 0)
		return r;
	return r == 0 ? err_set(e, -ENOENT, "there is no operation %lld", (long long)id) : 0;
}

/* ---- New operations ---- */

static int op_insert(struct store *s, struct store_op *o, int64_t now_ms, struct err *e)
{
	autorows struct db_rows q = { 0 };
	bool claimed = o->state == STORE_OP_CLAIMED;
	int r;

	o->lease_until_ms = claimed ? now_ms + STORE_LEASE_MS : 0;
	o->tries = claimed ? 1 : 0;
	r = db_query(
		s->db, e, &q,
		"INSERT INTO operations (sandbox, tenant, kind, generation, state, claimer, lease_until_ms, tries, request_id,"
		" created_ms, timeout_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) RETURNING id",
		DB_STR(o->sandbox), DB_STR(o->tenant), DB_STR(life_event_names[o->kind]),
		DB_INT(o->generation), DB_STR(op_state_names[o->state]), DB_STR(o->claimer),
		DB_INT(o->lease_until_ms), DB_INT(o->tries), DB_STR(o->request_id), DB_INT(now_ms),
		DB_INT(o->timeout_ms));
	if (r == 0)
		r = db_next(&q, e);
	if (r <= 0)
		return r < 0 ? r : -EIO;
	o->id = db_int(&q, 0);
	return 0;
}

static int op_init(struct store_op *o, const struct store_sandbox *b, enum life_event kind,
		   enum store_op_state state, const char *claimer, const char *request_id,
		   struct err *e)
{
	*o = (struct store_op){ .kind = kind, .generation = b->generation, .state = state };
	str_copy(o->sandbox, sizeof(o->sandbox), b->id);
	str_copy(o->tenant, sizeof(o->tenant), b->tenant);
	if (str_copy(o->claimer, sizeof(o->claimer), state == STORE_OP_CLAIMED ? claimer : "") <
		    0 ||
	    str_copy(o->request_id, sizeof(o->request_id), request_id) < 0)
		return err_set(e, -EINVAL, "the claimer's name or the request ID is too long");
	return 0;
}

static int create_check(const struct store_sandbox *b, struct err *e)
{
	struct identity id;
	int r;

	store_sandbox_identity(b, &id);
	r = id_check(&id, e);
	if (r < 0)
		return r;
	if (b->generation != 1)
		return err_set(e, -EINVAL, "a new sandbox begins with generation 1");
	if ((b->metadata && strlen(b->metadata) > STORE_JSON_MAX) ||
	    (b->env && strlen(b->env) > STORE_JSON_MAX) ||
	    (b->options && strlen(b->options) > STORE_JSON_MAX))
		return err_set(e, -E2BIG, "metadata, env and options have at most %d bytes each",
			       STORE_JSON_MAX);
	return 0;
}

int store_create(struct store *s, const struct store_sandbox *b, const struct store_once *once,
		 const char *claimer, const char *request_id, struct store_op *ret, struct err *e)
{
	autotx struct db_tx tx = { 0 };
	struct store_op o;
	int64_t now;
	int r = create_check(b, e);

	if (r == 0)
		r = op_init(&o, b, LIFE_EV_CREATE, STORE_OP_CLAIMED, claimer, request_id, e);
	if (r == 0)
		r = db_begin(s->db, &tx, e);
	if (r == 0)
		r = store_now(s, &now, e);
	if (r == 0 && once)
		r = once_find(s, b->tenant, once, now, ret, e);
	if (r == 0)
		r = sandbox_insert(s, b, now, e);
	if (r == 0)
		r = execution_insert(s, b, now, e);
	if (r == 0)
		r = op_insert(s, &o, now, e);
	if (r == 0 && once)
		r = once_put(s, b->tenant, once, &o, now, e);
	if (r != 0)
		return r;
	r = db_commit(&tx, e);
	if (r == 0)
		*ret = o;
	return r;
}

/* The next execution: in the row, in its history; what ran before has ended. */
static int next_execution(struct store *s, struct store_sandbox *b, int64_t now_ms, struct err *e)
{
	char act[ID_ACTIVATION_HEX + 1];
	int r = id_new_activation(b->activation);

	if (r < 0)
		return err_errno(e, r, "a new activation");
	b->generation++;
	b->attempt = 1;
	str_hex(act, b->activation, sizeof(b->activation));
	r = execution_end(s, b->id, now_ms, e);
	if (r == 0)
		r = execution_insert(s, b, now_ms, e);
	if (r == 0)
		r = db_exec(
			s->db, e,
			"UPDATE sandboxes SET generation = $2, activation = $3, attempt = $4 WHERE id = $1",
			DB_STR(b->id), DB_INT(b->generation), DB_STR(act), DB_INT(b->attempt));
	return r < 0 ? r : 0;
}

/* Nothing is unfinished: the table decides, and the transition begins here. */
static int submit_now(struct store *s, struct store_sandbox *b, enum life_event kind,
		      int64_t timeout_ms, const char *claimer, const char *request_id,
		      int64_t now_ms, struct store_op *ret, struct err *e)
{
	const struct life_rule *rule = NULL;
	int r = life_check(b->observed, kind, &rule, e);

	*ret = (struct store_op){ 0 };
	if (r < 0 || !rule)
		return r;
	if (rule->generation_grows)
		r = next_execution(s, b, now_ms, e);
	if (r == 0)
		r = op_init(ret, b, kind, STORE_OP_CLAIMED, claimer, request_id, e);
	ret->timeout_ms = timeout_ms;
	if (r == 0)
		r = sandbox_set(s, b->id, op_target(kind), rule->to, "", e);
	return r == 0 ? op_insert(s, ret, now_ms, e) : r;
}

/* Behind an operation that runs, only a delete may wait, and only one. */
static int submit_behind(struct store *s, struct store_sandbox *b, const struct store_op *last,
			 enum life_event kind, const char *request_id, int64_t now_ms,
			 struct store_op *ret, struct err *e)
{
	int r;

	if (last->kind == LIFE_EV_DELETE && kind == LIFE_EV_DELETE) {
		*ret = *last;
		return 0;
	}
	if (kind != LIFE_EV_DELETE)
		return err_set_code(e, -EBUSY, "in-transition",
				    "the sandbox is %s; try \"%s\" again when that has ended",
				    last->kind == LIFE_EV_DELETE ? life_state_names[LIFE_DELETING]
								 : life_state_names[b->observed],
				    life_event_names[kind]);
	r = op_init(ret, b, kind, STORE_OP_QUEUED, "", request_id, e);
	if (r == 0)
		r = sandbox_set(s, b->id, LIFE_NONE, b->observed, b->reason, e);
	return r == 0 ? op_insert(s, ret, now_ms, e) : r;
}

/* In a transaction, with the row as it is now. */
static int submit(struct store *s, struct store_sandbox *b, enum life_event kind,
		  int64_t timeout_ms, const char *claimer, const char *request_id, int64_t now_ms,
		  struct store_op *ret, struct err *e)
{
	struct store_op last;
	int r = op_unfinished(s, b->id, 0, &last, e);

	if (r < 0)
		return r;
	return r > 0 ? submit_behind(s, b, &last, kind, request_id, now_ms, ret, e) :
		       submit_now(s, b, kind, timeout_ms, claimer, request_id, now_ms, ret, e);
}

int store_submit_timed(struct store *s, const char *sandbox, const char *tenant,
		       enum life_event kind, int64_t timeout_ms, const char *claimer,
		       const char *request_id, struct store_op *ret, struct err *e)
{
	autosandbox struct store_sandbox b = { 0 };
	autotx struct db_tx tx = { 0 };
	struct store_op o;
	int64_t now;
	int r;

	if (kind == LIFE_EV_CREATE || kind > LIFE_EV_ROLLBACK)
		return err_set(e, -EINVAL, "\"%s\" is nothing that a caller can ask of a sandbox",
			       (unsigned)kind < LIFE_EVENT_COUNT ? life_event_names[kind] : "?");
	r = db_begin(s->db, &tx, e);
	if (r == 0)
		r = store_now(s, &now, e);
	if (r == 0)
		r = sandbox_load(s, sandbox, tenant, &b, e);
	if (r == 0)
		r = submit(s, &b, kind, timeout_ms, claimer, request_id, now, &o, e);
	if (r == 0)
		r = db_commit(&tx, e);
	if (r == 0)
		*ret = o;
	return r;
}

int store_submit(struct store *s, const char *sandbox, const char *tenant, enum life_event kind,
		 const char *claimer, const char *request_id, struct store_op *ret, struct err *e)
{
	return store_submit_timed(s, sandbox, tenant, kind, 0, claimer, request_id, ret, e);
}

/*
 * What is stopped and was to be kept stays as it is: from its next start on its time runs anew.
 * One that has failed has nothing to keep.
 */
static int end_stands_still(struct store *s, const struct store_sandbox *b, struct store_op *ret,
			    struct err *e)
{
	*ret = (struct store_op){ 0 };
	return store_sandbox_set_end(s, b->id, 0, e);
}

int store_submit_end(struct store *s, const char *sandbox, const char *claimer,
		     const char *request_id, struct store_op *ret, struct err *e)
{
	autosandbox struct store_sandbox b = { 0 };
	autotx struct db_tx tx = { 0 };
	struct store_op o = { 0 };
	int64_t now;
	int r = db_begin(s->db, &tx, e);

	if (r == 0)
		r = store_now(s, &now, e);
	if (r == 0)
		r = sandbox_load(s, sandbox, "", &b, e);
	if (r < 0)
		return r;
	if (b.end_ms == 0 || b.end_ms > now || b.desired == LIFE_NONE) {
		*ret = o;
		return 0;
	}
	if (b.end_pauses && (b.observed == LIFE_STOPPED || b.observed == LIFE_PAUSED))
		r = end_stands_still(s, &b, &o, e);
	else
		r = submit(s, &b,
			   b.end_pauses && b.observed != LIFE_FAILED ? LIFE_EV_PAUSE
								     : LIFE_EV_DELETE,
			   0, claimer, request_id, now, &o, e);
	if (r == 0)
		r = db_commit(&tx, e);
	if (r == 0)
		*ret = o;
	return r;
}

/* ---- Claims ---- */

/*
 * 1 and the oldest operation that may be claimed now: the first of its sandbox, queued and due, or
 * its lease ran out. One whose time lies further ahead than any is set was written before the clock
 * was set back: nobody waits for that hour.
 */
static int claim_candidate(struct store *s, int64_t now_ms, struct store_op *ret, struct err *e)
{
	autorows struct db_rows q = { 0 };
	int r = db_query(
		s->db, e, &q,
		"SELECT " OP_COLS
		" FROM operations o WHERE " OP_UNFINISHED
		" AND ((o.state = 'queued' AND (o.not_before_ms <= $1 OR o.not_before_ms > $2))"
		" OR (o.state = 'claimed' AND (o.lease_until_ms <= $1 OR o.lease_until_ms > $2)))"
		" AND NOT EXISTS (SELECT 1 FROM operations p WHERE p.sandbox = o.sandbox AND p.id < o.id"
		" AND p.state IN ('queued', 'claimed')) ORDER BY o.id LIMIT 1" DIALECT_SKIP_LOCKED,
		DB_INT(now_ms), DB_INT(now_ms + CLAIM_WAIT_MAX_MS));

	return r < 0 ? r : op_one(&q, ret, e);
}

static int op_end(struct store *s, const struct store_op *o, enum store_op_state state,
		  const struct err *failure, int64_t now_ms, struct err *e)
{
	return db_exec(
		s->db, e,
		"UPDATE operations SET state = $4, err_num = $5, err_code = $6, err_text = $7, finished_ms = $8"
		" WHERE id = $1 AND state IN ('queued', 'claimed') AND claimer = $2 AND tries = $3",
		DB_INT(o->id), DB_STR(o->claimer), DB_INT(o->tries), DB_STR(op_state_names[state]),
		DB_INT(failure ? failure->num : 0), DB_STR(failure ? err_code(failure) : ""),
		DB_STR(failure ? failure->text : ""), DB_INT(now_ms));
}

/* For a delete that waited, the transition begins with its claim. */
static int claim_begin(struct store *s, const struct store_op *o, const struct store_sandbox *b,
		       struct err *e)
{
	const struct life_rule *rule = life_find(b->observed, o->kind);

	if (o->tries > 1 || o->kind != LIFE_EV_DELETE || !rule)
		return 0;
	return sandbox_set(s, b->id, op_target(o->kind), rule->to, b->reason, e);
}

/* 0 claimed; 1 dropped, look for another. */
static int claim_take(struct store *s, struct store_op *o, const char *claimer, int64_t now_ms,
		      struct err *e)
{
	autosandbox struct store_sandbox b = { 0 };
	struct err superseded = { 0 };
	int r = sandbox_load(s, o->sandbox, "", &b, e);

	if (r < 0)
		return r;
	if (o->kind != LIFE_EV_DELETE && o->generation < b.generation) {
		err_set_code(&superseded, -ESTALE, "execution-replaced",
			     "decided for generation %llu; %llu is there",
			     (unsigned long long)o->generation, (unsigned long long)b.generation);
		r = op_end(s, o, STORE_OP_FAILED, &superseded, now_ms, e);
		return r < 0 ? r : 1;
	}
	if (str_copy(o->claimer, sizeof(o->claimer), claimer) < 0)
		return err_set(e, -EINVAL, "the claimer's name is too long");
	o->state = STORE_OP_CLAIMED;
	o->lease_until_ms = now_ms + STORE_LEASE_MS;
	o->tries++;
	r = db_exec(
		s->db, e,
		"UPDATE operations SET state = 'claimed', claimer = $2, lease_until_ms = $3, tries = $4 WHERE id = $1",
		DB_INT(o->id), DB_STR(claimer), DB_INT(o->lease_until_ms), DB_INT(o->tries));
	return r < 0 ? r : claim_begin(s, o, &b, e);
}

int store_claim(struct store *s, const char *claimer, struct store_op *ret, struct err *e)
{
	autotx struct db_tx tx = { 0 };
	struct store_op o;
	int64_t now;
	int r = store_now(s, &now, e);

	/* A look without the write lock first: most of the time there is nothing. */
	if (r == 0)
		r = claim_candidate(s, now, &o, e);
	if (r <= 0)
		return r < 0 ? r : err_set(e, -ENOENT, "nothing to claim");
	r = db_begin(s->db, &tx, e);
	if (r < 0)
		return r;
	do {
		r = claim_candidate(s, now, &o, e);
		if (r > 0)
			r = claim_take(s, &o, claimer, now, e);
		else if (r == 0)
			r = -ENOENT;
	} while (r == 1);
	if (r < 0 && r != -ENOENT)
		return r;
	/* Also when nothing was left: operations may have been dropped. */
	if (db_commit(&tx, e) < 0)
		return e ? e->num : -EIO;
	if (r < 0)
		return err_set(e, r, "nothing to claim");
	*ret = o;
	return 0;
}

static int claim_lost(const struct store_op *op, struct err *e)
{
	return err_set_code(e, -ESTALE, "claim-lost",
			    "operation %lld is not claimed by \"%s\" any more", (long long)op->id,
			    op->claimer);
}

int store_renew(struct store *s, const struct store_op *op, struct err *e)
{
	int64_t now;
	int r = store_now(s, &now, e);

	if (r == 0)
		r = db_exec(
			s->db, e,
			"UPDATE operations SET lease_until_ms = $4 WHERE id = $1 AND state = 'claimed' AND claimer = $2 AND tries = $3",
			DB_INT(op->id), DB_STR(op->claimer), DB_INT(op->tries),
			DB_INT(now + STORE_LEASE_MS));
	if (r < 0)
		return r;
	return r == 0 ? claim_lost(op, e) : 0;
}

int store_release(struct store *s, const struct store_op *op, int64_t retry_in_ms, struct err *e)
{
	int64_t now;
	int r = store_now(s, &now, e);

	if (r == 0)
		r = db_exec(
			s->db, e,
			"UPDATE operations SET state = 'queued', claimer = '', lease_until_ms = 0, not_before_ms = $4"
			" WHERE id = $1 AND state = 'claimed' AND claimer = $2 AND tries = $3",
			DB_INT(op->id), DB_STR(op->claimer), DB_INT(op->tries),
			DB_INT(now + retry_in_ms));
	if (r < 0)
		return r;
	return r == 0 ? claim_lost(op, e) : 0;
}

/* ---- The end ---- */

static int finish_check(const struct store_sandbox *b, enum life_state observed, bool failed,
			struct err *e)
{
	const struct life_rule *rule =
		life_find(b->observed, failed ? LIFE_EV_FAILED : LIFE_EV_DONE);

	if (rule && rule->to == observed)
		return 0;
	return err_set_code(e, -EINVAL, "wrong-state",
			    "a sandbox that is %s does not become %s when that has %s",
			    life_state_names[b->observed],
			    (unsigned)observed < LIFE_STATE_COUNT ? life_state_names[observed]
								  : "?",
			    failed ? "failed" : "ended");
}

/* Nothing of the user stays in a tombstone. */
static int finish_deleted(struct store *s, const char *sandbox, int64_t now_ms, struct err *e)
{
	int r = db_exec(
		s->db, e,
		"UPDATE sandboxes SET deleted_ms = $2, metadata = '{}', env = '{}', options = '{}' WHERE id = $1",
		DB_STR(sandbox), DB_INT(now_ms));

	return r < 0 ? r : 0;
}

/*
 * When its time is over from now on. What its end asked for and has failed is tried again later;
 * other failures change nothing.
 */
static int64_t finish_end(const struct store_op *op, const struct store_sandbox *b, bool failed,
			  int64_t now_ms)
{
	int64_t timeout_ms = op->timeout_ms ? op->timeout_ms : b->timeout_ms;

	bool ends = op->kind == LIFE_EV_PAUSE || op->kind == LIFE_EV_DELETE;

	if (failed && ends && b->end_ms && b->end_ms <= now_ms)
		return now_ms + END_RETRY_MS;
	if (failed)
		return b->end_ms;
	if (op->kind == LIFE_EV_PAUSE)
		return 0;
	/* A start of what was paused or has outlived its time gives it new time. */
	if (op->kind == LIFE_EV_RESUME ||
	    (op->kind == LIFE_EV_START && (op->timeout_ms || b->end_ms == 0)))
		return timeout_ms ? now_ms + timeout_ms : 0;
	return b->end_ms;
}

static int64_t finish_paused(const struct store_sandbox *b, enum life_state observed,
			     int64_t now_ms)
{
	if (observed != LIFE_PAUSED)
		return 0;
	return b->paused_ms ? b->paused_ms : now_ms;
}

static int finish_sandbox(struct store *s, const struct store_op *op, const struct store_sandbox *b,
			  enum life_state observed, const struct err *failure, int64_t now_ms,
			  struct err *e)
{
	const struct life_rule *rule =
		life_find(b->observed, failure ? LIFE_EV_FAILED : LIFE_EV_DONE);
	bool begins = op->kind == LIFE_EV_CREATE || op->kind == LIFE_EV_START;
	int64_t end_ms = finish_end(op, b, failure != NULL, now_ms);
	int waits = op_unfinished(s, b->id, op->id, NULL, e), r;

	if (waits < 0)
		return waits;
	/* After a failure nobody wants again what could not be had, unless a delete waits. */
	r = sandbox_set(s, b->id, failure && !waits ? observed : b->desired, observed,
			failure ? failure->text : "", e);
	if (r == 0 && observed == LIFE_RUNNING && begins)
		r = db_exec(s->db, e, "UPDATE sandboxes SET started_ms = $2 WHERE id = $1",
			    DB_STR(b->id), DB_INT(now_ms));
	else if (r == 0 && rule->ends_execution)
		r = execution_end(s, b->id, now_ms, e);
	if (r >= 0)
		r = sandbox_set_times(s, b->id, end_ms, finish_paused(b, observed, now_ms), e);
	if (r >= 0 && observed == LIFE_NONE)
		r = finish_deleted(s, b->id, now_ms, e);
	return r < 0 ? r : 0;
}

int store_finish(struct store *s, const struct store_op *op, enum life_state observed,
		 const struct err *failure, struct err *e)
{
	autosandbox struct store_sandbox b = { 0 };
	autotx struct db_tx tx = { 0 };
	int64_t now;
	int r = db_begin(s->db, &tx, e);

	if (r == 0)
		r = store_now(s, &now, e);
	if (r < 0)
		return r;
	if (op->state != STORE_OP_CLAIMED)
		return claim_lost(op, e);
	r = op_end(s, op, failure ? STORE_OP_FAILED : STORE_OP_DONE, failure, now, e);
	if (r < 0)
		return r;
	if (r == 0)
		return claim_lost(op, e);
	r = sandbox_load(s, op->sandbox, "", &b, e);
	if (r == 0)
		r = finish_check(&b, observed, failure != NULL, e);
	if (r == 0)
		r = finish_sandbox(s, op, &b, observed, failure, now, e);
	return r == 0 ? db_commit(&tx, e) : r;
}
