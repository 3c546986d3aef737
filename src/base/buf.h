/*
 * A bounded byte buffer: a growing array with a read offset. `max` is the named limit of its user;
 * what would pass it is refused with -ENOBUFS and nothing is written.
 */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct buf {
	char *data_;
	size_t off_, len_, cap_;
	size_t max;                 /* most unread bytes */
};

void buf_init(struct buf *b, size_t max);
void buf_done(struct buf *b);                               /* frees; may be called twice */
/* Never NULL: a pointer that may be passed with length 0 to memcpy(3) and may have 0 added. */
static inline const char *buf_data(const struct buf *b)
{
	return b->data_ ? b->data_ + b->off_ : "";
}
static inline size_t buf_len(const struct buf *b) { return b->len_; }
static inline size_t buf_room(const struct buf *b) { return b->max - b->len_; }
static inline size_t buf_held(const struct buf *b) { return b->cap_; }     /* memory, until buf_done */
int buf_put(struct buf *b, const void *p, size_t n);
int buf_puts(struct buf *b, const char *s);
int buf_putf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void *buf_reserve(struct buf *b, size_t n);                 /* NULL when over max; then buf_commit(<= n) */
void buf_commit(struct buf *b, size_t n);
void buf_consume(struct buf *b, size_t n);
void buf_clear(struct buf *b);
void buf_shrink(struct buf *b);                             /* gives memory back when empty */
/*
 * Reads once, at most `want` bytes. Bytes read; 0 = end of file; -EAGAIN; -ENOBUFS = full; other
 * errno.
 */
ssize_t buf_read_fd(struct buf *b, int fd, size_t want);
/* Writes once and consumes. Bytes written or negative errno (-EAGAIN). */
ssize_t buf_write_fd(struct buf *b, int fd);
char *buf_take_str(struct buf *b);                          /* the contents as a C string; caller frees; buffer empty */

#endif
