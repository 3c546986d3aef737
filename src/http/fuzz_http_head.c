/*
 * Heads: the first byte of the input chooses request or response (and what the response answers).
 * Checked beside memory safety: the verdict does not depend on what follows the head, no shorter
 * cut of an accepted head is accepted or refused, every string lies inside the copy, and what is
 * forwarded parses again to the same framing.
 */
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "http/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const methods[] = { NULL, "GET", "HEAD", "CONNECT" };

static ssize_t parse(unsigned kind, const char *p, size_t n, struct http_head *h,
		     enum http_error *err)
{
	return kind == 0 ? http_parse_request(p, n, h, err)
			 : http_parse_response(p, n, methods[kind], h, err);
}

static void check_inside(const struct http_head *h, const char *s, size_t len)
{
	assert(s >= h->raw && s + strlen(s) <= h->raw + len);
}

static void check_strings(const struct http_head *h, size_t len)
{
	assert(h->n_fields <= HTTP_FIELDS_MAX && len <= HTTP_HEAD_MAX);
	for (unsigned i = 0; i < h->n_fields; i++) {
		check_inside(h, h->fields[i].name, len);
		check_inside(h, h->fields[i].value, len);
	}
	if (h->host)
		check_inside(h, h->host, len);
	if (!h->is_request)
		return;
	check_inside(h, h->method, len);
	check_inside(h, h->target, len);
	autofree char *path = NULL, *value = NULL;
	if (http_target_path(h->target, &path) == 0)
		assert(strlen(path) <= strlen(h->target));
	http_query_get(h->target, "a", &value);
}

static void check_forward(const struct http_head *h)
{
	struct http_head again;
	enum http_error err;
	struct buf b;

	buf_init(&b, 4 * HTTP_HEAD_MAX);
	assert(http_put_request(&b, h->method, h->target) == 0);
	assert(http_put_forward(&b, h, NULL, NULL) == 0);
	assert(http_put_framing(&b, h) == 0);
	/* The Host may have been named by Connection, or be absent in HTTP/1.0. */
	buf_puts(&b, "\r\n");
	ssize_t r = http_parse_request(buf_data(&b), buf_len(&b), &again, &err);
	if (r < 0) {
		assert(err == HTTP_BAD_HOST || err == HTTP_HEAD_TOO_LARGE ||
		       err == HTTP_TOO_MANY_FIELDS);
	} else {
		assert((size_t)r == buf_len(&b) && again.body == h->body &&
		       again.length == h->length);
		http_head_done(&again);
	}
	buf_done(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct http_head h, cut;
	enum http_error err = HTTP_OK, err_cut = HTTP_OK;

	if (size < 1)
		return 0;
	unsigned kind = data[0] % ARRAY_LEN(methods);
	const char *p = (const char *)data + 1;
	ssize_t r = parse(kind, p, size - 1, &h, &err);
	if (r < 0) {
		assert(r == -EBADMSG && err != HTTP_OK && err < HTTP_ERROR_COUNT);
		return 0;
	}
	if (r == 0)
		return 0;
	assert((size_t)r <= size - 1);
	for (ssize_t n = 0; n < r; n += 1 + n / 16)
		assert(parse(kind, p, (size_t)n, &cut, &err_cut) == 0);
	assert(parse(kind, p, (size_t)r, &cut, &err_cut) == r);
	http_head_done(&cut);
	check_strings(&h, (size_t)r);
	if (h.is_request)
		check_forward(&h);
	http_head_done(&h);
	return 0;
}
