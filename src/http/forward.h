/*
 * forward: sends one HTTP message of a client to an upstream server and its answer back. Both
 * daemons on the data path (space-api, node-api) use it. It belongs to the loop's thread; nothing
 * in it blocks.
 *
 * One struct forward is one message. Its client comes from http_req_take(); upstream connections
 * are given by the user, one an attempt. The request's body is passed on with its framing unchanged
 * and scanned on the way, so the upstream never gets a byte behind the end of this message, and
 * what the client sent behind it stays in its conn.
 *
 *  - The head towards the upstream is made by the user (Expect must not be in it: `100 Continue` is answered here).
 *  - Each head that the upstream sends is parsed and goes through `head`, interim answers too (101 only as the answer to
 *    an upgrade: then both sides become a raw tunnel, half-closes included).
 *  - Buffers are those of the two conns (FORWARD_BUFFER_BYTES each way is right for the upstream's): who does not read
 *    stalls who writes.
 *  - A client that sends end of file before its answer is complete has left (as a closed socket looks the same), also
 *    when what it sent before waits for the upstream; tunnels excepted: there that wait has a limit then
 *    (stall_timeout_ms). The upstream connection is then shut and closed.
 *  - A body that was cut never ends in order at the client: it gets a message that is not whole; over TCP a reset, too, but for
 *    requests with Content-Length whose answer shows by its framing that it was cut, with no byte on its way.
 *  - An upstream that sent its whole answer before it took the whole request is closed; the client's rest is drained
 *    (FORWARD_DRAIN_MAX), else its connection ends after the answer.
 */
#ifndef HTTP_FORWARD_H
#define HTTP_FORWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "http/http.h"
#include "loop/conn.h"

#define FORWARD_BUFFER_BYTES 131072          /* in_max and out_max for upstream conns; must be above HTTP_HEAD_MAX */
#define FORWARD_REPLAY_MAX 65536             /* body bytes kept for another attempt */
#define FORWARD_DRAIN_MAX 65536
#define FORWARD_LINGER_MS 2000

struct forward;

enum forward_why {
	FORWARD_OK,                /* the answer went out whole */
	FORWARD_SWALLOWED,         /* `head` took the answer away */
	FORWARD_UPSTREAM_GONE,     /* refused, reset or closed too early */
	FORWARD_UPSTREAM_BAD,      /* what came is not HTTP */
	FORWARD_TIMEOUT,           /* not connected, or no answer in time */
	FORWARD_BODY_BAD,          /* the client's framing is malformed */
	FORWARD_BODY_STALLED,      /* the client stopped within its body */
	FORWARD_CLIENT_GONE,
	FORWARD_CUT,               /* forward_cut */
	FORWARD_LEFT,              /* forward_leave */
	FORWARD_WHY_COUNT,
};
extern const char *const forward_why_names[FORWARD_WHY_COUNT];

struct forward_end {
	enum forward_why why;
	int status;                /* of the answer that the client got; 0 = none */
	uint64_t in_bytes, out_bytes;     /* of bodies, framing included; the kept bytes of a second attempt count once */
	/*
	 * Not NULL: in order and fit for http_server_return(), or left; the callee owns it. NULL:
	 * closed.
	 */
	struct conn *client;
};

enum forward_head { FORWARD_PASS, FORWARD_SWALLOW };

struct forward_conf {
	struct loop *loop;
	bool rechunk;              /* frame the answer's body anew: trailers of the upstream do not pass */
	/*
	 * An end is in order only by shutdown(2): a Unix socket that is closed altogether broke (who
	 * had it died, or had seen a cut). So it is with the upstream's, and with the client's of a
	 * tunnel. Not to be told apart once the other side's end was passed on to it.
	 */
	bool closed_is_broken;
	bool replay;               /* keep the body's first bytes for another attempt */
	bool silent;               /* req is the user's own and asks for a tunnel: the client gets its bytes and no heads */
	int connect_timeout_ms;    /* 0 = none, each */
	int head_timeout_ms;       /* from the end of the request to the head of the answer */
	int stall_timeout_ms;      /* the client sends nothing within its body, or takes nothing of the rest of a last answer */
	/*
	 * A head came. Write status line and fields to `out` (not framing, Connection, Upgrade,
	 * end: forward does those) and return FORWARD_PASS; or FORWARD_SWALLOW: the attempt ends
	 * with `failed`. NULL: passed with all end-to-end fields.
	 */
	enum forward_head (*head)(struct forward *f, const struct http_head *h, struct buf *out,
				  void *arg);
	/*
	 * The upstream connection was closed (idle NULL), or is in order and idle: the callee owns
	 * it and sets its callback. Call nothing of forward from here. Once an attempt.
	 */
	void (*released)(struct forward *f, struct conn *idle, void *arg);
	/*
	 * An attempt ended before the client got any of an answer. Call forward_start,
	 * forward_reply or forward_cut, now or later.
	 */
	void (*failed)(struct forward *f, enum forward_why why, void *arg);
	/*
	 * It is over; f is freed after this. Called exactly once, also when nothing was ever
	 * started (client gone).
	 */
	void (*end)(struct forward *f, const struct forward_end *end, void *arg);
	void *arg;
};

/*
 * Owns client; *req is moved. `released`, `failed` and `end` come from the loop, never from inside
 * this call.
 */
struct forward *forward_new(const struct forward_conf *c, struct conn *client,
			    struct http_head *req);
const struct http_head *forward_req(const struct forward *f);
/*
 * Begins an attempt: owns up (connecting is fine); head bytes are copied, at most
 * FORWARD_BUFFER_BYTES.
 */
void forward_start(struct forward *f, struct conn *up, const void *head, size_t n);
/*
 * The upstream speaks no HTTP: the request is answered with 101 here and now, and both sides become
 * a raw tunnel. The request must ask for an upgrade and have no body. Owns up, in whose conn_in may
 * be bytes already.
 */
void forward_tunnel(struct forward *f, struct conn *up);
/* The body up to here can be sent once more (or was not touched). */
bool forward_can_retry(const struct forward *f);
/*
 * An answer of the user's own, while no attempt runs. `extra` ends with name NULL, may be NULL. Not
 * with `silent`.
 */
void forward_reply(struct forward *f, int status, const struct http_field *extra,
		   const char *content_type, const void *body, size_t n);
/*
 * With `silent`, in place of that: the client is given to `end`, with what came from it unread. The
 * status is noted as that of its answer.
 */
void forward_leave(struct forward *f, int status);
/*
 * Throws away what is buffered and ends both sides: the client as above. `end` comes with
 * FORWARD_CUT.
 */
void forward_cut(struct forward *f);

#endif
