#include "base/buf.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"

#define BUF_MIN_CAP 256

void buf_init(struct buf *b, size_t max)
{
	*b = (struct buf){ .max = max };
}

void buf_done(struct buf *b)
{
	free(b->data_);
	b->data_ = NULL;
	b->off_ = b->len_ = b->cap_ = 0;
}

void *buf_reserve(struct buf *b, size_t n)
{
	size_t need, cap;

	if (n > buf_room(b))
		return NULL;
	need = b->len_ + n;
	if (b->off_ + need <= b->cap_ && b->data_)
		return b->data_ + b->off_ + b->len_;
	/*
	 * Moving down costs len bytes; it is done when it wins room for at least as many, or when
	 * growing is no way out.
	 */
	if (b->data_ && need <= b->cap_ &&
	    (b->off_ >= b->len_ || need <= b->cap_ / 2 || b->cap_ == b->max)) {
		memmove(b->data_, b->data_ + b->off_, b->len_);
		b->off_ = 0;
		return b->data_ + b->len_;
	}
	cap = b->cap_ ? b->cap_ * 2 : BUF_MIN_CAP;
	if (cap > b->max)
		cap = b->max;
	if (cap < need)
		cap = need;
	if (b->off_ == 0) {
		b->data_ = x_realloc(b->data_, cap);
	} else {
		char *p = x_realloc(NULL, cap);

		memcpy(p, b->data_ + b->off_, b->len_);
		free(b->data_);
		b->data_ = p;
		b->off_ = 0;
	}
	b->cap_ = cap;
	return b->data_ + b->len_;
}

void buf_commit(struct buf *b, size_t n)
{
	assert(b->off_ + b->len_ + n <= b->cap_);
	b->len_ += n;
}

int buf_put(struct buf *b, const void *p, size_t n)
{
	void *dst;

	if (n == 0)
		return 0;
	dst = buf_reserve(b, n);
	if (!dst)
		return -ENOBUFS;
	memcpy(dst, p, n);
	b->len_ += n;
	return 0;
}

int buf_puts(struct buf *b, const char *s)
{
	return buf_put(b, s, strlen(s));
}

int buf_putf(struct buf *b, const char *fmt, ...)
{
	char small[256];
	autofree char *big = NULL;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(small, sizeof(small), fmt, ap);
	va_end(ap);
	if (n < 0)
		return -EINVAL;
	if ((size_t)n < sizeof(small))
		return buf_put(b, small, (size_t)n);
	if ((size_t)n > buf_room(b))
		return -ENOBUFS;
	big = x_alloc((size_t)n + 1);
	va_start(ap, fmt);
	vsnprintf(big, (size_t)n + 1, fmt, ap);
	va_end(ap);
	return buf_put(b, big, (size_t)n);
}

void buf_consume(struct buf *b, size_t n)
{
	assert(n <= b->len_);
	b->off_ += n;
	b->len_ -= n;
	if (b->len_ == 0)
		b->off_ = 0;
}

void buf_clear(struct buf *b)
{
	b->off_ = b->len_ = 0;
}

void buf_shrink(struct buf *b)
{
	if (b->len_ == 0)
		buf_done(b);
}

ssize_t buf_read_fd(struct buf *b, int fd, size_t want)
{
	size_t n = buf_room(b);
	void *dst;
	ssize_t r;

	if (n > want)
		n = want;
	if (n == 0)
		return -ENOBUFS;
	dst = buf_reserve(b, n);
	do
		r = read(fd, dst, n);
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return -errno;
	b->len_ += (size_t)r;
	return r;
}

ssize_t buf_write_fd(struct buf *b, int fd)
{
	ssize_t r;

	if (b->len_ == 0)
		return 0;
	do
		r = write(fd, b->data_ + b->off_, b->len_);
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return -errno;
	buf_consume(b, (size_t)r);
	return r;
}

char *buf_take_str(struct buf *b)
{
	char *s = x_alloc(b->len_ + 1);

	if (b->len_)
		memcpy(s, b->data_ + b->off_, b->len_);
	buf_done(b);
	return s;
}
