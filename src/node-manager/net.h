/*
 * The network namespace with the sandbox's TAP, and all that its packets meet there (S-3).
 *
 * Theory of operation
 *
 * The guest's packets end here: every address is local ("AnyIP": a local route for everything),
 * so that the kernel of this namespace speaks TCP with the guest in the name of whatever address
 * the guest called. nftables gives all TCP to two transparent listeners and leaves UDP of port 53
 * to two transparent sockets; the gateway (src/netgtw) has these four. Nothing is forwarded, there
 * is no other interface but the loopback, and none of the rules keeps connections (no conntrack):
 * without a gateway everything is refused at once.
 *
 *	tap0      10.0.2.2/24, fd53:5041:4345::2/64; MAC fixed; the guest's MAC is a permanent neighbour,
 *	          so no ARP and no neighbour discovery of the guest's changes a table
 *	routes    the guest's two addresses lead to tap0, everything else is local. The addresses have
 *	          no routes of their prefixes: in IPv4 these would be more specific than the local one
 *	settings  all that matters is set, since a new namespace may inherit from the first one
 *	          (devconf_inherit_init_net): no forwarding, no source routes, no redirects, no router
 *	          advertisements, strict source check, no line in the machine's log
 *	rules     net_rules.c
 *
 * The namespace is kept by a bind mount, RUN/nm/netns/<name>.
 */
#ifndef NODE_MANAGER_NET_H
#define NODE_MANAGER_NET_H

#include "base/err.h"

#define NET_TAP "tap0"
#define NET_FOLDER "netns"               /* in RUN/nm */

/* The gateway's sockets in the namespace. */
enum net_socket { NET_TCP4, NET_TCP6, NET_UDP4, NET_UDP6, NET_SOCKET_COUNT };

/*
 * The calling process moves into a new namespace, which is mounted at `path` (a file that is made).
 * ret_tap: for the VMM.
 */
int net_make(const char *path, int *ret_tap, struct err *e);
int net_remove(const char *path);        /* not there: success */
/* The rules into the namespace of the calling process, in place of all that were there. */
int net_rules_load(struct err *e);
/*
 * Opens the namespace at `path` (*ret_netns), enters it, makes the sockets there, and comes back
 * into the one it came from. On failure the calling process may be in either: it has to end.
 * TCP: listening; all: transparent, non-blocking, close-on-exec.
 */
int net_open_sockets(const char *path, int *ret_netns, int ret_fds[NET_SOCKET_COUNT],
		     struct err *e);

#endif
