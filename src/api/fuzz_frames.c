/*
 * The frames of a terminal's client, over a real connection whose other end takes nothing. However
 * they are cut into pieces: the same messages, no byte of input lost, and what waits for either side
 * stays within its limits. (With which code a close frame is answered whose reason is no UTF-8 does
 * depend on the pieces, in wslay.)
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "api/terminal.h"
#include "api/terminal_frames.h"
#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "loop/loop.h"

#define BUFFER_MAX (4 * TERMINAL_QUEUE_MAX)
#define INPUT_MAX 16384
#define FLOOD_LEAST 512
#define FLOOD_BYTES (6 * TERMINAL_QUEUE_MAX)
#define WSLAY_READ 8192                  /* more than wslay reads at once, and so than it answers */
#define WAITING_MAX (TERMINAL_PONGS_MAX + WSLAY_READ / 6)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What has come. */
struct seen {
	struct frames client;
	uint64_t texts, n_input, text_hash, input_hash;
	enum frames_state state;
};

static void mix(uint64_t *hash, const void *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		*hash = (*hash ^ ((const uint8_t *)p)[i]) * UINT64_C(0x100000001b3);
}

/* As terminal.c does: an answer to a ping, the end for what is no message. */
static void on_text(void *arg, const void *p, size_t n)
{
	struct seen *s = arg;
	struct terminal_message m;

	s->texts++;
	mix(&s->text_hash, p, n);
	if (terminal_message(p, n, &m, NULL) < 0)
		frames_close(&s->client, TERMINAL_CLOSE_MESSAGE, "bad-message");
	else if (m.kind == TERMINAL_PING)
		frames_put(&s->client, WSLAY_TEXT_FRAME, "{}", 2);
}

static void take_input(struct seen *s)
{
	struct buf *in = &s->client.input;

	mix(&s->input_hash, buf_data(in), buf_len(in));
	s->n_input += buf_len(in);
	buf_consume(in, buf_len(in));
}

static void turn(struct seen *s, bool take)
{
	struct frames *f = &s->client;

	if (s->state != FRAMES_GONE)
		s->state = frames_read(f);
	if (s->state == FRAMES_GONE)
		return;
	assert(s->n_input + buf_len(&f->input) == f->in_bytes);
	assert(wslay_event_get_queued_msg_count(f->ctx) <= WAITING_MAX);
	assert(frames_write(f) && conn_out_len(f->conn) < 2 * TERMINAL_QUEUE_MAX + WSLAY_READ);
	if (take)
		take_input(s);
}

static void on_conn(struct conn *c, enum conn_event ev, void *arg)
{
}

/* What the client sends: `total` bytes, the same again and again. */
struct stream {
	const uint8_t *data;
	size_t size, total, piece;
	bool take;                       /* the owner takes the input as it comes, not at the end */
};

static void run(struct seen *s, struct loop *l, const struct stream *in)
{
	int sv[2], least = 1;

	assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv) == 0);
	setsockopt(sv[0], SOL_SOCKET, SO_SNDBUF, &least, sizeof(least));
	*s = (struct seen){ 0 };
	assert(frames_init(&s->client, on_text, s) == 0);
	s->client.conn = conn_new(l, sv[0], BUFFER_MAX, BUFFER_MAX, on_conn, NULL);
	for (size_t at = 0, n; at < in->total; at += n) {
		n = in->size - at % in->size;
		if (n > in->piece)
			n = in->piece;
		if (write(sv[1], in->data + at % in->size, n) != (ssize_t)n)
			break;
		loop_turn(l, 0);
		turn(s, in->take);
	}
	take_input(s);
	frames_done(&s->client);
	close(sv[1]);
	loop_turn(l, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct loop *l;
	struct stream in = { .data = data + 1, .size = size - 1, .piece = INPUT_MAX };
	struct seen whole, pieces;

	if (size < 2 || size > INPUT_MAX)
		return 0;
	if (!l)
		l = loop_new();
	/* More than may wait, now and then: it is held back. */
	in.total = in.size < FLOOD_LEAST || !(data[0] & 128) ? in.size : FLOOD_BYTES;
	run(&whole, l, &in);
	if (in.total > in.size)
		return 0;
	in.piece = 1 + data[0] % 64;
	in.take = data[0] & 64;
	run(&pieces, l, &in);
	assert(whole.texts == pieces.texts && whole.text_hash == pieces.text_hash);
	assert(whole.n_input == pieces.n_input && whole.input_hash == pieces.input_hash);
	return 0;
}
