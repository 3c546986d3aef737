/*
 * Drives one claimed operation to its end against the node (L-3): used by space-api for what it
 * wrote itself (the fast path) and by space-control for what is left over. Blocking; worker
 * threads. May be killed at every step: the next driver repeats the same request and gets the same
 * result.
 */
#ifndef OPS_OPS_H
#define OPS_OPS_H

#include <jansson.h>
#include "identity/identity.h"
#include "store/store.h"

struct ops_ctx {
	struct store *store;             /* of this thread */
	const struct key_signer *signer; /* bundle entry must allow lifecycle */
	const char *claimer;
	int timeout_ms;                  /* of one call to the node */
};

/*
 * 0: finished (see the row: done or failed with a reason that retrying does not cure). -EAGAIN: not
 * now (node not reachable, its answer lost); the row was released for a later try. -ESTALE: the
 * claim was lost to another driver. Renews its claim while it waits. Failpoints:
 * ops.<kind>.before-node, ops.<kind>.after-node.
 */
int ops_drive(struct ops_ctx *c, struct store_op *op, struct err *e);

/*
 * One life-cycle call to a node: also for "console". Signs the capability, POSTs to node-api.
 * Caller json_decref's *ret.
 */
int ops_node_call(const char *node_addr, const struct key_signer *k, const struct identity *id,
		  const char *kind, json_t *spec, const char *request_id, int timeout_ms,
		  json_t **ret, struct err *e);

/*
 * GET of the guest's own JSON object over the data path (its /metrics). -ESTALE: the node does not
 * run this execution (any more).
 */
#define OPS_GUEST_ANSWER_MAX 16384
int ops_guest_get(const char *node_addr, const struct key_signer *k, const struct identity *id,
		  const char *target, const char *request_id, int timeout_ms, json_t **ret,
		  struct err *e);

/* Where to reach a node; -EAGAIN "node-unknown". */
int ops_node_addr(struct store *s, const char *worker, char *dst, size_t size, struct err *e);

#endif
