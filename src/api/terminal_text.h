/*
 * What a terminal's client and the sandbox say, as far as it is text: the handshake of RFC 6455,
 * the query, the control messages, the events of the process service. No state, no input or output;
 * fuzz_terminal.c feeds it.
 */
#ifndef API_TERMINAL_TEXT_H
#define API_TERMINAL_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "http/http.h"

#define TERMINAL_PROTOCOL "space.terminal.v1"
#define TERMINAL_TICKET_PREFIX "ticket."
#define TERMINAL_SECRET_BYTES 32             /* of a ticket: 64 hex digits */
#define TERMINAL_SESSION_BYTES 16            /* names a shell: 32 hex digits */
#define TERMINAL_ACCEPT_LEN 28
#define TERMINAL_SIZE_MAX 1000               /* columns, rows */
#define TERMINAL_WINDOW_MIN 65536            /* holds the largest event of the guest */
#define TERMINAL_WINDOW_MAX (1 << 20)
#define TERMINAL_USER_MAX 32
#define TERMINAL_TEXT_MAX 4096               /* bytes of a control message */
#define TERMINAL_ORIGIN_MAX 300

struct terminal_hello {
	char accept[TERMINAL_ACCEPT_LEN + 1];
	bool protocol;                           /* the client asked for TERMINAL_PROTOCOL */
	char ticket[2 * TERMINAL_SECRET_BYTES + 1];      /* "" = none */
};

/* -EINVAL with the reason; -EPROTONOSUPPORT: no WebSocket of version 13 (HTTP 426). */
int terminal_hello(const struct http_head *h, struct terminal_hello *ret, struct err *e);
/*
 * The request's Origin is this server's own host (by its Host field), or one of `allowed` (origins,
 * separated by blanks; "" = none). -ENOENT: no Origin; -EACCES: another one.
 */
int terminal_origin(const struct http_head *h, const char *allowed, struct err *e);

/* ?cols=80&rows=24[&session=..|&pid=..][&user=..][&window=..]; unknown names are refused. */
struct terminal_ask {
	uint16_t cols, rows;
	char session[2 * TERMINAL_SESSION_BYTES + 1];    /* "" = none: attach by pid, or start */
	uint32_t pid;                            /* 0 = none */
	char user[TERMINAL_USER_MAX + 1];        /* "" = the sandbox's own */
	uint32_t window;                         /* 0 = without */
};
int terminal_ask(const char *target, struct terminal_ask *ret, struct err *e);

enum terminal_kind { TERMINAL_RESIZE, TERMINAL_REDRAW, TERMINAL_ACK, TERMINAL_PING };
struct terminal_message { enum terminal_kind kind; uint16_t cols, rows; uint32_t bytes; };
int terminal_message(const char *p, size_t n, struct terminal_message *ret, struct err *e);

/*
 * One message of a Start or Connect stream. Nothing of it is believed: sizes and types are checked.
 */
enum terminal_event_kind {
	TERMINAL_EV_OTHER,                       /* keepalive, and what is new */
	TERMINAL_EV_START,
	TERMINAL_EV_DATA,
	TERMINAL_EV_END,
	TERMINAL_EV_FAILED,                      /* the stream ends with an error: code, text */
	TERMINAL_EV_LAST                         /* the stream ends in order */
};
struct terminal_event {
	enum terminal_event_kind kind;
	uint32_t pid;
	char *data; size_t len;                  /* owned: terminal_event_done */
	int code;                                /* of the end; -1: by a signal */
	char signal[16];                         /* "SIGKILL" */
	char error[40], text[200];
};
/*
 * `last`: the message has the flag of the end. -EBADMSG: not of the process service; -EINVAL: of a
 * command without a terminal.
 */
int terminal_event(const char *p, size_t n, bool last, struct terminal_event *ret, struct err *e);
void terminal_event_done(struct terminal_event *ev);

#endif
