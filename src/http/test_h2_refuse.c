/* h2_refuse: what a client of HTTP/2 sends in whatever pieces, and the answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/fd.h"
#include "http/h2_refuse.h"
#include "loop/conn.h"

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#define SETTINGS "\0\0\6\4\0\0\0\0\0\0\2\0\0\0\0"
#define ACK "\0\0\0\4\1\0\0\0\0"
#define OPEN(id) "\0\0\3\1\4\0\0\0" id "abc"
#define SENTENCE "port is not open"
#define FIELDS                                                                                     \
	"\0\7:status\3"                                                                            \
	"502\0\14content-type\20application/grpc\0\13grpc-status\2"                                \
	"14\0\14grpc-message\20" SENTENCE
#define ANSWER(id) "\0\0\133\1\5\0\0\0" id FIELDS
#define TEXT(s) (s), sizeof(s) - 1
#define WAIT_MS 60000

static const struct {
	const char *in; size_t in_len;
	const char *out; size_t out_len;
	int r;
	uint32_t last;
} rows[] = {
	{ TEXT(""), TEXT(""), 0, 0 },
	{ TEXT(PREFACE), TEXT(""), 0, 0 },
	{ TEXT(PREFACE SETTINGS), TEXT(ACK), 0, 0 },
	{ TEXT(PREFACE SETTINGS OPEN("\1")), TEXT(ACK ANSWER("\1")), 0, 1 },
	/* DATA, PING, RST_STREAM, WINDOW_UPDATE, PRIORITY, a type that is none, CONTINUATION */
	{ TEXT(PREFACE ACK "\0\0\2\0\1\0\0\0\1hi" "\0\0\10\6\0\0\0\0\0........"
	       "\0\0\4\3\0\0\0\0\1...." "\0\0\4\10\0\0\0\0\0...." "\0\0\5\2\0\0\0\0\1....."
	       "\0\0\1\377\0\0\0\0\1." "\0\0\1\11\4\0\0\0\1."),
	  TEXT(""), 0, 0 },
	/* three requests, trailers of the second, one without END_HEADERS, one without a payload */
	{ TEXT(PREFACE OPEN("\1") OPEN("\3") OPEN("\3") "\0\0\1\1\0\0\0\0\5x" "\0\0\0\1\5\0\0\0\7"),
	  TEXT(ANSWER("\1") ANSWER("\3") ANSWER("\5") ANSWER("\7")), 0, 7 },
	/* the reserved bit is none of the number */
	{ TEXT(PREFACE "\0\0\0\1\4\200\0\0\1"), TEXT(ANSWER("\1")), 0, 1 },
	{ TEXT(PREFACE "\0\0\0\1\4\0\0\0\2"), TEXT(""), -EPROTO, 0 },
	{ TEXT(PREFACE "\0\0\0\1\4\0\0\0\0"), TEXT(""), 0, 0 },
	{ TEXT(PREFACE "\0\100\0\0\0\0\0\0\1"), TEXT(""), 0, 0 },
	{ TEXT(PREFACE "\0\100\1\0\0\0\0\0\1"), TEXT(""), -EPROTO, 0 },
	{ TEXT("GET / HTTP/1.1\r\n"), TEXT(""), -EPROTO, 0 },
	{ TEXT("PRI * HTTP/2.0\r\n\r\nSM\r\n\rx"), TEXT(""), -EPROTO, 0 },
};

static void test_reader(void **state)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		for (size_t step = 1; step <= rows[i].in_len + 1; step++) {
			struct h2_scan s;
			struct buf out;
			int r = 0;

			h2_scan_init(&s, 502, SENTENCE);
			buf_init(&out, H2_REFUSE_OUT_MAX);
			for (size_t at = 0; r == 0 && at < rows[i].in_len; at += step) {
				size_t left = rows[i].in_len - at;

				r = h2_scan_feed(&s, rows[i].in + at, left < step ? left : step,
						 &out);
			}
			if (r != rows[i].r || s.last != rows[i].last ||
			    buf_len(&out) != rows[i].out_len)
				fail_msg("row %zu, step %zu: %d, %u, %zu bytes", i, step, r, s.last,
					 buf_len(&out));
			assert_memory_equal(buf_data(&out), rows[i].out, rows[i].out_len);
			buf_done(&out);
		}
	}
}

/* No more is queued than there is room for. */
static void test_too_much(void **state)
{
	struct h2_scan s;
	struct buf out;

	h2_scan_init(&s, 502, SENTENCE);
	buf_init(&out, sizeof(ANSWER("\1")) - 1);
	assert_int_equal(h2_scan_feed(&s, TEXT(PREFACE OPEN("\1")), &out), 0);
	assert_int_equal(h2_scan_feed(&s, TEXT(OPEN("\3")), &out), -ENOBUFS);
	buf_done(&out);
}

