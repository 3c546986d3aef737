/*
 * The shared database (L-2): SQLite (embedded, WAL, synchronous=FULL) behind an interface that
 * PostgreSQL fits. All calls block: worker threads only; a handle belongs to one thread. Every call
 * that changes something is one transaction. Times are Unix milliseconds of the database's clock
 * (store_now).
 */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "identity/identity.h"
#include "state/state.h"

#define STORE_JSON_MAX 65536
#define STORE_LEASE_MS 15000

struct store;

int store_open(const char *url, struct store **ret, struct err *e);     /* "sqlite:/path"; makes and migrates the schema */
void store_close(struct store *s);
int store_now(struct store *s, int64_t *ret_ms, struct err *e);

/*
 * Tenants and API keys. The key is stored as SHA-256 (hex); its first 12 characters are kept for
 * lists.
 */
struct store_key {
	char id[ID_UUID_LEN + 1];
	char tenant[ID_TENANT_MAX + 1];
	char prefix[13];
	char name[65];
	int64_t created_ms;
	int64_t revoked_ms;
};
int store_key_add(struct store *s, const char *tenant, const char *name, const char *key_hash_hex,
		  const char *prefix, struct store_key *ret, struct err *e); /* makes the tenant */
int store_key_find(struct store *s, const char *key_hash_hex, struct store_key *ret, struct err *e);      /* -ENOENT: unknown or revoked */
int store_key_list(struct store *s, const char *tenant /* "" = all */, struct store_key **ret, size_t *ret_n, struct err *e);   /* caller frees */
int store_key_revoke(struct store *s, const char *id, struct err *e);

/* Nodes. */
struct store_node {
	char worker[ID_UUID_LEN + 1];
	char addr[200];
	uint64_t bundle;
	int64_t seen_ms;
	char report[4096];
};
int store_node_put(struct store *s, const char *worker, const char *addr, struct err *e);
int store_node_seen(struct store *s, const char *worker, uint64_t bundle, const char *report_json,
		    struct err *e);
int store_node_list(struct store *s, struct store_node **ret, size_t *ret_n, struct err *e);

/* Key bundle, signed by the root key. */
int store_bundle_put(struct store *s, uint64_t number, const char *text, struct err *e);    /* -ESTALE unless number is the highest */
int store_bundle_get(struct store *s, uint64_t *ret_number, char **ret_text, struct err *e); /* newest; -ENOENT */

/* Templates: names to ids; one row per name and tenant ("" = everyone's). */
int store_template_put(struct store *s, const char *tenant, const char *name, const char *id,
		       const char *manifest_json, struct err *e);
int store_template_find(struct store *s, const char *tenant, const char *name_or_id, char id[64],
			char name[64], char **ret_manifest, struct err *e);

struct store_sandbox {
	char id[ID_SANDBOX_LEN + 1], tenant[ID_TENANT_MAX + 1], template[64], template_name[64];
	enum life_state desired, observed;
	char reason[128];                /* of the last crash or failure, "" = none */
	uint64_t generation;             /* of the newest execution */
	char worker[ID_UUID_LEN + 1];
	uint8_t activation[ID_ACTIVATION_BYTES];
	uint64_t attempt;
	uint64_t memory_mib, vcpus, disk_mib;
	int64_t created_ms, started_ms;
	int64_t end_ms;                  /* 0 = never; a paused sandbox's time stands still: 0 too */
	int64_t timeout_ms;              /* as asked at the create: of a resume that says none; 0 = none */
	bool end_pauses;                 /* at its end it is paused, not deleted */
	bool auto_resume;                /* a request for it wakes it when it is paused */
	int64_t paused_ms;               /* since when it is paused; 0 = it is not */
	bool internet;                   /* its gateway lets connections out (allow_internet_access); a create sets it */
	bool public_traffic;             /* its ports need no traffic token (network.allowPublicTraffic); a create sets it */
	char *metadata, *env, *options;              /* JSON objects, owned (store_sandbox_done); options: the create request's other values as answered in details */
};
void store_sandbox_done(struct store_sandbox *b);
void store_sandbox_identity(const struct store_sandbox *b, struct identity *ret);
int store_sandbox_get(struct store *s, const char *id, const char *tenant /* "" = any */, struct store_sandbox *ret, struct err *e);     /* -ENOENT for another tenant's too */
#define STORE_CURSOR_MAX 64
void store_cursor(const struct store_sandbox *b, char dst[STORE_CURSOR_MAX]);    /* a list that goes on behind b */
/*
 * state_csv: names of observed states, "" or NULL = all; limit 0 = 100, at most 1000;
 * expired_before_ms 0 = all, else those whose end_ms is set and before it.
 */
