/*
 * The network namespace with the sandbox's TAP: tap0, 10.0.2.2/24, MAC fixed. Nothing listens in
 * it, nothing is forwarded, there is no other interface but a loopback that is down (S-3). It is
 * kept by a bind mount, RUN/nm/netns/<name>.
 */
#ifndef NODE_MANAGER_NET_H
#define NODE_MANAGER_NET_H

#include "base/err.h"

#define NET_TAP "tap0"
#define NET_FOLDER "netns"               /* in RUN/nm */

/*
 * The calling process moves into a new namespace, which is mounted at `path` (a file that is made).
 * ret_tap: for the VMM.
 */
int net_make(const char *path, int *ret_tap, struct err *e);
int net_remove(const char *path);        /* not there: success */

#endif
