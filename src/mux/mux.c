#include "mux/mux.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"

/*
 * The input is one flat buffer of two frames. Its reader stands in one of two states:
 *
 *	FRAMES  every byte belongs to a frame (or is a zero between frames). A header or tag that is wrong is fatal on the
 *	        host side; on the guest side it means a torn frame and leads to HUNT.
 *	HUNT    looks for RESET (guest) or RESET-ACK with our nonce (host) at every offset; all else is thrown away.
 *
 * `alive` is a state of its own: frames are still parsed, and thrown away, after mux_drop, because
 * the payload of the old connection must never be taken for frames.
 */
#define MUX_IN_BYTES (2 * MUX_FRAME_MAX)
#define MUX_BUCKETS 256
#define MUX_OUT_HARD_MAX                                                                           \
	(MUX_CONTROL_MAX + MUX_FRAME_MAX + MUX_STREAMS_MAX * MUX_STREAM_CONTROL_MAX)
#define MUX_SEND_MIN 4096 /* smaller pieces wait for more room, when there is more to be had */
#define MUX_CREDIT_BATCH (MUX_CREDIT_INITIAL / 4)
#define MUX_NONCE_BYTES 16
#define MUX_RESET_BYTES (MUX_NONCE_BYTES + 4 + 8 + 16)
#define MUX_ACK_BYTES (MUX_NONCE_BYTES + 4)
#define MUX_FLAG_CONTROL 1
#define MUX_OVERHEAD (MUX_HEADER_BYTES + MUX_TAG_BYTES)

enum mux_type {
	MUX_RESET = 1,
	MUX_RESET_ACK,
	MUX_OPEN,
	MUX_DATA,
	MUX_END,
	MUX_RST,
	MUX_CREDIT,
	MUX_TYPE_COUNT,
};

enum mux_sync { MUX_HUNT, MUX_FRAMES };

struct mux_stream {
	struct mux_stream *next;         /* in its bucket */
	uint32_t id;
	bool control;
	bool in_ended, out_ended;
	uint32_t out_credit;             /* bytes that we may send */
	uint32_t in_window;              /* bytes that the other side may still send */
	uint32_t taken;                  /* taken by the user, credit not yet given */
	void *user;
};

struct mux {
	enum mux_side side;
	enum mux_sync sync;
	bool alive;                      /* between RESET and the loss of the channel */
	bool started;                    /* host: RESET was queued */
	bool ready_due;                  /* MUX_EV_READY comes after the last MUX_EV_RST */
	bool ending;                     /* streams of before are being ended */
	uint8_t nonce[MUX_NONCE_BYTES];
	uint8_t tag_in[MUX_TAG_BYTES], tag_out[MUX_TAG_BYTES];
	struct mux_epoch epoch;
	uint32_t last_id;
	size_t n_streams;
	struct mux_stream *buckets[MUX_BUCKETS];
	unsigned end_bucket;             /* where the ending of streams goes on */
	uint8_t *in;
	size_t in_off, in_len;           /* unread: in[in_off .. in_len) */
	struct buf out;
	uint8_t *send_at;                /* between mux_send_start and mux_send_finish */
	struct mux_stream *send_stream;
	char error[128];
};

struct mux_frame {
	uint8_t type, flags;
	uint32_t stream;
	const uint8_t *payload;
	size_t len;
};

/* What each type may look like; anything else is no frame. */
static const struct {
	size_t min, max;
	uint8_t flags;                   /* allowed bits */
	bool on_stream;
	bool to_host, to_guest;
} mux_types[MUX_TYPE_COUNT] = {
	[MUX_RESET] = { MUX_RESET_BYTES, MUX_RESET_BYTES, 0, false, false, true },
	[MUX_RESET_ACK] = { MUX_ACK_BYTES, MUX_ACK_BYTES, 0, false, true, false },
	[MUX_OPEN] = { 0, 0, MUX_FLAG_CONTROL, true, false, true },
	[MUX_DATA] = { 1, MUX_PAYLOAD_MAX, 0, true, true, true },
	[MUX_END] = { 0, 0, 0, true, true, true },
	[MUX_RST] = { 0, 0, 0, true, true, true },
	[MUX_CREDIT] = { 4, 4, 0, true, true, true },
};