struct store_list {
	const char *tenant;
	const char *state_csv;
	const char *cursor;
	unsigned limit;
	bool newest_first;
	int64_t expired_before_ms;
};
/*
 * next_cursor "" = last page. Caller: store_sandbox_done on each, then free. A cursor that no list
 * gave: -EINVAL.
 */
int store_sandbox_list(struct store *s, const struct store_list *q, struct store_sandbox **ret,
		       size_t *ret_n, char next_cursor[64], struct err *e);
bool store_cursor_ok(const char *cursor);
/*
 * IDs alone of all tenants, newest first, behind `cursor` ("" = from the start), which is moved on;
 * at most `max` of them, fewer at the end.
 */
int store_sandbox_ids(struct store *s, char cursor[STORE_CURSOR_MAX], unsigned max,
		      char (*ids)[ID_SANDBOX_LEN + 1], size_t *ret_n, struct err *e);
/*
 * What the node reports: running, paused or stopped (reason: "crashed", "guest-off",
 * "guest-reboot"). Dropped with -ESTALE when the generation is not the row's, with -EBUSY while an
 * operation is unfinished (that one decides). An execution that ended by itself is not wanted back:
 * `desired` follows. asked_ms: when the node was asked (INT64_MAX: just now); what was asked before
 * the last operation ended tells of the time before it: -ESTALE.
 */
int store_sandbox_observed(struct store *s, const char *id, uint64_t generation,
			   enum life_state state, const char *reason, int64_t asked_ms,
			   struct err *e);
int store_sandbox_set_end(struct store *s, const char *id, int64_t end_ms, struct err *e);
int store_set_end_pauses(struct store *s, const char *id, const char *tenant, bool end_pauses,
			 struct err *e);
/*
 * The end becomes now + timeout_ms (0 = at once), with only_extend not earlier than it is. Of a
 * sandbox whose time does not run (paused, stopped, on the way there): -EBUSY with code
 * "not-running".
 */
int store_set_timeout(struct store *s, const char *id, const char *tenant /* "" = any */,
		      int64_t timeout_ms, bool only_extend, struct err *e);

/*
 * Operations: every change is first a row (L-10). One unfinished row per sandbox is claimable: the
 * oldest.
 */
enum store_op_state {
	STORE_OP_QUEUED,
	STORE_OP_CLAIMED,
	STORE_OP_DONE,
	STORE_OP_FAILED,
	STORE_OP_STATE_COUNT
};
struct store_op {
	int64_t id;
	char sandbox[ID_SANDBOX_LEN + 1], tenant[ID_TENANT_MAX + 1];
	enum life_event kind;            /* LIFE_EV_CREATE, START, STOP, DELETE, PAUSE, RESUME */
	int64_t timeout_ms;              /* of a resume: the time from then on; 0 = the sandbox's own */
	uint64_t generation;             /* that it was decided for */
	enum store_op_state state;
	char claimer[64]; int64_t lease_until_ms; unsigned tries;
	char request_id[65];
	char err_code[ERR_CODE_MAX], err_text[ERR_TEXT_MAX]; int err_num;
};
/*
 * Inserts the sandbox, its first execution (generation 1, activation from b) and the claimed
 * operation in one transaction. 0: created.
 *
 * once: under a key of the client's (Idempotency-Key), which is kept for STORE_ONCE_MS; NULL: none.
 * 1: a create with this key and this request goes on or is done; *ret is its operation, nothing was
 * written. Another request: -EEXIST "idempotency-request-mismatch". A create that failed has given
 * its key back.
 */
