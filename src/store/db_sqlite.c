#include "store/db.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/str.h"
#include "store/dialect.h"

#define DB_STMTS_MAX 128                 /* as many literals as store/ has, and room */
#define DB_WAL_TRIES 200                 /* of 20 ms */
#define DB_WAL_PAGES 1000                /* SQLite's own mark */
#define DB_WAL_WAIT_MS 200
#define DB_PAGE_BYTES 4096

struct db_stmt { const char *sql; sqlite3_stmt *st; };

struct db {
	sqlite3 *sq;
	struct db_stmt stmts[DB_STMTS_MAX];
	unsigned n_stmts;
};

static int db_errno(int code)
{
	static const struct { int code, num; } map[] = {
		{ SQLITE_CONSTRAINT_UNIQUE, -EEXIST },
		{ SQLITE_CONSTRAINT_PRIMARYKEY, -EEXIST },
		{ SQLITE_CONSTRAINT_ROWID, -EEXIST },
		{ SQLITE_CONSTRAINT_FOREIGNKEY, -ENOENT },
		{ SQLITE_CONSTRAINT, -EINVAL },
		{ SQLITE_BUSY, -EAGAIN },
		{ SQLITE_LOCKED, -EAGAIN },
		{ SQLITE_FULL, -ENOSPC },
		{ SQLITE_READONLY, -EROFS },
		{ SQLITE_PERM, -EACCES },
		{ SQLITE_AUTH, -EACCES },
		{ SQLITE_CANTOPEN, -EACCES },
		{ SQLITE_CORRUPT, -EUCLEAN },
		{ SQLITE_NOTADB, -EUCLEAN },
		{ SQLITE_NOMEM, -ENOMEM },
		{ SQLITE_TOOBIG, -E2BIG },
	};

	for (size_t i = 0; i < ARRAY_LEN(map); i++)
		if (map[i].code == code)
			return map[i].num;
	for (size_t i = 0; i < ARRAY_LEN(map); i++)
		if (map[i].code == (code & 0xff))
			return map[i].num;
	return -EIO;
}

static int db_fail(struct db *db, struct err *e)
{
	return err_set(e, db_errno(sqlite3_extended_errcode(db->sq)), "database: %s",
		       sqlite3_errmsg(db->sq));
}

