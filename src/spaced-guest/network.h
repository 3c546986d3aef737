/*
 * The network of the guest: lo, and eth0 with its two fixed addresses behind the gateway; by
 * ioctl(2), see netdevice(7). Both families have static routes, and nothing is asked for or
 * announced: no router or duplicate address detection, no link-local address. In IPv6 the gateway
 * is the only neighbour (the prefix has no route of its own), so that everything is answered at once.
 */
#ifndef GUEST_NETWORK_H
#define GUEST_NETWORK_H

#include "base/err.h"

#define NETWORK_DEVICE "eth0"
#define NETWORK_ADDRESS "10.0.2.15"
#define NETWORK_MASK "255.255.255.0"
#define NETWORK_GATEWAY "10.0.2.2"
#define NETWORK_ADDRESS6 "fd53:5041:4345::15"
#define NETWORK_PREFIX6 "fd53:5041:4345::"
#define NETWORK_PREFIX6_LEN 64
#define NETWORK_GATEWAY6 "fd53:5041:4345::2"

int network_up(struct err *e);           /* may be called again; a guest without eth0 is fine */

#endif
