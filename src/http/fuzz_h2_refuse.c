/*
 * What a client sends on an HTTP/2 connection that is refused. Input: size of the pieces, then the
 * bytes. However they are cut, verdict and answers are the same, and the answers are whole frames:
 * acknowledgements, and one answer for each request, in order.
 */
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include "http/h2_refuse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int feed(struct h2_scan *s, const uint8_t *p, size_t n, size_t step, struct buf *out)
{
	int r = 0;

	h2_scan_init(s, 502, "no");
	buf_init(out, H2_REFUSE_OUT_MAX);
	for (size_t at = 0; r == 0 && at < n; at += step)
		r = h2_scan_feed(s, p + at, n - at < step ? n - at : step, out);
	assert(r == 0 || r == -EPROTO || r == -ENOBUFS);
	return r;
}

static void check_frames(const struct h2_scan *s, const struct buf *out)
{
	const unsigned char *p = (const unsigned char *)buf_data(out);
	uint32_t last = 0;

	for (size_t left = buf_len(out), used; left > 0; p += used, left -= used) {
		uint32_t stream = (uint32_t)p[5] << 24 | (uint32_t)p[6] << 16 |
				  (uint32_t)p[7] << 8 | p[8];

		used = 9 + ((size_t)p[1] << 8 | p[2]);
		assert(left >= used && p[0] == 0);
		if (p[3] == 4) {
			assert(used == 9 && p[4] == 1 && stream == 0);
			continue;
		}
		assert(p[3] == 1 && p[4] == 5 && stream > last && (stream & 1));
		assert(used == 9 + s->answer_len && memcmp(p + 9, s->answer, s->answer_len) == 0);
		last = stream;
	}
	assert(last == s->last || buf_room(out) < 9 + s->answer_len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct h2_scan whole, pieces;
	struct buf a, b;

	if (size < 1)
		return 0;
	assert(feed(&whole, data + 1, size - 1, size, &a) ==
	       feed(&pieces, data + 1, size - 1, data[0] % 32 + 1u, &b));
	assert(whole.last == pieces.last && buf_len(&a) == buf_len(&b));
	assert(memcmp(buf_data(&a), buf_data(&b), buf_len(&a)) == 0);
	check_frames(&whole, &a);
	buf_done(&a);
	buf_done(&b);
	return 0;
}
