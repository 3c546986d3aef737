/*
 * A client of QEMU's machine protocol (QMP; docs/interop/qmp-spec of QEMU): JSON objects, one a
 * line, over a connected Unix stream socket. One command at a time; blocking with deadlines; events
 * are given to a callback as they come.
 *
 * The other side is a VMM that a guest may have taken over: a message has at most QMP_MESSAGE_MAX
 * bytes and QMP_DEPTH_MAX levels, JSON is parsed strictly, an answer that nobody asked for is
 * -EPROTO, and so are more than QMP_EVENTS_PER_S events, some of which a guest causes at will.
 * After any error but that of a command itself (-EREMOTEIO, -ENOSYS) the connection is dead and
 * every call gives the same error again.
 */
#ifndef VMM_QMP_H
#define VMM_QMP_H

#include <jansson.h>
#include "base/err.h"

#define QMP_MESSAGE_MAX 262144       /* the longest seen: 64 KiB of console as base64 */
#define QMP_DEPTH_MAX 16
#define QMP_NAME_MAX 64
#define QMP_STRAYS_MAX 4         /* answers to others, dropped; one more breaks the protocol */
#define QMP_EVENTS_PER_S 1000    /* of an honest guest: some in its life */

struct qmp;

/* data is borrowed and may be NULL (event without data). */
typedef void qmp_event_fn(const char *name, json_t *data, void *arg);

/* Owns fd, also on failure. Reads the greeting and negotiates. */
int qmp_open(int fd, qmp_event_fn *fn, void *arg, int timeout_ms, struct qmp **ret, struct err *e);
void qmp_free(struct qmp *q);        /* NULL is fine */
int qmp_fd(const struct qmp *q);

/*
 * args is stolen (NULL = none). pass_fd >= 0 goes along as SCM_RIGHTS and stays the caller's. *ret:
 * the answer's "return", caller decrefs; ret may be NULL. Refused by the VMM: -ENOSYS (no such
 * command) or -EREMOTEIO, with its reason. Gone: -ECONNRESET.
 */
int qmp_call(struct qmp *q, const char *command, json_t *args, int pass_fd, int timeout_ms,
	     json_t **ret, struct err *e);

/* Handles what has arrived, without blocking. */
int qmp_poll(struct qmp *q, struct err *e);
/*
 * Waits until something has arrived (events were delivered) or -ETIMEDOUT (the connection stays
 * good).
 */
int qmp_wait(struct qmp *q, int timeout_ms, struct err *e);

#endif
