/*
 * Theory of operation.
 *
 * A head is looked for first (head_length): only line ends are examined, with memchr, so that a
 * head that arrives byte by byte costs little. When it is whole it is copied once; the copy is then
 * cut into strings in place (each delimiter becomes a NUL). Every byte of the copy is checked
 * exactly once against one of the tables below, so a CR, LF or NUL inside a line can hide nowhere.
 *
 * The framing (frame_request, frame_response) is decided after all fields are known, by counting: a
 * second Content-Length, Transfer-Encoding or Host is an error and never a choice. This is what
 * request smuggling lives from.
 *
 * The body decoder is a table of one small function per state. It never copies: decoded bytes are
 * given as slices of its input. After an error it stays in DEC_FAILED and repeats the error.
 */
#include "http/http.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/alloc.h"
#include "base/str.h"

#define HTTP_METHOD_MAX 32
#define HTTP_HOST_MAX 255
#define HTTP_CHUNK_DIGITS_MAX 16
#define HTTP_PORT_MAX 65535

/* Classes of bytes; the sources are RFC 9110 5.6.2 (token), 5.5 (value), RFC 3986 3.2.2 (host). */
enum { TOKEN = 1, VALUE = 2, TARGET = 4, METHOD = 8, HOST = 16, HEX = 32 };

static const unsigned char classes[256] = {
	['\t'] = VALUE,
	[' '] = VALUE,
	['!'] = TOKEN | VALUE | TARGET | HOST,
	['"'] = VALUE | TARGET,
	['#'] = TOKEN | VALUE,
	['$' ... '\''] = TOKEN | VALUE | TARGET | HOST,
	['(' ... ')'] = VALUE | TARGET | HOST,
	['*' ... '+'] = TOKEN | VALUE | TARGET | HOST,
	[','] = VALUE | TARGET | HOST,
	['-'] = TOKEN | VALUE | TARGET | METHOD | HOST,
	['.'] = TOKEN | VALUE | TARGET | HOST,
	['/'] = VALUE | TARGET,
	['0' ... '9'] = TOKEN | VALUE | TARGET | METHOD | HOST | HEX,
	[':'] = VALUE | TARGET,
	[';'] = VALUE | TARGET | HOST,
	['<'] = VALUE | TARGET,
	['='] = VALUE | TARGET | HOST,
	['>' ... '@'] = VALUE | TARGET,
	['A' ... 'F'] = TOKEN | VALUE | TARGET | METHOD | HOST | HEX,
	['G' ... 'Z'] = TOKEN | VALUE | TARGET | METHOD | HOST,
	['[' ... ']'] = VALUE | TARGET,
	['^'] = TOKEN | VALUE | TARGET,
	['_'] = TOKEN | VALUE | TARGET | METHOD | HOST,
	['`'] = TOKEN | VALUE | TARGET,
	['a' ... 'f'] = TOKEN | VALUE | TARGET | HOST | HEX,
	['g' ... 'z'] = TOKEN | VALUE | TARGET | HOST,
	['{'] = VALUE | TARGET,
	['|'] = TOKEN | VALUE | TARGET,
	['}'] = VALUE | TARGET,
	['~'] = TOKEN | VALUE | TARGET | HOST,
	[0x80 ... 0xff] = VALUE,
};

static bool is(char c, int cls)
{
	return classes[(unsigned char)c] & cls;
}

static bool all(const char *p, size_t n, int cls)
{
	for (size_t i = 0; i < n; i++)
		if (!is(p[i], cls))
			return false;
	return true;
}

static const struct { int status; const char *text;
} errors[] = {
	[HTTP_OK] = { 200, "The message is in order." },
	[HTTP_BAD_LINE] = { 400, "The first line of the message is malformed." },
	[HTTP_BAD_METHOD] = { 400, "The method is not an upper-case token of at most 32 bytes." },
	[HTTP_BAD_TARGET] = { 400,
			      "The request target is malformed or not of a form that fits the method." },
	[HTTP_BAD_VERSION] = { 505, "The HTTP version is neither 1.0 nor 1.1." },
	[HTTP_BAD_STATUS] = { 400, "The status code is not a number from 100 to 599." },
	[HTTP_BAD_FIELD] = { 400, "A header field is malformed." },
	[HTTP_BAD_HOST] = { 400,
			    "There must be exactly one well-formed Host field that agrees with the target." },
	[HTTP_BAD_LENGTH] = { 400, "Content-Length must be one decimal number and stand alone." },
	[HTTP_BAD_ENCODING] = { 501,
				"The only transfer coding is \"chunked\", once, in HTTP/1.1." },
	[HTTP_HEAD_TOO_LARGE] = { 431, "The head of the message is larger than 32768 bytes." },
	[HTTP_TOO_MANY_FIELDS] = { 431, "The message has more than 100 header fields." },
	[HTTP_BAD_CHUNK] = { 400, "The chunked framing of the body is malformed." },
	[HTTP_BODY_TOO_LARGE] = { 413, "The body of the message is too large." },
	[HTTP_BODY_CUT] = { 400, "The body of the message ended too early." },
};
static_assert(ARRAY_LEN(errors) == HTTP_ERROR_COUNT, "each error has a text and a status");

