/*
 * The runtime records of this node (spec L-4, L-5, K-4): SQLite, WAL, synchronous=FULL, one row per
 * sandbox: its newest execution with the whole identity, its processes, its token. An execution is
 * announced only after its row was committed. A deleted sandbox leaves a row in state "none" for a
 * day, so that no late request revives it.
 *
 * The file is locked for as long as it is open. It is the one thing that tells two runs of
 * sbx-manager on a node apart: one that ends (its supervisor was killed) finishes its jobs first,
 * and the next one must not adopt, clear away or destroy anything before.
 *
 * The handle may be used by several threads (SQLite serialises them). Every call blocks.
 */
#ifndef SBX_MANAGER_RECORD_H
#define SBX_MANAGER_RECORD_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"
#include "identity/identity.h"
#include "ipc/nm_ops.h"
#include "state/state.h"

#define RECORD_REASON_MAX 160
#define RECORD_EVENTS_MAX 64                     /* kept per sandbox */
#define RECORD_EVENT_TEXT_MAX 200
#define RECORD_MARKS_MAX 64                      /* times of console text kept per sandbox */
#define RECORD_CONSOLE_MAX 65536                 /* bytes of console kept per sandbox */
#define RECORD_TOMBSTONE_MS (24 * 3600 * 1000)

struct record {
	struct identity id;
	enum life_state state;
	char template[NM_TEMPLATE_MAX + 1];
	char accel[8];
	uint64_t memory_mib, vcpus, disk_mib;
	struct nm_spawn_rep proc;                /* zero: no execution was spawned */
	struct nm_gateway_rep gateway;           /* the newest that was started for it; zero: none was */
	bool internet;                           /* it lets connections out */
	char guest_token[65];                    /* "" without an execution */
	char machine_id[33];
	int64_t installed_ms;                    /* when this generation began to serve; 0 = it never did */
	int64_t since_ms;                        /* of the state */
	char reason[RECORD_REASON_MAX];          /* of the last crash or failure; "" = none */
};

struct record_db;

int record_open(const char *path, struct record_db **ret, struct err *e);    /* waits for the end of another run; -EAGAIN */
void record_close(struct record_db *db);
/* Committed when it returns. A tombstone (state none) has no events and no console. */
int record_put(struct record_db *db, const struct record *r, struct err *e);
int record_get(struct record_db *db, const char *sandbox, struct record *ret, struct err *e);     /* tombstones too; -ENOENT */
int record_drop(struct record_db *db, const char *sandbox, struct err *e);
/* All rows that are not tombstones. Caller frees *ret. */
int record_list(struct record_db *db, struct record **ret, size_t *ret_n, struct err *e);
int record_purge(struct record_db *db, int64_t before_ms, struct err *e);                         /* tombstones of before */

int record_event_add(struct record_db *db, const char *sandbox, int64_t now_ms, const char *text,
		     struct err *e);
int record_events(struct record_db *db, const char *sandbox, json_t **ret, struct err *e);        /* [{"t","text"}], oldest first */
int record_console_add(struct record_db *db, const char *sandbox, const char *p, size_t n,
		       int64_t now_ms, struct err *e);
/* [{"t","bytes"}], oldest first: the last bytes of the console came with the last mark, and so on back. */
int record_console_marks(struct record_db *db, const char *sandbox, json_t **ret, struct err *e);
int record_console(struct record_db *db, const char *sandbox, char **ret, size_t *ret_n,
		   struct err *e); /* caller frees */

#endif
