/*
 * HTTP over the streams of the guest channel: one request a stream. A request lives from OPEN until
 * both directions have ended or RST; then `gone` is called (once, if it was set) and it is freed.
 *
 * Flow control: bytes of a body are given back to the sender when the handler has returned from
 * `body`, so a handler that writes to a disk slows its sender; one that cannot go on holds them
 * back (req_hold: up to MUX_CREDIT_INITIAL bytes still come). Answers wait in `out` (whole answers
 * up to REQ_ANSWER_MAX; streams keep to req_room, at most REQ_STREAM_MAX) until the stream has
 * credit.
 *
 * Memory: the agent's is never reclaimed and nothing kills it for it (main.c: protect), so what it
 * takes beyond measure is the end of the guest. What may become large asks req_crowded before it
 * grows, and is refused (resource_exhausted, 429).
 */
#ifndef GUEST_SERVE_H
#define GUEST_SERVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/list.h"
#include "http/http.h"
#include "spaced-guest/agent.h"

#define REQ_ANSWER_MAX (32 << 20)
#define REQ_STREAM_MAX (192 << 10)
#define REQ_SMALL (64 << 10)             /* a body or an answer that is never refused for want of memory */
#define REQS_HELD_MAX (64 << 20)         /* bytes that all requests may hold; see req_crowded */
#define REQ_ID_MAX 64

struct req;
struct route;

/* What a handler may set. All are optional. */
struct req_ops {
	int (*body)(struct req *r, const char *p, size_t n);     /* decoded bytes; < 0 = answered already, drop the rest */
	void (*body_end)(struct req *r);
	void (*room)(struct req *r);                             /* the answer's stream has room: produce */
	void (*gone)(struct req *r);                             /* last call: free ctx */
};

enum req_state {
	REQ_HEAD,
	REQ_BODY,
	REQ_WAIT /* body complete, no whole answer yet */,
	REQ_DRAIN /* answered */
};

struct req {
	struct list node;
	struct agent *a;
	struct mux *mux;
	uint32_t stream;
	bool control;
	enum req_state state;
	struct buf in;                   /* the head, then (for whole bodies) the decoded body */
	struct http_head head;
	bool has_head;
	struct http_dec dec;
	const struct route *route;
	char id[REQ_ID_MAX + 1];
	struct buf out;
	bool answered;                   /* the answer's head was written */
	bool chunked;
	bool no_body;                    /* HEAD: answered like GET, without what follows the head */
	bool finished;                   /* the answer is complete in `out` */
	bool ended;                      /* END was sent */
	bool held;                       /* req_hold */
	size_t owed;                     /* bytes that came while held */
	size_t extra;                    /* memory that its handler holds, beside `in` and `out` */
	bool counts;                     /* as activity */
	bool again;                      /* set by ops->room: it put nothing, but has more to do at once */
	const struct req_ops *ops;
	void *ctx;
};

struct route {
	const char *method, *path;
	enum {
		ROUTE_DATA = 1,
		ROUTE_CONTROL = 2,
		ROUTE_OPEN = 4, /* no token, also before /init */
		ROUTE_QUIET = 8 /* no activity (docs/activity.md) */
	} flags;
	size_t body_max;                 /* 0: `begin` sets ops and takes the body in pieces */
	void (*whole)(struct req *r, const char *body, size_t n);
	void (*begin)(struct req *r);
};

void serve_event(struct agent *a, struct mux *m, struct mux_event *e);
bool serve_pump(struct agent *a);                        /* true = something moved */

/* A whole answer; content_type NULL = none. */
void req_answer(struct req *r, int status, const char *content_type, const void *p, size_t n);
/* The answer's JSON body is taken from b (emptied). */
void req_answer_buf(struct req *r, int status, const char *content_type, struct buf *b);
/* {"code":STATUS,"message":"..."} */
void req_error(struct req *r, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* A streamed answer. length -1 = chunked. `fields` ends with name NULL; may be NULL. */
void req_start(struct req *r, int status, const char *content_type, const struct http_field *fields,
	       int64_t length);
size_t req_room(const struct req *r);                    /* bytes that req_put may take now */
void req_put(struct req *r, const void *p, size_t n);    /* one chunk when chunked */
void req_finish(struct req *r);
/* On: the sender gets no credit until it is off again. A finished answer ends it too. */
void req_hold(struct req *r, bool on);
/* Whether all requests, and the input that waits for commands, hold more than REQS_HELD_MAX. */
bool req_crowded(const struct req *r);
#define REQ_CROWDED_TEXT "the agent holds too much for other requests; try again later"
/* The stream is cut (RST): a body that cannot be completed. r is freed. */
void req_cut(struct req *r);

/*
 * The user of a request: `username` of the query, HTTP Basic, else the default one. -ENOENT with a
 * sentence.
 */
int req_user(struct req *r, struct user *ret, struct err *e);

#endif
