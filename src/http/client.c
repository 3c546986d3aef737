#include "http/client.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "loop/listen.h"

#define CLIENT_HEAD_MAX (2 * HTTP_HEAD_MAX)
#define CLIENT_READ_BYTES 65536

/* Waits for `events` until the deadline. */
static int wait_fd(int fd, short events, int64_t deadline_ms, struct err *e)
{
	for (;;) {
		int64_t left = deadline_ms - clock_mono_ms();
		struct pollfd pfd = { .fd = fd, .events = events };
		if (left <= 0)
			return err_set(e, -ETIMEDOUT, "No answer in time.");
		int r = poll(&pfd, 1, left > INT32_MAX ? INT32_MAX : (int)left);
		if (r > 0)
			return 0;
		if (r < 0 && errno != EINTR)
			return err_errno(e, -errno, "Cannot wait for the peer");
	}
}

/*
 * Sends everything. A peer that answers without reading all (413, 503) may have closed its side:
 * that is no error here, what it said is read afterwards.
 */
static int send_all(int fd, const char *p, size_t n, int64_t deadline_ms, struct err *e)
{
	while (n > 0) {
		ssize_t r = send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (r >= 0) {
			p += r;
			n -= (size_t)r;
			continue;
		}
		if (errno == EPIPE || errno == ECONNRESET)
			return 0;
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return err_errno(e, -errno, "Cannot send the request");
		int w = wait_fd(fd, POLLOUT, deadline_ms, e);
		if (w < 0)
			return w;
	}
	return 0;
}

/* One read. Bytes; 0 = end of file; negative errno (-ENOBUFS: b is full). */
static ssize_t receive(int fd, struct buf *b, int64_t deadline_ms, struct err *e)
{
	size_t want = buf_room(b) < CLIENT_READ_BYTES ? buf_room(b) : CLIENT_READ_BYTES;

	if (want == 0)
		return -ENOBUFS;
	for (;;) {
		ssize_t r = recv(fd, buf_reserve(b, want), want, MSG_DONTWAIT);
		if (r >= 0) {
			buf_commit(b, (size_t)r);
			return r;
		}
		if (errno == ECONNRESET)
			return err_set(e, -ECONNRESET, "The peer closed the connection.");
		if (errno != EAGAIN && errno != EINTR)
			return err_errno(e, -errno, "Cannot read the answer");
		int w = wait_fd(fd, POLLIN, deadline_ms, e);
		if (w < 0)
			return w;
	}
}

static int connect_to(const struct http_call *c, struct err *e)
{
	return c->dial ? c->dial(c->dial_arg, c->timeout_ms, e)
		       : dial_wait(c->addr, c->timeout_ms, e);
}

static int put_head(struct buf *b, const struct http_call *c, bool chunked, bool close)
{
	bool framed = strcmp(c->method, "GET") != 0 && strcmp(c->method, "HEAD") != 0 &&
		      strcmp(c->method, "CONNECT") != 0;
	int r = http_put_request(b, c->method, c->target);

	if (r == 0)
		r = http_put_field(b, "Host", c->host ? c->host : "localhost");
	for (const struct http_field *f = c->fields; r == 0 && f && f->name; f++)
		r = http_put_field(b, f->name, f->value);
	if (r == 0 && chunked)
		r = http_put_field(b, "Transfer-Encoding", "chunked");
	else if (r == 0 && (c->body || framed))
		r = http_put_fieldf(b, "Content-Length", "%zu", c->body ? c->body_len : 0);
	if (r == 0 && close)
		r = http_put_field(b, "Connection", "close");
	return r == 0 ? http_put_end(b) : r;
}

static int send_request(int fd, const struct http_call *c, bool chunked, bool close,
			int64_t deadline_ms, struct err *e)
{
	struct buf b;

	buf_init(&b, CLIENT_HEAD_MAX);
	int r = put_head(&b, c, chunked, close);
	if (r < 0)
		err_set(e, r,
			"The request cannot be written: a field or the target is malformed or too long.");
	else
		r = send_all(fd, buf_data(&b), buf_len(&b), deadline_ms, e);
	if (r == 0 && c->body && !chunked)
		r = send_all(fd, c->body, c->body_len, deadline_ms, e);
	buf_done(&b);
	return r;
}

static int read_head(int fd, const char *method, int64_t deadline_ms, struct http_head *ret,
		     struct buf *in, struct err *e)
{
	struct http_head h;
	enum http_error err;

