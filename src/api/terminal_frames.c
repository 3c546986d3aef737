#include "api/terminal_frames.h"

#include <errno.h>
#include <string.h>
#include "api/terminal.h"
#include "base/clock.h"

/* Answers to pings of who does not read them must not pile up; output stops below this mark. */
static bool answers_held(const struct frames *f)
{
	return wslay_event_get_queued_msg_count(f->ctx) > TERMINAL_PONGS_MAX ||
	       conn_out_len(f->conn) > 2 * TERMINAL_QUEUE_MAX;
}

static ssize_t on_send(wslay_event_context_ptr ctx, const uint8_t *p, size_t n, int flags, void *arg)
{
	struct frames *f = arg;
	int r = conn_write(f->conn, p, n);

	if (r == 0)
		return (ssize_t)n;
	wslay_event_set_error(ctx,
			      r == -ENOBUFS ? WSLAY_ERR_WOULDBLOCK : WSLAY_ERR_CALLBACK_FAILURE);
	return -1;
}

static ssize_t on_recv(wslay_event_context_ptr ctx, uint8_t *p, size_t n, int flags, void *arg)
{
	struct frames *f = arg;
	struct buf *in = conn_in(f->conn);

	if (n > buf_len(in))
		n = buf_len(in);
	if (n == 0 || frames_held(f) || answers_held(f)) {
		wslay_event_set_error(ctx, WSLAY_ERR_WOULDBLOCK);
		return -1;
	}
	memcpy(p, buf_data(in), n);
	buf_consume(in, n);
	f->alive_ms = clock_mono_ms();
	return (ssize_t)n;
}

static void on_message(wslay_event_context_ptr ctx, const struct wslay_event_on_msg_recv_arg *m,
		       void *arg)
{
	struct frames *f = arg;

	if (f->closing)
		return;
	if (m->opcode == WSLAY_BINARY_FRAME) {
		buf_put(&f->input, m->msg, m->msg_length);       /* has room: on_recv holds back */
		f->in_bytes += m->msg_length;
	} else if (m->opcode == WSLAY_TEXT_FRAME) {
		f->text(f->arg, m->msg, m->msg_length);
	}
}

int frames_init(struct frames *f, void (*text)(void *arg, const void *p, size_t n), void *arg)
{
	static const struct wslay_event_callbacks callbacks = {
		.recv_callback = on_recv,
		.send_callback = on_send,
		.on_msg_recv_callback = on_message,
	};

	*f = (struct frames){ .text = text, .arg = arg, .alive_ms = clock_mono_ms() };
	if (wslay_event_context_server_init(&f->ctx, &callbacks, f) != 0)
		return -ENOMEM;
	wslay_event_config_set_max_recv_msg_length(f->ctx, TERMINAL_INPUT_MAX);
	/* One more message may come than on_recv waits for, and what wslay has read of the next. */
	buf_init(&f->input, TERMINAL_INPUT_HOLD + 2 * TERMINAL_INPUT_MAX);
	return 0;
}

void frames_done(struct frames *f)
{
	buf_done(&f->input);
	conn_free(f->conn);
	wslay_event_context_free(f->ctx);
	f->conn = NULL;
	f->ctx = NULL;
	f->closing = true;
}

enum frames_state frames_read(struct frames *f)
{
	int r = wslay_event_recv(f->ctx);
	bool ended = conn_error(f->conn) ||
		     (conn_eof(f->conn) && (frames_held(f) || buf_len(conn_in(f->conn)) == 0));

	if (r == WSLAY_ERR_NOMEM || ended)
		return FRAMES_GONE;
	/* A close frame, or a violation of the protocol: wslay has queued the answer. */
	if (r != 0 || !wslay_event_get_read_enabled(f->ctx)) {
		f->closing = true;
		buf_consume(conn_in(f->conn), buf_len(conn_in(f->conn)));
	}
	return f->closing ? FRAMES_CLOSING : FRAMES_OPEN;
}

bool frames_write(struct frames *f)
{
	return wslay_event_send(f->ctx) == 0;
}

void frames_put(struct frames *f, uint8_t opcode, const void *p, size_t n)
{
	const struct wslay_event_msg m = { .opcode = opcode, .msg = p, .msg_length = n };

	if (!f->closing)
		wslay_event_queue_msg(f->ctx, &m);
}

void frames_close(struct frames *f, uint16_t code, const char *reason)
{
	if (f->closing)
		return;
	/* What was said goes first: wslay lets a close frame overtake messages that wait. */
	(void)frames_write(f);
	wslay_event_queue_close(f->ctx, code, (const uint8_t *)reason, strlen(reason));
	f->closing = true;
}

bool frames_held(const struct frames *f)
{
	return !f->closing && buf_len(&f->input) >= TERMINAL_INPUT_HOLD;
}

bool frames_room(const struct frames *f)
{
	return conn_out_len(f->conn) < TERMINAL_QUEUE_MAX &&
	       wslay_event_get_queued_msg_count(f->ctx) == 0;
}
