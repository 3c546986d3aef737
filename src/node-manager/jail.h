/*
 * The processes of an execution: jail-init, the VMM, the bridge, each in its jail. Theory of
 * operation: jail.c.
 */
#ifndef NODE_MANAGER_JAIL_H
#define NODE_MANAGER_JAIL_H

#include "base/err.h"
#include "node-manager/nm.h"

#define JAIL_BINDS_MAX 4
#define JAIL_BRIDGE_FILES 1024           /* RLIMIT_NOFILE: one a lease */
#define JAIL_VMM_FILES 128

/*
 * A file of the host that appears in the VMM's root, on an empty file of the tree. Absolute paths.
 */
struct jail_bind { char source[PATH_MAX]; const char *target; bool writable; };

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
	int socket[EXEC_SOCKET_COUNT], tap, disk;
	int kvm;                         /* /dev/kvm, or -1 with software emulation */
	int text[EXEC_WHO_COUNT];        /* stderr; -1 = /dev/null */
	int link;                        /* jail-init's end */
};

/* Returns when all three have executed their programs. PIDs are the caller's namespace's. */
int jail_start(const struct jail_spec *s, pid_t ret_pid[EXEC_WHO_COUNT], struct err *e);

#endif
