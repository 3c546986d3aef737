/*
 * A terminal's client: WebSocket messages (RFC 6455; wslay) on a connection. Who owns it reads and
 * writes whenever something has happened, as often as he likes.
 *
 * Binary messages wait in `input` until the owner takes them, texts are handed to him. While
 * TERMINAL_INPUT_HOLD bytes wait there, or too many answers to the client's pings wait for the
 * client, nothing is read: so there is room for all that is.
 */
#ifndef API_TERMINAL_FRAMES_H
#define API_TERMINAL_FRAMES_H

#include <stdbool.h>
#include <stdint.h>
#include <wslay/wslay.h>
#include "base/buf.h"
#include "loop/conn.h"

struct frames {
	struct conn *conn;               /* owned; set by the owner before anything is read or written */
	wslay_event_context_ptr ctx;
	struct buf input;
	uint64_t in_bytes;               /* of binary messages, so far */
	int64_t alive_ms;                /* when something was read last */
	bool closing;                    /* one side has said that it closes, or broke a rule: no message is taken or put */
	void (*text)(void *arg, const void *p, size_t n);        /* may put and close */
	void *arg;
};

int frames_init(struct frames *f, void (*text)(void *arg, const void *p, size_t n), void *arg);      /* -ENOMEM */
void frames_done(struct frames *f);              /* and the connection; what is put later is dropped */

/* What has come. GONE: the connection has ended, or cannot go on. */
enum frames_state { FRAMES_OPEN, FRAMES_CLOSING, FRAMES_GONE };
enum frames_state frames_read(struct frames *f);
bool frames_write(struct frames *f);             /* what waits; false: the connection is dead */

void frames_put(struct frames *f, uint8_t opcode, const void *p, size_t n);      /* copied */
void frames_close(struct frames *f, uint16_t code, const char *reason);          /* behind what waits */
bool frames_held(const struct frames *f);        /* the owner has not taken the input */
bool frames_room(const struct frames *f);        /* output may be put */

#endif
