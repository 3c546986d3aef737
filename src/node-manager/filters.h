/* The system calls of node-manager and of the programs in a jail. */
#ifndef NODE_MANAGER_FILTERS_H
#define NODE_MANAGER_FILTERS_H

#include "base/err.h"
#include "node-manager/nm.h"

/*
 * node-manager's own list, with everything that its jails may do: filters add up (seccomp(2)), so
 * what it forbids itself it forbids them. Allocated once, for the daemon's definition.
 */
const char *const *filters_own(void);
/* The programs for the jails, as memfds in nm. */
int filters_open(struct nm *nm, struct err *e);

#endif
