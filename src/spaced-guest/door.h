/*
 * The door: how the network gateway of the host reaches a port that listens on the guest's loopback
 * alone. A TCP listener for one peer, the gateway (docs/network.md):
 *
 *	gateway: "port N\n"      door: one byte, 0 = open, 1 = refused; then bytes both ways
 *
 * The door connects to 127.0.0.1, and when nothing listens there to ::1. Each direction ends by
 * itself (half-close); a reset of one end resets the other. An open connection counts as activity.
 * Before /init of this execution every port is refused. Connections beyond DOOR_CONNS_MAX and those
 * of other peers are closed at once; a line that does not come within DOOR_LINE_MS, or is none, too.
 */
#ifndef GUEST_DOOR_H
#define GUEST_DOOR_H

#include <stdint.h>
#include "spaced-guest/agent.h"

#define DOOR_PORT 49982
#define DOOR_LINE_MAX 11                 /* "port 65535\n" */
#define DOOR_CONNS_MAX 2048
#define DOOR_LINE_MS 2000
#define DOOR_DIAL_MS 4000
#define DOOR_BLOCK (64 << 10)            /* bytes moved at once, and most that wait in one direction */

struct door;

/*
 * What has come of the line, at most DOOR_LINE_MAX bytes. 0; -EAGAIN: not all of it yet; -EBADMSG:
 * none, also when something follows it: who waits for an answer sends nothing yet.
 */
int door_line(const char *line, size_t n, uint16_t *ret_port);

/* Numeric IPv4 addresses. Port 0: any. */
int door_open(struct agent *a, const char *address, uint16_t port, const char *peer,
	      struct door **ret, struct err *e);
uint16_t door_port(const struct door *d);
void door_close(struct door *d);                 /* and its connections; NULL is fine */

#endif
