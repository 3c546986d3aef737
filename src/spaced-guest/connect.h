/*
 * Connect over HTTP with JSON, as the SDKs speak it (docs/e2b.md): unary calls, and server streams
 * of envelopes (flag byte, 4 bytes length big-endian, payload) with an end-stream envelope. Errors
 * of streams are HTTP 200 with an end-stream error, because clients do not read the body of any
 * other status there.
 */
#ifndef GUEST_CONNECT_H
#define GUEST_CONNECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "spaced-guest/serve.h"

#define CONNECT_CHUNK 32768                      /* raw bytes of output in one event */

enum connect_code {
	CONNECT_CANCELED,
	CONNECT_UNKNOWN,
	CONNECT_INVALID_ARGUMENT,
	CONNECT_DEADLINE_EXCEEDED,
	CONNECT_NOT_FOUND,
	CONNECT_ALREADY_EXISTS,
	CONNECT_PERMISSION_DENIED,
	CONNECT_RESOURCE_EXHAUSTED,
	CONNECT_FAILED_PRECONDITION,
	CONNECT_UNIMPLEMENTED,
	CONNECT_INTERNAL,
	CONNECT_UNAVAILABLE,
	CONNECT_UNAUTHENTICATED,
	CONNECT_CODE_COUNT,
};
enum connect_code connect_code_of(int num);      /* from a negative errno */

/* Unary: checks the content type; false = answered. */
bool connect_unary(struct req *r);
void connect_answer(struct req *r, const char *json);
void connect_answer_buf(struct req *r, struct buf *json);        /* emptied */
/* Unary error; on a request with a stream's content type, a stream that holds only the error. */
void connect_fail(struct req *r, enum connect_code code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void connect_fail_err(struct req *r, const struct err *e);       /* code from e->num */

/* Stream: checks type, encoding and time-out of the request's head; false = answered. */
bool connect_stream_head(struct req *r);
/* The same, and finds the one message in the body; false = answered. */
bool connect_stream(struct req *r, const char *body, size_t n, const char **ret_msg, size_t *ret_n);
void connect_begin(struct req *r);                               /* the answer's head */
void connect_event(struct req *r, const char *json, size_t n);
/*
 * {"event":{"data":{"KIND":"<base64>"}}}; n <= CONNECT_CHUNK. Needs connect_event_room(n) bytes of
 * req_room.
 */
void connect_event_data(struct req *r, const char *kind, const void *p, size_t n);
size_t connect_event_room(size_t n);
void connect_end(struct req *r);
void connect_end_error(struct req *r, enum connect_code code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Connect-Timeout-Ms; 0 = absent. (Malformed or over a year: 0; streams refuse those before.) */
int64_t connect_timeout_ms(struct req *r);
int64_t connect_keepalive_ms(struct req *r);     /* Keepalive-Ping-Interval in seconds, default 90 */

#endif
