/*
 * Strict HTTP/1.1 messages (RFC 9110, RFC 9112), no allocation beyond the head, no dependencies but
 * base/: also used in the guest. What is refused is listed in docs/http.md with the reason; on an
 * error answer once and close.
 *
 * Rules: CRLF only; no obs-fold; no blank before the colon; exactly one Host (HTTP/1.1 requests);
 * Content-Length digits only, one value, never with Transfer-Encoding; Transfer-Encoding exactly
 * "chunked", HTTP/1.1 only; chunk size at most 16 hex digits; head at most HTTP_HEAD_MAX bytes and
 * HTTP_FIELDS_MAX fields; authority-form only with CONNECT; no NUL or control bytes in values;
 * targets are visible ASCII.
 */
#ifndef HTTP_HTTP_H
#define HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/buf.h"

#define HTTP_HEAD_MAX 32768
#define HTTP_FIELDS_MAX 100
#define HTTP_CHUNK_LINE_MAX 256          /* chunk size line with extensions */
#define HTTP_TRAILER_MAX 8192

struct http_field { const char *name; const char *value; };     /* NUL-terminated inside head.raw; value trimmed (OWS) */

enum http_body {
	HTTP_BODY_NONE,
	HTTP_BODY_LENGTH,
	HTTP_BODY_CHUNKED,
	HTTP_BODY_UNTIL_CLOSE /* responses only */
};

struct http_head {
	char *raw;                       /* owned: one allocation that everything below points into */
	bool is_request;
	char *method;                    /* request; upper-case token, at most 32 bytes */
	char *target;                    /* request: origin-form, "*" with OPTIONS, authority-form with CONNECT; absolute-form is reduced to origin-form and `host` is set from it */
	int status;                      /* response 100..599 */
	int minor;                       /* 0 or 1 */
	const char *host;                /* NULL when absent (HTTP/1.0) */
	struct http_field fields[HTTP_FIELDS_MAX];
	unsigned n_fields;
	enum http_body body;
	uint64_t length;                 /* with HTTP_BODY_LENGTH */
	bool keep_alive;                 /* after Connection and version */
	bool upgrade;                    /* Connection has "upgrade" and there is an Upgrade field */
	bool expect_continue;
};

/*
 * Result codes of the parser besides negative errno: each is tested and has an HTTP status
 * (http_error_status).
 */
enum http_error {
	HTTP_OK = 0,
	HTTP_BAD_LINE,
	HTTP_BAD_METHOD,
	HTTP_BAD_TARGET,
	HTTP_BAD_VERSION,
	HTTP_BAD_STATUS,
	HTTP_BAD_FIELD,
	HTTP_BAD_HOST,
	HTTP_BAD_LENGTH,
	HTTP_BAD_ENCODING,
	HTTP_HEAD_TOO_LARGE,
	HTTP_TOO_MANY_FIELDS,
	HTTP_BAD_CHUNK,
	HTTP_BODY_TOO_LARGE,
	HTTP_BODY_CUT,
	HTTP_ERROR_COUNT,
};
const char *http_error_text(enum http_error err);        /* a sentence */
int http_error_status(enum http_error err);              /* 400, 413, 431, 501, 505 */

/*
 * Looks for a whole head at the start of p[0..n). Returns its length in bytes (> 0) and sets *ret;
 * 0 = not whole yet; -EBADMSG with *ret_err otherwise. A head over HTTP_HEAD_MAX is an error as
 * soon as it is seen. `req_method` for responses: the method of the request that they answer (HEAD
 * and 1xx, 204, 304 have no body; CONNECT 2xx tunnels).
 */
ssize_t http_parse_request(const char *p, size_t n, struct http_head *ret,
			   enum http_error *ret_err);
ssize_t http_parse_response(const char *p, size_t n, const char *req_method, struct http_head *ret,
			    enum http_error *ret_err);
void http_head_done(struct http_head *h);

const char *http_get(const struct http_head *h, const char *name);         /* first value or NULL; case-insensitive */
unsigned http_count(const struct http_head *h, const char *name);
bool http_has_token(const struct http_head *h, const char *name, const char *token);     /* in a comma list */

/*
 * The path of an origin-form target without its query, as sent (escapes are kept); -EINVAL for
 * other forms. And one query parameter, percent-decoded; *ret NULL = absent; -EINVAL on bad
 * escapes. Caller frees.
 */
int http_target_path(const char *target, char **ret_path);
int http_query_get(const char *target, const char *name, char **ret);

/*
 * The body decoder: one for all framings. Feed bytes; it consumes what belongs to the body (never
 * what follows). For each call: *ret_used bytes were taken from p, *ret_data/_n point to decoded
 * bytes inside p (may be 0). Returns 1 = body complete, 0 = more to come, -EBADMSG with *ret_err.
 * Call again while bytes are left.
 */
struct http_dec {
	enum http_body kind;
	uint64_t left;
	uint64_t total;
	uint64_t max;
	int st;
	unsigned line;
	uint64_t chunk;
	unsigned digits;
	unsigned trailer;
	char last;
};
void http_dec_init(struct http_dec *d, const struct http_head *h, uint64_t max_bytes);   /* UINT64_MAX = no limit */
int http_dec_feed(struct http_dec *d, const char *p, size_t n, size_t *ret_used,
		  const char **ret_data, size_t *ret_n, enum http_error *ret_err);
int http_dec_eof(const struct http_dec *d);              /* at end of file: 0 = fine (complete or until-close), -EBADMSG = cut */

/*
 * The framing scanner: like the decoder, but for forwarding a body unchanged: says how many of the
 * bytes belong to this message (framing included), so that a relay can stop exactly at its end.
 */
int http_dec_skip(struct http_dec *d, const char *p, size_t n, size_t *ret_used,
		  enum http_error *ret_err);

/* Writing. The chunk writer frames one piece; n == 0 writes the last chunk. */
int http_put_request(struct buf *b, const char *method, const char *target);                  /* line only */
int http_put_status(struct buf *b, int status);                                               /* line only, with reason phrase */
int http_put_field(struct buf *b, const char *name, const char *value);                       /* -EINVAL on control bytes */
int http_put_fieldf(struct buf *b, const char *name, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
int http_put_end(struct buf *b);                                                              /* empty line */
int http_put_chunk(struct buf *b, const void *p, size_t n);
const char *http_reason(int status);
/*
 * All fields except hop-by-hop ones (RFC 9110 7.6.1: Connection and what it names, Keep-Alive,
 * Proxy-*, TE, Trailer, Transfer-Encoding, Upgrade), Content-Length, and those for which skip(name,
 * arg) is true (skip may be NULL). Body framing is the caller's: http_put_framing repeats that of
 * the head.
 */
int http_put_forward(struct buf *b, const struct http_head *h,
		     bool (*skip)(const char *name, void *arg), void *arg);
/*
 * Content-Length or Transfer-Encoding as in `h` (to forward its body unchanged); writes nothing
 * where there is no body and for HTTP_BODY_UNTIL_CLOSE.
 */
int http_put_framing(struct buf *b, const struct http_head *h);

#endif
