/*
 * The schema, as migrations that are applied in order, each with its number in schema_version, all
 * in one transaction. A migration that was released is never changed; the next change is a new one.
 */
#include "store/internal.h"

#include <errno.h>

#include "base/alloc.h"
#include "store/dialect.h"

static const char *const schema_1[] = {
	"CREATE TABLE tenants ("
	" id TEXT PRIMARY KEY,"
	" created_ms BIGINT NOT NULL)",

	"CREATE TABLE api_keys ("
	" id TEXT PRIMARY KEY,"
	" tenant TEXT NOT NULL REFERENCES tenants (id),"
	" name TEXT NOT NULL,"
	" hash TEXT NOT NULL UNIQUE," /* SHA-256 of the key; the key itself is nowhere */
	" prefix TEXT NOT NULL,"
	" created_ms BIGINT NOT NULL,"
	" revoked_ms BIGINT NOT NULL DEFAULT 0)",

	"CREATE TABLE nodes ("
	" worker TEXT PRIMARY KEY,"
	" addr TEXT NOT NULL,"
	" bundle BIGINT NOT NULL DEFAULT 0," /* installed there, as it reported */
	" seen_ms BIGINT NOT NULL DEFAULT 0,"
	" report TEXT NOT NULL DEFAULT '{}')",

	"CREATE TABLE bundles ("
	" number BIGINT PRIMARY KEY,"
	" body TEXT NOT NULL,"
	" created_ms BIGINT NOT NULL)",

	"CREATE TABLE templates ("
	" tenant TEXT NOT NULL," /* '' = everyone's */
	" name TEXT NOT NULL,"
	" id TEXT NOT NULL,"
	" manifest TEXT NOT NULL,"
	" created_ms BIGINT NOT NULL,"
	" PRIMARY KEY (tenant, name))",

	/* A row stays for a while when its sandbox is deleted (deleted_ms > 0): store_purge. */
	"CREATE TABLE sandboxes ("
	" id TEXT PRIMARY KEY,"
	" tenant TEXT NOT NULL REFERENCES tenants (id),"
	" template TEXT NOT NULL,"
	" template_name TEXT NOT NULL,"
	" desired TEXT NOT NULL,"
	" observed TEXT NOT NULL,"
	" reason TEXT NOT NULL DEFAULT '',"
	" generation BIGINT NOT NULL CHECK (generation >= 1),"
	" worker TEXT NOT NULL,"
	" activation TEXT NOT NULL,"
	" attempt BIGINT NOT NULL CHECK (attempt >= 1),"
	" memory_mib BIGINT NOT NULL,"
	" vcpus BIGINT NOT NULL,"
	" disk_mib BIGINT NOT NULL,"
	" created_ms BIGINT NOT NULL,"
	" started_ms BIGINT NOT NULL DEFAULT 0,"
	" end_ms BIGINT NOT NULL DEFAULT 0,"
	" metadata TEXT NOT NULL DEFAULT '{}',"
	" env TEXT NOT NULL DEFAULT '{}',"
	" options TEXT NOT NULL DEFAULT '{}',"
	" deleted_ms BIGINT NOT NULL DEFAULT 0)",
	"CREATE INDEX sandboxes_by_age ON sandboxes (created_ms, id) WHERE deleted_ms = 0",
	"CREATE INDEX sandboxes_by_end ON sandboxes (end_ms) WHERE deleted_ms = 0 AND end_ms > 0",

	/* An activation is unique over all sandboxes, nodes and time (I-4): 128 random bits. */
	"CREATE TABLE executions ("
	" sandbox TEXT NOT NULL REFERENCES sandboxes (id),"
	" generation BIGINT NOT NULL,"
	" worker TEXT NOT NULL,"
	" activation TEXT NOT NULL UNIQUE,"
	" created_ms BIGINT NOT NULL,"
	" ended_ms BIGINT NOT NULL DEFAULT 0,"
	" PRIMARY KEY (sandbox, generation))",

	"CREATE TABLE operations ("
	" id " DIALECT_SERIAL ","
	" sandbox TEXT NOT NULL REFERENCES sandboxes (id),"
	" tenant TEXT NOT NULL,"
	" kind TEXT NOT NULL,"
	" generation BIGINT NOT NULL,"
	" state TEXT NOT NULL,"
	" claimer TEXT NOT NULL DEFAULT '',"
	" lease_until_ms BIGINT NOT NULL DEFAULT 0,"
	" not_before_ms BIGINT NOT NULL DEFAULT 0,"
	" tries BIGINT NOT NULL DEFAULT 0," /* counts claims: a claim is (claimer, tries) */
	" request_id TEXT NOT NULL,"
	" err_num BIGINT NOT NULL DEFAULT 0,"
	" err_code TEXT NOT NULL DEFAULT '',"
	" err_text TEXT NOT NULL DEFAULT '',"
	" created_ms BIGINT NOT NULL,"
	" finished_ms BIGINT NOT NULL DEFAULT 0)",
	"CREATE INDEX operations_unfinished ON operations (sandbox, id) WHERE state IN ('queued', 'claimed')",

	"CREATE TABLE audit ("
	" id " DIALECT_SERIAL ","
	" at_ms BIGINT NOT NULL,"
	" tenant TEXT NOT NULL,"
	" who TEXT NOT NULL,"
	" what TEXT NOT NULL,"
	" object TEXT NOT NULL,"
	" request_id TEXT NOT NULL)",
	NULL,
};

