/* Between the files of ops/. */
#ifndef OPS_INTERNAL_H
#define OPS_INTERNAL_H

#include "ops/ops.h"

#define OPS_ANSWER_MAX (1 << 20)
#define OPS_TICK_MS (STORE_LEASE_MS / 3)

/*
 * As ops_node_call; tick(arg) is called every OPS_TICK_MS while the answer is awaited, < 0 gives up
 * with it.
 */
int ops_post(const char *node_addr, const struct key_signer *k, const struct identity *id,
	     const char *kind, json_t *spec, const char *request_id, int timeout_ms,
	     int (*tick)(void *arg), void *arg, json_t **ret, struct err *e);

#endif
