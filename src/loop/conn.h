/*
 * conn: one buffered, non-blocking stream socket with one callback.
 *
 * The callback gets one event at a time and may call any conn_ function, conn_free included
 * (freeing is deferred to the end of the turn). Reading stops by itself when the input buffer is
 * full (flow control: a user that does not consume stalls its peer) and may be stopped with
 * conn_pause.
 */
#ifndef LOOP_CONN_H
#define LOOP_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"
#include "loop/loop.h"

struct conn;
struct err;

enum conn_event {
	CONN_DATA,          /* conn_in() has new bytes */
	CONN_EOF,           /* the peer will send no more; conn_in() may still hold bytes */
	CONN_DRAINED,       /* everything queued by conn_write was written (also when that was so at once: it comes after each) */
	CONN_ERROR,         /* conn_error() says which; the connection is dead */
	CONN_TIMEOUT,       /* conn_set_timeout ran out */
	CONN_CONNECTED,     /* after conn_dial, and after conn_new with a descriptor whose connect is in progress */
	CONN_LEFT,          /* the peer will send no more, or is gone; what it sent waits to be read: the buffer is full, or paused. Once */
};

typedef void conn_fn(struct conn *c, enum conn_event ev, void *arg);

struct conn *conn_new(struct loop *l, int fd, size_t in_max, size_t out_max, conn_fn *fn,
		      void *arg); /* owns fd */
/*
 * NULL with the error set: nothing was made. fn gets CONN_CONNECTED or CONN_ERROR; what is written
 * before is queued.
 */
struct conn *conn_dial(struct loop *l, const char *addr, size_t in_max, size_t out_max, conn_fn *fn,
		       void *arg, struct err *e);
void conn_free(struct conn *c);                          /* closes; no callback after this call */
int conn_detach(struct conn *c);                         /* gives the fd back and frees c; unread input must have been taken */
void conn_set_fn(struct conn *c, conn_fn *fn, void *arg);
/*
 * Consume from what this returns, and call it anew for each visit: that is how reading goes on
 * after a full buffer.
 */
struct buf *conn_in(struct conn *c);
/*
 * Queues and tries to write; -ENOBUFS over out_max (nothing written); other errors also come as
 * CONN_ERROR.
 */
int conn_write(struct conn *c, const void *p, size_t n);
struct buf *conn_out(struct conn *c);                    /* after direct buf_put: conn_flush */
void conn_flush(struct conn *c);
size_t conn_out_len(const struct conn *c);
void conn_pause(struct conn *c, bool paused);            /* stop or go on reading */
void conn_shutdown_write(struct conn *c);                /* after the queue has drained */
void conn_set_timeout(struct conn *c, int64_t ms);       /* one shot; 0 = off */
int conn_fd(const struct conn *c);
int conn_error(const struct conn *c);                    /* negative errno */
bool conn_eof(const struct conn *c);                     /* CONN_EOF was given */
bool conn_left(const struct conn *c);                    /* CONN_LEFT was given */
void conn_kick(struct conn *c);                          /* CONN_DATA again in the next turn if input is there */

#endif
