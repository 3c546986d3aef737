/*
 * Tickets of terminals: single use holds over all processes of the control plane, because a ticket
 * is taken by deleting its row.
 */
#include "store/internal.h"

#include <errno.h>
#include <string.h>

#include "base/str.h"
#include "store/dialect.h"

static int count_of(struct store *s, const char *tenant, int64_t *ret, struct err *e)
{
	autorows struct db_rows q = { 0 };
	int r = db_query(s->db, e, &q, "SELECT COUNT(*) FROM terminal_tickets WHERE tenant = $1",
			 DB_STR(tenant));

	if (r == 0)
		r = db_next(&q, e);
	if (r <= 0)
		return r < 0 ? r : -EIO;
	*ret = db_int(&q, 0);
	return 0;
}

int store_ticket_add(struct store *s, const struct store_ticket *t, int64_t life_ms,
		     int64_t *ret_until_ms, struct err *e)
{
	autotx struct db_tx tx = { 0 };
	int64_t now, n;
	int r = db_begin(s->db, &tx, e);

	if (r == 0)
		r = store_now(s, &now, e);
	if (r >= 0)
		r = db_exec(s->db, e, "DELETE FROM terminal_tickets WHERE until_ms <= $1",
			    DB_INT(now));
	if (r >= 0)
		r = count_of(s, t->tenant, &n, e);
	if (r < 0)
		return r;
	if (n >= STORE_TICKETS_MAX)
		return err_set(e, -EUSERS,
			       "There are %d unused tickets already; use them or wait a minute.",
			       STORE_TICKETS_MAX);
	r = db_exec(
		s->db, e,
		"INSERT INTO terminal_tickets (hash, tenant, sandbox, until_ms) VALUES ($1, $2, $3, $4)",
		DB_STR(t->hash), DB_STR(t->tenant), DB_STR(t->sandbox), DB_INT(now + life_ms));
	if (r >= 0)
		r = db_commit(&tx, e);
	if (r < 0)
		return r;
	*ret_until_ms = now + life_ms;
	return 0;
}

static int ticket_read(struct store *s, const char *hash, struct store_ticket *ret,
		       int64_t *ret_until_ms, struct err *e)
{
	autorows struct db_rows q = { 0 };
	int r = db_query(s->db, e, &q,
			 "SELECT hash, tenant, sandbox, until_ms FROM terminal_tickets "
			 "WHERE hash = $1" DIALECT_LOCK_ROW,
			 DB_STR(hash));

	if (r == 0)
		r = db_next(&q, e);
	if (r < 0)
		return r;
	if (r == 0)
		return -ENOENT;
	str_copy(ret->hash, sizeof(ret->hash), db_str(&q, 0));
	str_copy(ret->tenant, sizeof(ret->tenant), db_str(&q, 1));
	str_copy(ret->sandbox, sizeof(ret->sandbox), db_str(&q, 2));
	*ret_until_ms = db_int(&q, 3);
	return 0;
}

int store_ticket_take(struct store *s, const char *hash, struct store_ticket *ret, struct err *e)
{
	autotx struct db_tx tx = { 0 };
	struct store_ticket t = { 0 };
	int64_t now, until_ms = 0;
	int r = db_begin(s->db, &tx, e);

	if (r == 0)
		r = store_now(s, &now, e);
	if (r >= 0)
		r = ticket_read(s, hash, &t, &until_ms, e);
	if (r >= 0)
		r = db_exec(s->db, e, "DELETE FROM terminal_tickets WHERE hash = $1",
			    DB_STR(hash));
	if (r >= 0)
		r = db_commit(&tx, e);
	if (r < 0 && r != -ENOENT)
		return r;
	if (r < 0 || until_ms <= now)
		return err_set_code(e, -ENOENT, "ticket-unknown",
				    "the ticket is not known, was used, or is too old");
	*ret = t;
	return 0;
}
