/*
 * What jail-init and node-manager say to each other over jail-init's descriptor 3 (SOCK_SEQPACKET):
 * see jail_init.c. node-manager forks the VMM first and the bridge second, so that they are
 * processes 2 and 3 of the namespace.
 */
#ifndef JAIL_INIT_JAIL_INIT_H
#define JAIL_INIT_JAIL_INIT_H

#define JAIL_INIT_LINK_FD 3
#define JAIL_INIT_GO "go"
#define JAIL_INIT_MSG_MAX 32             /* "PID STATUS" */
#define JAIL_INIT_VMM_PID 2
#define JAIL_INIT_BRIDGE_PID 3

#endif