const char *http_error_text(enum http_error err)
{
	return (unsigned)err < HTTP_ERROR_COUNT ? errors[err].text : "Unknown error.";
}

int http_error_status(enum http_error err)
{
	return (unsigned)err < HTTP_ERROR_COUNT ? errors[err].status : 400;
}

/* The length of a whole head with its empty line; 0 = not whole yet; -EBADMSG. */
static ssize_t head_length(const char *p, size_t n, enum http_error *ret_err)
{
	size_t max = n < HTTP_HEAD_MAX ? n : HTTP_HEAD_MAX;
	unsigned lines = 0;

	*ret_err = HTTP_BAD_LINE;
	if (n > 0 && !is(p[0], TOKEN))
		return -EBADMSG;
	for (size_t at = 0; at < max; lines++) {
		const char *lf = memchr(p + at, '\n', max - at);
		if (!lf)
			break;
		size_t len = (size_t)(lf - p) - at;
		if (len == 0 || lf[-1] != '\r')
			return -EBADMSG;
		if (len == 1)
			return lf - p + 1;
		*ret_err = HTTP_BAD_FIELD;
		if (lines > HTTP_FIELDS_MAX) {
			*ret_err = HTTP_TOO_MANY_FIELDS;
			return -EBADMSG;
		}
		at = (size_t)(lf - p) + 1;
	}
	if (n >= HTTP_HEAD_MAX) {
		*ret_err = HTTP_HEAD_TOO_LARGE;
		return -EBADMSG;
	}
	return 0;
}

/* host [ ":" port ]; the brackets of an IPv6 address are kept. */
static bool host_ok(const char *s, bool need_port)
{
	size_t n = strlen(s), i = 0;
	uint64_t port;

	if (n == 0 || n > HTTP_HOST_MAX)
		return false;
	if (s[0] == '[') {
		const char *end = strchr(s, ']');
		if (!end || end == s + 1)
			return false;
		for (i = 1; s + i < end; i++)
			if (!is(s[i], HEX) && s[i] != ':' && s[i] != '.')
				return false;
		i++;
	} else {
		while (is(s[i], HOST))
			i++;
		if (i == 0)
			return false;
	}
	if (i == n)
		return !need_port;
	return s[i] == ':' && n - i - 1 <= 5 && str_to_u64(s + i + 1, HTTP_PORT_MAX, &port) == 0;
}

/* "HTTP/1.0" or "HTTP/1.1" at p[0..8). */
static enum http_error parse_version(const char *p, size_t n, int *ret_minor)
{
	if (n != 8 || memcmp(p, "HTTP/", 5) != 0 || p[5] < '0' || p[5] > '9' || p[6] != '.' ||
	    p[7] < '0' || p[7] > '9')
		return HTTP_BAD_LINE;
	if (p[5] != '1' || p[7] > '1')
		return HTTP_BAD_VERSION;
	*ret_minor = p[7] - '0';
	return HTTP_OK;
}

/*
 * absolute-form to origin-form, in place: the "//" before the authority makes room to move the
 * authority to the left for its NUL, and for a "/" where the path is empty.
 */
static enum http_error split_absolute(struct http_head *h)
{
	char *t = h->target, *authority = strchr(t, ':') + 3;
	size_t n = strcspn(authority, "/?");
	char *path = authority + n;
	char *host = authority - 2;

	memmove(host, authority, n);
	host[n] = '\0';
	if (*path != '/')
		*--path = '/';
	h->host = host;
	h->target = path;
	return host_ok(host, false) ? HTTP_OK : HTTP_BAD_TARGET;
}

static bool has_scheme(const char *t, const char *scheme)
{
	size_t n = strlen(scheme);

	for (size_t i = 0; i < n; i++)
		if ((t[i] | 0x20) != scheme[i])
			return false;
	return strncmp(t + n, "://", 3) == 0;
}

static enum http_error parse_target(struct http_head *h)
{
	char *t = h->target;

