#include "sbx-manager/record.h"

#include <assert.h>
#include <errno.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"

#define RECORD_BUSY_MS 20000     /* for the end of another run: longer than it may take (SBX_LEAVE_MS) */

struct record_db { sqlite3 *db; };

static const char record_schema[] =
	"PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;"
	"CREATE TABLE IF NOT EXISTS execution("
	" sandbox TEXT PRIMARY KEY, tenant TEXT NOT NULL, worker TEXT NOT NULL, substrate INTEGER NOT NULL,"
	" pod_uid TEXT NOT NULL, generation INTEGER NOT NULL, activation TEXT NOT NULL, attempt INTEGER NOT NULL,"
	" state TEXT NOT NULL, template TEXT NOT NULL, accel TEXT NOT NULL, memory_mib INTEGER NOT NULL,"
	" vcpus INTEGER NOT NULL, disk_mib INTEGER NOT NULL, slot INTEGER NOT NULL, vmm_uid INTEGER NOT NULL,"
	" bridge_uid INTEGER NOT NULL, vmm_pid INTEGER NOT NULL, vmm_start INTEGER NOT NULL, bridge_pid INTEGER NOT NULL,"
	" bridge_start INTEGER NOT NULL, init_pid INTEGER NOT NULL, init_start INTEGER NOT NULL,"
	" guest_token TEXT NOT NULL, machine_id TEXT NOT NULL, installed_ms INTEGER NOT NULL, since_ms INTEGER NOT NULL,"
	" reason TEXT NOT NULL) STRICT;"
	"CREATE TABLE IF NOT EXISTS event(id INTEGER PRIMARY KEY, sandbox TEXT NOT NULL, t_ms INTEGER NOT NULL, text TEXT NOT NULL) STRICT;"
	"CREATE INDEX IF NOT EXISTS event_sandbox ON event(sandbox, id);"
	"CREATE TABLE IF NOT EXISTS console(sandbox TEXT PRIMARY KEY, text BLOB NOT NULL) STRICT;"
	"CREATE TABLE IF NOT EXISTS console_mark(id INTEGER PRIMARY KEY, sandbox TEXT NOT NULL, t_ms INTEGER NOT NULL,"
	" bytes INTEGER NOT NULL) STRICT;"
	"CREATE INDEX IF NOT EXISTS console_mark_sandbox ON console_mark(sandbox, id);";

/* What came later, each once and in one transaction. The first is the schema as it was at first. */
static const char *const record_migrations[] = {
	"",
	"ALTER TABLE execution ADD COLUMN gateway_pid INTEGER NOT NULL DEFAULT 0;"
	"ALTER TABLE execution ADD COLUMN gateway_start INTEGER NOT NULL DEFAULT 0;"
	"ALTER TABLE execution ADD COLUMN gateway_uid INTEGER NOT NULL DEFAULT 0;"
	"ALTER TABLE execution ADD COLUMN internet INTEGER NOT NULL DEFAULT 1;",
};

/*
 * One table says what a column is and where it stands in struct record; the order is that of the
 * schema.
 */
enum column_kind {
	COL_STR,
	COL_U64,
	COL_I64,
	COL_BOOL,
	COL_STATE,
	COL_SUBSTRATE,
	COL_ACTIVATION
};
struct column { enum column_kind kind; size_t off, size; };
#define C_STR(f) { COL_STR, offsetof(struct record, f), sizeof(((struct record *)0)->f) }
#define C_U64(f) { COL_U64, offsetof(struct record, f), 8 }
#define C_I64(f) { COL_I64, offsetof(struct record, f), 8 }
#define C_BOOL(f) { COL_BOOL, offsetof(struct record, f), sizeof(bool) }

