/*
 * A small blocking HTTP/1.1 client for worker threads, tests and the command line over "unix:" and
 * "tcp:" addresses (dial form of loop/listen.h). One request a call, answer read whole into memory
 * up to a limit. For streams: http_call_open.
 */
#ifndef HTTP_CLIENT_H
#define HTTP_CLIENT_H

#include "base/err.h"
#include "http/http.h"

struct http_call {
	const char *addr;                    /* "unix:/run/..." or "tcp:127.0.0.1:4983" */
	int (*dial)(void *arg, int timeout_ms, struct err *e);      /* instead of addr: a connected descriptor */
	void *dial_arg;
	const char *method, *target, *host;
	const struct http_field *fields;     /* ends with name NULL; may be NULL */
	const void *body; size_t body_len;   /* NULL: none */
	int timeout_ms;                      /* for the whole call */
	size_t max_answer;                   /* bytes of body; -EFBIG beyond */
};
struct http_answer { struct http_head head; char *body; size_t body_len; };    /* body NUL-terminated */

/*
 * Errors: those of dial_wait; -ETIMEDOUT; -EBADMSG the answer is not HTTP; -ECONNRESET it was cut;
 * -EFBIG; -EINVAL the request cannot be written (control bytes). An answer with any status is
 * success. Sends Connection: close.
 */
int http_call(const struct http_call *c, struct http_answer *ret, struct err *e);
void http_answer_done(struct http_answer *a);
/*
 * Sends the head and the body, if any, and reads the answer's head. The fd and the bytes read past
 * the head (put into *ret_rest, initialised by the caller with room for HTTP_HEAD_MAX at least) are
 * the caller's. With `chunked` it returns after the head was sent (ret_head, ret_rest untouched,
 * may be NULL): the caller writes chunks to the fd (http_put_chunk framing) and then calls
 * http_call_answer. Connection is a field of the caller's here, so that tunnels work.
 */
int http_call_open(const struct http_call *c, bool chunked, int *ret_fd, struct http_head *ret_head,
		   struct buf *ret_rest, struct err *e);
/* Interim answers (1xx but 101) are skipped. `method` is that of the request. */
int http_call_answer(int fd, const char *method, int timeout_ms, struct http_head *ret_head,
		     struct buf *ret_rest, struct err *e);

#endif