static int db_script(struct db *db, const char *sql, struct err *e)
{
	return sqlite3_exec(db->sq, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : db_fail(db, e);
}

/*
 * The change to WAL does not wait for other connections as other statements do
 * (sqlite3_busy_timeout).
 */
static int db_wal(struct db *db, struct err *e)
{
	int r = -EAGAIN;

	for (int i = 0; i < DB_WAL_TRIES && r == -EAGAIN; i++) {
		if (i > 0)
			poll(NULL, 0, 20);
		r = db_script(db, "PRAGMA journal_mode = WAL", e);
	}
	return r;
}

/*
 * After a commit. What SQLite does by itself (the passive form) begins the log anew only in a moment
 * in which nobody reads; where reads follow each other without a gap that never comes, and the log
 * grows without end. So a large one makes new readers use the file and waits for the old ones.
 */
static int db_wal_grew(void *arg, sqlite3 *sq, const char *name, int pages)
{
	bool large = pages >= DB_WAL_BYTES_MAX / DB_PAGE_BYTES;

	if (pages < DB_WAL_PAGES)
		return SQLITE_OK;
	sqlite3_busy_timeout(sq, large ? DB_WAL_WAIT_MS : 0);
	sqlite3_wal_checkpoint_v2(
		sq, name, large ? SQLITE_CHECKPOINT_RESTART : SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
	sqlite3_busy_timeout(sq, DB_BUSY_MS);
	return SQLITE_OK;                /* the commit is done, whatever came of this */
}

/*
 * SQLite would make the file 0644; several users of one group share it, so the umask alone decides.
 * Only a new file is opened here: closing a descriptor of the file would drop the locks that other
 * connections of this process hold (fcntl(2), advisory record locking).
 */
static int db_make_file(const char *path, struct err *e)
{
	autoclose int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0660);

	if (fd < 0 && errno != EEXIST)
		return err_errno(e, -errno, "database %s", path);
	return 0;
}

/*
 * The file lies in a folder of a service, and root opens it too: what the service puts there as a
 * link is not followed. SQLite looks at the whole path, and a folder above may well be a link.
 */
static char *db_real_path(const char *path)
{
	const char *slash = strrchr(path, '/');
	autofree char *dir =
		slash ? x_strndup(path, slash == path ? 1 : (size_t)(slash - path)) : x_strdup(".");
	autofree char *real = realpath(dir, NULL);

	return real ? x_asprintf("%s/%s", real, slash ? slash + 1 : path) : NULL;
}

int db_open(const char *path, struct db **ret, struct err *e)
{
	struct db *db = x_alloc(sizeof(*db));
	autofree char *real = db_real_path(path);
	int r = real ? db_make_file(real, e) : err_errno(e, -errno, "database");

	if (r == 0 &&
	    sqlite3_open_v2(real, &db->sq,
			    SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW,
			    NULL) != SQLITE_OK)
		r = db_fail(db, e);
	if (r == 0) {
		sqlite3_extended_result_codes(db->sq, 1);
		sqlite3_busy_timeout(db->sq, DB_BUSY_MS);
		r = db_script(db, "PRAGMA trusted_schema = OFF; PRAGMA foreign_keys = ON;"
			      "PRAGMA cache_size = -256", e);     /* KiB: each worker thread has its own, and the kernel has the file */
	}
	if (r == 0)
		r = db_wal(db, e);
	if (r == 0)
		r = db_script(db, "PRAGMA synchronous = FULL", e);
	if (r == 0)
		sqlite3_wal_hook(db->sq, db_wal_grew, NULL);
	if (r < 0) {
		db_close(db);
		return err_wrap(e, "%s", path) < 0 ? e->num : r;
	}
	*ret = db;
	return 0;
}

void db_close(struct db *db)
{
	if (!db)
		return;
	for (unsigned i = 0; i < db->n_stmts; i++)
		sqlite3_finalize(db->stmts[i].st);
	sqlite3_close(db->sq);
	free(db);
}

int db_now(struct db *db, int64_t *ret_ms, struct err *e)
{
	*ret_ms = clock_wall_ms();
	return 0;
}

static int db_prepare(struct db *db, const char *sql, struct db_stmt **ret, struct err *e)
{
	struct db_stmt *s;

	for (unsigned i = 0; i < db->n_stmts; i++) {
		if (db->stmts[i].sql == sql) {
			*ret = &db->stmts[i];
			return 0;
		}
	}
	assert(db->n_stmts < DB_STMTS_MAX);
	s = &db->stmts[db->n_stmts];
	if (sqlite3_prepare_v3(db->sq, sql, -1, SQLITE_PREPARE_PERSISTENT, &s->st, NULL) !=
	    SQLITE_OK)
		return db_fail(db, e);
	s->sql = sql;
	db->n_stmts++;
	*ret = s;
	return 0;
}

static int db_start(struct db *db, struct err *e, const char *sql, const struct db_arg *args,
		    size_t n, struct db_stmt **ret)
{
	struct db_stmt *s = NULL;
	int r = db_prepare(db, sql, &s, e);

	if (r < 0)
		return r;
	assert(!sqlite3_stmt_busy(s->st));
	assert((size_t)sqlite3_bind_parameter_count(s->st) == n);
	for (size_t i = 0; i < n; i++) {
		char name[8];
		int at;

		str_format(name, sizeof(name), "$%zu", i + 1);
		at = sqlite3_bind_parameter_index(s->st, name);
		assert(at > 0);
		if ((args[i].s ? sqlite3_bind_text(s->st, at, args[i].s, -1, SQLITE_TRANSIENT) :
				 sqlite3_bind_int64(s->st, at, args[i].i)) != SQLITE_OK)
			return db_fail(db, e);
	}
	*ret = s;
	return 0;
}

int db_exec_args(struct db *db, struct err *e, const char *sql, const struct db_arg *args, size_t n)
{
	struct db_stmt *s;
	int r = db_start(db, e, sql, args, n, &s);

	if (r < 0)
		return r;
	r = sqlite3_step(s->st) == SQLITE_DONE ? sqlite3_changes(db->sq) : db_fail(db, e);
	sqlite3_reset(s->st);
	sqlite3_clear_bindings(s->st);
	return r;
}

int db_query_args(struct db *db, struct err *e, struct db_rows *ret, const char *sql,
		  const struct db_arg *args, size_t n)
{
	struct db_stmt *s;
	int r = db_start(db, e, sql, args, n, &s);

	if (r == 0)
		*ret = (struct db_rows){ .db = db, .stmt = s };
	return r;
}

int db_next(struct db_rows *r, struct err *e)
{
	int code = sqlite3_step(r->stmt->st);

	return code == SQLITE_ROW ? 1 : code == SQLITE_DONE ? 0 : db_fail(r->db, e);
}

void db_rows_end(struct db_rows *r)
{
	if (!r->stmt)
		return;
	sqlite3_reset(r->stmt->st);
	sqlite3_clear_bindings(r->stmt->st);
	r->stmt = NULL;
}

const char *db_str(const struct db_rows *r, int col)
{
	const char *s = (const char *)sqlite3_column_text(r->stmt->st, col);

	return s ? s : "";
}

int64_t db_int(const struct db_rows *r, int col)
{
	return sqlite3_column_int64(r->stmt->st, col);
}

int db_begin(struct db *db, struct db_tx *ret, struct err *e)
{
	int r = db_exec(db, e, DIALECT_BEGIN);

	if (r < 0)
		return r;
	ret->db = db;
	return 0;
}

int db_commit(struct db_tx *tx, struct err *e)
{
	int r = FAULT("store.before-commit");

	if (r < 0)
		return err_errno(e, r, "database: commit");
	r = db_exec(tx->db, e, "COMMIT");
	if (r < 0)
		return r;
	tx->db = NULL;
	r = FAULT("store.after-commit");
	return r < 0 ? err_errno(e, r, "database: after the commit") : 0;
}

void db_tx_end(struct db_tx *tx)
{
	if (tx->db)
		db_exec(tx->db, NULL, "ROLLBACK");
	tx->db = NULL;
}