static const struct column record_columns[] = {
	C_STR(id.sandbox),
	C_STR(id.tenant),
	C_STR(id.worker),
	{ COL_SUBSTRATE, 0, 0 },
	C_STR(id.pod_uid),
	C_U64(id.generation),
	{ COL_ACTIVATION, 0, 0 },
	C_U64(id.attempt),
	{ COL_STATE, 0, 0 },
	C_STR(template),
	C_STR(accel),
	C_U64(memory_mib),
	C_U64(vcpus),
	C_U64(disk_mib),
	C_U64(proc.slot),
	C_U64(proc.vmm_uid),
	C_U64(proc.bridge_uid),
	C_U64(proc.vmm_pid),
	C_U64(proc.vmm_start),
	C_U64(proc.bridge_pid),
	C_U64(proc.bridge_start),
	C_U64(proc.init_pid),
	C_U64(proc.init_start),
	C_STR(guest_token),
	C_STR(machine_id),
	C_I64(installed_ms),
	C_I64(since_ms),
	C_STR(reason),
	C_U64(gateway.pid),
	C_U64(gateway.start),
	C_U64(gateway.uid),
	C_BOOL(internet),
};
#define RECORD_PARAMS "?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?"
static_assert(sizeof(RECORD_PARAMS) == 2 * ARRAY_LEN(record_columns), "one parameter per column");

static void record_finalize(sqlite3_stmt **st)
{
	sqlite3_finalize(*st);
}
#define autostmt __attribute__((cleanup(record_finalize)))

static int record_fail(struct record_db *db, struct err *e)
{
	int code = sqlite3_errcode(db->db);
	int num = code == SQLITE_FULL ? -ENOSPC : code == SQLITE_BUSY ? -EAGAIN : -EIO;

	return err_set(e, num, "The node's records cannot be used: %s.", sqlite3_errmsg(db->db));
}

static int record_prepare(struct record_db *db, const char *sql, sqlite3_stmt **ret, struct err *e)
{
	return sqlite3_prepare_v2(db->db, sql, -1, ret, NULL) == SQLITE_OK ? 0 : record_fail(db, e);
}

static int record_run(struct record_db *db, sqlite3_stmt *st, struct err *e)
{
	return sqlite3_step(st) == SQLITE_DONE ? 0 : record_fail(db, e);
}

static int record_version(struct record_db *db, size_t *ret, struct err *e)
{
	autostmt sqlite3_stmt *st = NULL;
	int r = record_prepare(db, "PRAGMA user_version", &st, e);

	if (r < 0)
		return r;
	if (sqlite3_step(st) != SQLITE_ROW)
		return record_fail(db, e);
	*ret = (size_t)sqlite3_column_int64(st, 0);
	return 0;
}

static int record_migrate(struct record_db *db, struct err *e)
{
	size_t version = 0;
	int r = record_version(db, &version, e);

	if (r == 0 && version > ARRAY_LEN(record_migrations))
		return err_set(e, -EPROTO,
			       "The node's records are of version %zu, this program knows %zu: use a newer one.",
			       version, ARRAY_LEN(record_migrations));
	for (; r == 0 && version < ARRAY_LEN(record_migrations); version++) {
		autofree char *sql = x_asprintf("BEGIN IMMEDIATE; %s PRAGMA user_version=%zu; COMMIT;",
						record_migrations[version], version + 1);

		if (sqlite3_exec(db->db, sql, NULL, NULL, NULL) != SQLITE_OK)
			r = record_fail(db, e);
	}
	return r;
}

int record_open(const char *path, struct record_db **ret, struct err *e)
{
	struct record_db *db = x_alloc(sizeof(*db));
	int r;

	if (sqlite3_open_v2(path, &db->db,
			    SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX,
			    NULL) != SQLITE_OK ||
	    sqlite3_busy_timeout(db->db, RECORD_BUSY_MS) != SQLITE_OK ||
	    sqlite3_exec(db->db, record_schema, NULL, NULL, NULL) != SQLITE_OK)
		r = record_fail(db, e);
	else
		r = record_migrate(db, e);
	if (r < 0) {

		record_close(db);
		err_wrap(e, "%s", path);
		return r;
	}
	*ret = db;
	return 0;
}

void record_close(struct record_db *db)
{
	if (!db)
		return;
	sqlite3_close(db->db);
	free(db);
}

