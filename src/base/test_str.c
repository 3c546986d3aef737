#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/secret.h"
#include "base/str.h"

static void test_compare(void **state)
{
	assert_true(str_eq(NULL, NULL));
	assert_false(str_eq(NULL, ""));
	assert_true(str_ieq("Content-LENGTH", "content-length"));
	assert_false(str_ieq("a", "ab"));
	assert_false(str_ieq("[", "{"));
	assert_true(str_starts("unix:/x", "unix:"));
	assert_false(str_starts("uni", "unix"));
	assert_true(str_ends("a.json", ".json"));
	assert_false(str_ends("n", ".json"));
	assert_true(str_is("abc", 1, 3, "abc"));
	assert_false(str_is("abcd", 1, 3, "abcd"));
	assert_false(str_is("", 1, 3, "abc"));
	assert_false(str_is(NULL, 0, 3, "abc"));
}

static void test_copy(void **state)
{
	char d[4];

	assert_int_equal(str_copy(d, sizeof(d), "abc"), 0);
	assert_int_equal(str_copy(d, sizeof(d), "abcd"), -ENOSPC);
	assert_string_equal(d, "abc");
	assert_int_equal(str_format(d, sizeof(d), "%d", 12345), -ENOSPC);
	assert_string_equal(d, "123");
	assert_int_equal(str_copy(d, sizeof(d), "ab\u00e9"), -ENOSPC);
	assert_string_equal(d, "ab");
	assert_int_equal(str_copy(d, sizeof(d), "a\u00e9x"), -ENOSPC);
	assert_string_equal(d, "a\u00e9");
	assert_int_equal(str_copy(d, sizeof(d), "\U0001f600"), -ENOSPC);
	assert_string_equal(d, "");
	assert_int_equal(str_format(d, sizeof(d), "%s", "a\u20ac"), -ENOSPC);
	assert_string_equal(d, "a");
	/* What was no UTF-8 before is cut where it is cut. */
	assert_int_equal(str_copy(d, sizeof(d), "\x80\x80\x80\x80"), -ENOSPC);
	assert_int_equal(strlen(d), 3);
}

static void test_number(void **state)
{
	static const char *const bad[] = { "",	  "-1",	 "+1", " 1",	  "1 ",
					   "0x1", "1.0", "1a", "\xd9\xa1" };
	uint64_t v = 7;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(str_to_u64(bad[i], UINT64_MAX, &v), -EINVAL);
	assert_int_equal(str_to_u64("18446744073709551616", UINT64_MAX, &v), -ERANGE);
	assert_int_equal(str_to_u64("99999999999999999999999", UINT64_MAX, &v), -ERANGE);
	assert_int_equal(str_to_u64("11", 10, &v), -ERANGE);
	assert_int_equal(v, 7);
	assert_int_equal(str_to_u64("18446744073709551615", UINT64_MAX, &v), 0);
	assert_true(v == UINT64_MAX);
	assert_int_equal(str_to_u64_n("123", 2, 100, &v), 0);
	assert_int_equal(v, 12);
}

