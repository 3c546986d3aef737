/*
 * The processes of an execution: jail-init, the VMM, the bridge, each in its jail. Theory of
 * operation: jail.c.
 */
#ifndef NODE_MANAGER_JAIL_H
#define NODE_MANAGER_JAIL_H

#include "base/err.h"
#include "node-manager/jail_steps.h"

#define JAIL_BINDS_MAX 4
#define JAIL_BRIDGE_FILES 1024           /* RLIMIT_NOFILE: one a lease */
#define JAIL_VMM_FILES 128

struct jail_spec {
	struct nm *nm;
	const char *name;                /* "<sandbox>.<generation>" */
	uid_t vmm_uid, bridge_uid, init_uid;
	enum vmm_accel accel;
	struct jail_bind bind[JAIL_BINDS_MAX];
	size_t n_binds;
	char *const *vmm_argv, *const *bridge_argv;
	uint64_t vmm_file_bytes;         /* RLIMIT_FSIZE */
	/* Descriptors; all stay the caller's. null: /dev/null, O_RDWR. */
	int null;
	int socket[EXEC_CORE_SOCKETS], tap, disk;
	int kvm;                         /* /dev/kvm, or -1 with software emulation */
	int text[EXEC_CORE_COUNT];        /* stderr; -1 = /dev/null */
	int link;                        /* jail-init's end */
};

/* Returns when all three have executed their programs. PIDs are the caller's namespace's. */
int jail_start(const struct jail_spec *s, pid_t ret_pid[EXEC_CORE_COUNT], struct err *e);

#endif