	if (!all(t, strlen(t), TARGET))
		return HTTP_BAD_TARGET;
	if (strcmp(h->method, "CONNECT") == 0)
		return host_ok(t, true) ? HTTP_OK : HTTP_BAD_TARGET;
	if (t[0] == '/')
		return HTTP_OK;
	if (strcmp(t, "*") == 0)
		return strcmp(h->method, "OPTIONS") == 0 ? HTTP_OK : HTTP_BAD_TARGET;
	if (has_scheme(t, "http") || has_scheme(t, "https"))
		return split_absolute(h);
	return HTTP_BAD_TARGET;
}

static enum http_error parse_request_line(struct http_head *h, char *line)
{
	char *sp = strchr(line, ' ');
	char *sp2 = sp ? strchr(sp + 1, ' ') : NULL;
	enum http_error err;

	if (!sp2 || sp2 == sp + 1)
		return HTTP_BAD_LINE;
	if ((err = parse_version(sp2 + 1, strlen(sp2 + 1), &h->minor)) != HTTP_OK)
		return err;
	*sp = *sp2 = '\0';
	h->method = line;
	h->target = sp + 1;
	if (sp == line || sp - line > HTTP_METHOD_MAX || !all(line, (size_t)(sp - line), METHOD) ||
	    line[0] < 'A' || line[0] > 'Z')
		return HTTP_BAD_METHOD;
	return parse_target(h);
}

static enum http_error parse_status_line(struct http_head *h, const char *line)
{
	size_t n = strlen(line);
	uint64_t status;
	enum http_error err;

	if (n < 12 || line[8] != ' ')
		return HTTP_BAD_LINE;
	if ((err = parse_version(line, 8, &h->minor)) != HTTP_OK)
		return err;
	if (str_to_u64_n(line + 9, 3, 599, &status) != 0 || status < 100)
		return HTTP_BAD_STATUS;
	/* A reason phrase may be absent, and its SP with it: nothing can be confused by that. */
	if (n > 12 && (line[12] != ' ' || !all(line + 13, n - 13, VALUE)))
		return HTTP_BAD_LINE;
	h->status = (int)status;
	return HTTP_OK;
}

/*
 * A tab is white space around a value (RFC 9110 5.6.3), but some parsers do not see "\tchunked" as
 * "chunked" (Node reads such an answer until the connection closes): nothing about framing may be a
 * matter of opinion.
 */
static bool tab_in_framing(const char *name, const char *value, size_t n)
{
	return memchr(value, '\t', n) &&
	       (str_ieq(name, "Content-Length") || str_ieq(name, "Transfer-Encoding"));
}

static enum http_error parse_field(struct http_head *h, char *line, size_t n)
{
	char *colon = memchr(line, ':', n);

	if (!colon || colon == line || !all(line, (size_t)(colon - line), TOKEN))
		return HTTP_BAD_FIELD;
	char *v = colon + 1, *end = line + n;
	if (!all(v, (size_t)(end - v), VALUE))
		return HTTP_BAD_FIELD;
	*colon = '\0';
	if (tab_in_framing(line, v, (size_t)(end - v)))
		return HTTP_BAD_FIELD;
	while (v < end && (*v == ' ' || *v == '\t'))
		v++;
	while (end > v && (end[-1] == ' ' || end[-1] == '\t'))
		end--;
	*end = '\0';
	h->fields[h->n_fields++] = (struct http_field){ .name = line, .value = v };
	return HTTP_OK;
}

static enum http_error parse_lines(struct http_head *h, size_t len)
{
	char *line = h->raw, *last = h->raw + len - 2;     /* the empty line */
	enum http_error err;

	for (char *lf; line < last; line = lf + 1) {
		lf = memchr(line, '\n', (size_t)(last - line));
		size_t n = (size_t)(lf - line) - 1;
		line[n] = '\0';
		if (line != h->raw)
			err = parse_field(h, line, n);
		else if (memchr(line, '\0', n))
			err = HTTP_BAD_LINE;
		else
			err = h->is_request ? parse_request_line(h, line)
					    : parse_status_line(h, line);
		if (err != HTTP_OK)
			return err;
	}
	return HTTP_OK;
}

static enum http_error check_host(struct http_head *h)
{
	unsigned n = http_count(h, "Host");
	const char *host = http_get(h, "Host");

	if (n > 1 || (n == 0 && h->minor == 1))
		return HTTP_BAD_HOST;
	if (n == 0)
		return HTTP_OK;
	/*
	 * RFC 9112 3.2.2 lets the target win over a different Host field; a difference is refused
	 * instead.
	 */
	if (!host_ok(host, false) || (h->host && !str_ieq(h->host, host)))
		return HTTP_BAD_HOST;
	h->host = host;
	return HTTP_OK;
}

