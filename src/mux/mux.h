/*
 * The stream multiplexer over the one byte channel between bridge and guest (a virtio-serial port,
 * a VSOCK connection). Sans-I/O: bytes in, events and bytes out, so that both sides, the tests and
 * the fuzzers drive the same code. base/ only; it is in the guest.
 *
 * Theory of operation
 *
 * Frame: type u8, flags u8, length u16 (payload bytes, at most MUX_PAYLOAD_MAX), stream u32,
 * payload, tag u32; little-endian.
 *
 * The channel may lose bytes at its end when the host side goes away (seen: 32 KiB), so a parser
 * can stand in the middle of a frame when the next host side arrives. A new host side therefore
 * sends MUX_FRAME_MAX zero bytes and then RESET. A zero byte where a frame may begin is skipped. A
 * torn frame is completed by zeros, never by RESET (there are as many zeros as the largest frame),
 * and is thrown away because its tag is wrong: the tag is made from the nonce of the connection and
 * has no zero byte. RESET carries: nonce (16 random bytes), protocol version, generation,
 * activation; its own tag is made from its own nonce. On RESET the guest ends all streams
 * (MUX_EV_RESET) and answers RESET-ACK with the nonce; the host throws away everything until it has
 * found RESET-ACK with its nonce, at whatever byte offset. The guest may stop in the middle of a
 * frame of the old connection: the host looks for the pattern, not for a frame.
 *
 * Streams are opened by the host only, ids count up from 1 within a connection, never reused. Each
 * direction has its own end mark (END), RST ends both and throws away what is queued. Credits: each
 * side may send MUX_CREDIT_INITIAL bytes in a stream, and more as the other side gives CREDIT after
 * its user has taken them: one slow reader stalls one stream.
 *
 * Types: 1 RESET {nonce[16], version u32, generation u64, activation[16]}, 2 RESET-ACK {nonce[16],
 * version u32}, 3 OPEN (flag 1 = control), 4 DATA, 5 END, 6 RST, 7 CREDIT {bytes u32}. The tag of
 * the guest's frames differs from that of the host's.
 *
 * State of a stream direction: OPEN -> ENDED | RESET. A stream is forgotten when both directions
 * have ended or on RST. Frames for forgotten streams are ignored (they were in flight), except
 * those that break a rule on a living one: those are -EPROTO for the host side (the guest is
 * hostile; the caller ends the channel) and an RST for the guest side.
 */
#ifndef MUX_MUX_H
#define MUX_MUX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/buf.h"

#define MUX_VERSION 1
#define MUX_PAYLOAD_MAX 32768
#define MUX_HEADER_BYTES 8
#define MUX_TAG_BYTES 4
#define MUX_FRAME_MAX (MUX_HEADER_BYTES + MUX_PAYLOAD_MAX + MUX_TAG_BYTES)
#define MUX_CREDIT_INITIAL 262144
#define MUX_STREAMS_MAX 1024                     /* alive at once; the host refuses more, the guest answers RST */
#define MUX_OUT_MAX (4 * MUX_FRAME_MAX)          /* framed bytes waiting for the channel; then mux_can_send is 0, mux_open -EAGAIN */
#define MUX_STREAM_CONTROL_MAX 128               /* bytes of OPEN, END, RST and CREDIT that one stream can have waiting */
#define MUX_CONTROL_MAX (MUX_OUT_MAX + MUX_STREAMS_MAX * MUX_STREAM_CONTROL_MAX)    /* beyond: the guest takes no input, the host calls it broken */

enum mux_side { MUX_HOST, MUX_GUEST };

struct mux_epoch { uint64_t generation; uint8_t activation[16]; };

enum mux_event_type {
	MUX_EV_READY,        /* host: RESET-ACK seen; guest: RESET seen (streams of before were ended by MUX_EV_RST); epoch valid */
	MUX_EV_OPEN,         /* guest: new stream; `control` says whether it is the bridge's own */
	MUX_EV_DATA,         /* data/len point into mux memory, valid until the next mux_feed, mux_in_*, mux_next */
	MUX_EV_END,          /* the other side will send no more on this stream */
	MUX_EV_RST,          /* the stream is gone, both directions */
	MUX_EV_CREDIT,       /* more may be sent on this stream */
};

struct mux_event {
	enum mux_event_type type;
	uint32_t stream;
	void *user;                              /* as set by mux_set_user; also when the stream is forgotten with this event */
	bool control;
	const uint8_t *data;
	size_t len;
	struct mux_epoch epoch;
};

struct mux;

struct mux *mux_new(enum mux_side side);
void mux_free(struct mux *m);

/* Host: begins a connection (zeros and RESET are queued). May be called again for a new channel. */
int mux_start(struct mux *m, const struct mux_epoch *epoch);
bool mux_ready(const struct mux *m);

/*
 * The channel was lost (guest: the host went away): every stream ends with MUX_EV_RST, what is
 * queued is thrown away. The parser keeps its place, since the tail of the old connection may still
 * come.
 */
void mux_drop(struct mux *m);

/*
 * Bytes from the channel: n <= mux_in_room(), else -ENOBUFS. -EPROTO after mux_next found a broken
 * rule (host side only).
 */
int mux_feed(struct mux *m, const void *p, size_t n);
size_t mux_in_room(const struct mux *m);
/*
 * The same without a copy: read into the returned room, then commit what came. NULL with *ret_room
 * 0 = none.
 */
void *mux_in_reserve(struct mux *m, size_t *ret_room);
int mux_in_commit(struct mux *m, size_t n);
/*
 * Next event; false = none. Call until false after each feed, then look at mux_error: not NULL =
 * the guest broke a rule, end the channel. The guest side also says false while MUX_CONTROL_MAX
 * bytes wait in mux_out: call again when it has drained.
 */
bool mux_next(struct mux *m, struct mux_event *ret);

/* Bytes for the channel: write buf_data/buf_len, then buf_consume. */
struct buf *mux_out(struct mux *m);

int mux_open(struct mux *m, bool control, uint32_t *ret_stream);              /* host; -EAGAIN not ready, -ENOSPC too many */
/*
 * Bytes that may be sent now on this stream (credit and room in mux_out). 0 = wait for
 * MUX_EV_CREDIT or a drained mux_out.
 */
size_t mux_can_send(const struct mux *m, uint32_t stream);
int mux_send(struct mux *m, uint32_t stream, const void *p, size_t n);        /* n <= mux_can_send */
/*
 * The same without a copy: n <= mux_can_send and MUX_PAYLOAD_MAX; write at most n bytes there, then
 * finish with what was written (0 = nothing). No other call on m in between. NULL when it cannot be
 * sent.
 */
void *mux_send_start(struct mux *m, uint32_t stream, size_t n);
void mux_send_finish(struct mux *m, size_t n);
int mux_end(struct mux *m, uint32_t stream);                                  /* END in our direction */
int mux_rst(struct mux *m, uint32_t stream);
/*
 * The user has taken n bytes of MUX_EV_DATA: gives credit back (batched). Not calling it is flow
 * control.
 */
void mux_taken(struct mux *m, uint32_t stream, size_t n);

void *mux_user(const struct mux *m, uint32_t stream);                         /* NULL when the stream is forgotten */
void mux_set_user(struct mux *m, uint32_t stream, void *user);
size_t mux_streams(const struct mux *m);
const char *mux_error(const struct mux *m);                                   /* a sentence; NULL = no rule was broken */

#endif
