/*
 * The making of an execution, in a forked child. All or nothing: what a failed one leaves is swept
 * away (sweep.c).
 */
#ifndef NODE_MANAGER_SPAWN_H
#define NODE_MANAGER_SPAWN_H

#include "node-manager/child.h"

#define SPAWN_QMP_WAIT_MS 8000           /* until the VMM listens: 30-60 ms on a quiet machine */
#define SPAWN_DEADLINE_MS 20000

/* Indexes of child_task.spare. */
enum { SPAWN_LINK_MAIN, SPAWN_LINK_INIT, SPAWN_TEXT_VMM, SPAWN_TEXT_BRIDGE };

int spawn_run(struct child_task *t, struct err *e);

#endif
