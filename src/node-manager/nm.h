/*
 * node-manager: what its files share.
 *
 * Theory of operation
 *
 * The only program of a node that is root. Its main process is one thread around one loop: it
 * checks a request against the table of operations and the state of the sandbox (ops.c), answers
 * VERIFY and KILL by itself, and forks a child for everything else (child.c). A child works on
 * copies of the tables, gives up the capabilities that its operation does not need, has a deadline,
 * and sends back one answer with descriptors; only the main process changes a table.
 *
 * An execution exists when its record exists (exec_record.c): a file in RUN/nm that is written, by
 * rename, as the last step but one of its making. Whatever is found without a record is swept away
 * by one function (exec_sweep in sweep.c), which serves DESTROY, failed spawns and the start of the
 * program alike.
 *
 *	main.c         start, end                     ops.c          table of operations, dispatch, states
 *	child.c        forked children                exec_record.c  records, table of executions
 *	spawn.c        the making of an execution     jail.c         the processes of an execution, until they exec
 *	gateway.c      the making of its gateway      jail_gateway.c the three processes of that, likewise
 *	jail_steps.c   what both jails consist of     net.c net_rules.c   the sandbox's network namespace
 *	sweep.c        the unmaking of an execution   cgroup.c sockets.c  parts of making and unmaking
 *	disk.c         subvolumes, copies             template.c     templates and their cache
 *	jail_tree.c    root trees of the jails        slots.c        uids
 *	verify.c       is it still that execution?    watch.c        ends of processes
 *	list.c         everything there is
 */
#ifndef NODE_MANAGER_NM_H
#define NODE_MANAGER_NM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/err.h"
#include "base/list.h"
#include "daemon/conf.h"
#include "ipc/nm_ops.h"
#include "loop/loop.h"
#include "node-manager/cgroup.h"
#include "node-manager/exec_record.h"
#include "node-manager/slots.h"
#include "vmm/vmm.h"

#define NM_CHILDREN_MAX 64               /* children at once; then requests are answered with -EAGAIN */
#define NM_PEERS_MAX 40                  /* sbx-manager has two connections for each of its 16 jobs, and one more */
#define NM_GENERATION_MAX (1ull << 53)

#define NM_TREE_DIGEST_HEX 32
#define NM_GATEWAY_PROCESSES 3           /* enum jail_gateway_who */

/* A root tree for a kind of jail, made once: STATE/data/<kind>/<digest>. */
struct jail_tree { char digest[NM_TREE_DIGEST_HEX + 1]; };

struct nm {
	struct conf conf;
	struct loop *loop;
	struct ipc_server *server;
	int data_fd;                     /* STATE/data, a btrfs */
	int run_fd;                      /* RUN/nm */
	int sockets_fd;                  /* RUN/sbx */
	int init_fd;                     /* LIB/jail-init */
	int vmm_filter_fd[VMM_ACCEL_COUNT], bridge_filter_fd, init_filter_fd;     /* seccomp programs (memfds) */
	int gateway_filter_fd[NM_GATEWAY_PROCESSES];
	uint32_t tsc_khz;
	char boot_id[EXEC_BOOT_ID_MAX];
	struct jail_tree vmm_tree, bridge_tree, gateway_tree;
	struct cgroup_set cgroups;
	struct slots slots;
	struct list execs;               /* struct exec */
	struct list children;            /* struct child */
	unsigned n_children;
};

#endif
