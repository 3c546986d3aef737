/*
 * The unmaking of an execution, whole or half made: for DESTROY, a failed spawn, and the start of
 * the program.
 */
#ifndef NODE_MANAGER_SWEEP_H
#define NODE_MANAGER_SWEEP_H

#include "node-manager/child.h"

#define SWEEP_WAIT_MS 10000              /* for processes to be gone; a VMM with much memory takes some 100 ms */
#define SWEEP_DEADLINE_MS 15000

/*
 * Ends every process (by record, by cgroup, by uid), waits until they are gone, removes namespace,
 * sockets, cgroups and, last, the record. Then no process has a uid of the slot. What is not there
 * is no error: it can be repeated at any point.
 */
int sweep_run(struct child_task *t, struct err *e);      /* for t->x, in a child */

/*
 * At the start: adopts what has a record and lives, removes everything else that is named like an
 * execution.
 */
int sweep_start(struct nm *nm, struct err *e);

#endif