static void record_bind(sqlite3_stmt *st, int i, const struct column *c, const struct record *r)
{
	const char *p = (const char *)r + c->off;
	char hex[ID_ACTIVATION_HEX + 1];

	switch (c->kind) {
	case COL_STR:
		sqlite3_bind_text(st, i, p, -1, SQLITE_TRANSIENT);
		break;
	case COL_U64:
	case COL_I64:
		sqlite3_bind_int64(st, i, *(const int64_t *)p);
		break;
	case COL_BOOL:
		sqlite3_bind_int64(st, i, *(const bool *)p);
		break;
	case COL_STATE:
		sqlite3_bind_text(st, i, life_state_names[r->state], -1, SQLITE_STATIC);
		break;
	case COL_SUBSTRATE:
		sqlite3_bind_int64(st, i, r->id.substrate);
		break;
	case COL_ACTIVATION:
		str_hex(hex, r->id.activation, ID_ACTIVATION_BYTES);
		sqlite3_bind_text(st, i, hex, -1, SQLITE_TRANSIENT);
		break;
	}
}

/* A row that cannot be read as it was written is an error, not a guess. */
static int record_column(sqlite3_stmt *st, int i, const struct column *c, struct record *r)
{
	const char *text = c->kind == COL_U64 || c->kind == COL_I64 || c->kind == COL_BOOL ||
					   c->kind == COL_SUBSTRATE
				   ? ""
				   : (const char *)sqlite3_column_text(st, i);
	char *p = (char *)r + c->off;

	if (!text)
		return -EBADMSG;
	switch (c->kind) {
	case COL_STR:
		return str_copy(p, c->size, text);
	case COL_U64:
	case COL_I64:
		*(int64_t *)p = sqlite3_column_int64(st, i);
		return 0;
	case COL_BOOL:
		*(bool *)p = sqlite3_column_int64(st, i) != 0;
		return 0;
	case COL_STATE:
		return life_state_of(text, &r->state);
	case COL_SUBSTRATE:
		r->id.substrate = (enum id_substrate)sqlite3_column_int64(st, i);
		return r->id.substrate < ID_SUBSTRATE_COUNT ? 0 : -EBADMSG;
	case COL_ACTIVATION:
		return str_unhex(r->id.activation, ID_ACTIVATION_BYTES, text);
	}
	return -EBADMSG;
}

static int record_row(sqlite3_stmt *st, struct record *ret, struct err *e)
{
	*ret = (struct record){ 0 };
	for (unsigned i = 0; i < ARRAY_LEN(record_columns); i++) {
		if (record_column(st, (int)i, &record_columns[i], ret) < 0)
			return err_set(e, -EBADMSG, "A runtime record is damaged (column %u).", i);
	}
	return 0;
}

/* A statement with a sandbox and maybe one number. */
static int record_exec(struct record_db *db, const char *sql, const char *sandbox, int64_t v,
		       struct err *e)
{
	autostmt sqlite3_stmt *st = NULL;
	int r = record_prepare(db, sql, &st, e);

	if (r < 0)
		return r;
	if (sandbox)
		sqlite3_bind_text(st, 1, sandbox, -1, SQLITE_STATIC);
	if (sqlite3_bind_parameter_count(st) > (sandbox ? 1 : 0))
		sqlite3_bind_int64(st, sandbox ? 2 : 1, v);
	return record_run(db, st, e);
}

static int record_forget_texts(struct record_db *db, const char *sandbox, struct err *e)
{
	int r = record_exec(db, "DELETE FROM event WHERE sandbox=?", sandbox, 0, e);

	if (r == 0)
		r = record_exec(db, "DELETE FROM console_mark WHERE sandbox=?", sandbox, 0, e);
	return r < 0 ? r : record_exec(db, "DELETE FROM console WHERE sandbox=?", sandbox, 0, e);
}

int record_put(struct record_db *db, const struct record *r, struct err *e)
{
	autostmt sqlite3_stmt *st = NULL;
	int n = record_prepare(db, "INSERT OR REPLACE INTO execution VALUES(" RECORD_PARAMS ")",
			       &st, e);

	if (n < 0)
		return n;
	for (unsigned i = 0; i < ARRAY_LEN(record_columns); i++)
		record_bind(st, (int)i + 1, &record_columns[i], r);
	n = record_run(db, st, e);
	/* What the guest said goes with its sandbox, not at the next start of this program. */
	return n == 0 && r->state == LIFE_NONE ? record_forget_texts(db, r->id.sandbox, e) : n;
}

