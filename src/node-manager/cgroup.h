/*
 * cgroups: version 2, and the version 1 hierarchies where controllers are mounted there
 * (cgroups(7)). One table holds each limit in both forms; the same code walks both. An execution
 * has <hierarchy>/<root>/<name>/{vmm,bridge,gateway} everywhere.
 */
#ifndef NODE_MANAGER_CGROUP_H
#define NODE_MANAGER_CGROUP_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/err.h"

#define CGROUP_HIERARCHIES_MAX 12
#define CGROUP_PATH_MAX 256

/*
 * Beside the guest's memory. Seen under emulation: 65-79 MB private after work, of which 22-64 MB
 * are translated code.
 */
#define CGROUP_VMM_OVERHEAD_MIB 160
#define CGROUP_BRIDGE_MIB 64
#define CGROUP_VMM_PIDS 64               /* threads: vCPUs, main, and the pool for disk requests */
#define CGROUP_BRIDGE_PIDS 16            /* jail-init is in this group too */
#define CGROUP_GATEWAY_MIB 128
#define CGROUP_GATEWAY_PIDS 8            /* three processes of one thread each, twice while they are made */

enum cgroup_leaf { CGROUP_VMM, CGROUP_BRIDGE, CGROUP_GATEWAY, CGROUP_LEAF_COUNT };
extern const char *const cgroup_leaf_names[CGROUP_LEAF_COUNT];

struct cgroup_set {
	unsigned n;
	struct cgroup_hierarchy {
		char path[CGROUP_PATH_MAX];      /* where it is mounted */
		bool v2;
		unsigned controllers;            /* bit mask, internal */
	} h[CGROUP_HIERARCHIES_MAX];
	char root[64];                           /* conf.cgroup_root */
};

/* Finds what is mounted and makes <hierarchy>/<root>. Fails when memory or pids is nowhere. */
int cgroup_open(struct cgroup_set *s, const char *root, struct err *e);

int cgroup_make(const struct cgroup_set *s, const char *name, uint32_t memory_mib, uint32_t vcpus,
		struct err *e);
/* The calling process enters the leaf in every hierarchy. */
int cgroup_enter(const struct cgroup_set *s, const char *name, enum cgroup_leaf leaf,
		 struct err *e);
/* SIGKILL to everything in it, once. Returns how many processes were seen. */
int cgroup_kill(const struct cgroup_set *s, const char *name);
int cgroup_kill_leaf(const struct cgroup_set *s, const char *name, enum cgroup_leaf leaf);
/* -EBUSY while processes are in it; not there: success. */
int cgroup_remove(const struct cgroup_set *s, const char *name);
/* Calls fn for every execution's group, once for each hierarchy. */
void cgroup_each(const struct cgroup_set *s,
		 void (*fn)(const char *name, const char *path, void *arg), void *arg);
/* Removes <hierarchy>/<root> where it is empty: the end of the program. */
void cgroup_close(const struct cgroup_set *s);

#endif