/* The framing that the fields ask for; UNTIL_CLOSE stands for "nothing said". */
static enum http_error parse_framing(struct http_head *h)
{
	unsigned n_length = http_count(h, "Content-Length"),
		 n_coding = http_count(h, "Transfer-Encoding");

	h->body = HTTP_BODY_UNTIL_CLOSE;
	if (n_length > 1 || (n_length > 0 && n_coding > 0))
		return HTTP_BAD_LENGTH;
	if (n_coding > 0) {
		if (n_coding > 1 || h->minor == 0 ||
		    strcmp(http_get(h, "Transfer-Encoding"), "chunked") != 0)
			return HTTP_BAD_ENCODING;
		h->body = HTTP_BODY_CHUNKED;
	}
	if (n_length > 0) {
		if (str_to_u64(http_get(h, "Content-Length"), INT64_MAX, &h->length) != 0)
			return HTTP_BAD_LENGTH;
		h->body = HTTP_BODY_LENGTH;
	}
	return HTTP_OK;
}

static void no_body(struct http_head *h)
{
	h->body = HTTP_BODY_NONE;
	h->length = 0;
}

static enum http_error frame_request(struct http_head *h)
{
	enum http_error err = parse_framing(h);

	if (err != HTTP_OK)
		return err;
	if (h->body == HTTP_BODY_UNTIL_CLOSE)
		no_body(h);
	else if (strcmp(h->method, "CONNECT") == 0)
		return HTTP_BAD_LENGTH;         /* RFC 9110 9.3.6: no content, and the tunnel begins right here */
	h->expect_continue = h->minor == 1 && h->body != HTTP_BODY_NONE &&
			     http_has_token(h, "Expect", "100-continue");
	return check_host(h);
}

static enum http_error frame_response(struct http_head *h, const char *req_method)
{
	enum http_error err = parse_framing(h);

	if (err != HTTP_OK)
		return err;
	if (h->status < 200 || h->status == 204 || h->status == 304 || str_eq(req_method, "HEAD") ||
	    (str_eq(req_method, "CONNECT") && h->status < 300))
		no_body(h);
	return HTTP_OK;
}

static void set_connection(struct http_head *h)
{
	bool close = http_has_token(h, "Connection", "close");

	if (h->minor == 1)
		h->keep_alive = !close;
	else
		h->keep_alive = !close && http_has_token(h, "Connection", "keep-alive");
	if (h->body == HTTP_BODY_UNTIL_CLOSE)
		h->keep_alive = false;
	h->upgrade = h->minor == 1 && http_count(h, "Upgrade") > 0 &&
		     http_has_token(h, "Connection", "upgrade");
}

static ssize_t parse_head(const char *p, size_t n, bool is_request, const char *req_method,
			  struct http_head *ret, enum http_error *ret_err)
{
	struct http_head h = { .is_request = is_request };
	ssize_t len = head_length(p, n, ret_err);

	if (len <= 0)
		return len;
	h.raw = x_alloc((size_t)len + 1);
	memcpy(h.raw, p, (size_t)len);
	*ret_err = parse_lines(&h, (size_t)len);
	if (*ret_err == HTTP_OK)
		*ret_err = is_request ? frame_request(&h) : frame_response(&h, req_method);
	if (*ret_err != HTTP_OK) {
		http_head_done(&h);
		return -EBADMSG;
	}
	set_connection(&h);
	*ret = h;
	return len;
}

ssize_t http_parse_request(const char *p, size_t n, struct http_head *ret, enum http_error *ret_err)
{
	return parse_head(p, n, true, NULL, ret, ret_err);
}

ssize_t http_parse_response(const char *p, size_t n, const char *req_method, struct http_head *ret,
			    enum http_error *ret_err)
{
	return parse_head(p, n, false, req_method, ret, ret_err);
}

void http_head_done(struct http_head *h)
{
	free(h->raw);
	*h = (struct http_head){ 0 };
}

const char *http_get(const struct http_head *h, const char *name)
{
	for (unsigned i = 0; i < h->n_fields; i++)
		if (str_ieq(h->fields[i].name, name))
			return h->fields[i].value;
	return NULL;
}

unsigned http_count(const struct http_head *h, const char *name)
{
	unsigned n = 0;

	for (unsigned i = 0; i < h->n_fields; i++)
		n += str_ieq(h->fields[i].name, name);
	return n;
}

