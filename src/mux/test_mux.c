/* The multiplexer: both sides against each other, with the channel cut at every byte. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "mux/mux.h"

#define TYPE_RESET 1
#define TYPE_ACK 2
#define TYPE_OPEN 3
#define TYPE_DATA 4
#define TYPE_END 5
#define TYPE_RST 6
#define TYPE_CREDIT 7

struct log {
	unsigned ready, open, end, rst, credit;
	uint32_t last;
	bool control;
	void *user;
	struct mux_epoch epoch;
	char text[256];
	size_t n_text, n_data;
};

static const struct mux_epoch epoch = { .generation = 7, .activation = "0123456789abcde" };

static void drain(struct mux *m, struct log *l, bool take)
{
	struct mux_event e;

	while (mux_next(m, &e)) {
		l->last = e.stream;
		l->control = e.control;
		l->user = e.user;
		l->ready += e.type == MUX_EV_READY;
		l->open += e.type == MUX_EV_OPEN;
		l->end += e.type == MUX_EV_END;
		l->rst += e.type == MUX_EV_RST;
		l->credit += e.type == MUX_EV_CREDIT;
		if (e.type == MUX_EV_READY)
			l->epoch = e.epoch;
		if (e.type != MUX_EV_DATA)
			continue;
		l->n_data += e.len;
		if (l->n_text + e.len < sizeof(l->text)) {
			memcpy(l->text + l->n_text, e.data, e.len);
			l->n_text += e.len;
		}
		if (take)
			mux_taken(m, e.stream, e.len);
	}
}

/*
 * Moves at most `max` bytes, in pieces of `step`; each goes through the receiver's parser at once.
 */
static size_t move(struct mux *from, struct mux *to, struct log *l, size_t step, size_t max,
		   bool take)
{
	struct buf *b = mux_out(from);
	size_t moved = 0;

	while (buf_len(b) && moved < max) {
		size_t n = buf_len(b);

		if (n > step)
			n = step;
		if (n > max - moved)
			n = max - moved;
		if (n > mux_in_room(to))
			n = mux_in_room(to);
		assert_true(n > 0);
		if (mux_feed(to, buf_data(b), n) < 0)
			break;
		buf_consume(b, n);
		moved += n;
		drain(to, l, take);
	}
	return moved;
}

struct pair {
	struct mux *host, *guest;
	struct log h, g;
};

static void exchange(struct pair *p, size_t step)
{
	while (move(p->host, p->guest, &p->g, step, SIZE_MAX, true) +
	       move(p->guest, p->host, &p->h, step, SIZE_MAX, true))
		;
}

static void pair_start(struct pair *p, size_t step)
{
	*p = (struct pair){ .host = mux_new(MUX_HOST), .guest = mux_new(MUX_GUEST) };
	assert_int_equal(mux_start(p->host, &epoch), 0);
	assert_false(mux_ready(p->host));
	exchange(p, step);
	assert_true(mux_ready(p->host));
	assert_true(mux_ready(p->guest));
	assert_int_equal(p->h.ready, 1);
	assert_int_equal(p->g.ready, 1);
	assert_int_equal(p->g.epoch.generation, 7);
	assert_memory_equal(p->g.epoch.activation, epoch.activation, 16);
}

static void pair_done(struct pair *p)
{
	mux_free(p->host);
	mux_free(p->guest);
}

