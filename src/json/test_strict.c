#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "json/strict.h"
#include "json/text.h"

#define DEPTH 4

static void accept_n(const char *p, size_t n)
{
	struct err e = { 0 };
	json_t *v = strict_parse(p, n, DEPTH, &e);

	if (!v)
		fail_msg("%s: %s", p, e.text);
	json_decref(v);
}

static void refuse_n(const char *p, size_t n, int num)
{
	struct err e = { 0 };
	json_t *v = strict_parse(p, n, DEPTH, &e);

	if (v)
		fail_msg("accepted: %s", p);
	assert_int_equal(e.num, num);
	assert_true(strlen(e.text) > 0);
}

static void test_accepts(void **st)
{
	static const char *const good[] = {
		"{}",
		"[]",
		" {\"a\" : [1, -2, 3.5, 1e3, true, false, null, \"\"]}\r\n\t",
		"[[[[]]]]",
		"{\"a\":{\"b\":{\"c\":{}}}}",
		"[9007199254740992, -9007199254740992]",
		"[\"[[[[[[{{{{{{\"]",
		"[\"\\\"[[[[[[\"]",
		"[\"\\\\\",[]]",
		"{\"a\":1,\"A\":2}",
		"[\"\\u00e4\\ud83d\\ude00\"]",
		"[\"\xc3\xa4\"]",
	};

	for (size_t i = 0; i < ARRAY_LEN(good); i++)
		accept_n(good[i], strlen(good[i]));
}

static void test_refuses(void **st)
{
	static const char *const bad[] = {
		"",
		" ",
		"1",
		"\"a\"",
		"null",
		"{",
		"[",
		"}",
		"{}{}",
		"{} x",
		"[1,]",
		"{\"a\":1,}",
		"{a:1}",
		"{'a':1}",
		"[01]",
		"[+1]",
		"[.5]",
		"[1.]",
		"[0x1]",
		"[NaN]",
		"[Infinity]",
		"[1e999]",
		"[tru]",
		"// c\n[]",
		"[/* c */]",
		"{\"a\":1,\"a\":1}",
		"{\"a\":1,\"\\u0061\":2}",
		"{\"x\":{\"a\":1,\"b\":2,\"a\":3}}",
		"[\"\\u0000\"]",
		"{\"a\\u0000\":1}",
		"[\"a\tb\"]",
		"[\"a\nb\"]",
		"[\"\\x41\"]",
		"[\"\\ud800\"]",
		"[\"\xff\"]",
		"[\"\xc3\"]",
		"[\"\xed\xa0\x80\"]",
		"[\"\xc0\x80\"]",
		"[9007199254740993]",
		"[-9007199254740993]",
		"[18446744073709551616]",
		"[9223372036854775807]",
		"[9007199254740994.0]",
		"[1e16]",
		"[[[[[]]]]]",
		"{\"a\":{\"b\":{\"c\":{\"d\":{}}}}}",
		"[\"unfinished",
		"[\"unfinished\\",
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		refuse_n(bad[i], strlen(bad[i]), -EBADMSG);
	refuse_n("[1]\0", 4, -EBADMSG);
	refuse_n("[\"a\0b\"]", 7, -EBADMSG);
	refuse_n("\0", 1, -EBADMSG);
}

/* A parser that recurses first would run out of stack here. */
static void test_deep(void **st)
{
	autofree char *deep = x_alloc(1000001);

	memset(deep, '[', 1000000);
	refuse_n(deep, 1000000, -EBADMSG);
	memset(deep, ' ', 1000000);
	refuse_n(deep, STRICT_BYTES_MAX + 1, -EMSGSIZE);
}

static void test_not_terminated(void **st)
{
	/* Behind n the text goes on. */
	accept_n("[1]]]]", 3);
	refuse_n("[1]", 2, -EBADMSG);
}

/* What a terminal would obey is escaped, and nothing else; a parser sees no difference. */
static void test_text(void **st)
{
	static const struct { const char *plain, *want; } rows[] = {
		{ "", "\"\"" },
		{ "a\"\\\n\x1b", "\"a\\\"\\\\\\n\\u001B\"" },
		{ "\x7f", "\"\\u007f\"" },
		{ "\xc2\x80\xc2\x9b\u00a0\u00fc", "\"\\u0080\\u009b\u00a0\u00fc\"" },
		{ "\u200d\u200e\u2027\u2028\u202e\u202f", "\"\u200d\\u200e\u2027\\u2028\\u202e\u202f\"" },
		{ "\u2065\u2066\u2069\u206a\u20ac\u2122", "\"\u2065\\u2066\\u2069\u206a\u20ac\u2122\"" },
		{ "\U0001f600x", "\"\U0001f600x\"" },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		json_t *v = json_string(rows[i].plain), *back;
		autofree char *text = json_text(v);

		assert_string_equal(text, rows[i].want);
		back = json_loads(text, JSON_DECODE_ANY, NULL);
		assert_true(json_equal(v, back));
		json_decref(v);
		json_decref(back);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_accepts),
		cmocka_unit_test(test_refuses),
		cmocka_unit_test(test_deep),
		cmocka_unit_test(test_not_terminated),
		cmocka_unit_test(test_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
