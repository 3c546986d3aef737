#include "spaced-guest/connect.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "spaced-guest/envelope.h"
#include "spaced-guest/text.h"

#define UNARY_TYPE "application/json"
#define STREAM_TYPE "application/connect+json"
#define KEEPALIVE_DEFAULT_S 90
#define KEEPALIVE_MAX_S 3600
#define TIMEOUT_MAX_MS (INT64_C(365) * 86400 * 1000)
#define DATA_HEAD "{\"event\":{\"data\":{\""
#define DATA_MID "\":\""
#define DATA_TAIL "\"}}}"
#define DATA_KIND_MAX 8
#define CHUNK_HEAD_MAX 20

static const struct { const char *name; int status; } codes[] = {
	[CONNECT_CANCELED] = { "canceled", 499 },
	[CONNECT_UNKNOWN] = { "unknown", 500 },
	[CONNECT_INVALID_ARGUMENT] = { "invalid_argument", 400 },
	[CONNECT_DEADLINE_EXCEEDED] = { "deadline_exceeded", 504 },
	[CONNECT_NOT_FOUND] = { "not_found", 404 },
	[CONNECT_ALREADY_EXISTS] = { "already_exists", 409 },
	[CONNECT_PERMISSION_DENIED] = { "permission_denied", 403 },
	[CONNECT_RESOURCE_EXHAUSTED] = { "resource_exhausted", 429 },
	[CONNECT_FAILED_PRECONDITION] = { "failed_precondition", 400 },
	[CONNECT_UNIMPLEMENTED] = { "unimplemented", 501 },
	[CONNECT_INTERNAL] = { "internal", 500 },
	[CONNECT_UNAVAILABLE] = { "unavailable", 503 },
	[CONNECT_UNAUTHENTICATED] = { "unauthenticated", 401 },
};
_Static_assert(ARRAY_LEN(codes) == CONNECT_CODE_COUNT, "every code has a name and a status");

static const struct { int num; enum connect_code code; } by_errno[] = {
	{ -EINVAL, CONNECT_INVALID_ARGUMENT },
	{ -ENOTDIR, CONNECT_INVALID_ARGUMENT },
	{ -EISDIR, CONNECT_INVALID_ARGUMENT },
	{ -ENAMETOOLONG, CONNECT_INVALID_ARGUMENT },
	{ -ELOOP, CONNECT_INVALID_ARGUMENT },
	{ -ENOENT, CONNECT_NOT_FOUND },
	{ -ESRCH, CONNECT_NOT_FOUND },
	{ -EEXIST, CONNECT_ALREADY_EXISTS },
	{ -EACCES, CONNECT_PERMISSION_DENIED },
	{ -EPERM, CONNECT_PERMISSION_DENIED },
	{ -EROFS, CONNECT_PERMISSION_DENIED },
	{ -ENOSPC, CONNECT_RESOURCE_EXHAUSTED },
	{ -EDQUOT, CONNECT_RESOURCE_EXHAUSTED },
	{ -EAGAIN, CONNECT_RESOURCE_EXHAUSTED },
	{ -EMSGSIZE, CONNECT_RESOURCE_EXHAUSTED },
	{ -ENOMEM, CONNECT_RESOURCE_EXHAUSTED },
	{ -EPIPE, CONNECT_FAILED_PRECONDITION },
	{ -ENOTEMPTY, CONNECT_FAILED_PRECONDITION },
	{ -EBUSY, CONNECT_FAILED_PRECONDITION },
	{ -EXDEV, CONNECT_FAILED_PRECONDITION },
	{ -ENOSYS, CONNECT_UNIMPLEMENTED },
};

enum connect_code connect_code_of(int num)
{
	for (size_t i = 0; i < ARRAY_LEN(by_errno); i++)
		if (by_errno[i].num == num)
			return by_errno[i].code;
	return CONNECT_INTERNAL;
}

/* The media type without its parameters. */
static bool has_type(struct req *r, const char *want)
{
	const char *v = http_get(&r->head, "Content-Type");
	size_t n = strlen(want);

	return v && strncasecmp(v, want, n) == 0 && (v[n] == '\0' || v[n] == ';' || v[n] == ' ');
}

bool connect_unary(struct req *r)
{
	if (has_type(r, UNARY_TYPE))
		return true;
	req_error(r, 415, "the content type must be " UNARY_TYPE);
	return false;
}

void connect_answer(struct req *r, const char *json)
{
	req_answer(r, 200, UNARY_TYPE, json, strlen(json));
}

void connect_answer_buf(struct req *r, struct buf *json)
{
	req_answer_buf(r, 200, UNARY_TYPE, json);
}

static void put_error(struct buf *b, enum connect_code code, const char *msg)
{
	buf_putf(b, "{\"code\":\"%s\",", codes[code].name);
	text_member(b, "message", msg);
	buf_puts(b, "}");
}

static void put_envelope(struct req *r, uint8_t flags, const char *p, size_t n)
{
	struct buf b;
	uint32_t be = htonl((uint32_t)n);

	buf_init(&b, n + ENVELOPE_BYTES);
	buf_put(&b, &flags, 1);
	buf_put(&b, &be, sizeof(be));
	buf_put(&b, p, n);
	req_put(r, buf_data(&b), buf_len(&b));
	buf_done(&b);
}

static void end_with(struct req *r, enum connect_code code, const char *msg)
{
	struct buf b;

	if (r->finished)
		return;
	buf_init(&b, 8 * ERR_TEXT_MAX);
	buf_puts(&b, "{\"error\":");
	put_error(&b, code, msg);
	buf_puts(&b, "}");
	if (!r->answered)
		connect_begin(r);
	put_envelope(r, ENVELOPE_END, buf_data(&b), buf_len(&b));
	buf_done(&b);
	req_finish(r);
}

