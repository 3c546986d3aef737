/*
 * One call of a terminal to its sandbox's process service, made as any client makes it: over a
 * connection to this program's own server, with the sandbox's headers and token. So it passes the
 * same checks and the same path (data.c), gets a capability, an admission and a lease of its own,
 * and is cut with the sandbox's other streams. Nothing here knows a shorter way.
 *
 * For the loop's thread. `fn` is called when something may have happened: then hop_next or
 * hop_answer say what. Who does not call hop_next lets the connection fill, and so stalls the
 * command (docs/limits.md).
 */
#ifndef API_TERMINAL_HOP_H
#define API_TERMINAL_HOP_H

#include <jansson.h>
#include "api/api.h"
#include "base/buf.h"
#include "http/http.h"
#include "loop/conn.h"

#define HOP_MESSAGE_MAX 131072           /* one message of a stream; beyond: -EBADMSG */
#define HOP_ANSWER_MAX 16384             /* the body of any other answer, likewise */
#define HOP_IN_MAX 65536
#define HOP_IDLE_MS 60000                /* half of what the server allows an idle connection */

enum hop_state { HOP_IDLE, HOP_HEAD, HOP_BODY, HOP_ENDED };

struct hop {
	struct api *api;
	struct conn *conn;
	enum hop_state st;
	bool stream, keep;
	int status;                      /* of the answer, once its head came */
	struct http_dec dec;
	struct buf body;                 /* decoded, not taken yet */
	size_t given;                    /* bytes of it that the last hop_next gave away */
	int64_t used_ms;
	void (*fn)(void *arg);
	void *arg;
};

struct hop_ask {
	const char *sandbox, *method, *user /* "" = none */, *req_id;
	bool stream;
	json_t *body;                    /* borrowed */
};

void hop_init(struct hop *h, struct api *a, void (*fn)(void *arg), void *arg);
void hop_done(struct hop *h);            /* ends what is under way; may be called twice */
/* From HOP_IDLE. -EMFILE and such: nothing was sent. */
int hop_send(struct hop *h, const struct hop_ask *q, struct err *e);
/*
 * A stream. 1: a message, valid until the next call; `last` is the stream's end. 0: none yet.
 * -ECONNRESET: cut; -EREMOTEIO: refused (h->status, the sentence in e); -EBADMSG.
 */
struct hop_message { const char *p; size_t n; bool last; };
int hop_next(struct hop *h, struct hop_message *ret, struct err *e);
/* Any other call. 1: done, with status 200; 0: not yet; errors as above. Idle afterwards. */
int hop_answer(struct hop *h, struct err *e);

#endif
