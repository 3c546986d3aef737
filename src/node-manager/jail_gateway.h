/*
 * The three processes of a gateway (src/netgtw), each in its jail. Theory of operation:
 * jail_gateway.c. What each may do and why there are three: docs/network.md.
 */
#ifndef NODE_MANAGER_JAIL_GATEWAY_H
#define NODE_MANAGER_JAIL_GATEWAY_H

#include "base/err.h"
#include "node-manager/net.h"
#include "node-manager/nm.h"

enum jail_gateway_who {
	JAIL_GATEWAY_MAIN,       /* process 1; in an empty network namespace */
	JAIL_GATEWAY_INSIDE,     /* in the sandbox's */
	JAIL_GATEWAY_OUTSIDE,    /* in the node's own */
	JAIL_GATEWAY_COUNT
};
extern const char *const jail_gateway_names[JAIL_GATEWAY_COUNT];        /* "main", "inside", "outside" */

struct jail_gateway_spec {
	struct nm *nm;
	const char *name;                /* "<sandbox>.<generation>" */
	uid_t uid;
	char *const *argv[JAIL_GATEWAY_COUNT];
	/* Descriptors; all stay the caller's. */
	int null, text;                  /* /dev/null; what becomes stderr of all three */
	int netns;                       /* the sandbox's */
	int streams, control;            /* gtw.sock, gtwctl.sock: bound, not listening */
	int net[NET_SOCKET_COUNT];
};

/* Returns when all three have executed their program. */
int jail_gateway_start(const struct jail_gateway_spec *s, pid_t *ret_main, struct err *e);

#endif