void connect_end_error(struct req *r, enum connect_code code, const char *fmt, ...)
{
	char msg[ERR_TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	end_with(r, code, msg);
}

void connect_fail(struct req *r, enum connect_code code, const char *fmt, ...)
{
	struct buf b;
	char msg[ERR_TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	if (has_type(r, STREAM_TYPE)) {
		end_with(r, code, msg);
		return;
	}
	buf_init(&b, 8 * ERR_TEXT_MAX);
	put_error(&b, code, msg);
	req_answer_buf(r, codes[code].status, UNARY_TYPE, &b);
}

void connect_fail_err(struct req *r, const struct err *e)
{
	connect_fail(r, connect_code_of(e->num), "%s", e->text);
}

bool connect_stream_head(struct req *r)
{
	const char *encoding = http_get(&r->head, "Connect-Content-Encoding");
	const char *timeout = http_get(&r->head, "Connect-Timeout-Ms");
	uint64_t ms;

	if (!has_type(r, STREAM_TYPE)) {
		req_error(r, 415, "the content type must be " STREAM_TYPE);
		return false;
	}
	if (encoding && !str_ieq(encoding, "identity")) {
		connect_fail(r, CONNECT_UNIMPLEMENTED,
			     "the Connect-Content-Encoding must be identity");
		return false;
	}
	if (timeout && str_to_u64(timeout, TIMEOUT_MAX_MS, &ms) < 0) {
		connect_fail(r, CONNECT_INVALID_ARGUMENT,
			     "Connect-Timeout-Ms must be a number of milliseconds, at most %lld",
			     (long long)TIMEOUT_MAX_MS);
		return false;
	}
	return true;
}

bool connect_stream(struct req *r, const char *body, size_t n, const char **ret_msg, size_t *ret_n)
{
	uint32_t be;

	if (!connect_stream_head(r))
		return false;
	if (n < ENVELOPE_BYTES) {
		connect_fail(r, CONNECT_INVALID_ARGUMENT, "the message is cut short");
		return false;
	}
	memcpy(&be, body + 1, sizeof(be));
	if (body[0] & ENVELOPE_COMPRESSED) {
		connect_fail(r, CONNECT_UNIMPLEMENTED, "compressed messages are not accepted");
		return false;
	}
	if (body[0] != 0 || ntohl(be) != n - ENVELOPE_BYTES) {
		connect_fail(r, CONNECT_INVALID_ARGUMENT,
			     "there must be exactly one whole message");
		return false;
	}
	*ret_msg = body + ENVELOPE_BYTES;
	*ret_n = n - ENVELOPE_BYTES;
	return true;
}

void connect_begin(struct req *r)
{
	req_start(r, 200, STREAM_TYPE, NULL, -1);
}

void connect_event(struct req *r, const char *json, size_t n)
{
	if (!r->finished)
		put_envelope(r, 0, json, n);
}

size_t connect_event_room(size_t n)
{
	return CHUNK_HEAD_MAX + ENVELOPE_BYTES + sizeof(DATA_HEAD DATA_MID DATA_TAIL) +
	       DATA_KIND_MAX + STR_B64_LEN(n) + 4;
}

/* Written in one piece, without a copy in between: this is what carries the output of commands. */
void connect_event_data(struct req *r, const char *kind, const void *p, size_t n)
{
	size_t kind_len = strlen(kind), b64 = STR_B64_LEN(n);
	size_t msg = sizeof(DATA_HEAD DATA_MID DATA_TAIL) - 1 + kind_len + b64;
	uint32_t be = htonl((uint32_t)msg);
	char head[CHUNK_HEAD_MAX], *dst, *at;
	int head_len;

	if (r->finished)
		return;
	head_len = snprintf(head, sizeof(head), "%zx\r\n", msg + ENVELOPE_BYTES);
	dst = at = buf_reserve(&r->out, connect_event_room(n));
	assert(dst && r->chunked && kind_len <= DATA_KIND_MAX);
#define PUT(src, len) (at = (char *)memcpy(at, (src), (len)) + (len))
	PUT(head, (size_t)head_len);
	*at++ = 0;
	PUT(&be, sizeof(be));
	PUT(DATA_HEAD, sizeof(DATA_HEAD) - 1);
	PUT(kind, kind_len);
	PUT(DATA_MID, sizeof(DATA_MID) - 1);
	str_b64(at, p, n);
	at += b64;
	PUT(DATA_TAIL "\r\n", sizeof(DATA_TAIL "\r\n") - 1);
#undef PUT
	buf_commit(&r->out, (size_t)(at - dst));
}

void connect_end(struct req *r)
{
	if (r->finished)
		return;
	put_envelope(r, ENVELOPE_END, "{}", 2);
	req_finish(r);
}

static int64_t number_field(struct req *r, const char *name, uint64_t max)
{
	const char *v = http_get(&r->head, name);
	uint64_t n;

	return v && str_to_u64(v, max, &n) == 0 ? (int64_t)n : 0;
}

int64_t connect_timeout_ms(struct req *r)
{
	return number_field(r, "Connect-Timeout-Ms", (uint64_t)TIMEOUT_MAX_MS);
}

int64_t connect_keepalive_ms(struct req *r)
{
	int64_t s = number_field(r, "Keepalive-Ping-Interval", KEEPALIVE_MAX_S);

	return 1000 * (s > 0 ? s : KEEPALIVE_DEFAULT_S);
}