/* Tickets of terminals: used once, gone within minutes. */
static const char *const schema_tickets[] = {
	"CREATE TABLE terminal_tickets ("
	" hash TEXT PRIMARY KEY," /* SHA-256 of the ticket; the ticket itself is nowhere */
	" tenant TEXT NOT NULL,"
	" sandbox TEXT NOT NULL,"
	" until_ms BIGINT NOT NULL)",
	NULL,
};

/* Time-outs and what they do (C-3, C-9). */
static const char *const schema_life[] = {
	"ALTER TABLE sandboxes ADD COLUMN timeout_ms BIGINT NOT NULL DEFAULT 0",
	"ALTER TABLE sandboxes ADD COLUMN end_pauses BIGINT NOT NULL DEFAULT 0",
	"ALTER TABLE sandboxes ADD COLUMN auto_resume BIGINT NOT NULL DEFAULT 0",
	"ALTER TABLE sandboxes ADD COLUMN paused_ms BIGINT NOT NULL DEFAULT 0",
	/* What was asked for at the create is as good as known: nothing has changed an end since. */
	"UPDATE sandboxes SET timeout_ms = end_ms - created_ms WHERE end_ms > created_ms",
	/* The time that a resume gives; 0: the sandbox's own. */
	"ALTER TABLE operations ADD COLUMN timeout_ms BIGINT NOT NULL DEFAULT 0",
	"CREATE INDEX operations_by_sandbox ON operations (sandbox, finished_ms)",
	NULL,
};

/* Creates under a client's key (L-10). */
static const char *const schema_once[] = {
	"CREATE TABLE once ("
	" tenant TEXT NOT NULL,"
	" key TEXT NOT NULL,"
	" request TEXT NOT NULL,"
	" operation BIGINT NOT NULL REFERENCES operations (id),"
	" created_ms BIGINT NOT NULL,"
	" PRIMARY KEY (tenant, key))",
	"CREATE INDEX once_by_age ON once (created_ms)",
	"CREATE INDEX once_by_operation ON once (operation)",
	NULL,
};

/* The way out and the way in of a sandbox (S-3, K-5); what was made before had neither refused. */
static const char *const schema_network[] = {
	"ALTER TABLE sandboxes ADD COLUMN internet BIGINT NOT NULL DEFAULT 1",
	"ALTER TABLE sandboxes ADD COLUMN public_traffic BIGINT NOT NULL DEFAULT 1",
	NULL,
};

/* For store_purge; and for looking for work, which must not look at all that was ever done. */
static const char *const schema_purge[] = {
	"DROP TABLE audit",              /* nothing wrote it */
	"CREATE INDEX operations_open ON operations (id) WHERE state IN ('queued', 'claimed')",
	"CREATE INDEX operations_by_end ON operations (finished_ms) WHERE finished_ms > 0",
	"CREATE INDEX executions_by_end ON executions (ended_ms) WHERE ended_ms > 0",
	"CREATE INDEX sandboxes_by_delete ON sandboxes (deleted_ms) WHERE deleted_ms > 0",
	NULL,
};

static const char *const *const migrations[] = { schema_1,    schema_tickets, schema_life,
						 schema_once, schema_network, schema_purge };

static int schema_version(struct store *s, int64_t *ret, struct err *e)
{
	autorows struct db_rows q = { 0 };
	int r = db_query(s->db, e, &q, "SELECT COALESCE(MAX(version), 0) FROM schema_version");

	if (r == 0)
		r = db_next(&q, e);
	if (r <= 0)
		return r < 0 ? r : -EIO;
	*ret = db_int(&q, 0);
	return 0;
}

static int schema_apply(struct store *s, int64_t version, struct err *e)
{
	int64_t now;
	int r = store_now(s, &now, e);

	for (const char *const *sql = migrations[version - 1]; r >= 0 && *sql; sql++)
		r = db_exec(s->db, e, *sql);
	if (r >= 0)
		r = db_exec(s->db, e,
			    "INSERT INTO schema_version (version, applied_ms) VALUES ($1, $2)",
			    DB_INT(version), DB_INT(now));
	return r < 0 ? err_wrap(e, "schema version %lld", (long long)version) : 0;
}

int store_migrate_to(struct store *s, int64_t newest, struct err *e)
{
	autotx struct db_tx tx = { 0 };
	int64_t version;
	int r = schema_version(s, &version, NULL);       /* fails when there is no table yet */

	if (r == 0 && version == newest)
		return 0;
	r = db_begin(s->db, &tx, e);
	if (r < 0)
		return r;
	r = db_exec(
		s->db, e,
		"CREATE TABLE IF NOT EXISTS schema_version (version BIGINT PRIMARY KEY, applied_ms BIGINT NOT NULL)");
	if (r < 0)
		return r;
	r = schema_version(s, &version, e);
	if (r < 0)
		return r;
	if (version > newest)
		return err_set(
			e, -EPROTO,
			"the database has schema version %lld, this program knows %lld: use a newer one",
			(long long)version, (long long)newest);
	while (version < newest) {
		r = schema_apply(s, ++version, e);
		if (r < 0)
			return r;
	}
	return db_commit(&tx, e);
}

int store_migrate(struct store *s, struct err *e)
{
	return store_migrate_to(s, (int64_t)ARRAY_LEN(migrations), e);
}
