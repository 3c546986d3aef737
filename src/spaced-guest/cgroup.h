/*
 * A cgroup (v2) for each command, below BASE/w; the agent itself is in BASE/agent with its memory protected. Where there is
 * no cgroup v2 (tests), commands have no group: everything returns -1 or does nothing, and kill falls back to the process group.
 */
#ifndef GUEST_CGROUP_H
#define GUEST_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

struct cgroups;

/* base "" = none. protect: the agent moves into BASE/agent (in a guest). Never NULL. */
struct cgroups *cgroups_open(const char *base, bool protect);
void cgroups_close(struct cgroups *c);
bool cgroups_there(const struct cgroups *c);

uint64_t cgroup_make(struct cgroups *c, int *ret_dirfd);         /* its number, 0 = none; the fd is the caller's */
int cgroup_kill(struct cgroups *c, uint64_t n);                  /* all processes in it: cgroup.kill (kernel 5.14) */
int cgroup_remove(struct cgroups *c, uint64_t n);                /* -EBUSY while processes live in it */
/* All commands together. */
int cgroups_kill_all(struct cgroups *c);
int cgroups_freeze_all(struct cgroups *c, bool on);

#endif