static void test_session(void **state)
{
	static const size_t steps[] = { 1, 2, 3, 7, 1000, SIZE_MAX };

	for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
		struct pair p;
		uint32_t a, b;
		int mark;

		pair_start(&p, steps[i]);
		assert_int_equal(mux_open(p.host, true, &a), 0);
		assert_int_equal(mux_open(p.host, false, &b), 0);
		assert_int_equal(a, 1);
		assert_int_equal(b, 2);
		assert_int_equal(mux_send(p.host, b, "hello", 5), 0);
		assert_int_equal(mux_end(p.host, b), 0);
		exchange(&p, steps[i]);
		assert_int_equal(p.g.open, 2);
		assert_false(p.g.control);
		assert_string_equal(p.g.text, "hello");
		assert_int_equal(p.g.end, 1);
		/*
		 * Half closed: the other direction still works, then the stream is forgotten on
		 * both sides.
		 */
		mux_set_user(p.guest, b, &mark);
		assert_ptr_equal(mux_user(p.guest, b), &mark);
		assert_int_equal(mux_send(p.guest, b, "answer", 6), 0);
		assert_int_equal(mux_end(p.guest, b), 0);
		assert_null(mux_user(p.guest, b));
		exchange(&p, steps[i]);
		assert_string_equal(p.h.text, "answer");
		assert_int_equal(p.h.end, 1);
		assert_int_equal(mux_streams(p.host), 1);
		assert_int_equal(mux_streams(p.guest), 1);
		assert_int_equal(mux_send(p.host, b, "x", 1), -EPIPE);
		/* RST ends both directions; its user comes with the event. */
		mux_set_user(p.guest, a, &mark);
		assert_int_equal(mux_rst(p.host, a), 0);
		exchange(&p, steps[i]);
		assert_int_equal(p.g.rst, 1);
		assert_ptr_equal(p.g.user, &mark);
		assert_int_equal(mux_streams(p.guest), 0);
		assert_null(mux_error(p.host));
		pair_done(&p);
	}
}

static void test_credit(void **state)
{
	static char big[MUX_CREDIT_INITIAL];
	struct pair p;
	uint32_t slow, fast;
	size_t sent = 0, n;

	pair_start(&p, SIZE_MAX);
	mux_open(p.host, false, &slow);
	mux_open(p.host, false, &fast);
	exchange(&p, SIZE_MAX);
	/* The reader takes nothing: the writer stops at its credit. */
	while ((n = mux_can_send(p.host, slow)) > 0) {
		assert_int_equal(mux_send(p.host, slow, big, n), 0);
		sent += n;
		move(p.host, p.guest, &p.g, SIZE_MAX, SIZE_MAX, false);
	}
	assert_int_equal(sent, MUX_CREDIT_INITIAL);
	assert_int_equal(mux_send(p.host, slow, big, 1), -EAGAIN);
	/* Another stream goes on, both ways. */
	assert_int_equal(mux_send(p.host, fast, "go", 2), 0);
	assert_int_equal(mux_send(p.guest, fast, "on", 2), 0);
	exchange(&p, SIZE_MAX);
	assert_string_equal(p.h.text, "on");
	/* Credit comes back in batches. */
	mux_taken(p.guest, slow, 10);
	exchange(&p, SIZE_MAX);
	assert_int_equal(mux_can_send(p.host, slow), 0);
	mux_taken(p.guest, slow, MUX_CREDIT_INITIAL - 10);
	exchange(&p, SIZE_MAX);
	assert_int_equal(p.h.credit, 1);
	assert_true(mux_can_send(p.host, slow) > 0);
	pair_done(&p);
}

static void test_room(void **state)
{
	static char big[MUX_CREDIT_INITIAL];
	struct pair p;
	uint32_t ids[8], extra;
	size_t n, total = 0;
	void *at;

	pair_start(&p, SIZE_MAX);
	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		mux_open(p.host, false, &ids[i]);
	exchange(&p, SIZE_MAX);
	for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
		while ((n = mux_can_send(p.host, ids[i])) > 0) {
			mux_send(p.host, ids[i], big, n);
			total += n;
		}
	}
	assert_true(total >= MUX_OUT_MAX - MUX_FRAME_MAX && total < MUX_OUT_MAX);
	assert_true(buf_len(mux_out(p.host)) <= MUX_OUT_MAX);
	assert_null(mux_send_start(p.host, ids[7], 5000));
	/* Control frames always find room. */
	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		assert_int_equal(mux_end(p.host, ids[i]), 0);
	assert_int_equal(mux_open(p.host, false, &extra),
			 buf_len(mux_out(p.host)) >= MUX_OUT_MAX ? -EAGAIN : 0);
	exchange(&p, SIZE_MAX);
	assert_int_equal(p.g.n_data, total);
	assert_int_equal(p.g.end, 8);
	/* Without a copy: less may be written than was reserved. */
	p.g.n_data = 0;
	at = mux_send_start(p.guest, ids[0], MUX_PAYLOAD_MAX);
	assert_non_null(at);
	memcpy(at, "abc", 3);
	mux_send_finish(p.guest, 3);
	at = mux_send_start(p.guest, ids[0], 100);
	mux_send_finish(p.guest, 0);
	exchange(&p, SIZE_MAX);
	assert_string_equal(p.h.text, "abc");
	pair_done(&p);
}

