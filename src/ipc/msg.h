/*
 * Inside ipc/: the envelopes of ipc.h as tables, and the bounded queue of packets that a full
 * socket did not take.
 */
#ifndef IPC_MSG_H
#define IPC_MSG_H

#include "base/list.h"
#include "ipc/ipc.h"

#define IPC_NAME_MAX 48                  /* of an operation or event, with the final NUL */
#define IPC_OUT_MAX 1024                 /* packets waiting for one peer */
#define IPC_OUT_BYTES_MAX (2 << 20)

struct ipc_request {
	uint64_t v, id;
	char op[IPC_NAME_MAX];
	char req[IPC_REQ_ID_MAX + 1];
	json_t *a;
};

/* What a client receives: an answer (ev is ""; either r or failed) or an event. */
struct ipc_incoming {
	char ev[IPC_NAME_MAX];
	json_t *a;
	uint64_t id;
	json_t *r;
	bool failed;
	struct err err;
};

/* Both: 0 or -EBADMSG; what they fill is freed with the _done. */
int ipc_request_parse(const char *p, size_t n, struct ipc_request *ret, struct err *e);
void ipc_request_done(struct ipc_request *r);
int ipc_incoming_parse(const char *p, size_t n, struct ipc_incoming *ret, struct err *e);
void ipc_incoming_done(struct ipc_incoming *m);

/*
 * The packets as text (caller frees), or NULL with the reason in e: not to be encoded, or over
 * IPC_MSG_MAX.
 */
char *ipc_request_text(const struct ipc_op *op, uint64_t id, const char *req_id, const void *st,
		       struct err *e);
char *ipc_answer_text(const struct ipc_op *op, uint64_t id, const void *st, struct err *e);
char *ipc_fail_text(uint64_t id, const struct err *failure);
char *ipc_event_text(const char *name, const struct ipc_field *fields, const void *st,
		     struct err *e);

void ipc_close_fds(int *fds, size_t n);          /* and sets them to -1 */

struct ipc_outq { struct list head; unsigned len; size_t bytes; };

void ipc_outq_init(struct ipc_outq *q);
void ipc_outq_done(struct ipc_outq *q);
/*
 * Sends, or keeps it (descriptors duplicated) behind what waits. -ENOBUFS at the limits, else errno
 * of sendmsg(2).
 */
int ipc_outq_send(struct ipc_outq *q, int fd, const char *text, const int *fds, size_t n_fds);
int ipc_outq_flush(struct ipc_outq *q, int fd);  /* 0; -EAGAIN = something still waits; other errno */

#endif