static bool list_has(const char *list, const char *token)
{
	size_t len = strlen(token);

	for (const char *p = list; *p;) {
		p += strspn(p, " \t,");
		size_t n = strcspn(p, ",");
		size_t end = n;
		while (end > 0 && (p[end - 1] == ' ' || p[end - 1] == '\t'))
			end--;
		if (end == len && strncasecmp(p, token, len) == 0)
			return true;
		p += n;
	}
	return false;
}

bool http_has_token(const struct http_head *h, const char *name, const char *token)
{
	for (unsigned i = 0; i < h->n_fields; i++)
		if (str_ieq(h->fields[i].name, name) && list_has(h->fields[i].value, token))
			return true;
	return false;
}

int http_target_path(const char *target, char **ret_path)
{
	if (target[0] != '/')
		return -EINVAL;
	*ret_path = x_strndup(target, strcspn(target, "?"));
	return 0;
}

int http_query_get(const char *target, const char *name, char **ret)
{
	const char *p = strchr(target, '?');

	*ret = NULL;
	while (p && *p) {
		p++;
		size_t n = strcspn(p, "&");
		size_t n_key = strcspn(p, "=&");
		size_t n_value = n_key < n ? n - n_key - 1 : 0;
		autofree char *key = x_alloc(n_key + 1);
		autofree char *value = x_alloc(n_value + 1);
		if (str_pct_decode(key, n_key + 1, p, n_key, true) != 0)
			return -EINVAL;
		if (strcmp(key, name) == 0) {
			if (str_pct_decode(value, n_value + 1, p + n - n_value, n_value, true) != 0)
				return -EINVAL;
			*ret = TAKE(value);
			return 0;
		}
		p += n;
	}
	return 0;
}

/* ---- the body decoder ---- */

enum dec_state {
	DEC_DONE, DEC_FAILED, DEC_LENGTH, DEC_UNTIL_CLOSE,
	DEC_SIZE,               /* digits of a chunk size */
	DEC_EXT, DEC_EXT_QUOTED, DEC_EXT_ESCAPED,       /* the rest of that line */
	DEC_SIZE_LF, DEC_DATA, DEC_DATA_CR, DEC_DATA_LF,
	DEC_TRAILER,            /* at the start of a trailer line */
	DEC_TRAILER_NAME, DEC_TRAILER_VALUE, DEC_TRAILER_LF, DEC_END_LF,
	DEC_STATE_COUNT,
};

void http_dec_init(struct http_dec *d, const struct http_head *h, uint64_t max_bytes)
{
	static const enum dec_state first[] = {
		[HTTP_BODY_NONE] = DEC_DONE,
		[HTTP_BODY_LENGTH] = DEC_LENGTH,
		[HTTP_BODY_CHUNKED] = DEC_SIZE,
		[HTTP_BODY_UNTIL_CLOSE] = DEC_UNTIL_CLOSE,
	};

	*d = (struct http_dec){ .kind = h->body, .max = max_bytes, .st = (int)first[h->body] };
	if (h->body != HTTP_BODY_LENGTH)
		return;
	d->left = h->length;
	if (h->length == 0)
		d->st = DEC_DONE;
}

/* One step for one framing byte: HTTP_OK and the state in *d, or an error. */
typedef enum http_error dec_step(struct http_dec *d, char c);

static enum http_error dec_size_end(struct http_dec *d)
{
	if (d->digits == 0)
		return HTTP_BAD_CHUNK;
	if (d->chunk > d->max - d->total)
		return HTTP_BODY_TOO_LARGE;
	return HTTP_OK;
}

