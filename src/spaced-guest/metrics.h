/*
 * GET /metrics: CPU since the last sample, memory, the root disk; and how long nobody has used the
 * sandbox (activity.h). /init takes the first sample, so that the template's own boot is not in it.
 */
#ifndef GUEST_METRICS_H
#define GUEST_METRICS_H

#include "spaced-guest/serve.h"

void metrics_sample(struct agent *a);
void metrics_handle(struct req *r, const char *body, size_t n);

#endif