/* A session of small frames in both directions, with its bytes kept. */
static void small_session(struct mux *host, uint32_t *ret_stream)
{
	uint32_t a, b;

	assert_int_equal(mux_open(host, false, &a), 0);
	assert_int_equal(mux_send(host, a, "GET /health", 11), 0);
	assert_int_equal(mux_end(host, a), 0);
	assert_int_equal(mux_open(host, true, &b), 0);
	assert_int_equal(mux_send(host, b, "\x01\x00\x2c\x00 fake RESET \x01\x01", 18), 0);
	*ret_stream = a;
}

/* Connects again over the same guest and checks that everything works as on the first day. */
static void reconnect(struct pair *p, const char *at)
{
	struct log h = { 0 }, g = { 0 };
	uint32_t s;

	p->h = h;
	p->g = g;
	assert_int_equal(mux_start(p->host, &epoch), 0);
	exchange(p, SIZE_MAX);
	if (!mux_ready(p->host) || p->g.ready != 1)
		fail_msg("no connection after a cut at %s", at);
	assert_int_equal(mux_streams(p->guest), 0);
	p->g = g;
	assert_int_equal(mux_open(p->host, false, &s), 0);
	assert_int_equal(s, 1);
	assert_int_equal(mux_send(p->host, s, "again", 5), 0);
	exchange(p, SIZE_MAX);
	assert_int_equal(mux_send(p->guest, s, "yes", 3), 0);
	exchange(p, SIZE_MAX);
	assert_int_equal(p->g.open, 1);
	assert_string_equal(p->g.text, "again");
	assert_string_equal(p->h.text, "yes");
	assert_int_equal(p->g.rst + p->h.rst, 0);
	assert_null(mux_error(p->host));
}

static void test_cut_towards_guest(void **state)
{
	size_t cut = 0, whole;

	do {
		struct pair p;
		uint32_t s;
		char at[32];

		pair_start(&p, SIZE_MAX);
		small_session(p.host, &s);
		whole = buf_len(mux_out(p.host));
		snprintf(at, sizeof(at), "host byte %zu", cut);
		move(p.host, p.guest, &p.g, 1, cut, true);
		if (cut % 2)
			mux_drop(p.guest);
		reconnect(&p, at);
		pair_done(&p);
	} while (cut++ < whole);
	assert_true(whole > 60);
}

static void test_cut_in_reset(void **state)
{
	/* The zeros and the RESET themselves are cut, at every byte near their ends. */
	for (size_t cut = 0; cut < MUX_FRAME_MAX + 60;
	     cut += cut < 40 || cut >= MUX_FRAME_MAX - 40 ? 1 : 997) {
		struct pair p = { .host = mux_new(MUX_HOST), .guest = mux_new(MUX_GUEST) };

		mux_start(p.host, &epoch);
		move(p.host, p.guest, &p.g, SIZE_MAX, cut, true);
		reconnect(&p, "the reset");
		pair_done(&p);
	}
}

static void test_cut_big_frame(void **state)
{
	static char big[MUX_PAYLOAD_MAX];
	static const size_t cuts[] = { 1,     7,     8,	    9,	   100,	  32767,
				       32768, 32775, 32776, 32777, 32778, 32779 };

	/* The payload holds whole RESET frames that must never be taken for one. */
	for (size_t i = 0; i < ARRAY_LEN(cuts); i++) {
		struct pair p;
		uint32_t s;

		pair_start(&p, SIZE_MAX);
		mux_open(p.host, false, &s);
		exchange(&p, SIZE_MAX);
		{
			struct mux *other = mux_new(MUX_HOST);
			const size_t one = 8 + 44 + 4;

			mux_start(other, &(struct mux_epoch){ .generation = 666 });
			for (size_t at = 0; at + one <= sizeof(big); at += one)
				memcpy(big + at, buf_data(mux_out(other)) + MUX_FRAME_MAX, one);
			mux_free(other);
		}
		assert_int_equal(mux_send(p.host, s, big, sizeof(big)), 0);
		move(p.host, p.guest, &p.g, SIZE_MAX, cuts[i], true);
		reconnect(&p, "a big frame");
		assert_int_equal(p.g.epoch.generation, 0);
		pair_done(&p);
	}
}