static void test_utf8(void **state)
{
	static const struct {
		const char *s;
		bool ok;
	} rows[] = {
		{ "", true },
		{ "abc", true },
		{ "\xc3\xa4", true },
		{ "\xe2\x82\xac", true },
		{ "\xf0\x9f\x98\x80", true },
		{ "\xf4\x8f\xbf\xbf", true },
		{ "\xed\x9f\xbf", true },
		{ "\xee\x80\x80", true },
		{ "\x80", false },
		{ "\xc0\x80", false },
		{ "\xc1\xbf", false },
		{ "\xc3", false },
		{ "\xe0\x9f\xbf", false },
		{ "\xed\xa0\x80", false },
		{ "\xf0\x8f\xbf\xbf", false },
		{ "\xf4\x90\x80\x80", false },
		{ "\xf5\x80\x80\x80", false },
		{ "\xff", false },
		{ "\xe2\x82", false },
		{ "\xe2\x28\xa1", false },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		assert_int_equal(str_utf8_ok(rows[i].s, strlen(rows[i].s)), rows[i].ok);
}

static void test_hex(void **state)
{
	unsigned char b[4];
	char s[9];

	str_hex(s, "\x00\x7f\x80\xff", 4);
	assert_string_equal(s, "007f80ff");
	assert_int_equal(str_unhex(b, 4, "007F80fF"), 0);
	assert_memory_equal(b, "\x00\x7f\x80\xff", 4);
	assert_int_equal(str_unhex(b, 4, "007f80f"), -EINVAL);
	assert_int_equal(str_unhex(b, 4, "007f80ff0"), -EINVAL);
	assert_int_equal(str_unhex(b, 4, "007f80fg"), -EINVAL);
}

/* RFC 4648 section 10. */
static void test_b64(void **state)
{
	static const char *const rows[][2] = {
		{ "", "" },
		{ "f", "Zg==" },
		{ "fo", "Zm8=" },
		{ "foo", "Zm9v" },
		{ "foob", "Zm9vYg==" },
		{ "fooba", "Zm9vYmE=" },
		{ "foobar", "Zm9vYmFy" },
	};
	static const char *const bad[] = { "Z",	   "Zg",   "Zg=",    "Zh==",  "Zm9=", "Zg==Zg==",
					   "Z===", "====", "Zm9v\n", "Zm 9v", "Zm-_", "=m8=" };
	unsigned char out[16];
	char text[16];
	size_t n;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		str_b64(text, rows[i][0], strlen(rows[i][0]));
		assert_string_equal(text, rows[i][1]);
		assert_int_equal(strlen(text), STR_B64_LEN(strlen(rows[i][0])));
		assert_int_equal(str_unb64(out, sizeof(out), text, strlen(text), &n), 0);
		assert_int_equal(n, strlen(rows[i][0]));
		assert_memory_equal(out, rows[i][0], n);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(str_unb64(out, sizeof(out), bad[i], strlen(bad[i]), &n), -EINVAL);
	assert_int_equal(str_unb64(out, 5, "Zm9vYmFy", 8, &n), -ENOSPC);
	assert_int_equal(str_unb64(out, 6, "Zm9vYmFy", 8, &n), 0);
}

/* All lengths there and back; each byte at each place of a first, a middle and a last group. */
static void test_b64_all(void **state)
{
	static const char alphabet[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	unsigned char in[200], out[200];
	char text[STR_B64_LEN(200) + 1];
	size_t n;

	for (size_t i = 0; i < sizeof(in); i++)
		in[i] = (unsigned char)(i * 37 + i / 7);
	for (size_t len = 0; len <= sizeof(in); len++) {
		str_b64(text, in, len);
		assert_int_equal(str_b64_span(text, strlen(text)), strlen(text));
		assert_int_equal(str_unb64(out, len, text, strlen(text), &n), 0);
		assert_int_equal(n, len);
		assert_memory_equal(in, out, len);
		if (len)
			assert_int_equal(str_unb64(out, len - 1, text, strlen(text), &n), -ENOSPC);
	}
	for (size_t at = 0; at < 12; at++) {
		for (int c = 0; c < 256; c++) {
			bool ok = c && strchr(alphabet, c);

			memcpy(text, "AAAAAAAAAAAA", 13);
			text[at] = (char)c;
			assert_int_equal(str_b64_span(text, 12), ok || c == '=' ? 12 : at);
			ok |= at == 11 && c == '=';
			assert_int_equal(str_unb64(out, 9, text, 12, &n), ok ? 0 : -EINVAL);
		}
	}
}

static void test_pct(void **state)
{
	static const char *const bad[] = { "%", "%4", "%4g", "a%00b", "%%41" };
	char d[16];

	assert_int_equal(str_pct_decode(d, sizeof(d), "a%2Fb+c%C3%a4", 13, false), 0);
	assert_string_equal(d, "a/b+c\xc3\xa4");
	assert_int_equal(str_pct_decode(d, sizeof(d), "a+b", 3, true), 0);
	assert_string_equal(d, "a b");
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(str_pct_decode(d, sizeof(d), bad[i], strlen(bad[i]), false),
				 -EINVAL);
	assert_int_equal(str_pct_decode(d, 3, "abc", 3, false), -ENOSPC);
	memcpy(d, "%41%42", 7);
	assert_int_equal(str_pct_decode(d, sizeof(d), d, 6, false), 0);
	assert_string_equal(d, "AB");
}

static void test_random(void **state)
{
	char a[201], b[201];

	assert_int_equal(str_random_hex(a, 100), 0);
	assert_int_equal(str_random_hex(b, 100), 0);
	assert_int_equal(strlen(a), 200);
	assert_string_not_equal(a, b);
}

static void test_printable(void **state)
{
	static const char in[] = "a\x1b[31m\n\x7f\xc2\x9b" "1\xc3\xa4\xff\xe2\x82";
	autofree char *s = str_printable(in, sizeof(in));

	assert_string_equal(s, "a\\x1b[31m\\x0a\\x7f\\xc2\\x9b1\xc3\xa4\\xff\\xe2\\x82\\x00");
}

static void test_secret(void **state)
{
	struct secret s;

	secret_init(&s, "key", 3);
	assert_true(secret_eq(&s, "key", 3));
	assert_false(secret_eq(&s, "kez", 3));
	assert_false(secret_eq(&s, "ke", 2));
	secret_done(&s);
	assert_null(s.p);
	secret_done(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_compare),	  cmocka_unit_test(test_copy),
		cmocka_unit_test(test_number),	  cmocka_unit_test(test_utf8),
		cmocka_unit_test(test_hex),	  cmocka_unit_test(test_b64),
		cmocka_unit_test(test_b64_all),
		cmocka_unit_test(test_pct),	  cmocka_unit_test(test_random),
		cmocka_unit_test(test_printable), cmocka_unit_test(test_secret),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
