/*
 * The outside process: the only one that makes sockets in the node's network namespace, and the
 * last word about where they go. It reads structs of fixed size (proto.h), and never a byte of a
 * flow.
 */
#ifndef NETGTW_OUTSIDE_H
#define NETGTW_OUTSIDE_H

#include "ipc/gtw_ops.h"
#include "netgtw/floor.h"
#include "netgtw/proto.h"

struct outside {
	bool internet;
	struct addr nameservers[GTW_NAMESERVERS_MAX];
	size_t n_nameservers;
	struct floor floor;
	struct { int fd; bool made; uint32_t asked; } routes;        /* rtnetlink */
};

/*
 * Answers one question; *ret_fd is the socket, or -1. Whatever it is asked, it dials only what
 * the floor and the configuration let through.
 */
void outside_answer(struct outside *o, const struct out_req *q, bool resolver,
		    struct out_rep *rep, int *ret_fd);
int outside_run(struct outside *o);        /* until main is gone: 0; or negative errno */

#endif