static void test_cut_towards_host(void **state)
{
	size_t cut = 0, whole;

	/*
	 * The guest's bytes up to the cut are lost with the old bridge; the rest reaches the new
	 * one first.
	 */
	do {
		struct pair p;
		struct buf rest;
		struct mux *fresh;
		uint32_t s;

		pair_start(&p, SIZE_MAX);
		small_session(p.host, &s);
		move(p.host, p.guest, &p.g, SIZE_MAX, SIZE_MAX, true);
		assert_int_equal(mux_send(p.guest, s, "HTTP/1.1 204 No Content\r\n\r\n", 27), 0);
		assert_int_equal(mux_end(p.guest, s), 0);
		whole = buf_len(mux_out(p.guest));
		buf_init(&rest, MUX_FRAME_MAX);
		buf_put(&rest, buf_data(mux_out(p.guest)) + cut, whole - cut);
		fresh = mux_new(MUX_HOST);
		mux_free(p.host);
		p.host = fresh;
		p.h = p.g = (struct log){ 0 };
		assert_int_equal(mux_start(p.host, &epoch), 0);
		/* The guest stands in the middle of a write: it gave away the first half. */
		buf_consume(mux_out(p.guest), whole / 2);
		assert_int_equal(mux_feed(p.host, buf_data(&rest), buf_len(&rest)), 0);
		drain(p.host, &p.h, true);
		buf_done(&rest);
		exchange(&p, 5);
		assert_true(mux_ready(p.host));
		assert_int_equal(p.g.rst, 1);
		assert_int_equal(p.h.n_data, 0);
		reconnect(&p, "the guest's side");
		pair_done(&p);
	} while (cut++ < whole);
}

static void test_drop(void **state)
{
	struct pair p;
	uint32_t s;

	pair_start(&p, SIZE_MAX);
	small_session(p.host, &s);
	move(p.host, p.guest, &p.g, SIZE_MAX, SIZE_MAX, true);
	mux_send(p.guest, s, "lost", 4);
	mux_drop(p.guest);
	assert_false(mux_ready(p.guest));
	assert_int_equal(buf_len(mux_out(p.guest)), 0);
	drain(p.guest, &p.g, true);
	assert_int_equal(p.g.rst, 2);
	assert_int_equal(p.g.ready, 1);
	assert_int_equal(mux_can_send(p.guest, s), 0);
	reconnect(&p, "a drop");
	pair_done(&p);
}

/* ---- a hostile guest: frames made by hand with the right tag ---- */

static size_t frame(uint8_t *dst, uint8_t type, uint8_t flags, uint32_t stream, const void *p,
		    size_t n, const uint8_t *tag)
{
	dst[0] = type;
	dst[1] = flags;
	dst[2] = (uint8_t)n;
	dst[3] = (uint8_t)(n >> 8);
	memcpy(dst + 4, &stream, 4);
	if (n)
		memcpy(dst + 8, p, n);
	memcpy(dst + 8 + n, tag, 4);
	return 8 + n + 4;
}

/* The tag of a side is at the end of any frame it sent. */
static void tag_of(struct mux *m, uint32_t stream, uint8_t tag[4])
{
	struct buf *b = mux_out(m);

	assert_int_equal(mux_send(m, stream, "t", 1), 0);
	memcpy(tag, buf_data(b) + buf_len(b) - 4, 4);
}

