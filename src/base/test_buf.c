#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"

static void test_limit(void **state)
{
	struct buf b;

	buf_init(&b, 10);
	assert_int_equal(buf_put(&b, "12345678", 8), 0);
	assert_int_equal(buf_put(&b, "abc", 3), -ENOBUFS);
	assert_int_equal(buf_len(&b), 8);
	assert_int_equal(buf_putf(&b, "%d", 123), -ENOBUFS);
	assert_int_equal(buf_putf(&b, "%d", 12), 0);
	assert_memory_equal(buf_data(&b), "1234567812", 10);
	assert_int_equal(buf_room(&b), 0);
	assert_null(buf_reserve(&b, 1));
	buf_consume(&b, 4);
	assert_int_equal(buf_puts(&b, "wxyz"), 0);
	assert_memory_equal(buf_data(&b), "567812wxyz", 10);
	buf_done(&b);
	buf_done(&b);
}

/* A moving window over a counter: what comes out is what went in, and memory does not grow. */
static void test_window(void **state)
{
	unsigned char in = 0, out = 0;
	struct buf b;

	buf_init(&b, 5000);
	for (int i = 0; i < 20000; i++) {
		size_t n = (size_t)rand() % 700, m;
		unsigned char chunk[700];

		if (n > buf_room(&b))
			n = buf_room(&b);
		for (size_t k = 0; k < n; k++)
			chunk[k] = in++;
		assert_int_equal(buf_put(&b, chunk, n), 0);
		m = buf_len(&b) ? (size_t)rand() % (buf_len(&b) + 1) : 0;
		for (size_t k = 0; k < m; k++)
			assert_int_equal((unsigned char)buf_data(&b)[k], out++);
		buf_consume(&b, m);
	}
	assert_true(b.cap_ <= 5000);
	buf_done(&b);
}

static void test_fd(void **state)
{
	struct buf a, b;
	int p[2];

	assert_int_equal(pipe2(p, O_CLOEXEC | O_NONBLOCK), 0);
	buf_init(&a, 100000);
	buf_init(&b, 64);
	assert_int_equal(buf_read_fd(&b, p[0], 64), -EAGAIN);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(buf_putf(&a, "%0100d", i), 0);
	assert_int_equal(buf_put(&a, "x", 1), -ENOBUFS);
	while (buf_write_fd(&a, p[1]) > 0)
		;
	assert_int_equal(buf_write_fd(&a, p[1]), -EAGAIN);
	assert_int_equal(buf_read_fd(&b, p[0], 10), 10);
	assert_int_equal(buf_read_fd(&b, p[0], 1000), 54);
	assert_int_equal(buf_read_fd(&b, p[0], 1000), -ENOBUFS);
	buf_clear(&b);
	while (buf_read_fd(&b, p[0], 64) > 0)
		buf_clear(&b);
	close(p[1]);
	assert_int_equal(buf_read_fd(&b, p[0], 64), 0);
	close(p[0]);
	buf_done(&a);
	buf_done(&b);
}

static void test_take(void **state)
{
	autofree char *s = NULL, *t = NULL;
	struct buf b;

	buf_init(&b, 100);
	buf_puts(&b, "hello");
	buf_consume(&b, 1);
	s = buf_take_str(&b);
	assert_string_equal(s, "ello");
	t = buf_take_str(&b);
	assert_string_equal(t, "");
	assert_int_equal(buf_len(&b), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_window),
		cmocka_unit_test(test_fd),
		cmocka_unit_test(test_take),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
