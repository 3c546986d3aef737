/*
 * The HTTP server for loop programs: parses heads, gives each request to one handler, keeps the
 * connection alive. A handler answers at once or later (from the loop's thread), reads the body
 * through a callback, or takes the connection over (tunnel, forwarding).
 */
#ifndef HTTP_SERVER_H
#define HTTP_SERVER_H

#include "http/http.h"
#include "loop/conn.h"

#define HTTP_IN_MAX (2 * HTTP_HEAD_MAX)      /* unread input of a connection */
#define HTTP_ANSWER_MAX (16 << 20)           /* queued output of a connection */
#define HTTP_DRAIN_MAX (64 << 10)
#define HTTP_LINGER_MS 1000                  /* after an error: for the client to read the answer before the connection is cut */
#define HTTP_LINGER_MAX (1 << 20)            /* bytes thrown away meanwhile */

struct http_server;
struct http_req;

/* An answer that the server gives by itself, because no handler can: see http_server_conf.refuse. */
struct http_refusal {
	struct http_req *req;            /* NULL: its head is not whole or malformed */
	const char *seen; size_t seen_len;       /* of the head then; any bytes, maybe none */
	int status;
	const char *message;
	struct buf *body;                /* to fill; empty: JSON as of http_req_error */
	const char *content_type;
	char request_id[65];             /* "": none is said */
};

struct http_server_conf {
	int head_timeout_ms;             /* for a whole head, from its first byte (slowloris) */
	int idle_timeout_ms;             /* between requests; and for each piece of a body or answer that makes no progress */
	/* Beyond: the longest idle one gives way; none idle: 503 and close. Taken ones do not count. */
	size_t max_conns;
	size_t max_body;                 /* for http_req_read_body: 413 beyond */
	void (*handle)(struct http_req *r, void *arg);
	/*
	 * The client left (or closed its sending side) before the answer; r stays valid until it is
	 * answered or taken as usual, and the answer is tried or dropped. Called at most once a
	 * request; may be NULL.
	 */
	void (*gone)(struct http_req *r, void *arg);
	/*
	 * r is about to be freed, for whatever reason (answered, refused while its body was read,
	 * taken, server freed): the place to give up http_req_user. May be NULL.
	 */
	void (*end)(struct http_req *r, void *arg);
	/*
	 * The body of an answer of the server's own (malformed, too large, too late), the 503 over
	 * max_conns excepted: that one is given before anything was read. May be NULL.
	 */
	void (*refuse)(struct http_refusal *f, void *arg);
	void *arg;
};

struct http_server *http_server_new(struct loop *l, const struct http_server_conf *c);
void http_server_free(struct http_server *s);
void http_server_accept(struct http_server *s, int fd);              /* owns fd */
size_t http_server_conns(const struct http_server *s);

struct http_head *http_req_head(struct http_req *r);
void *http_req_user(struct http_req *r);
void http_req_set_user(struct http_req *r, void *user);
int http_req_fd(const struct http_req *r);

/*
 * Inside of conf.handle or later, once a request. Sends 100 Continue where it is waited for. Reads
 * the whole body (decoded), then calls fn(r, body, len); body is NUL-terminated and valid during
 * the call. Too large, malformed or cut: answered by the server (413, 400), fn is not called.
 */
void http_req_read_body(struct http_req *r,
			void (*fn)(struct http_req *r, const char *body, size_t len, void *arg),
			void *arg);

/*
 * One answer; after it r is gone. Extra fields end with name NULL and may be NULL. Unread body:
 * drained up to HTTP_DRAIN_MAX, else closed. The server writes Date, Content-Length and Connection.
 * More than HTTP_ANSWER_MAX bytes, or control bytes in a field, become a 500.
 */
void http_req_answer(struct http_req *r, int status, const struct http_field *extra,
		     const char *content_type, const void *body, size_t len);
/* JSON error body in the E2B form {"code":N,"message":"..."}, see http_req_answer. */
void http_req_error(struct http_req *r, int status, const struct http_field *extra,
		    const char *message);

/*
 * Takes over the connection for this request: the conn with unread input (body bytes or tunnel
 * bytes) in conn_in(), which may be there already: set the callback with conn_set_fn, then
 * conn_kick; conn_eof says whether the end was seen. NULL when the client has gone. Not after
 * http_req_read_body. 100 Continue is the taker's. When done with a message that ended in order,
 * give it back with http_server_return for the next request; else conn_free. r is gone after this
 * call; head is moved to *ret_head (caller: http_head_done).
 */
struct conn *http_req_take(struct http_req *r, struct http_head *ret_head);
void http_server_return(struct http_server *s, struct conn *c);

#endif
