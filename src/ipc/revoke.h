/*
 * The end of a lease, as sbx-manager asks it of the bridge and of the gateway of an execution. The
 * answer is the confirmation: not one byte passes after it. 0 = all, and for good: the one asked
 * serves nothing of the kind any more.
 */
#ifndef IPC_REVOKE_H
#define IPC_REVOKE_H

#include "ipc/ipc.h"

struct ipc_revoke { uint64_t lease; };
struct ipc_revoke_rep { uint64_t ended; };
extern const struct ipc_field ipc_revoke_fields[], ipc_revoke_rep_fields[];

#endif