static enum http_error dec_size(struct http_dec *d, char c)
{
	if (is(c, HEX)) {
		if (++d->digits > HTTP_CHUNK_DIGITS_MAX)
			return HTTP_BAD_CHUNK;
		d->chunk = d->chunk << 4 | (uint64_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
		return HTTP_OK;
	}
	if (c != '\r' && c != ';')
		return HTTP_BAD_CHUNK;
	d->st = c == '\r' ? DEC_SIZE_LF : DEC_EXT;
	enum http_error err = dec_size_end(d);
	d->last = c;
	d->digits = 0;
	return err;
}

/*
 * *( ";" token [ "=" ( token / quoted-string ) ] ), RFC 9112 7.1.1, without its blanks. The content
 * is ignored. `last` is the byte before ('"' at the end of a quoted string), `digits` counts the
 * "=" of this extension.
 */
static bool dec_ext_ok(struct http_dec *d, char c)
{
	if (d->last == ';')
		return is(c, TOKEN);
	if (d->last == '=')
		return is(c, TOKEN) || c == '"';
	if (c == '=')
		return d->last != '"' && d->digits++ == 0;
	return c == ';' || c == '\r' || (d->last != '"' && is(c, TOKEN));
}

static enum http_error dec_ext(struct http_dec *d, char c)
{
	if (!dec_ext_ok(d, c))
		return HTTP_BAD_CHUNK;
	d->last = c;
	if (c == ';')
		d->digits = 0;
	else if (c == '"')
		d->st = DEC_EXT_QUOTED;
	else if (c == '\r')
		d->st = DEC_SIZE_LF;
	return HTTP_OK;
}

static enum http_error dec_ext_quoted(struct http_dec *d, char c)
{
	if (c == '"')
		d->st = DEC_EXT;
	else if (c == '\\')
		d->st = DEC_EXT_ESCAPED;
	else if (!is(c, VALUE))
		return HTTP_BAD_CHUNK;
	return HTTP_OK;
}

static enum http_error dec_ext_escaped(struct http_dec *d, char c)
{
	d->st = DEC_EXT_QUOTED;
	return is(c, VALUE) ? HTTP_OK : HTTP_BAD_CHUNK;
}

static enum http_error dec_size_lf(struct http_dec *d, char c)
{
	if (c != '\n')
		return HTTP_BAD_CHUNK;
	d->left = d->chunk;
	d->st = d->left > 0 ? DEC_DATA : DEC_TRAILER;
	return HTTP_OK;
}

static enum http_error dec_data_cr(struct http_dec *d, char c)
{
	d->st = DEC_DATA_LF;
	return c == '\r' ? HTTP_OK : HTTP_BAD_CHUNK;
}

static enum http_error dec_data_lf(struct http_dec *d, char c)
{
	d->st = DEC_SIZE;
	d->chunk = 0;
	d->digits = d->line = 0;
	return c == '\n' ? HTTP_OK : HTTP_BAD_CHUNK;
}

/*
 * Trailers are forwarded with the body, and some recipient may merge them into the head: those that
 * say where a message ends or goes are refused (RFC 9110 6.5.1). `digits` is the set of names that
 * still fit, `line` the place in the name.
 */
static const char *const trailer_refused[] = { "content-length", "transfer-encoding", "host",
					       "trailer" };

static void dec_trailer_match(struct http_dec *d, char c)
{
	for (unsigned i = 0; i < ARRAY_LEN(trailer_refused); i++)
		if (d->line >= strlen(trailer_refused[i]) ||
		    trailer_refused[i][d->line] != (c | 0x20))
			d->digits &= ~(1U << i);
	d->line++;
}

static bool dec_trailer_refused(const struct http_dec *d)
{
	for (unsigned i = 0; i < ARRAY_LEN(trailer_refused); i++)
		if ((d->digits & 1U << i) && d->line == strlen(trailer_refused[i]))
			return true;
	return false;
}

static enum http_error dec_trailer(struct http_dec *d, char c)
{
	d->st = c == '\r' ? DEC_END_LF : DEC_TRAILER_NAME;
	d->line = 0;
	d->digits = (1U << ARRAY_LEN(trailer_refused)) - 1;
	dec_trailer_match(d, c);
	return c == '\r' || is(c, TOKEN) ? HTTP_OK : HTTP_BAD_CHUNK;
}

static enum http_error dec_trailer_name(struct http_dec *d, char c)
{
	if (c == ':') {
		d->st = DEC_TRAILER_VALUE;
		return dec_trailer_refused(d) ? HTTP_BAD_CHUNK : HTTP_OK;
	}
	dec_trailer_match(d, c);
	return is(c, TOKEN) ? HTTP_OK : HTTP_BAD_CHUNK;
}

static enum http_error dec_trailer_value(struct http_dec *d, char c)
{
	if (c == '\r')
		d->st = DEC_TRAILER_LF;
	else if (!is(c, VALUE))
		return HTTP_BAD_CHUNK;
	return HTTP_OK;
}

static enum http_error dec_trailer_lf(struct http_dec *d, char c)
{
	d->st = DEC_TRAILER;
	return c == '\n' ? HTTP_OK : HTTP_BAD_CHUNK;
}

static enum http_error dec_end_lf(struct http_dec *d, char c)
{
	d->st = DEC_DONE;
	return c == '\n' ? HTTP_OK : HTTP_BAD_CHUNK;
}

static const struct { dec_step *step; bool size_line, trailer;
} dec_states[DEC_STATE_COUNT] = {
	[DEC_SIZE] = { dec_size, .size_line = true },
	[DEC_EXT] = { dec_ext, .size_line = true },
	[DEC_EXT_QUOTED] = { dec_ext_quoted, .size_line = true },
	[DEC_EXT_ESCAPED] = { dec_ext_escaped, .size_line = true },
	[DEC_SIZE_LF] = { dec_size_lf, .size_line = true },
	[DEC_DATA_CR] = { dec_data_cr },
	[DEC_DATA_LF] = { dec_data_lf },
	[DEC_TRAILER] = { dec_trailer, .trailer = true },
	[DEC_TRAILER_NAME] = { dec_trailer_name, .trailer = true },
	[DEC_TRAILER_VALUE] = { dec_trailer_value, .trailer = true },
	[DEC_TRAILER_LF] = { dec_trailer_lf, .trailer = true },
	[DEC_END_LF] = { dec_end_lf, .trailer = true },
};

static enum http_error dec_framing(struct http_dec *d, char c)
{
	if (dec_states[d->st].size_line && ++d->line > HTTP_CHUNK_LINE_MAX)
		return HTTP_BAD_CHUNK;
	if (dec_states[d->st].trailer && ++d->trailer > HTTP_TRAILER_MAX)
		return HTTP_BAD_CHUNK;
	return dec_states[d->st].step(d, c);
}

static int dec_fail(struct http_dec *d, enum http_error err, enum http_error *ret_err)
{
	d->st = DEC_FAILED;
	d->chunk = (uint64_t)err;
	*ret_err = err;
	return -EBADMSG;
}

/* Gives a slice of body bytes; what follows them by the framing is the next state. */
static size_t dec_slice(struct http_dec *d, size_t n)
{
	if (d->st == DEC_UNTIL_CLOSE) {
		d->total += n;
		return n;
	}
	if (n > d->left)
		n = (size_t)d->left;
	d->left -= n;
	d->total += n;
	if (d->left == 0)
		d->st = d->st == DEC_LENGTH ? DEC_DONE : DEC_DATA_CR;
	return n;
}

int http_dec_feed(struct http_dec *d, const char *p, size_t n, size_t *ret_used,
		  const char **ret_data, size_t *ret_n, enum http_error *ret_err)
{
	*ret_used = *ret_n = 0;
	*ret_data = p;
	if (d->st == DEC_FAILED)
		return dec_fail(d, (enum http_error)d->chunk, ret_err);
	if (d->st == DEC_LENGTH && d->left > d->max - d->total)
		return dec_fail(d, HTTP_BODY_TOO_LARGE, ret_err);
	for (size_t i = 0; i < n && d->st != DEC_DONE; i++) {
		if (!dec_states[d->st].step) {
			if (d->st == DEC_UNTIL_CLOSE && n - i > d->max - d->total)
				return dec_fail(d, HTTP_BODY_TOO_LARGE, ret_err);
			*ret_data = p + i;
			*ret_n = dec_slice(d, n - i);
			*ret_used = i + *ret_n;
			return d->st == DEC_DONE;
		}
		enum http_error err = dec_framing(d, p[i]);
		if (err != HTTP_OK)
			return dec_fail(d, err, ret_err);
		*ret_used = i + 1;
	}
	return d->st == DEC_DONE;
}

int http_dec_skip(struct http_dec *d, const char *p, size_t n, size_t *ret_used,
		  enum http_error *ret_err)
{
	size_t used, n_data;
	const char *data;
	int r;

