/*
 * One request, or one tunnel, on its way to a sandbox (theory: stream.c). data.c decides what it is
 * and who may; here it finds its node, is admitted there, and flows.
 */
#ifndef API_STREAM_H
#define API_STREAM_H

#include "api/api.h"
#include "loop/conn.h"
#include "routes/routes.h"

enum stream_kind {
	STREAM_CONTROL,          /* the agent in the sandbox (E2B's port 49983) */
	STREAM_PORT,             /* a server of the guest, HTTP/1.1 */
	STREAM_TUNNEL,           /* raw TCP to a port, asked for under /v1 */
	STREAM_H2,               /* a TLS connection with ALPN h2, to a port; nobody here reads it */
	STREAM_KIND_COUNT,
};

struct stream_ask {
	enum stream_kind kind;
	char sandbox[64];
	uint16_t port;
	const struct route *route;       /* of STREAM_CONTROL */
	/* Of STREAM_PORT: */
	bool token_given, token_ok;      /* the traffic token; decides where ports are not public */
	/* Of STREAM_TUNNEL: whose key it was; "": it was the sandbox's own token */
	char tenant[ID_TENANT_MAX + 1];
};

/* Takes the request; c is gone. The caller has looked at API_STREAMS_MAX. */
void stream_start(struct call *c, const struct stream_ask *ask);
/* The same for the plain half of a connection that speaks HTTP/2; owns fd. */
void stream_start_h2(struct api *a, int fd, const struct stream_ask *ask);

#endif
