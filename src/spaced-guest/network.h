/*
 * The network of the guest: lo, and eth0 with the fixed address behind the gateway; by ioctl(2),
 * see netdevice(7).
 */
#ifndef GUEST_NETWORK_H
#define GUEST_NETWORK_H

#include "base/err.h"

#define NETWORK_DEVICE "eth0"
#define NETWORK_ADDRESS "10.0.2.15"
#define NETWORK_MASK "255.255.255.0"
#define NETWORK_GATEWAY "10.0.2.2"

int network_up(struct err *e);           /* may be called again; a guest without eth0 is fine */

#endif
