/*
 * Where the two databases differ; everything else in store/ is SQL that SQLite 3.35 and PostgreSQL
 * 12 take alike (upsert, RETURNING, partial indexes, $n parameters). Who adds a database adds a
 * column here and a db_*.c.
 *
 *	                        SQLite                                   PostgreSQL
 *	a growing number        INTEGER PRIMARY KEY AUTOINCREMENT        BIGSERIAL PRIMARY KEY
 *	writing transaction     BEGIN IMMEDIATE (one writer at a time)   BEGIN, and FOR UPDATE [SKIP LOCKED] on the rows read
 *	the database's clock    the clock of the process (embedded)      extract(epoch from clock_timestamp()) * 1000
 */
#ifndef STORE_DIALECT_H
#define STORE_DIALECT_H

#define DIALECT_SERIAL "INTEGER PRIMARY KEY AUTOINCREMENT"
#define DIALECT_BEGIN "BEGIN IMMEDIATE"
#define DIALECT_LOCK_ROW ""              /* " FOR UPDATE" */
#define DIALECT_SKIP_LOCKED ""           /* " FOR UPDATE SKIP LOCKED" */

#endif
