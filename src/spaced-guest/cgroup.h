/*
 * A cgroup (v2) for each command, below BASE/w; the agent itself is in BASE/agent with its memory
 * protected. Where there is no cgroup v2 (tests), commands have no group: everything returns -1 or
 * does nothing, and kill falls back to the process group.
 */
#ifndef GUEST_CGROUP_H
#define GUEST_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#define CGROUP_POOL_MAX 8

struct cgroups;

/* base "" = none. protect: the agent moves into BASE/agent (in a guest). Never NULL. */
struct cgroups *cgroups_open(const char *base, bool protect);
void cgroups_close(struct cgroups *c);
bool cgroups_there(const struct cgroups *c);

/*
 * An empty one: its number, 0 = none. *ret_dirfd is the caller's, -1 = none. Up to CGROUP_POOL_MAX
 * are kept for the next command, because making and removing one costs as much as a fork under
 * emulation (seen); not those that root in the guest has changed.
 */
uint64_t cgroup_make(struct cgroups *c, int *ret_dirfd);
int cgroup_kill(struct cgroups *c, uint64_t n);                  /* all processes in it: cgroup.kill (kernel 5.14) */
/*
 * Gives it back: -EBUSY while processes live in it. One that was killed is not used again: newer
 * kernels kill what is cloned into it (seen on 6.18, cgroup.kill counts its kills).
 */
int cgroup_remove(struct cgroups *c, uint64_t n, bool killed);
/* All commands together. */
int cgroups_kill_all(struct cgroups *c);
int cgroups_freeze_all(struct cgroups *c, bool on);

#endif
