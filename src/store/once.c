/*
 * Creates under a key of the client's (E2B's Idempotency-Key). The row is written in the
 * transaction of the create, so of two at once one sees the other's. It names the operation: who
 * comes second waits for that. A create that has failed gives its key back.
 */
#include "store/internal.h"

#include <errno.h>
#include "base/str.h"

int once_expire(struct store *s, int64_t now_ms, struct err *e)
{
	int r = db_exec(s->db, e, "DELETE FROM once WHERE created_ms < $1",
			DB_INT(now_ms - STORE_ONCE_MS));

	return r < 0 ? r : 0;
}

/* 1: *ret_op is the operation of the create that has the key, and it was for this request. */
static int once_row(struct store *s, const char *tenant, const struct store_once *once,
		    int64_t *ret_op, struct err *e)
{
	autorows struct db_rows q = { 0 };
	int r = db_query(s->db, e, &q,
			 "SELECT request, operation FROM once WHERE tenant = $1 AND key = $2",
			 DB_STR(tenant), DB_STR(once->key));

	if (r == 0)
		r = db_next(&q, e);
	if (r <= 0)
		return r;
	if (!str_eq(db_str(&q, 0), once->request))
		return err_set_code(
			e, -EEXIST, "idempotency-request-mismatch",
			"This Idempotency-Key was used with another request; use a new one.");
	*ret_op = db_int(&q, 1);
	return 1;
}

int once_find(struct store *s, const char *tenant, const struct store_once *once, int64_t now_ms,
	      struct store_op *ret, struct err *e)
{
	int64_t op = 0;
	int r = once_expire(s, now_ms, e);

	if (r == 0)
		r = once_row(s, tenant, once, &op, e);
	if (r <= 0)
		return r;
	r = store_op_get(s, op, ret, e);
	if (r < 0)
		return r;
	return ret->state != STORE_OP_FAILED;
}

int once_put(struct store *s, const char *tenant, const struct store_once *once,
	     const struct store_op *op, int64_t now_ms, struct err *e)
{
	int r = db_exec(s->db, e,
			"INSERT INTO once (tenant, key, request, operation, created_ms)"
			" VALUES ($1, $2, $3, $4, $5) ON CONFLICT (tenant, key) DO UPDATE SET"
			" operation = excluded.operation, created_ms = excluded.created_ms",
			DB_STR(tenant), DB_STR(once->key), DB_STR(once->request), DB_INT(op->id),
			DB_INT(now_ms));

	return r < 0 ? r : 0;
}

int store_once_forget(struct store *s, const char *sandbox, struct err *e)
{
	int r = db_exec(s->db, e,
			"DELETE FROM once WHERE operation IN"
			" (SELECT id FROM operations WHERE sandbox = $1 AND kind = $2)",
			DB_STR(sandbox), DB_STR(life_event_names[LIFE_EV_CREATE]));

	return r < 0 ? r : 0;
}