int record_get(struct record_db *db, const char *sandbox, struct record *ret, struct err *e)
{
	autostmt sqlite3_stmt *st = NULL;
	int r = record_prepare(db, "SELECT * FROM execution WHERE sandbox=?", &st, e);

	if (r < 0)
		return r;
	sqlite3_bind_text(st, 1, sandbox, -1, SQLITE_STATIC);
	r = sqlite3_step(st);
	if (r == SQLITE_DONE)
		return err_set_code(e, -ENOENT, "sandbox-not-found", "This node has no sandbox %s.",
				    sandbox);
	return r == SQLITE_ROW ? record_row(st, ret, e) : record_fail(db, e);
}

int record_list(struct record_db *db, struct record **ret, size_t *ret_n, struct err *e)
{
	autostmt sqlite3_stmt *st = NULL;
	autofree struct record *v = NULL;
	size_t n = 0;
	int r = record_prepare(
		db, "SELECT * FROM execution WHERE state<>'none' ORDER BY installed_ms, sandbox",
		&st, e);

	while (r == 0 && (r = sqlite3_step(st)) == SQLITE_ROW) {
		if ((n & (n - 1)) == 0)
			v = x_realloc(v, (n ? 2 * n : 1) * sizeof(*v));
		r = record_row(st, &v[n++], e);
	}
	if (r != SQLITE_DONE)
		return r < 0 ? r : record_fail(db, e);
	*ret = TAKE(v);
	*ret_n = n;
	return 0;
}

int record_drop(struct record_db *db, const char *sandbox, struct err *e)
{
	int r = record_exec(db, "DELETE FROM execution WHERE sandbox=?", sandbox, 0, e);

	return r < 0 ? r : record_forget_texts(db, sandbox, e);
}

int record_purge(struct record_db *db, int64_t before_ms, struct err *e)
{
	int r = record_exec(db, "DELETE FROM execution WHERE state='none' AND since_ms<?", NULL,
			    before_ms, e);

	if (r == 0)
		r = record_exec(
			db,
			"DELETE FROM event WHERE sandbox NOT IN (SELECT sandbox FROM execution WHERE state<>'none')",
			NULL, 0, e);
	if (r == 0)
		r = record_exec(
			db,
			"DELETE FROM console_mark WHERE sandbox NOT IN (SELECT sandbox FROM execution WHERE state<>'none')",
			NULL, 0, e);
	if (r == 0)
		r = record_exec(
			db,
			"DELETE FROM console WHERE sandbox NOT IN (SELECT sandbox FROM execution WHERE state<>'none')",
			NULL, 0, e);
	return r;
}

int record_event_add(struct record_db *db, const char *sandbox, int64_t now_ms, const char *text,
		     struct err *e)
{
	autostmt sqlite3_stmt *st = NULL;
	char cut[RECORD_EVENT_TEXT_MAX];
	int r = record_prepare(db, "INSERT INTO event(sandbox, t_ms, text) VALUES(?,?,?)", &st, e);

	if (r < 0)
		return r;
	str_copy(cut, sizeof(cut), text);
	sqlite3_bind_text(st, 1, sandbox, -1, SQLITE_STATIC);
	sqlite3_bind_int64(st, 2, now_ms);
	sqlite3_bind_text(st, 3, cut, -1, SQLITE_STATIC);
	r = record_run(db, st, e);
	if (r < 0)
		return r;
	return record_exec(
		db,
		"DELETE FROM event WHERE sandbox=?1 AND id<=(SELECT id FROM event WHERE sandbox=?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
		sandbox, RECORD_EVENTS_MAX, e);
}

int record_events(struct record_db *db, const char *sandbox, json_t **ret, struct err *e)
{
	autostmt sqlite3_stmt *st = NULL;
	json_t *a = json_array();
	int r = record_prepare(db, "SELECT t_ms, text FROM event WHERE sandbox=? ORDER BY id", &st,
			       e);

	if (r == 0)
		sqlite3_bind_text(st, 1, sandbox, -1, SQLITE_STATIC);
	while (r == 0 && sqlite3_step(st) == SQLITE_ROW)
		json_array_append_new(a, json_pack("{s:I, s:s}", "t",
						   (json_int_t)sqlite3_column_int64(st, 0), "text",
						   (const char *)sqlite3_column_text(st, 1)));
	if (r < 0) {
		json_decref(a);
		return r;
	}
	*ret = a;
	return 0;
}