#define STORE_ONCE_MS (24 * 3600 * 1000ll)
struct store_once {
	const char *key;
	char request[65];                /* hash of the request, hex */
};
int store_create(struct store *s, const struct store_sandbox *b, const struct store_once *once,
		 const char *claimer, const char *request_id, struct store_op *ret, struct err *e);
int store_once_forget(struct store *s, const char *sandbox, struct err *e);  /* its create's key is free again */
/*
 * What is over is kept for STORE_KEEP_MS, for those who still ask: finished operations, executions
 * that have ended, rows of deleted sandboxes. Longer than a client's key, so a key always finds its
 * operation. Removes at most `max` rows of each; > 0: there may be more. (An ID that is forgotten
 * so is not used again either: it is random.)
 */
#define STORE_KEEP_MS (7 * 24 * 3600 * 1000ll)
int store_purge(struct store *s, unsigned max, struct err *e);
/*
 * A change of an existing sandbox: checks the life-cycle table against the row in the same
 * transaction; START also takes the next generation and a new activation (written to the row and
 * executions). No operation unfinished: claimed at once (ret->state CLAIMED by `claimer`; drive
 * it). Else a delete is queued (ret->state QUEUED: not ours to drive), a second delete gives the
 * first one's row, and all else is -EBUSY (409). ret->id 0: nothing to do (the result already
 * holds).
 */
int store_submit(struct store *s, const char *sandbox, const char *tenant /* "" = any */,
		 enum life_event kind, const char *claimer, const char *request_id,
		 struct store_op *ret, struct err *e);
/* The same for a resume or a start that gives the sandbox timeout_ms from its end on (0 = its own). */
int store_submit_timed(struct store *s, const char *sandbox, const char *tenant,
		       enum life_event kind, int64_t timeout_ms, const char *claimer,
		       const char *request_id, struct store_op *ret, struct err *e);
/*
 * What the end of its time means for a sandbox: a pause or a delete as it was asked for. Looks at
 * the row again in the same transaction: ret->id 0 when its time is not over (any more), or when
 * nothing is to be done (what has no memory to keep is not paused: its time stands still then).
 */
int store_submit_end(struct store *s, const char *sandbox, const char *claimer,
		     const char *request_id, struct store_op *ret, struct err *e);
int store_claim(struct store *s, const char *claimer, struct store_op *ret, struct err *e);            /* oldest unclaimed or expired, and the first of its sandbox; -ENOENT */
int store_renew(struct store *s, const struct store_op *op, struct err *e);                            /* -ESTALE: lost */
int store_release(struct store *s, const struct store_op *op, int64_t retry_in_ms, struct err *e);     /* back to the queue; at most 4 leases */
/*
 * Ends the operation and sets the sandbox's observed state in the same transaction; only while the
 * claim holds (-ESTALE). `observed` must be where the table's row for done (or failed) leads from
 * the transition: create running/failed, start running/stopped, stop stopped/stopped, pause
 * paused/running, resume running/paused, delete none/failed; else -EINVAL. A sandbox that is paused
 * has no end; one that goes on has now + its time-out. After DELETE the row is gone from all lists (kept as a tombstone
 * without the user's values: "no request revives a deleted sandbox").
 */
int store_finish(struct store *s, const struct store_op *op, enum life_state observed,
		 const struct err *failure /* NULL = done */, struct err *e);
int store_op_get(struct store *s, int64_t id, struct store_op *ret, struct err *e);

/*
 * Tickets of terminals (docs/terminal.md): the SHA-256 of what a browser shows once instead of a
 * key.
 */
#define STORE_TICKETS_MAX 256            /* unused ones of a tenant; beyond: -EUSERS */
struct store_ticket {
	char hash[65];
	char tenant[ID_TENANT_MAX + 1];
	char sandbox[ID_SANDBOX_LEN + 1];
};
int store_ticket_add(struct store *s, const struct store_ticket *t, int64_t life_ms,
		     int64_t *ret_until_ms, struct err *e);
/* Takes it away: -ENOENT for one that is not known, was taken before, or is too old. */
int store_ticket_take(struct store *s, const char *hash, struct store_ticket *ret, struct err *e);

#endif
