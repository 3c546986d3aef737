/*
 * node-manager's table of operations (socket RUN/nm/nm.sock; peers: sbx-manager's uid, and root).
 * Client and server use these structs and tables. Requests carry IDs and numbers, never paths or
 * argument vectors.
 */
#ifndef IPC_NM_OPS_H
#define IPC_NM_OPS_H

#include "identity/identity_limits.h"
#include "ipc/ipc.h"

#define NM_TEMPLATE_MAX 63               /* ^[a-z0-9][a-z0-9-]*$ */

struct nm_exec { char sandbox[ID_SANDBOX_LEN + 1]; uint64_t generation; };
struct nm_none { int unused; };

struct nm_disk_create { char sandbox[ID_SANDBOX_LEN + 1]; char template[NM_TEMPLATE_MAX + 1]; };
struct nm_sandbox { char sandbox[ID_SANDBOX_LEN + 1]; };

/*
 * mode: "boot" (cold boot from the sandbox's disk), "restore" (template's memory and state),
 * "template" (cold boot of a template in its staging folder, memory shared with the file mem).
 */
struct nm_spawn {
	char sandbox[ID_SANDBOX_LEN + 1];
	uint64_t generation;
	char template[NM_TEMPLATE_MAX + 1];
	char mode[16];
	char accel[8];                   /* kvm or tcg */
	uint64_t memory_mib, vcpus;
};
/*
 * Descriptors: [0] QMP connection; with mode restore [1] the device state, O_RDONLY. Start times:
 * proc.h ticks.
 */
struct nm_spawn_rep {
	uint64_t slot, vmm_uid, bridge_uid;
	uint64_t vmm_pid, vmm_start, bridge_pid, bridge_start, init_pid, init_start;
};
/*
 * The pids that SO_PEERCRED of the connections showed: to the bridge, to the gateway. 0 (or absent)
 * = not compared; without gateway_pid nothing of the gateway is looked at.
 */
struct nm_verify {
	char sandbox[ID_SANDBOX_LEN + 1];
	uint64_t generation;
	uint64_t bridge_pid, gateway_pid;
};
struct nm_kill { char sandbox[ID_SANDBOX_LEN + 1]; uint64_t generation; char what[8]; };          /* "bridge", "vmm", "gateway", "all" */
/*
 * Each call makes a new gateway: the one before is ended first, its sockets are replaced.
 * `internet` false: it refuses every connection to the outside and every name.
 */
struct nm_gateway { char sandbox[ID_SANDBOX_LEN + 1]; uint64_t generation; bool internet; };
struct nm_gateway_rep { uint64_t pid, start, uid; };       /* of its main process, which listens at gtw.sock and gtwctl.sock */
struct nm_template { char template[NM_TEMPLATE_MAX + 1]; };
struct nm_template_commit { char template[NM_TEMPLATE_MAX + 1]; json_t *manifest; };               /* [0] memfd with the device state */
struct nm_manifest_rep { json_t *manifest; };
struct nm_list { uint64_t cursor; };
struct nm_list_rep { json_t *items; uint64_t next; };      /* [{"kind","name","sandbox","generation"}]; next 0 = end; kinds: execution, process, netns, cgroup, mount, subvolume, socket */
struct nm_stats_rep { uint64_t data_total_bytes, data_free_bytes, slots, slots_used; };
struct nm_exited {
	char sandbox[ID_SANDBOX_LEN + 1];
	uint64_t generation;
	char who[8];
	int64_t status;
}; /* event "exited": who = vmm, bridge, init, gateway (which does not end the execution); status as waitpid(2), -1 unknown */

enum nm_op {
	NM_LIST, NM_STATS,
	NM_DISK_CREATE,        /* reflink of the template's rootfs.img into a new subvolume; -EEXIST is success for the same template */
	NM_DISK_DELETE,        /* gone or not there: success; -EBUSY while an execution has it */
	NM_SPAWN,              /* cgroups, namespaces, TAP and its rules, sockets, jails, VMM and bridge; all or nothing */
	NM_QMP_OPEN,           /* a new QMP connection of a spawned execution (after a restart of sbx-manager): [0] */
	NM_CHANNEL_OPEN,       /* a new connection to the VMM's guest channel, SO_PEERCRED checked against the VMM: [0] */
	NM_VERIFY,             /* inline; B-1, B-2: processes, start times, executables, socket files as recorded */
	NM_KILL,               /* by pidfd */
	NM_GATEWAY,            /* starts the network gateway of an execution, again too: three processes or none */
	NM_DESTROY,            /* everything of an execution: processes, namespaces, TAP, cgroups, mounts, sockets; idempotent */
	NM_TEMPLATE_BEGIN,     /* staging subvolume from conf's base image, kernel, initrd; a memory file */
	NM_TEMPLATE_COMMIT,    /* state, manifest written and fsynced, renamed, read-only, syncfs; then copied to the cache folder */
	NM_TEMPLATE_DROP,      /* staging away */
	NM_TEMPLATE_IMPORT,    /* from the cache folder; -ENOENT when not there */
	NM_TEMPLATE_MANIFEST,  /* -ENOENT */
	NM_OP_COUNT,
};
extern const struct ipc_op nm_ops[NM_OP_COUNT];
extern const struct ipc_field nm_exited_fields[];

#endif
