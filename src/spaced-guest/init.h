/*
 * The host-only routes: /init (who this execution is), /prepare (when a template is made),
 * /shutdown (before a stop). /init may come again; it applies everything again.
 */
#ifndef GUEST_INIT_H
#define GUEST_INIT_H

#include "mux/mux.h"
#include "spaced-guest/serve.h"

/*
 * A connection began: is its epoch the one that /init was done for? If not, the workload is held
 * until it is.
 */
void init_epoch(struct agent *a, const struct mux_epoch *epoch);
void init_handle(struct req *r, const char *body, size_t n);
void prepare_handle(struct req *r, const char *body, size_t n);
void shutdown_handle(struct req *r, const char *body, size_t n);
/* hosts(5) with the line of 127.0.1.1 replaced or added; caller frees. */
char *init_hosts_text(const char *old, const char *hostname);

#endif