	for (;;) {
		ssize_t len = http_parse_response(buf_data(in), buf_len(in), method, &h, &err);
		if (len < 0)
			return err_set(e, -EBADMSG, "The answer is malformed: %s",
				       http_error_text(err));
		if (len > 0) {
			buf_consume(in, (size_t)len);
			if (h.status >= 200 || h.status == 101)
				break;
			http_head_done(&h);
			continue;
		}
		ssize_t r = receive(fd, in, deadline_ms, e);
		if (r == 0)
			return err_set(e, -ECONNRESET,
				       "The peer closed the connection before its answer.");
		if (r < 0)
			return r == -ENOBUFS ? err_set(e, -EBADMSG,
						       "The head of the answer is too large.")
					     : (int)r;
	}
	*ret = h;
	return 0;
}

int http_call_answer(int fd, const char *method, int timeout_ms, struct http_head *ret_head,
		     struct buf *ret_rest, struct err *e)
{
	return read_head(fd, method, clock_mono_ms() + timeout_ms, ret_head, ret_rest, e);
}

int http_call_open(const struct http_call *c, bool chunked, int *ret_fd, struct http_head *ret_head,
		   struct buf *ret_rest, struct err *e)
{
	int64_t deadline_ms = clock_mono_ms() + c->timeout_ms;
	autoclose int fd = connect_to(c, e);

	if (fd < 0)
		return fd;
	int r = send_request(fd, c, chunked, false, deadline_ms, e);
	if (r == 0 && !chunked)
		r = read_head(fd, c->method, deadline_ms, ret_head, ret_rest, e);
	if (r < 0)
		return r;
	*ret_fd = TAKE_FD(fd);
	return 0;
}

/* Decodes what is in `in` into `out`. 1 = complete, 0 = more to come. */
static int take_body(struct http_dec *d, struct buf *in, struct buf *out, struct err *e)
{
	enum http_error err;
	size_t used, n;
	const char *data;
	int r;

	do {
		r = http_dec_feed(d, buf_data(in), buf_len(in), &used, &data, &n, &err);
		if (r >= 0 && n > 0)
			buf_put(out, data, n);
		buf_consume(in, used);
	} while (r == 0 && used > 0);
	if (r < 0 && err == HTTP_BODY_TOO_LARGE)
		return err_set(e, -EFBIG, "The answer is larger than %llu bytes.",
			       (unsigned long long)d->max);
	if (r < 0)
		return err_set(e, -EBADMSG, "The answer is malformed: %s", http_error_text(err));
	return r;
}

static int read_body(int fd, const struct http_head *h, size_t max, int64_t deadline_ms,
		     struct buf *in, struct buf *out, struct err *e)
{
	struct http_dec d;
	int r;

	http_dec_init(&d, h, max);
	while ((r = take_body(&d, in, out, e)) == 0) {
		ssize_t n = receive(fd, in, deadline_ms, e);
		if (n < 0)
			return (int)n;
		if (n == 0 && http_dec_eof(&d) == 0)
			return 0;
		if (n == 0)
			return err_set(e, -ECONNRESET,
				       "The peer closed the connection within its answer.");
	}
	return r < 0 ? r : 0;
}

int http_call(const struct http_call *c, struct http_answer *ret, struct err *e)
{
	int64_t deadline_ms = clock_mono_ms() + c->timeout_ms;
	autoclose int fd = connect_to(c, e);
	struct http_head head = { 0 };
	struct buf in, out;

	if (fd < 0)
		return fd;
	buf_init(&in, CLIENT_HEAD_MAX);
	buf_init(&out, c->max_answer);
	int r = send_request(fd, c, false, true, deadline_ms, e);
	if (r == 0)
		r = read_head(fd, c->method, deadline_ms, &head, &in, e);
	if (r == 0)
		r = read_body(fd, &head, c->max_answer, deadline_ms, &in, &out, e);
	if (r == 0) {
		size_t len = buf_len(&out);
		*ret = (struct http_answer) { .head = head,
					      .body = buf_take_str(&out),
					      .body_len = len };
	} else {
		http_head_done(&head);
	}
	buf_done(&in);
	buf_done(&out);
	return r;
}

void http_answer_done(struct http_answer *a)
{
	http_head_done(&a->head);
	free(a->body);
	*a = (struct http_answer){ 0 };
}
