/*
 * The second check of a ServicePort's capability, apart from any socket: for tests and the fuzzer.
 */
#ifndef NETGTW_PORT_H
#define NETGTW_PORT_H

#include "identity/identity.h"
#include "ipc/gtw_ops.h"

/* Its form: what can be said before the token has come. */
bool port_preamble_ok(const struct gtw_preamble *p);
/*
 * token: p->token_len bytes. GTW_OK, GTW_DENY (signature, times, purpose, port, protocol, another
 * sandbox, an epoch that is not ours) or GTW_REFRESH, with the reason in e.
 */
enum gtw_code port_check(const struct gtw_preamble *p, const char *token, struct cap_cache *caps,
			 const struct key_bundle *bundle, const struct identity *installed,
			 int64_t now_s, struct err *e);

#endif
