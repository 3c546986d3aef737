#include "ipc/revoke.h"

const struct ipc_field ipc_revoke_fields[] = {
	IPC_F_U64(struct ipc_revoke, lease, 0),
	IPC_F_END,
};

const struct ipc_field ipc_revoke_rep_fields[] = {
	IPC_F_U64(struct ipc_revoke_rep, ended, 0),
	IPC_F_END,
};
