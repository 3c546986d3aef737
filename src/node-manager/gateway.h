/*
 * NM_GATEWAY, in a forked child: the network gateway of an execution is made, in place of the one
 * before. Then the record says so.
 */
#ifndef NODE_MANAGER_GATEWAY_H
#define NODE_MANAGER_GATEWAY_H

#include "node-manager/child.h"

#define GATEWAY_DEADLINE_MS 5000
#define GATEWAY_END_MS 2000              /* for the processes of the one before to be gone */

/* Index of child_task.spare: the pipe that takes what the three write to stderr. */
enum { GATEWAY_TEXT };

int gateway_run(struct child_task *t, struct err *e);

#endif
