/*
 * The byte channel to the bridge and the multiplexer over it. The virtio-serial port is used
 * edge-triggered, because EPOLLHUP stays on while no host is attached (seen); read(2) gives 0 then,
 * which is no end. A socket (tests) ends the agent when it is closed.
 */
#ifndef GUEST_CHANNEL_H
#define GUEST_CHANNEL_H

#include <stdbool.h>
#include "base/err.h"

struct agent;
struct channel;
struct mux;

/*
 * The port named `name` below /sys/class/virtio-ports; waits until it is there or the deadline has
 * passed. fd or errno.
 */
int channel_find_port(const char *name, int timeout_ms, struct err *e);
struct channel *channel_open(struct agent *a, int fd, struct err *e);     /* owns fd; NULL on error */
void channel_free(struct channel *c);
/*
 * Moves bytes both ways; true = there is more to do at once. Called once in each turn of the loop.
 */
bool channel_run(struct channel *c);

#endif
