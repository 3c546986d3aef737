/* Every decoder of a request body, and the multipart parser, with the same bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "spaced-guest/decode.h"
#include "spaced-guest/multipart.h"

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
	struct path_req path = { 0 }, move = { 0 };
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
	if (decode_init(p, n, init, &e) == 0 &&
	    (init->n_entropy < DECODE_ENTROPY_MIN || init->n_entropy > DECODE_ENTROPY_MAX))
		abort();
	init_req_done(init);
	free(init);
	decode_prepare(p, n, &warm, &e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct multipart_ops ops = { begin, piece, end };
	struct multipart *m;

	rpcs((const char *)data, size);
	m = multipart_new("multipart/form-data; boundary=b", &ops, NULL);
	for (size_t i = 0; i < size && multipart_feed(m, (const char *)data + i, 1) == 0; i++)
		;
	multipart_free(m);
	return 0;
}