static uint32_t get_u32(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put_u32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

/* FNV-1a over the nonce and the sender's side; a byte of the tag is never zero (see mux.h). */
static void mux_make_tag(uint8_t tag[MUX_TAG_BYTES], const uint8_t *nonce, enum mux_side sender)
{
	uint32_t h = 2166136261u;

	for (int i = 0; i < MUX_NONCE_BYTES; i++)
		h = (h ^ nonce[i]) * 16777619u;
	h = (h ^ (sender == MUX_HOST ? 'h' : 'g')) * 16777619u;
	put_u32(tag, h);
	for (int i = 0; i < MUX_TAG_BYTES; i++)
		if (tag[i] == 0)
			tag[i] = 0x5a;
}

struct mux *mux_new(enum mux_side side)
{
	struct mux *m = x_alloc(sizeof(*m));

	m->side = side;
	m->sync = MUX_HUNT;
	m->in = x_alloc(MUX_IN_BYTES);
	buf_init(&m->out, MUX_OUT_HARD_MAX);
	return m;
}

static void mux_free_streams(struct mux *m)
{
	for (unsigned i = 0; i < MUX_BUCKETS; i++) {
		while (m->buckets[i]) {
			struct mux_stream *s = m->buckets[i];

			m->buckets[i] = s->next;
			free(s);
		}
	}
	m->n_streams = 0;
}

void mux_free(struct mux *m)
{
	if (!m)
		return;
	mux_free_streams(m);
	buf_done(&m->out);
	free(m->in);
	free(m);
}

static struct mux_stream *mux_find(const struct mux *m, uint32_t id)
{
	struct mux_stream *s = m->buckets[id % MUX_BUCKETS];

	while (s && s->id != id)
		s = s->next;
	return s;
}

static struct mux_stream *mux_add(struct mux *m, uint32_t id, bool control)
{
	struct mux_stream *s = x_alloc(sizeof(*s));

	s->id = id;
	s->control = control;
	s->out_credit = s->in_window = MUX_CREDIT_INITIAL;
	s->next = m->buckets[id % MUX_BUCKETS];
	m->buckets[id % MUX_BUCKETS] = s;
	m->n_streams++;
	m->last_id = id;
	return s;
}

static void mux_forget(struct mux *m, struct mux_stream *s)
{
	struct mux_stream **p = &m->buckets[s->id % MUX_BUCKETS];

	while (*p != s)
		p = &(*p)->next;
	*p = s->next;
	m->n_streams--;
	free(s);
}

/*
 * Puts a whole frame into the output. Control frames always find room: see MUX_STREAM_CONTROL_MAX.
 */
static void mux_put(struct mux *m, enum mux_type type, uint8_t flags, uint32_t stream,
		    const void *p, size_t n, const uint8_t *tag)
{
	uint8_t *dst = buf_reserve(&m->out, n + MUX_OVERHEAD);

	assert(dst);
	dst[0] = (uint8_t)type;
	dst[1] = flags;
	dst[2] = (uint8_t)n;
	dst[3] = (uint8_t)(n >> 8);
	put_u32(dst + 4, stream);
	if (n)
		memcpy(dst + MUX_HEADER_BYTES, p, n);
	memcpy(dst + MUX_HEADER_BYTES + n, tag, MUX_TAG_BYTES);
	buf_commit(&m->out, n + MUX_OVERHEAD);
}

static void mux_put_ctl(struct mux *m, enum mux_type type, uint32_t stream)
{
	mux_put(m, type, 0, stream, NULL, 0, m->tag_out);
}

static bool mux_broken(struct mux *m, const char *text, uint32_t stream)
{
	snprintf(m->error, sizeof(m->error), "%s (stream %u)", text, stream);
	m->alive = false;
	return false;
}

const char *mux_error(const struct mux *m)
{
	return m->error[0] ? m->error : NULL;
}

void mux_drop(struct mux *m)
{
	m->alive = false;
	m->ready_due = false;
	m->ending = m->n_streams > 0;
	m->end_bucket = 0;
	buf_clear(&m->out);
}

int mux_start(struct mux *m, const struct mux_epoch *epoch)
{
	uint8_t p[MUX_RESET_BYTES], *zeros;

	assert(m->side == MUX_HOST);
	if (getrandom(m->nonce, sizeof(m->nonce), 0) != sizeof(m->nonce))
		return -EIO;
	mux_free_streams(m);
	m->sync = MUX_HUNT;
	m->alive = m->ready_due = m->ending = false;
	m->started = true;
	m->last_id = 0;
	m->in_off = m->in_len = 0;
	m->error[0] = '\0';
	m->epoch = *epoch;
	mux_make_tag(m->tag_out, m->nonce, MUX_HOST);
	mux_make_tag(m->tag_in, m->nonce, MUX_GUEST);
	buf_clear(&m->out);
	zeros = buf_reserve(&m->out, MUX_FRAME_MAX);
	memset(zeros, 0, MUX_FRAME_MAX);
	buf_commit(&m->out, MUX_FRAME_MAX);
	memcpy(p, m->nonce, MUX_NONCE_BYTES);
	put_u32(p + 16, MUX_VERSION);
	put_u32(p + 20, (uint32_t)epoch->generation);
	put_u32(p + 24, (uint32_t)(epoch->generation >> 32));
	memcpy(p + 28, epoch->activation, 16);
	mux_put(m, MUX_RESET, 0, 0, p, sizeof(p), m->tag_out);
	return 0;
}

bool mux_ready(const struct mux *m)
{
	return m->alive;
}

size_t mux_in_room(const struct mux *m)
{
	return MUX_IN_BYTES - (m->in_len - m->in_off);
}

void *mux_in_reserve(struct mux *m, size_t *ret_room)
{
	if (m->in_off == m->in_len)
		m->in_off = m->in_len = 0;
	if (MUX_IN_BYTES - m->in_len < MUX_FRAME_MAX && m->in_off) {
		memmove(m->in, m->in + m->in_off, m->in_len - m->in_off);
		m->in_len -= m->in_off;
		m->in_off = 0;
	}
	*ret_room = MUX_IN_BYTES - m->in_len;
	return *ret_room ? m->in + m->in_len : NULL;
}

int mux_in_commit(struct mux *m, size_t n)
{
	assert(n <= MUX_IN_BYTES - m->in_len);
	if (m->error[0])
		return -EPROTO;
	m->in_len += n;
	return 0;
}

int mux_feed(struct mux *m, const void *p, size_t n)
{
	size_t room;
	uint8_t *dst;

	if (m->error[0])
		return -EPROTO;
	if (n > mux_in_room(m))
		return -ENOBUFS;
	if (n == 0)
		return 0;
	dst = mux_in_reserve(m, &room);
	if (room < n) {
		memmove(m->in, m->in + m->in_off, m->in_len - m->in_off);
		m->in_len -= m->in_off;
		m->in_off = 0;
		dst = m->in + m->in_len;
	}
	memcpy(dst, p, n);
	m->in_len += n;
	return 0;
}

/* Is there a frame with this header? Returns its whole length, 0 = no. */
static size_t mux_header(const struct mux *m, const uint8_t *p, struct mux_frame *f)
{
	f->type = p[0];
	f->flags = p[1];
	f->len = p[2] | (size_t)p[3] << 8;
	f->stream = get_u32(p + 4);
	f->payload = p + MUX_HEADER_BYTES;
	if (f->type == 0 || f->type >= MUX_TYPE_COUNT)
		return 0;
	if (f->len < mux_types[f->type].min || f->len > mux_types[f->type].max)
		return 0;
	if ((f->flags & ~mux_types[f->type].flags) ||
	    (f->stream != 0) != mux_types[f->type].on_stream)
		return 0;
	if (!(m->side == MUX_HOST ? mux_types[f->type].to_host : mux_types[f->type].to_guest))
		return 0;
	return f->len + MUX_OVERHEAD;
}

/*
 * A torn frame's header was completed by zeros and may be no possible frame: its length still
 * counts.
 */
static size_t mux_header_len(const uint8_t *p)
{
	size_t len = p[2] | (size_t)p[3] << 8;

	return (len > MUX_PAYLOAD_MAX ? MUX_PAYLOAD_MAX : len) + MUX_OVERHEAD;
}

static void mux_reset(struct mux *m, const struct mux_frame *f)
{
	uint8_t ack[MUX_ACK_BYTES];
	const uint8_t *p = f->payload;

	memcpy(m->nonce, p, MUX_NONCE_BYTES);
	m->epoch.generation = get_u32(p + 20) | (uint64_t)get_u32(p + 24) << 32;
	memcpy(m->epoch.activation, p + 28, 16);
	mux_make_tag(m->tag_in, m->nonce, MUX_HOST);
	mux_make_tag(m->tag_out, m->nonce, MUX_GUEST);
	m->sync = MUX_FRAMES;
	buf_clear(&m->out);
	memcpy(ack, m->nonce, MUX_NONCE_BYTES);
	put_u32(ack + MUX_NONCE_BYTES, MUX_VERSION);
	mux_put(m, MUX_RESET_ACK, 0, 0, ack, sizeof(ack), m->tag_out);
	m->alive = true;
	m->ready_due = true;
	m->ending = true;
	m->end_bucket = 0;
	m->last_id = 0;
}

/* RESET is known by its own nonce, at any time. */
static bool mux_is_reset(const struct mux_frame *f)
{
	uint8_t tag[MUX_TAG_BYTES];

	mux_make_tag(tag, f->payload, MUX_HOST);
	return memcmp(tag, f->payload + f->len, MUX_TAG_BYTES) == 0;
}

static void mux_hunt_guest(struct mux *m)
{
	struct mux_frame f;

	while (m->in_off < m->in_len) {
		const uint8_t *p = m->in + m->in_off, *found;
		size_t n = m->in_len - m->in_off, len;

		found = memchr(p, MUX_RESET, n);
		if (!found) {
			m->in_off = m->in_len;
			return;
		}
		m->in_off += (size_t)(found - p);
		n -= (size_t)(found - p);
		if (n < MUX_HEADER_BYTES)
			return;
		len = mux_header(m, found, &f);
		if (len > n)
			return;
		if (len && mux_is_reset(&f)) {
			m->in_off += len;
			mux_reset(m, &f);
			return;
		}
		m->in_off++;
	}
}

static void mux_hunt_host(struct mux *m)
{
	uint8_t want[MUX_HEADER_BYTES + MUX_NONCE_BYTES] = { MUX_RESET_ACK, 0, MUX_ACK_BYTES };
	const size_t whole = MUX_ACK_BYTES + MUX_OVERHEAD;
	const uint8_t *p = m->in + m->in_off, *found;
	size_t n = m->in_len - m->in_off;

	memcpy(want + MUX_HEADER_BYTES, m->nonce, MUX_NONCE_BYTES);
	found = m->started ? memmem(p, n, want, sizeof(want)) : NULL;
	if (!found) {
		if (n >= sizeof(want))
			m->in_off = m->in_len - (sizeof(want) - 1);
		return;
	}
	m->in_off += (size_t)(found - p);
	if (m->in_len - m->in_off < whole)
		return;
	m->in_off += whole;
	if (get_u32(found + sizeof(want)) != MUX_VERSION) {
		mux_broken(m, "the guest speaks another version of the channel protocol", 0);
		return;
	}
	if (memcmp(found + sizeof(want) + 4, m->tag_in, MUX_TAG_BYTES) != 0) {
		mux_broken(m, "the guest's answer to RESET has a wrong tag", 0);
		return;
	}
	m->sync = MUX_FRAMES;
	m->alive = true;
	m->ready_due = true;
}

/* The streams of before, one event each, then READY. */
static bool mux_next_ending(struct mux *m, struct mux_event *ret)
{
	while (m->ending && m->end_bucket < MUX_BUCKETS) {
		struct mux_stream *s = m->buckets[m->end_bucket];

		if (!s) {
			m->end_bucket++;
			continue;
		}
		*ret = (struct mux_event){
			.type = MUX_EV_RST, .stream = s->id, .control = s->control, .user = s->user
		};
		mux_forget(m, s);
		return true;
	}
	m->ending = false;
	if (!m->ready_due)
		return false;
	m->ready_due = false;
	*ret = (struct mux_event){ .type = MUX_EV_READY, .epoch = m->epoch };
	return true;
}

/* A rule was broken on a living stream: fatal on the host side, RST on the guest side. */
static bool mux_violation(struct mux *m, struct mux_stream *s, const char *text,
			  struct mux_event *ret)
{
	uint32_t id = s->id;

	if (m->side == MUX_HOST)
		return mux_broken(m, text, id);
	*ret = (struct mux_event){
		.type = MUX_EV_RST, .stream = id, .control = s->control, .user = s->user
	};
	mux_forget(m, s);
	mux_put_ctl(m, MUX_RST, id);
	return true;
}

static bool mux_on_open(struct mux *m, const struct mux_frame *f, struct mux_event *ret)
{
	bool control = f->flags & MUX_FLAG_CONTROL;

	if (f->stream <= m->last_id)
		return false;
	if (m->n_streams >= MUX_STREAMS_MAX) {
		m->last_id = f->stream;
		mux_put_ctl(m, MUX_RST, f->stream);
		return false;
	}
	mux_add(m, f->stream, control);
	*ret = (struct mux_event){ .type = MUX_EV_OPEN, .stream = f->stream, .control = control };
	return true;
}

static bool mux_on_data(struct mux *m, struct mux_stream *s, const struct mux_frame *f,
			struct mux_event *ret)
{
	if (s->in_ended)
		return mux_violation(m, s, "data after the end of a stream", ret);
	if (f->len > s->in_window)
		return mux_violation(m, s, "data without credit", ret);
	s->in_window -= (uint32_t)f->len;
	ret->type = MUX_EV_DATA;
	ret->data = f->payload;
	ret->len = f->len;
	return true;
}

static bool mux_on_end(struct mux *m, struct mux_stream *s, const struct mux_frame *f,
		       struct mux_event *ret)
{
	if (s->in_ended)
		return mux_violation(m, s, "a second end of a stream", ret);
	s->in_ended = true;
	ret->type = MUX_EV_END;
	if (s->out_ended)
		mux_forget(m, s);
	return true;
}

static bool mux_on_rst(struct mux *m, struct mux_stream *s, const struct mux_frame *f,
		       struct mux_event *ret)
{
	ret->type = MUX_EV_RST;
	mux_forget(m, s);
	return true;
}

static bool mux_on_credit(struct mux *m, struct mux_stream *s, const struct mux_frame *f,
			  struct mux_event *ret)
{
	uint32_t n = get_u32(f->payload);

	if (n == 0 || n > MUX_CREDIT_INITIAL - s->out_credit)
		return mux_violation(m, s, "credit for what was never sent", ret);
	s->out_credit += n;
	ret->type = MUX_EV_CREDIT;
	return !s->out_ended;
}

static bool (*const mux_on[MUX_TYPE_COUNT])(struct mux *, struct mux_stream *,
					    const struct mux_frame *, struct mux_event *) = {
	[MUX_DATA] = mux_on_data,
	[MUX_END] = mux_on_end,
	[MUX_RST] = mux_on_rst,
	[MUX_CREDIT] = mux_on_credit,
};

static bool mux_on_frame(struct mux *m, const struct mux_frame *f, struct mux_event *ret)
{
	struct mux_stream *s;

	if (!m->alive)
		return false;
	if (f->type == MUX_OPEN)
		return mux_on_open(m, f, ret);
	if (!mux_on[f->type])
		return m->side == MUX_HOST
			       ? mux_broken(m, "RESET-ACK in the middle of a connection", 0)
			       : false;
	s = mux_find(m, f->stream);
	if (!s) {
		if (f->stream > m->last_id && m->side == MUX_HOST)
			return mux_broken(m, "a frame for a stream that was never opened",
					  f->stream);
		return false;
	}
	*ret = (struct mux_event){ .stream = s->id, .control = s->control, .user = s->user };
	return mux_on[f->type](m, s, f, ret);
}

/* One frame from the front of the input. 1 = event, 0 = go on, -1 = more bytes are needed. */
static int mux_next_frame(struct mux *m, struct mux_event *ret)
{
	struct mux_frame f;
	const uint8_t *p;
	size_t n, len;
	bool possible;

	while (m->in_off < m->in_len && m->in[m->in_off] == 0)
		m->in_off++;
	p = m->in + m->in_off;
	n = m->in_len - m->in_off;
	if (n < MUX_HEADER_BYTES)
		return -1;
	len = mux_header(m, p, &f);
	possible = len != 0;
	if (!possible && m->side == MUX_HOST) {
		mux_broken(m, "no such frame", f.stream);
		return -1;
	}
	if (!possible)
		len = mux_header_len(p);
	if (n < len)
		return -1;
	m->in_off += len;
	if (possible && f.type == MUX_RESET && mux_is_reset(&f)) {
		mux_reset(m, &f);
		return mux_next_ending(m, ret);
	}
	if (!possible || memcmp(f.payload + f.len, m->tag_in, MUX_TAG_BYTES) != 0) {
		if (m->side == MUX_HOST) {
			mux_broken(m, "a frame with a wrong tag", f.stream);
			return -1;
		}
		m->sync = MUX_HUNT;
		m->alive = false;
		m->ending = m->n_streams > 0;
		m->end_bucket = 0;
		return mux_next_ending(m, ret);
	}
	return mux_on_frame(m, &f, ret);
}

bool mux_next(struct mux *m, struct mux_event *ret)
{
	for (;;) {
		int r;

		if (m->error[0])
			return false;
		if (m->ending || m->ready_due) {
			if (mux_next_ending(m, ret))
				return true;
		}
		if (m->in_off == m->in_len)
			return false;
		if (buf_len(&m->out) >= MUX_CONTROL_MAX)
			return m->side == MUX_HOST
				       ? mux_broken(m, "the guest sends and does not take", 0)
				       : false;
		if (m->sync == MUX_HUNT) {
			if (m->side == MUX_GUEST)
				mux_hunt_guest(m);
			else
				mux_hunt_host(m);
			if (m->sync == MUX_HUNT)
				return false;
			continue;
		}
		r = mux_next_frame(m, ret);
		if (r != 0)
			return r > 0;
	}
}

struct buf *mux_out(struct mux *m)
{
	return &m->out;
}

int mux_open(struct mux *m, bool control, uint32_t *ret_stream)
{
	assert(m->side == MUX_HOST);
	if (!m->alive || buf_len(&m->out) >= MUX_OUT_MAX)
		return -EAGAIN;
	if (m->n_streams >= MUX_STREAMS_MAX || m->last_id == UINT32_MAX)
		return -ENOSPC;
	mux_add(m, m->last_id + 1, control);
	mux_put(m, MUX_OPEN, control ? MUX_FLAG_CONTROL : 0, m->last_id, NULL, 0, m->tag_out);
	*ret_stream = m->last_id;
	return 0;
}

static size_t mux_can(const struct mux *m, const struct mux_stream *s)
{
	size_t used = buf_len(&m->out), room, whole, rest, can;

	if (!m->alive || !s || s->out_ended || used >= MUX_OUT_MAX)
		return 0;
	room = MUX_OUT_MAX - used;
	whole = room / MUX_FRAME_MAX;
	rest = room % MUX_FRAME_MAX;
	can = whole * MUX_PAYLOAD_MAX +
	      (rest > MUX_OVERHEAD + MUX_SEND_MIN ? rest - MUX_OVERHEAD : 0);
	return can < s->out_credit ? can : s->out_credit;
}

size_t mux_can_send(const struct mux *m, uint32_t stream)
{
	return mux_can(m, mux_find(m, stream));
}

int mux_send(struct mux *m, uint32_t stream, const void *p, size_t n)
{
	struct mux_stream *s = mux_find(m, stream);
	const uint8_t *src = p;

	if (!s || s->out_ended)
		return -EPIPE;
	if (n > mux_can(m, s))
		return -EAGAIN;
	s->out_credit -= (uint32_t)n;
	while (n) {
		size_t k = n > MUX_PAYLOAD_MAX ? MUX_PAYLOAD_MAX : n;

		mux_put(m, MUX_DATA, 0, stream, src, k, m->tag_out);
		src += k;
		n -= k;
	}
	return 0;
}

void *mux_send_start(struct mux *m, uint32_t stream, size_t n)
{
	struct mux_stream *s = mux_find(m, stream);

	if (n == 0 || n > MUX_PAYLOAD_MAX || n > mux_can(m, s))
		return NULL;
	m->send_at = buf_reserve(&m->out, n + MUX_OVERHEAD);
	m->send_stream = s;
	return m->send_at + MUX_HEADER_BYTES;
}

void mux_send_finish(struct mux *m, size_t n)
{
	uint8_t *dst = m->send_at;

	assert(dst && m->send_stream && n <= m->send_stream->out_credit);
	m->send_at = NULL;
	if (n == 0)
		return;
	dst[0] = MUX_DATA;
	dst[1] = 0;
	dst[2] = (uint8_t)n;
	dst[3] = (uint8_t)(n >> 8);
	put_u32(dst + 4, m->send_stream->id);
	memcpy(dst + MUX_HEADER_BYTES + n, m->tag_out, MUX_TAG_BYTES);
	buf_commit(&m->out, n + MUX_OVERHEAD);
	m->send_stream->out_credit -= (uint32_t)n;
}

int mux_end(struct mux *m, uint32_t stream)
{
	struct mux_stream *s = mux_find(m, stream);

	if (!s || s->out_ended)
		return -EPIPE;
	s->out_ended = true;
	if (m->alive)
		mux_put_ctl(m, MUX_END, stream);
	if (s->in_ended)
		mux_forget(m, s);
	return 0;
}

int mux_rst(struct mux *m, uint32_t stream)
{
	struct mux_stream *s = mux_find(m, stream);

	if (!s)
		return -EPIPE;
	mux_forget(m, s);
	if (m->alive)
		mux_put_ctl(m, MUX_RST, stream);
	return 0;
}

void mux_taken(struct mux *m, uint32_t stream, size_t n)
{
	struct mux_stream *s = mux_find(m, stream);
	uint8_t p[4];

	if (!s || s->in_ended || !m->alive)
		return;
	assert(n <= MUX_CREDIT_INITIAL - s->in_window - s->taken);
	s->taken += (uint32_t)n;
	if (s->taken < MUX_CREDIT_BATCH)
		return;
	put_u32(p, s->taken);
	s->in_window += s->taken;
	s->taken = 0;
	mux_put(m, MUX_CREDIT, 0, stream, p, sizeof(p), m->tag_out);
}

void *mux_user(const struct mux *m, uint32_t stream)
{
	struct mux_stream *s = mux_find(m, stream);

	return s ? s->user : NULL;
}

void mux_set_user(struct mux *m, uint32_t stream, void *user)
{
	struct mux_stream *s = mux_find(m, stream);

	if (s)
		s->user = user;
}

size_t mux_streams(const struct mux *m)
{
	return m->n_streams;
}
