/*
 * Root trees of the jails: STATE/data/vmm/<digest> is a copy of the folder conf.vmm (the VMM, the
 * libraries that it loads, its firmware, and empty files on which the jail mounts),
 * STATE/data/bridge/<digest> holds LIB/spaced-host,
 * STATE/data/gateway/<digest> LIB/netgtw. The digest is over names and contents, so an
 * upgrade makes another tree and a running execution keeps its own. A tree appears by one rename.
 */
#ifndef NODE_MANAGER_JAIL_TREE_H
#define NODE_MANAGER_JAIL_TREE_H

#include "base/err.h"
#include "node-manager/nm.h"

#define JAIL_TREE_VMM "vmm"
#define JAIL_TREE_BRIDGE "bridge"
#define JAIL_TREE_GATEWAY "gateway"
#define JAIL_TREE_FILES_MAX 512
#define JAIL_TREE_DEPTH_MAX 8
#define JAIL_BRIDGE_PROGRAM "spaced-host"
#define JAIL_GATEWAY_PROGRAM "netgtw"

/*
 * The trees of this start into nm->vmm_tree, bridge_tree and gateway_tree. Reads them whole: about
 * 0.1 s. Those that neither this start nor an execution uses are removed before new ones are made:
 * where guests have filled the storage an upgrade finds their room. After the records were read.
 */
int jail_tree_open(struct nm *nm, struct err *e);

#endif
