/*
 * What is over does not stay for ever. In the order of the references: keys, operations,
 * executions, sandboxes; a row that something still refers to stays until that has gone.
 */
#include "store/internal.h"

#include <errno.h>

static int purge_rows(struct store *s, int64_t before_ms, unsigned max, struct err *e)
{
	static const char *const sqls[] = {
		"DELETE FROM operations WHERE id IN (SELECT o.id FROM operations o"
		" WHERE o.finished_ms > 0 AND o.finished_ms < $1"
		" AND NOT EXISTS (SELECT 1 FROM once k WHERE k.operation = o.id)"
		" ORDER BY o.finished_ms LIMIT $2)",

		"DELETE FROM executions WHERE activation IN (SELECT x.activation FROM executions x"
		" WHERE x.ended_ms > 0 AND x.ended_ms < $1 AND NOT EXISTS (SELECT 1 FROM sandboxes b"
		" WHERE b.id = x.sandbox AND b.generation = x.generation AND b.deleted_ms = 0)"
		" ORDER BY x.ended_ms LIMIT $2)",

		"DELETE FROM sandboxes WHERE id IN (SELECT b.id FROM sandboxes b"
		" WHERE b.deleted_ms > 0 AND b.deleted_ms < $1"
		" AND NOT EXISTS (SELECT 1 FROM operations o WHERE o.sandbox = b.id)"
		" AND NOT EXISTS (SELECT 1 FROM executions x WHERE x.sandbox = b.id)"
		" ORDER BY b.deleted_ms LIMIT $2)",
	};
	int total = 0, r;

	for (size_t i = 0; i < sizeof(sqls) / sizeof(*sqls); i++) {
		r = db_exec(s->db, e, sqls[i], DB_INT(before_ms), DB_INT(max));
		if (r < 0)
			return r;
		total += r;
	}
	return total;
}

int store_purge(struct store *s, unsigned max, struct err *e)
{
	autotx struct db_tx tx = { 0 };
	int64_t now;
	int n = 0, r = db_begin(s->db, &tx, e);

	if (r == 0)
		r = store_now(s, &now, e);
	if (r == 0)
		r = once_expire(s, now, e);
	if (r == 0)
		r = n = purge_rows(s, now - STORE_KEEP_MS, max, e);
	if (r >= 0)
		r = db_commit(&tx, e);
	return r < 0 ? r : n;
}
