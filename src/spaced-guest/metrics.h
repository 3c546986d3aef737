/* GET /metrics: CPU since the last call, memory, the root disk. */
#ifndef GUEST_METRICS_H
#define GUEST_METRICS_H

#include "spaced-guest/serve.h"

void metrics_handle(struct req *r, const char *body, size_t n);

#endif
