/* Shared by the files of store/ alone. */
#ifndef STORE_INTERNAL_H
#define STORE_INTERNAL_H

#include "store/db.h"
#include "store/store.h"

#define STORE_ROWS_MAX 10000             /* of one list */

struct store { struct db *db; };

int store_migrate(struct store *s, struct err *e);
int store_migrate_to(struct store *s, int64_t newest, struct err *e);    /* an older version: for tests */

/* Room for one more in an array of n elements of `size` bytes; -ENOBUFS over STORE_ROWS_MAX. */
int store_grow(void **array, size_t n, size_t size, struct err *e);

#define autosandbox __attribute__((cleanup(store_sandbox_done)))
/* The row, locked in a transaction; deleted ones are -ENOENT. */
int sandbox_load(struct store *s, const char *id, const char *tenant, struct store_sandbox *ret,
		 struct err *e);
int sandbox_insert(struct store *s, const struct store_sandbox *b, int64_t now_ms, struct err *e);
int execution_insert(struct store *s, const struct store_sandbox *b, int64_t now_ms, struct err *e);
int execution_end(struct store *s, const char *sandbox, int64_t now_ms, struct err *e);
int sandbox_set(struct store *s, const char *id, enum life_state desired, enum life_state observed,
		const char *reason, struct err *e);
int sandbox_set_times(struct store *s, const char *id, int64_t end_ms, int64_t paused_ms,
		      struct err *e);
/*
 * 1: *ret is the newest unfinished operation of the sandbox (ret may be NULL), 0: none. except: an
 * id that does not count.
 */
int op_unfinished(struct store *s, const char *sandbox, int64_t except, struct store_op *ret,
		  struct err *e);

/* 1: *ret is the create that has this key (it goes on or is done); 0: the key is free. */
int once_find(struct store *s, const char *tenant, const struct store_once *once, int64_t now_ms,
	      struct store_op *ret, struct err *e);
int once_expire(struct store *s, int64_t now_ms, struct err *e);
int once_put(struct store *s, const char *tenant, const struct store_once *once,
	     const struct store_op *op, int64_t now_ms, struct err *e);

#endif