int record_console(struct record_db *db, const char *sandbox, char **ret, size_t *ret_n,
		   struct err *e)
{
	autostmt sqlite3_stmt *st = NULL;
	int r = record_prepare(db, "SELECT text FROM console WHERE sandbox=?", &st, e);

	if (r < 0)
		return r;
	sqlite3_bind_text(st, 1, sandbox, -1, SQLITE_STATIC);
	r = sqlite3_step(st);
	if (r != SQLITE_ROW && r != SQLITE_DONE)
		return record_fail(db, e);
	*ret_n = r == SQLITE_ROW ? (size_t)sqlite3_column_bytes(st, 0) : 0;
	*ret = x_alloc(*ret_n + 1);
	if (*ret_n)
		memcpy(*ret, sqlite3_column_blob(st, 0), *ret_n);
	return 0;
}

int record_console_marks(struct record_db *db, const char *sandbox, json_t **ret, struct err *e)
{
	autostmt sqlite3_stmt *st = NULL;
	json_t *a = json_array();
	int r = record_prepare(
		db, "SELECT t_ms, bytes FROM console_mark WHERE sandbox=? ORDER BY id", &st, e);

	if (r == 0)
		sqlite3_bind_text(st, 1, sandbox, -1, SQLITE_STATIC);
	while (r == 0 && sqlite3_step(st) == SQLITE_ROW)
		json_array_append_new(a, json_pack("{s:I, s:I}", "t",
						   (json_int_t)sqlite3_column_int64(st, 0), "bytes",
						   (json_int_t)sqlite3_column_int64(st, 1)));
	if (r < 0) {
		json_decref(a);
		return r;
	}
	*ret = a;
	return 0;
}

/* When what was read was read: the console itself has no clock. */
static int record_mark_add(struct record_db *db, const char *sandbox, size_t n, int64_t now_ms,
			   struct err *e)
{
	autostmt sqlite3_stmt *st = NULL;
	int r = record_prepare(
		db, "INSERT INTO console_mark(sandbox, t_ms, bytes) VALUES(?,?,?)", &st, e);

	if (r < 0)
		return r;
	sqlite3_bind_text(st, 1, sandbox, -1, SQLITE_STATIC);
	sqlite3_bind_int64(st, 2, now_ms);
	sqlite3_bind_int64(st, 3, (sqlite3_int64)n);
	r = record_run(db, st, e);
	if (r < 0)
		return r;
	return record_exec(
		db,
		"DELETE FROM console_mark WHERE sandbox=?1 AND id<=(SELECT id FROM console_mark WHERE sandbox=?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
		sandbox, RECORD_MARKS_MAX, e);
}

int record_console_add(struct record_db *db, const char *sandbox, const char *p, size_t n,
		       int64_t now_ms, struct err *e)
{
	autostmt sqlite3_stmt *st = NULL;
	autofree char *old = NULL;
	size_t n_old = 0, skip;
	int r;

	if (n == 0)
		return 0;
	r = record_console(db, sandbox, &old, &n_old, e);
	if (r == 0)
		r = record_prepare(db, "INSERT OR REPLACE INTO console VALUES(?,?)", &st, e);
	if (r < 0)
		return r;
	old = x_realloc(old, n_old + n);
	memcpy(old + n_old, p, n);
	n += n_old;
	skip = n > RECORD_CONSOLE_MAX ? n - RECORD_CONSOLE_MAX : 0;
	sqlite3_bind_text(st, 1, sandbox, -1, SQLITE_STATIC);
	sqlite3_bind_blob(st, 2, old + skip, (int)(n - skip), SQLITE_STATIC);
	r = record_run(db, st, e);
	return r < 0 ? r : record_mark_add(db, sandbox, n - n_old, now_ms, e);
}
