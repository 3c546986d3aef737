/*
 * Bodies. Input: framing, size of the pieces, limit, length, then the bytes. The verdict, the
 * decoded bytes and the end of the message must be the same however the input is cut into pieces,
 * and the same for the scanner.
 */
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include "base/buf.h"
#include "http/http.h"

#define FUZZ_BODY_MAX (1 << 20)
#define FUZZ_PREFIX 4

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct result { int r, eof; enum http_error err; size_t used; struct buf out; };

static void decode(const struct http_head *h, uint64_t max, const char *p, size_t n, size_t step,
		   struct result *res)
{
	struct http_dec d;
	size_t used, n_data;
	const char *slice;

	http_dec_init(&d, h, max);
	buf_init(&res->out, FUZZ_BODY_MAX);
	res->used = 0;
	res->err = HTTP_OK;
	do {
		size_t piece = n - res->used < step ? n - res->used : step;
		res->r = http_dec_feed(&d, p + res->used, piece, &used, &slice, &n_data, &res->err);
		assert(used <= piece && n_data <= used && d.total <= max);
		if (res->r >= 0 && n_data > 0) {
			assert(slice >= p && slice + n_data <= p + n);
			assert(buf_put(&res->out, slice, n_data) == 0);
		}
		res->used += used;
	} while (res->r == 0 && res->used < n);
	res->eof = http_dec_eof(&d);
	assert(res->r >= 0 || (res->r == -EBADMSG && res->err != HTTP_OK && res->eof < 0));
	assert(res->r != 1 || res->eof == 0);
	if (res->r < 0)         /* an error stays */
		assert(http_dec_feed(&d, p, 0, &used, &slice, &n_data, &res->err) == -EBADMSG);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < FUZZ_PREFIX || size > FUZZ_BODY_MAX)
		return 0;
	struct http_head h = { .body = (enum http_body)(data[0] % 4), .length = data[3] };
	size_t step = data[1] + 1U, n = size - FUZZ_PREFIX, used;
	uint64_t max = data[2] == 0 ? UINT64_MAX : data[2] * 64U;
	const char *p = (const char *)data + FUZZ_PREFIX;
	struct result whole, pieces;
	enum http_error err = HTTP_OK;
	struct http_dec skip;

	decode(&h, max, p, n, n > 0 ? n : 1, &whole);
	decode(&h, max, p, n, step, &pieces);
	assert(whole.r == pieces.r && whole.err == pieces.err && whole.eof == pieces.eof);
	if (whole.r >= 0) {
		assert(whole.used == pieces.used && buf_len(&whole.out) == buf_len(&pieces.out));
		assert(buf_len(&whole.out) == 0 ||
		       memcmp(buf_data(&whole.out), buf_data(&pieces.out), buf_len(&whole.out)) ==
			       0);
	}
	http_dec_init(&skip, &h, max);
	int r = http_dec_skip(&skip, p, n, &used, &err);
	assert(r == whole.r && err == whole.err && (r < 0 || used == whole.used));
	buf_done(&whole.out);
	buf_done(&pieces.out);
	return 0;
}
