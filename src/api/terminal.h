/*
 * Terminals for browsers: a shell of a sandbox over WebSocket (docs/terminal.md says what both
 * sides send).
 *
 *	browser ── WebSocket ── terminal.c ══ hops (terminal_hop.h) ══ this program's own server ── the data path
 *
 * terminal_open.c decides who may; terminal.c is one open terminal, terminal_frames.c its client;
 * terminal_text.c reads what comes from outside.
 */
#ifndef API_TERMINAL_H
#define API_TERMINAL_H

#include "api/api.h"
#include "api/terminal_text.h"

#define TERMINAL_MAX 512                 /* open ones of an API process; beyond: 429 */
#define TERMINAL_INPUT_MAX 65536         /* bytes of a message; beyond: close 1009 */
#define TERMINAL_INPUT_HOLD 131072       /* so much waits for the sandbox before the client has to */
#define TERMINAL_SEND_MAX 32768          /* bytes of one SendInput */
#define TERMINAL_QUEUE_MAX 131072        /* output that waits for the client before the command has to */
#define TERMINAL_PONGS_MAX 16            /* answers to the client's pings that wait, likewise */
#define TERMINAL_PING_MS 30000
#define TERMINAL_DEAD_MS 120000          /* without a sign of life: cut */
#define TERMINAL_CLOSE_MS 5000           /* for the client's half of the closing handshake */
#define TERMINAL_JIGGLE_MS 200           /* between the two sizes that make a program draw anew */
#define TERMINAL_TICKET_MS 60000

/* Close codes beside those of RFC 6455 7.4. */
enum terminal_close {
	TERMINAL_CLOSE_MESSAGE = 4400,   /* a control message is malformed */
	TERMINAL_CLOSE_SHELL_GONE = 4404,        /* the shell to attach to is not there */
	TERMINAL_CLOSE_PAUSED = 4409,
	TERMINAL_CLOSE_ENDED = 4410,     /* the sandbox stopped, or is gone */
	TERMINAL_CLOSE_LIMIT = 4429,
	TERMINAL_CLOSE_LOST = 4503,      /* the way to the sandbox broke: connect again */
};

/* The handshake is in order and its sender may: answers 101. c is gone. */
void terminal_open(struct call *c, const struct terminal_hello *hello,
		   const struct terminal_ask *ask);
void terminal_clear(struct api *a);      /* the program ends: closes all with 1001; after the workers' end */

extern const char *const terminal_params[];
/* GET /v1/sandboxes/{id}/terminal */
void terminal_handle(struct call *c);
/* POST /v1/sandboxes/{id}/terminal-tickets, in a worker */
void run_v1_terminal_ticket(struct call *c, struct store *s);

#endif
