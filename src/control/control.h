/*
 * space-control: what shall be and what is, compared without end (L-3). Five loops, each a timer
 * and jobs in workers:
 *
 *	drive      operations that nobody drives (their driver died, or gave them back): claimed and driven (ops/ops.h)
 *	nodes      each node's report: seen, its bundle's number, the observed state of its sandboxes; an older bundle is
 *	           replaced; a reboot inside the guest becomes a start; what no row wants is deleted there
 *	end        sandboxes whose time is over: deleted, or paused where that was asked for
 *	purge      rows of what has been over for long are removed
 *	keys       which key signs
 *
 * Any number of replicas may run: operations are claimed in the database, everything else is
 * idempotent, and the database drops what is stale.
 */
#ifndef CONTROL_CONTROL_H
#define CONTROL_CONTROL_H

#include "base/map.h"
#include "identity/identity.h"
#include "loop/work.h"
#include "ops/ops.h"
#include "store/store.h"

#define CONTROL_DRIVE_THREADS 16
#define CONTROL_LOOK_THREADS 4
#define CONTROL_DRIVE_MAX 64             /* operations driven at a time by one replica */
#define CONTROL_CLAIM_MS 200
#define CONTROL_NODES_MS 1000
#define CONTROL_END_MS 1000
#define CONTROL_KEYS_MS 1000
#define CONTROL_PURGE_MS 60000
#define CONTROL_CALL_MS 5000             /* a report, a bundle */
#define CONTROL_LIFECYCLE_MS 180000
#define CONTROL_NODES_MAX 4096
#define CONTROL_REPORT_MAX (8 << 20)
#define CONTROL_LOST_AFTER 3             /* reports in a row without a sandbox that should run there */

struct control_conf {
	const char *store_url;
	const char *keys_dir;            /* STATE/keys/ctl */
	const char *root_pub;
	const char *claimer;             /* NULL: made from pid and random bits */
};

struct control {
	struct loop *loop;
	char store_url[300], keys_dir[300], root_pub[300], claimer[64];
	uint8_t root_public[KEY_PUBLIC_BYTES];
	struct work *drive, *look;
	struct loop_timer claim_timer, nodes_timer, end_timer, keys_timer, purge_timer;
	bool claiming, listing, ending, choosing, purging, leaving;
	char end_cursor[STORE_CURSOR_MAX];       /* where "end" goes on, "" = from the start */
	unsigned n_driving;
	struct map *nodes;               /* worker -> struct control_node */
	struct key_signer signer;
	bool have_signer;
};

struct control *control_new(struct loop *l, const struct control_conf *c, struct err *e);
void control_free(struct control *c);

/*
 * control.c: a job of a loop, of which one goes at a time: *going until its `done`. What cannot be
 * begun is freed, and comes with the next turn.
 */
void control_job(struct control *c, bool *going, void (*run)(void *job), void (*done)(void *job),
		 void *job);

/* drive.c */
void drive_start(struct control *c);
void drive_op(struct control *c, const struct store_op *op);     /* one that this process has claimed */

/* nodes.c */
void nodes_start(struct control *c);
void nodes_free(struct control *c);

#endif
