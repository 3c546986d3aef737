/*
 * HTTPS for clients: TLS (loop/tls.h) in front of the HTTP server. The name that a client asks for
 * must be one of the certificate's and mean something here (host.h); a client that says none (it
 * came by address) gets the certificate and is served by the request's Host. HTTP/2 is offered to
 * those alone who can speak nothing else, under the name of a port whose sandbox lets everybody in:
 * that connection is one tunnel (stream.h).
 *
 * Key and chain stand in one file, so that they change together (rename(2)). It is looked at every
 * FRONT_POLL_MS; a new one is for new connections, one that cannot be used changes nothing.
 */
#ifndef API_FRONT_H
#define API_FRONT_H

#include "api/api.h"

#define FRONT_CONNS_MAX 8192             /* TLS connections; beyond: closed */
#define FRONT_HANDSHAKES_MAX 256         /* unfinished ones; beyond: the oldest gives way */
#define FRONT_HANDSHAKE_MS 10000
#define FRONT_POLL_MS 1000

struct front;

struct front *front_new(struct api *a, const char *pem_path, struct err *e);     /* reads the file, blocking */
void front_free(struct front *f);
void front_accept(struct front *f, int fd);
/*
 * 0, or -EREMCHG: the request's host is not the name that the connection was made for (RFC 9110
 * 15.5.20). Plain connections have none.
 */
int front_check(struct call *c, const struct http_head *h, struct err *e);

#endif
