/*
 * conn: one buffered, non-blocking stream socket with one callback.
 *
 * The callback gets one event at a time and may call any conn_ function, conn_free included (freeing is
 * deferred to the end of the turn). Reading stops by itself when the input buffer is full (flow control: a
 * user that does not consume stalls its peer) and may be stopped with conn_pause.
 */
#ifndef LOOP_CONN_H
#define LOOP_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"
#include "loop/loop.h"

struct conn;

enum conn_event {
	CONN_DATA,          /* conn_in() has new bytes */
	CONN_EOF,           /* the peer will send no more; conn_in() may still hold bytes */
	CONN_DRAINED,       /* everything queued by conn_write was written */
	CONN_ERROR,         /* conn_error() says which; the connection is dead */
	CONN_TIMEOUT,       /* conn_set_timeout ran out */
	CONN_CONNECTED,     /* after conn_dial */
};

typedef void conn_fn(struct conn *c, enum conn_event ev, void *arg);

struct conn *conn_new(struct loop *l, int fd, size_t in_max, size_t out_max, conn_fn *fn, void *arg);  /* owns fd */
void conn_free(struct conn *c);                          /* closes; no callback after this call */
int conn_detach(struct conn *c);                         /* gives the fd back and frees c; unread input must have been taken */
void conn_set_fn(struct conn *c, conn_fn *fn, void *arg);
struct buf *conn_in(struct conn *c);
int conn_write(struct conn *c, const void *p, size_t n); /* queues and tries to write; -ENOBUFS over out_max */
struct buf *conn_out(struct conn *c);                    /* after direct buf_put: conn_flush */
void conn_flush(struct conn *c);
size_t conn_out_len(const struct conn *c);
void conn_pause(struct conn *c, bool paused);            /* stop or go on reading */
void conn_shutdown_write(struct conn *c);                /* after the queue has drained */
void conn_set_timeout(struct conn *c, int64_t ms);       /* one shot; 0 = off */
int conn_fd(const struct conn *c);
int conn_error(const struct conn *c);                    /* negative errno */
void conn_kick(struct conn *c);                          /* CONN_DATA again in the next turn if input is there */

#endif