static void test_codes(void **state)
{
	struct h2_scan s;

	h2_scan_init(&s, 403, "no");
	assert_non_null(memmem(s.answer, s.answer_len, TEXT("\3" "403")));
	assert_non_null(memmem(s.answer, s.answer_len, TEXT("\13grpc-status\1" "7")));
}

/* ---- the connection ---- */

struct rig {
	struct loop *loop;
	struct h2_refuse *r;
	int fd;                          /* the client's */
	struct buf in;
	bool eof;
	unsigned ends;
};

static void on_end(void *arg)
{
	struct rig *g = arg;

	g->ends++;
	g->r = NULL;
}

static void nothing(struct conn *c, enum conn_event ev, void *arg)
{
}

/* Bytes that are there before it begins are read, too. */
static void setup(struct rig *g, const char *early, size_t n)
{
	int64_t until = clock_mono_ms() + WAIT_MS;
	int sv[2];
	struct conn *c;

	*g = (struct rig){ .loop = loop_new() };
	buf_init(&g->in, 65536);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv), 0);
	g->fd = sv[1];
	c = conn_new(g->loop, sv[0], 65536, 65536, nothing, NULL);
	assert_int_equal(fd_write_all(g->fd, early, n, WAIT_MS), 0);
	while (buf_len(conn_in(c)) < n && clock_mono_ms() < until)
		loop_turn(g->loop, 10);
	assert_int_equal(buf_len(conn_in(c)), n);
	g->r = h2_refuse_new(c, 502, SENTENCE, on_end, g);
}

static void turn(struct rig *g)
{
	loop_turn(g->loop, 10);
	if (buf_read_fd(&g->in, g->fd, 4096) == 0)
		g->eof = true;
}

static void until(struct rig *g, bool (*met)(struct rig *g))
{
	int64_t end = clock_mono_ms() + WAIT_MS;

	while (!met(g)) {
		if (clock_mono_ms() > end)
			fail_msg("not within %d ms", WAIT_MS);
		turn(g);
	}
}

static bool is_eof(struct rig *g) { return g->eof; }
static bool is_over(struct rig *g) { return g->ends > 0; }
static bool is_answered(struct rig *g)
{
	return memmem(buf_data(&g->in), buf_len(&g->in), TEXT(SENTENCE)) != NULL;
}

static void teardown(struct rig *g)
{
	h2_refuse_free(g->r);
	buf_done(&g->in);
	close(g->fd);
	loop_turn(g->loop, 0);
	loop_free(g->loop);
}

#define SERVER_SETTINGS "\0\0\0\4\0\0\0\0\0"
#define GOAWAY(last, why) "\0\0\30\7\0\0\0\0\0\0\0\0" last "\0\0\0" why SENTENCE

/* Two requests of a moment; the farewell names the last one; then the client's end is awaited. */
static void test_connection(void **state)
{
	static const char all[] = SERVER_SETTINGS ACK ANSWER("\1") ANSWER("\3") GOAWAY("\3", "\0");
	struct rig g;

	setup(&g, TEXT(PREFACE SETTINGS OPEN("\1")));
	until(&g, is_answered);
	assert_int_equal(fd_write_all(g.fd, TEXT(OPEN("\3")), WAIT_MS), 0);
	until(&g, is_eof);
	assert_int_equal(buf_len(&g.in), sizeof(all) - 1);
	assert_memory_equal(buf_data(&g.in), all, sizeof(all) - 1);
	assert_int_equal(fd_write_all(g.fd, TEXT(OPEN("\5")), WAIT_MS), 0);
	turn(&g);
	assert_int_equal(g.ends, 0);
	shutdown(g.fd, SHUT_WR);
	until(&g, is_over);
	assert_int_equal(g.ends, 1);
	teardown(&g);
}

static void test_no_http2(void **state)
{
	static const char all[] = SERVER_SETTINGS GOAWAY("\0", "\1");
	struct rig g;

	setup(&g, TEXT("hello"));
	until(&g, is_eof);
	assert_int_equal(buf_len(&g.in), sizeof(all) - 1);
	assert_memory_equal(buf_data(&g.in), all, sizeof(all) - 1);
	until(&g, is_over);                      /* a client that stays is left after a while */
	assert_int_equal(g.ends, 1);
	teardown(&g);
}

static void test_freed(void **state)
{
	struct rig g;

	setup(&g, TEXT(PREFACE SETTINGS));
	h2_refuse_free(g.r);
	g.r = NULL;
	until(&g, is_eof);
	assert_int_equal(g.ends, 0);
	teardown(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reader),	   cmocka_unit_test(test_too_much),
		cmocka_unit_test(test_codes),	   cmocka_unit_test(test_connection),
		cmocka_unit_test(test_no_http2),   cmocka_unit_test(test_freed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