static void test_hostile_guest(void **state)
{
	static uint8_t payload[MUX_PAYLOAD_MAX], out[MUX_FRAME_MAX];
	static const uint8_t credit_1[4] = { 1 }, credit_0[4] = { 0 },
			     credit_max[4] = { 255, 255, 255, 255 };
	const struct {
		const char *what;
		uint8_t type, flags;
		uint32_t stream;
		const void *p;
		size_t n;
		bool bad_tag;
		unsigned times;          /* how often until the rule is broken */
	} cases[] = {
		{ "type 0 cannot begin a frame but type 8 can", 8, 0, 1, NULL, 0, false, 1 },
		{ "OPEN is the host's", TYPE_OPEN, 0, 2, NULL, 0, false, 1 },
		{ "RESET is the host's", TYPE_RESET, 0, 0, payload, 44, false, 1 },
		{ "RESET-ACK twice", TYPE_ACK, 0, 0, payload, 20, false, 1 },
		{ "flags", TYPE_DATA, 1, 1, "x", 1, false, 1 },
		{ "empty data", TYPE_DATA, 0, 1, NULL, 0, false, 1 },
		{ "too long", TYPE_END, 0, 1, "x", 1, false, 1 },
		{ "stream 0", TYPE_DATA, 0, 0, "x", 1, false, 1 },
		{ "unknown stream", TYPE_DATA, 0, 77, "x", 1, false, 1 },
		{ "unknown stream", TYPE_RST, 0, 77, NULL, 0, false, 1 },
		{ "wrong tag", TYPE_DATA, 0, 1, "x", 1, true, 1 },
		{ "end twice", TYPE_END, 0, 1, NULL, 0, false, 2 },
		{ "no credit", TYPE_DATA, 0, 1, payload, sizeof(payload), false, 9 },
		{ "credit for nothing", TYPE_CREDIT, 0, 1, credit_1, 4, false, 1 },
		{ "credit 0", TYPE_CREDIT, 0, 1, credit_0, 4, false, 1 },
		{ "credit over", TYPE_CREDIT, 0, 1, credit_max, 4, false, 1 },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct pair p;
		uint32_t s;
		uint8_t tag[4];
		struct log l = { 0 };

		pair_start(&p, SIZE_MAX);
		mux_open(p.host, false, &s);
		exchange(&p, SIZE_MAX);
		tag_of(p.guest, s, tag);
		if (cases[i].bad_tag)
			tag[2] ^= 0x40;
		for (unsigned k = 0; k < cases[i].times; k++) {
			size_t n = frame(out, cases[i].type, cases[i].flags, cases[i].stream,
					 cases[i].p, cases[i].n, tag);

			if (mux_error(p.host))
				fail_msg("%s: broken too early", cases[i].what);
			assert_int_equal(mux_feed(p.host, out, n), 0);
			drain(p.host, &l, false);
		}
		if (!mux_error(p.host))
			fail_msg("%s: was accepted", cases[i].what);
		assert_int_equal(mux_feed(p.host, out, 1), -EPROTO);
		assert_false(mux_ready(p.host));
		/* The same instance serves the next channel. */
		mux_free(p.guest);
		p.guest = mux_new(MUX_GUEST);
		reconnect(&p, cases[i].what);
		pair_done(&p);
	}
}

/*
 * A guest that sends without end and reads nothing: the credit that it gets for it must not pile up
 * for ever.
 */
static void test_guest_that_never_reads(void **state)
{
	static uint8_t payload[MUX_PAYLOAD_MAX], out[MUX_FRAME_MAX];
	struct log l = { 0 };
	struct pair p;
	uint8_t tag[4];
	uint32_t s;
	size_t n, most = (size_t)MUX_CONTROL_MAX / 16 * MUX_CREDIT_INITIAL;     /* a CREDIT frame has 16 bytes */

	pair_start(&p, SIZE_MAX);
	mux_open(p.host, false, &s);
	exchange(&p, SIZE_MAX);
	tag_of(p.guest, s, tag);
	n = frame(out, TYPE_DATA, 0, s, payload, sizeof(payload), tag);
	while (l.n_data <= most && mux_feed(p.host, out, n) == 0)
		drain(p.host, &l, true);
	assert_non_null(mux_error(p.host));
	assert_true(l.n_data <= most);
	assert_true(buf_len(mux_out(p.host)) <= MUX_CONTROL_MAX + 16);
	pair_done(&p);
}