	*ret_used = 0;
	do {
		r = http_dec_feed(d, p + *ret_used, n - *ret_used, &used, &data, &n_data, ret_err);
		*ret_used += used;
	} while (r == 0 && used > 0);
	return r;
}

int http_dec_eof(const struct http_dec *d)
{
	return d->st == DEC_DONE || d->st == DEC_UNTIL_CLOSE ? 0 : -EBADMSG;
}

/* ---- writing ---- */

static const struct { int status; const char *text;
} reasons[] = {
	{ 100, "Continue" },
	{ 101, "Switching Protocols" },
	{ 103, "Early Hints" },
	{ 200, "OK" },
	{ 201, "Created" },
	{ 202, "Accepted" },
	{ 204, "No Content" },
	{ 206, "Partial Content" },
	{ 301, "Moved Permanently" },
	{ 302, "Found" },
	{ 303, "See Other" },
	{ 304, "Not Modified" },
	{ 307, "Temporary Redirect" },
	{ 308, "Permanent Redirect" },
	{ 400, "Bad Request" },
	{ 401, "Unauthorized" },
	{ 403, "Forbidden" },
	{ 404, "Not Found" },
	{ 405, "Method Not Allowed" },
	{ 406, "Not Acceptable" },
	{ 408, "Request Timeout" },
	{ 409, "Conflict" },
	{ 410, "Gone" },
	{ 411, "Length Required" },
	{ 412, "Precondition Failed" },
	{ 413, "Content Too Large" },
	{ 415, "Unsupported Media Type" },
	{ 416, "Range Not Satisfiable" },
	{ 417, "Expectation Failed" },
	{ 421, "Misdirected Request" },
	{ 422, "Unprocessable Content" },
	{ 426, "Upgrade Required" },
	{ 429, "Too Many Requests" },
	{ 431, "Request Header Fields Too Large" },
	{ 500, "Internal Server Error" },
	{ 501, "Not Implemented" },
	{ 502, "Bad Gateway" },
	{ 503, "Service Unavailable" },
	{ 504, "Gateway Timeout" },
	{ 505, "HTTP Version Not Supported" },
	{ 507, "Insufficient Storage" },
};

const char *http_reason(int status)
{
	for (size_t i = 0; i < ARRAY_LEN(reasons); i++)
		if (reasons[i].status == status)
			return reasons[i].text;
	return "Status";
}

int http_put_request(struct buf *b, const char *method, const char *target)
{
	size_t n = strlen(method);

	if (n == 0 || n > HTTP_METHOD_MAX || !all(method, n, METHOD) || !*target ||
	    !all(target, strlen(target), TARGET))
		return -EINVAL;
	return buf_putf(b, "%s %s HTTP/1.1\r\n", method, target);
}

int http_put_status(struct buf *b, int status)
{
	if (status < 100 || status > 599)
		return -EINVAL;
	return buf_putf(b, "HTTP/1.1 %d %s\r\n", status, http_reason(status));
}

int http_put_field(struct buf *b, const char *name, const char *value)
{
	size_t n_name = strlen(name), n_value = strlen(value), n = n_name + n_value + 4;

	if (n_name == 0 || !all(name, n_name, TOKEN) || !all(value, n_value, VALUE))
		return -EINVAL;
	char *p = buf_reserve(b, n);
	if (!p)
		return -ENOBUFS;
	memcpy(p, name, n_name);
	memcpy(p + n_name, ": ", 2);
	memcpy(p + n_name + 2, value, n_value);
	memcpy(p + n - 2, "\r\n", 2);
	buf_commit(b, n);
	return 0;
}

int http_put_fieldf(struct buf *b, const char *name, const char *fmt, ...)
{
	autofree char *value = NULL;
	va_list ap;

	va_start(ap, fmt);
	int n = vasprintf(&value, fmt, ap);
	va_end(ap);
	if (n < 0) {
		value = NULL;
		return -ENOMEM;
	}
	return http_put_field(b, name, value);
}

int http_put_end(struct buf *b)
{
	return buf_put(b, "\r\n", 2);
}

int http_put_chunk(struct buf *b, const void *p, size_t n)
{
	char line[24];
	size_t n_line = (size_t)snprintf(line, sizeof(line), "%zx\r\n", n);

	if (n > buf_room(b) || n_line + n + 2 > buf_room(b))
		return -ENOBUFS;
	buf_put(b, line, n_line);
	if (n > 0)
		buf_put(b, p, n);
	return buf_put(b, "\r\n", 2);
}

static bool http_is_hop(const char *name)
{
	static const char *const names[] = { "Connection", "Keep-Alive",	"TE",
					     "Trailer",	   "Transfer-Encoding", "Upgrade" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (str_ieq(name, names[i]))
			return true;
	return strncasecmp(name, "Proxy-", 6) == 0;
}

int http_put_forward(struct buf *b, const struct http_head *h,
		     bool (*skip)(const char *name, void *arg), void *arg)
{
	for (unsigned i = 0; i < h->n_fields; i++) {
		const struct http_field *f = &h->fields[i];
		if (http_is_hop(f->name) || str_ieq(f->name, "Content-Length") ||
		    http_has_token(h, "Connection", f->name) || (skip && skip(f->name, arg)))
			continue;
		int r = http_put_field(b, f->name, f->value);
		if (r < 0)
			return r;
	}
	return 0;
}

int http_put_framing(struct buf *b, const struct http_head *h)
{
	const char *length = http_get(h, "Content-Length");

	if (h->body == HTTP_BODY_CHUNKED)
		return http_put_field(b, "Transfer-Encoding", "chunked");
	if (h->body == HTTP_BODY_LENGTH)
		return http_put_fieldf(b, "Content-Length", "%llu", (unsigned long long)h->length);
	/* An answer to HEAD and a 304 say how long the body would be (RFC 9110 8.6). */
	if (!h->is_request && length && h->status >= 200 && h->status != 204)
		return http_put_field(b, "Content-Length", length);
	return 0;
}
