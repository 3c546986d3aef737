/*
 * The guest side with any bytes, before and after a true RESET; the second half of the input gets
 * right tags.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "mux/mux.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void drain(struct mux *m)
{
	struct mux_event e;
	volatile uint8_t sum = 0;
	(void)sum;

	while (mux_next(m, &e)) {
		for (size_t i = 0; i < e.len; i++)
			sum ^= e.data[i];
		if (e.type == MUX_EV_DATA)
			mux_taken(m, e.stream, e.len);
		if (e.type == MUX_EV_END)
			mux_end(m, e.stream);
		if (e.type == MUX_EV_OPEN && mux_can_send(m, e.stream) >= 3)
			mux_send(m, e.stream, "abc", 3);
	}
}

static void feed(struct mux *m, const uint8_t *p, size_t n)
{
	while (n) {
		size_t k = n < mux_in_room(m) ? n : mux_in_room(m);

		if (k == 0) {
			buf_clear(mux_out(m));
			drain(m);
			continue;
		}
		mux_feed(m, p, k);
		p += k;
		n -= k;
		drain(m);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t frame[MUX_FRAME_MAX];
	struct mux *host = mux_new(MUX_HOST), *guest = mux_new(MUX_GUEST);
	struct mux_epoch epoch = { .generation = 1 };
	uint8_t tag[MUX_TAG_BYTES];
	size_t raw = size ? data[0] : 0;

	if (raw > size)
		raw = size;
	feed(guest, data, raw);
	data += raw;
	size -= raw;
	mux_start(host, &epoch);
	memcpy(tag, buf_data(mux_out(host)) + buf_len(mux_out(host)) - MUX_TAG_BYTES,
	       MUX_TAG_BYTES);
	feed(guest, (const uint8_t *)buf_data(mux_out(host)), buf_len(mux_out(host)));
	if (!mux_ready(guest))
		abort();                 /* whatever stood before, a whole RESET is understood */
	mux_free(host);
	while (size >= 8) {
		size_t n = data[2] | (size_t)data[3] << 8;

		if (data[0] == 0xff) {
			feed(guest, data, size);
		} else if (data[0] == 0xfe) {
			mux_drop(guest);
		} else {
			n = n > MUX_PAYLOAD_MAX ? MUX_PAYLOAD_MAX : n;
			memcpy(frame, data, 8);
			memset(frame + 8, 0xab, n);
			memcpy(frame + 8, data + 8, size - 8 < n ? size - 8 : n);
			memcpy(frame + 8 + n, tag, sizeof(tag));
			feed(guest, frame, 8 + n + sizeof(tag));
		}
		data += 8;
		size -= 8;
	}
	mux_free(guest);
	return 0;
}
