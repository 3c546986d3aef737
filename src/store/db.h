/*
 * Inside store/: one connection to a database. Statements are prepared once per connection and
 * found by their text, which must be a literal. Errors: -EAGAIN busy, -EEXIST and -ENOENT
 * constraints (unique, foreign key), -ENOSPC, -EROFS, -EUCLEAN damaged, -EIO.
 */
#ifndef STORE_DB_H
#define STORE_DB_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

#define DB_BUSY_MS 10000
#define DB_WAL_BYTES_MAX (16 << 20)      /* of the log; then a commit waits a little for those who read in it */

struct db;
struct db_stmt;

struct db_arg { const char *s; int64_t i; };
#define DB_STR(v) (db_arg_str(v))
static inline struct db_arg db_arg_str(const char *s) { return (struct db_arg){ .s = s ? s : "" }; }
#define DB_INT(v) ((struct db_arg){ .i = (int64_t)(v) })

int db_open(const char *path, struct db **ret, struct err *e);
void db_close(struct db *db);
int db_now(struct db *db, int64_t *ret_ms, struct err *e);

/* Rows changed, or negative errno. db_exec(db, e, sql, DB_STR(a), DB_INT(b)) */
int db_exec_args(struct db *db, struct err *e, const char *sql, const struct db_arg *args,
		 size_t n);
#define DB_ARGS(...) ((const struct db_arg[]){ __VA_ARGS__ __VA_OPT__(,) DB_INT(0) })
#define DB_N_ARGS(...) (sizeof(DB_ARGS(__VA_ARGS__)) / sizeof(struct db_arg) - 1)
#define db_exec(db, e, sql, ...) db_exec_args((db), (e), (sql), DB_ARGS(__VA_ARGS__), DB_N_ARGS(__VA_ARGS__))

/* A running query; ends with its scope. Strings of a row live until the next db_next. */
struct db_rows { struct db *db; struct db_stmt *stmt; };
#define autorows __attribute__((cleanup(db_rows_end)))
void db_rows_end(struct db_rows *r);
int db_query_args(struct db *db, struct err *e, struct db_rows *ret, const char *sql,
		  const struct db_arg *args, size_t n);
#define db_query(db, e, ret, sql, ...) \
	db_query_args((db), (e), (ret), (sql), DB_ARGS(__VA_ARGS__), DB_N_ARGS(__VA_ARGS__))
int db_next(struct db_rows *r, struct err *e);           /* 1 = a row, 0 = end, negative errno */
const char *db_str(const struct db_rows *r, int col);    /* never NULL */
int64_t db_int(const struct db_rows *r, int col);

/*
 * A writing transaction: rolled back at the end of its scope unless it was committed.
 *	autotx struct db_tx tx = { 0 };
 *	r = db_begin(db, &tx, e); ... return db_commit(&tx, e);
 */
struct db_tx { struct db *db; };
#define autotx __attribute__((cleanup(db_tx_end)))
int db_begin(struct db *db, struct db_tx *ret, struct err *e);
int db_commit(struct db_tx *tx, struct err *e);          /* failpoints store.before-commit, store.after-commit */
void db_tx_end(struct db_tx *tx);

#endif
