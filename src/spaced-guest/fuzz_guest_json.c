/*
 * Every decoder of a request body, the multipart parser, the envelopes of a client stream, and what
 * reads the fields of a download, with the same bytes.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "spaced-guest/decode.h"
#include "spaced-guest/envelope.h"
#include "spaced-guest/multipart.h"
#include "spaced-guest/negotiate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int begin(void *arg, const char *name, const char *filename)
{
	return filename ? (int)(strlen(filename) % 1) : 0;
}
static int piece(void *arg, const char *p, size_t n)
{
	return n ? *(volatile const char *)p & 0 : 0;
}
static int end(void *arg) { return 0; }

static void rpcs(const char *p, size_t n)
{
	struct start_req start = { 0 };
	struct selector sel = { 0 };
	struct input_req input = { 0 };
	struct signal_req sig = { 0 };
	struct update_req update = { 0 };
	struct path_req path = { 0 }, move = { 0 }, watch = { 0 };
	struct watcher_req watcher;
	struct init_req *init = calloc(1, sizeof(*init));
	struct err e;
	bool warm;

	if (decode_start(p, n, &start, &e) == 0 && !start.argv[0])
		abort();
	start_req_done(&start);
	decode_selector(p, n, &sel, &e);
	decode_input(p, n, &input, &e);
	input_req_done(&input);
	decode_signal(p, n, &sig, &e);
	decode_update(p, n, &update, &e);
	decode_path(p, n, &path, &e);
	path_req_done(&path);
	decode_move(p, n, &move, &e);
	path_req_done(&move);
	if (decode_watch(p, n, &watch, &e) == 0 && !watch.path)
		abort();
	path_req_done(&watch);
	decode_watcher(p, n, &watcher, &e);
	if (decode_init(p, n, init, &e) == 0 &&
	    (init->n_entropy < DECODE_ENTROPY_MIN || init->n_entropy > DECODE_ENTROPY_MAX))
		abort();
	init_req_done(init);
	free(init);
	decode_prepare(p, n, &warm, &e);
	decode_nothing(p, n, &e);
}

static void message(const char *p, size_t n)
{
	struct input_req input = { 0 };
	enum stream_input what;
	struct err e;

	if (decode_stream_input(p, n, &what, &input, &e) == 0 && what == STREAM_INPUT_KEEPALIVE &&
	    input.data)
		abort();
	input_req_done(&input);
}

#define STREAM_MAX 1000
#define STREAM_BEHIND 64

/* In pieces of `piece` bytes; how many messages. Never more is kept than was promised. */
static size_t stream(const char *p, size_t n, size_t piece)
{
	struct envelopes s;
	size_t messages = 0, len;
	const char *msg;
	struct err e;
	int r = 0;

	envelopes_init(&s, STREAM_MAX, STREAM_BEHIND);
	for (size_t at = 0; at < n && r >= 0; at += piece) {
		if (envelopes_put(&s, p + at, n - at < piece ? n - at : piece) < 0)
			abort();
		while ((r = envelopes_next(&s, &msg, &len, &e)) > 0) {
			if (len > STREAM_MAX)
				abort();
			message(msg, len);
			envelopes_take(&s, len);
			messages++;
		}
	}
	if (r == 0 && n == 0 && !envelopes_empty(&s))
		abort();
	envelopes_done(&s);
	return messages;
}

static void fields(const char *p, size_t n)
{
	static const char *const names[] = { "If-Match",      "If-None-Match", "If-Modified-Since",
					     "If-Unmodified-Since", "If-Range", "Range" };
	struct validator v = { .etag = "\"tag\"", .mtime_s = 784111777 };
	struct http_head *h = calloc(1, sizeof(*h));
	char *text = strndup(p, n);
	uint64_t first, last;
	bool conditional;
	int status;

	negotiate_coding(text);
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		h->fields[0] = (struct http_field){ names[i], text };
		h->n_fields = 1;
		negotiate_condition(h, &v, &conditional);
		status = negotiate_range(h, &v, 1000, &first, &last);
		if (status == 206 && (first > last || last >= 1000))
			abort();
	}
	free(text);
	free(h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct multipart_ops ops = { begin, piece, end };
	struct multipart *m;

	rpcs((const char *)data, size);
	if (stream((const char *)data, size, 1) != stream((const char *)data, size, STREAM_BEHIND))
		abort();
	fields((const char *)data, size);
	m = multipart_new("multipart/form-data; boundary=b", &ops, NULL);
	for (size_t i = 0; i < size && multipart_feed(m, (const char *)data + i, 1) == 0; i++)
		;
	multipart_free(m);
	return 0;
}
