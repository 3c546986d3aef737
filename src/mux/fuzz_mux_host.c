/*
 * The host side against a hostile guest. Input: operations of one byte; a frame takes type, flags,
 * length and stream from the input and gets the right tag, so that the fuzzer passes the tag check.
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
		if (e.type == MUX_EV_DATA && e.len % 2)
			mux_taken(m, e.stream, e.len);
	}
}

static void feed(struct mux *m, const uint8_t *p, size_t n)
{
	if (n > mux_in_room(m))
		n = mux_in_room(m);
	if (n)
		mux_feed(m, p, n);
	drain(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t frame[MUX_FRAME_MAX];
	struct mux *host = mux_new(MUX_HOST), *guest = mux_new(MUX_GUEST);
	struct mux_epoch epoch = { .generation = 1 };
	struct mux_event e;
	uint8_t tag[MUX_TAG_BYTES];
	uint32_t id;

	mux_start(host, &epoch);
	while (buf_len(mux_out(host))) {
		size_t n = buf_len(mux_out(host)) < mux_in_room(guest) ? buf_len(mux_out(host))
								       : mux_in_room(guest);

		mux_feed(guest, buf_data(mux_out(host)), n);
		buf_consume(mux_out(host), n);
		while (mux_next(guest, &e))
			;
	}
	memcpy(tag, buf_data(mux_out(guest)) + buf_len(mux_out(guest)) - MUX_TAG_BYTES,
	       MUX_TAG_BYTES);
	feed(host, (const uint8_t *)buf_data(mux_out(guest)), buf_len(mux_out(guest)));
	mux_free(guest);
	while (size >= 8) {
		size_t len = data[2] | (size_t)data[3] << 8, n = len;

		switch (data[0] & 0xf0) {
		case 0x10:
			mux_open(host, data[1] & 1, &id);
			break;
		case 0x20:
			mux_rst(host, data[4]);
			break;
		case 0x30:
			mux_end(host, data[4]);
			break;
		case 0x40:
			n = mux_can_send(host, data[4]);
			if (n)
				mux_send(host, data[4], frame,
					 n > len % sizeof(frame) ? len % sizeof(frame) : n);
			buf_clear(mux_out(host));
			break;
		case 0x50:
			feed(host, data, size);
			break;
		default:
			memcpy(frame, data, 8);
			n = len > MUX_PAYLOAD_MAX ? MUX_PAYLOAD_MAX : len;
			memset(frame + 8, 0xab, n);
			memcpy(frame + 8, data + 8, size - 8 < n ? size - 8 : n);
			memcpy(frame + 8 + n, tag, sizeof(tag));
			feed(host, frame, 8 + n + sizeof(tag));
		}
		data += 8;
		size -= 8;
	}
	mux_free(host);
	return 0;
}
