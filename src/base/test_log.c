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

#include "base/err.h"
#include "base/log.h"
#include "base/str.h"

static int fds[2];

/* What was written since the last call. */
static const char *written(void)
{
	static char text[20000];
	ssize_t n = read(fds[0], text, sizeof(text) - 1);

	text[n > 0 ? n : 0] = '\0';
	return text;
}

static int setup(void **state)
{
	log_open("prog", "inst");
	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
		return -1;
	log_set_fd(fds[1]);
	return 0;
}

static int teardown(void **state)
{
	close(fds[0]);
	close(fds[1]);
	return 0;
}

static void test_line(void **state)
{
	struct err e = { 0 };
	const char *s;

	err_set(&e, -ENOENT, "no \"file\"");
	log_info("hello", F_STR("a", "b"), F_INT("n", -5), F_UINT("u", UINT64_MAX),
		 F_STR("none", NULL), F_REQ("r1"), F_ERR(&e));
	s = written();
	assert_true(str_starts(s, "{\"t\":\"20"));
	assert_non_null(strstr(
		s,
		"Z\",\"level\":\"info\",\"prog\":\"prog\",\"inst\":\"inst\",\"msg\":\"hello\",\"a\":\"b\",\"n\":-5,"
		"\"u\":18446744073709551615,\"none\":null,\"req\":\"r1\",\"code\":\"not-found\","
		"\"error\":\"no \\\"file\\\"\"}\n"));
	log_debug("hidden");
	assert_string_equal(written(), "");
	log_set_level(LOG_LEVEL_DEBUG);
	log_debug("shown");
	assert_non_null(strstr(written(), "\"level\":\"debug\""));
	log_set_level(LOG_LEVEL_INFO);
}

static size_t count(const char *s, char c)
{
	size_t n = 0;

	for (; *s; s++)
		n += *s == c;
	return n;
}

/* Nothing from outside ends a line, ends a string, or reaches a terminal as a control. */
static void test_forged(void **state)
{
	static const char *const evil[] = {
		"x\"}\n{\"level\":\"error\",\"msg\":\"forged",
		"\\",
		"\\\"",
		"\n",
		"\r\n",
		"\x1b[2J",
		"\x7f",
		"\xc2\x9b"
		"2J",
		"\xe2\x80\xa8{\"level\"",
		"\xe2\x80\xae",
		"\xff\xfe",
		"\xc3",
		"\xe2\x82\n",
		"\xed\xa0\x80",
		"\xf0\x9f\x98\"",
		"\t\b\f",
	};

	for (size_t i = 0; i < sizeof(evil) / sizeof(evil[0]); i++) {
		const char *s;

		log_info("m", F_STR("v", evil[i]));
		s = written();
		assert_int_equal(count(s, '\n'), 1);
		assert_true(s[strlen(s) - 1] == '\n');
		assert_true(str_utf8_ok(s, strlen(s)));
		assert_null(strchr(s, '\x1b'));
		assert_null(strchr(s, '\r'));
		assert_null(strchr(s, '\x7f'));
		assert_null(strstr(s, "\xc2\x9b"));
		assert_null(strstr(s, "\xe2\x80\xa8"));
		assert_null(strstr(s, "\xe2\x80\xae"));
		assert_null(strstr(s, "{\"level\""));
	}
	log_info("m", F_STR("v", "a\xff\"\\\x01z\xc3\xa4"));
	assert_non_null(strstr(written(), "\"v\":\"a\\ufffd\\\"\\\\\\u0001z\xc3\xa4\"}\n"));
}

/* Whatever the lengths: one line, not longer than the limit, ended and marked. */
static void test_cut(void **state)
{
	static char big[9000];

	for (size_t n = 7800; n < 8400; n++) {
		const char *s;

		memset(big, n % 3 == 0 ? '"' : n % 3 == 1 ? '\xff' : 'x', n);
		big[n] = '\0';
		log_info("m", F_STR("v", big + (n % 3 < 2 ? n - n / 2 : 0)), F_STR("w", "after"),
			 F_INT("i", 1), F_STR("x", big));
		s = written();
		assert_true(strlen(s) <= 8192);
		assert_int_equal(count(s, '\n'), 1);
		assert_true(str_ends(s, ",\"cut\":true}\n"));
	}
}

static void test_limit(void **state)
{
	struct log_limit l = { 0 };
	int ok = 0;

	for (int i = 0; i < 100; i++)
		ok += log_limit_ok(&l, 10);
	assert_int_equal(ok, 10);
	assert_string_equal(written(), "");
	l.window_start_ms -= 60000;             /* a minute later */
	assert_true(log_limit_ok(&l, 10));
	assert_non_null(strstr(written(), "\"count\":90}"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_line),
		cmocka_unit_test(test_forged),
		cmocka_unit_test(test_cut),
		cmocka_unit_test(test_limit),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
