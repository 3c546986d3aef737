/*
 * Is this execution still the one that was recorded (B-1, B-2)? Answered inline, at every
 * admission:
 *
 *	processes    the three live, each the one that began at the time of the record (by its pidfd), under their uids
 *	executables  /proc/PID/exe of VMM and bridge: device, inode, size, both times and link count as at the start
 *	sockets      the socket files have the inodes that were bound for this execution
 *	bridge       the process that listens at the bridge's socket is the recorded one
 *	gateway      all of this of the gateway, when it is asked for (B-4)
 */
#ifndef NODE_MANAGER_VERIFY_H
#define NODE_MANAGER_VERIFY_H

#include "base/err.h"
#include "node-manager/nm.h"

/*
 * bridge_pid 0: not compared; gateway_pid 0: nothing of the gateway is looked at. -EPERM or -ESRCH
 * with a code: process-gone, uid-changed, executable-changed, socket-replaced, bridge-peer,
 * gateway-peer.
 */
int verify_execution(struct nm *nm, const struct exec *x, uint64_t bridge_pid,
		     uint64_t gateway_pid, struct err *e);

#endif
