/*
 * h2_refuse: the server's side of an HTTP/2 connection that leads nowhere (RFC 9113). Every request
 * gets the same answer, in the form in which gRPC shows its sentence to a caller; then the
 * connection ends in order, so that the client's next one finds what is there by then. Of frames
 * nothing is read but their nine bytes of head: what is asked does not matter.
 *
 * A GOAWAY alone does not do. Before a request was sent it says "connect again": grpcio does that
 * at once, and again, for as long as the call may last, and grpc-js reports an internal error.
 */
#ifndef HTTP_H2_REFUSE_H
#define HTTP_H2_REFUSE_H

#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

#define H2_REFUSE_MESSAGE_MAX 126
#define H2_REFUSE_WAIT_MS 10000          /* for a request */
#define H2_REFUSE_STAY_MS 200            /* after the first, for the others of that moment */
#define H2_REFUSE_LINGER_MS 2000
#define H2_REFUSE_OUT_MAX 65536          /* answers to what was read at once; beyond: the end */

struct loop;
struct conn;
struct h2_refuse;

/*
 * Owns client, in whose conn_in may be bytes already. The message is printable ASCII without `%`.
 * `end` comes once, from the loop, and r is freed after it.
 */
struct h2_refuse *h2_refuse_new(struct conn *client, int status, const char *message,
				void (*end)(void *arg), void *arg);
void h2_refuse_free(struct h2_refuse *r);        /* closes, without `end`; NULL is fine */

/* ---- its reader, for tests ---- */

struct h2_scan {
	char answer[512];                /* a block of fields (RFC 7541) */
	size_t answer_len;
	size_t preface_len, head_len;    /* what is there of each */
	unsigned char head[9];
	uint32_t skip;                   /* bytes of the payload that are still to come */
	uint32_t last;                   /* the last request that was answered, 0 = none */
};

void h2_scan_init(struct h2_scan *s, int status, const char *message);
/* Takes all n bytes. 0; -EPROTO: this is no HTTP/2; -ENOBUFS: `out` has no room for the answers. */
int h2_scan_feed(struct h2_scan *s, const void *p, size_t n, struct buf *out);

#endif