/* The guest side: a rule broken on one stream ends that stream alone. */
static void test_rules_in_guest(void **state)
{
	static uint8_t payload[MUX_PAYLOAD_MAX], out[MUX_FRAME_MAX];
	struct pair p;
	uint32_t a, b;
	uint8_t tag[4];
	struct log l = { 0 };

	pair_start(&p, SIZE_MAX);
	mux_open(p.host, false, &a);
	mux_open(p.host, false, &b);
	exchange(&p, SIZE_MAX);
	tag_of(p.host, b, tag);
	exchange(&p, SIZE_MAX);
	for (int i = 0; i < 9; i++) {
		assert_int_equal(mux_feed(p.guest, out,
					  frame(out, TYPE_DATA, 0, a, payload, sizeof(payload),
						tag)),
				 0);
		drain(p.guest, &l, false);
	}
	assert_int_equal(l.rst, 1);
	assert_int_equal(l.last, a);
	exchange(&p, SIZE_MAX);
	assert_int_equal(p.h.rst, 1);
	assert_int_equal(mux_send(p.host, b, "alive", 5), 0);
	exchange(&p, SIZE_MAX);
	assert_string_equal(p.g.text, "talive");
	/* Data for what is forgotten, and an id that was used before, are passed over. */
	assert_int_equal(mux_feed(p.guest, out, frame(out, TYPE_DATA, 0, a, "x", 1, tag)), 0);
	assert_int_equal(mux_feed(p.guest, out, frame(out, TYPE_OPEN, 0, a, NULL, 0, tag)), 0);
	l = (struct log){ 0 };
	drain(p.guest, &l, false);
	assert_int_equal(l.open + l.n_data + l.rst, 0);
	assert_true(mux_ready(p.guest));
	pair_done(&p);
}

static void test_stream_limit(void **state)
{
	uint8_t out[64], tag[4];
	struct pair p;
	uint32_t s;
	struct log l = { 0 };

	pair_start(&p, SIZE_MAX);
	for (int i = 0; i < MUX_STREAMS_MAX; i++) {
		assert_int_equal(mux_open(p.host, false, &s), 0);
		if (i % 100 == 0)
			exchange(&p, SIZE_MAX);
	}
	exchange(&p, SIZE_MAX);
	assert_int_equal(mux_open(p.host, false, &s), -ENOSPC);
	tag_of(p.host, 1, tag);
	assert_int_equal(mux_feed(p.guest, out,
				  frame(out, TYPE_OPEN, 0, MUX_STREAMS_MAX + 1, NULL, 0, tag)),
			 0);
	drain(p.guest, &l, true);
	assert_int_equal(l.open, 0);
	assert_int_equal(buf_data(mux_out(p.guest))[0], TYPE_RST);
	assert_int_equal(mux_streams(p.guest), MUX_STREAMS_MAX);
	/*
	 * A host that opens and resets for ever without reading: the guest stops taking input, its
	 * memory is bounded.
	 */
	for (uint32_t id = MUX_STREAMS_MAX + 2; mux_in_room(p.guest) >= sizeof(out); id++) {
		assert_int_equal(mux_feed(p.guest, out, frame(out, TYPE_OPEN, 0, id, NULL, 0, tag)),
				 0);
		drain(p.guest, &l, true);
	}
	assert_true(buf_len(mux_out(p.guest)) >= MUX_CONTROL_MAX);
	assert_true(buf_len(mux_out(p.guest)) < MUX_CONTROL_MAX + 64);
	pair_done(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_session),
		cmocka_unit_test(test_credit),
		cmocka_unit_test(test_room),
		cmocka_unit_test(test_cut_towards_guest),
		cmocka_unit_test(test_cut_in_reset),
		cmocka_unit_test(test_cut_big_frame),
		cmocka_unit_test(test_cut_towards_host),
		cmocka_unit_test(test_drop),
		cmocka_unit_test(test_hostile_guest),
		cmocka_unit_test(test_guest_that_never_reads),
		cmocka_unit_test(test_rules_in_guest),
		cmocka_unit_test(test_stream_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
