/* What others wrote is harmless to look at (U-2). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/str.h"
#include "cli/cli.h"

static void shown(const char *in, size_t n, const char *out)
{
	autofree char *s = text_safe(in, n);

	assert_string_equal(s, out);
}
#define SHOWN(in, out) shown(in, sizeof(in) - 1, out)

static void nothing_moves_a_cursor(void **state)
{
	SHOWN("", "");
	SHOWN("plain, caf\xc3\xa9, \xe6\x97\xa5\xe6\x9c\xac", "plain, caf\xc3\xa9, \xe6\x97\xa5\xe6\x9c\xac");
	SHOWN("a\nb\r\tc", "a\\x0ab\\x0d\\x09c");
	SHOWN("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07");
	SHOWN("a\0b", "a\\x00b");
	SHOWN("\x7f\x08", "\\x7f\\x08");
	SHOWN("\xc2\x9b" "2J", "\\xc2\\x9b2J");                            /* C1: CSI */
	SHOWN("\x9b" "2J", "\\x9b2J");                                     /* as a byte: no UTF-8 */
	SHOWN("\xe2\x80\xae" "txt.exe", "\\xe2\\x80\\xaetxt.exe");         /* turns the direction */
	SHOWN("\xe2\x80\xa8", "\\xe2\\x80\\xa8");                          /* ends a line */
	SHOWN("\xd8\x9c", "\\xd8\\x9c");
	SHOWN("\xe2\x81\xa6", "\\xe2\\x81\\xa6");
	SHOWN("\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80");
	SHOWN("\xff\xfe", "\\xff\\xfe");
	SHOWN("\xc3", "\\xc3");
}

/* Every byte and many strings: what comes out is one line of UTF-8 without controls. */
static void whatever_comes_in(void **state)
{
	unsigned seed = 1;

	for (int i = 0; i < 20000; i++) {
		char in[32];
		size_t n = (size_t)i % sizeof(in);

		for (size_t k = 0; k < n; k++) {
			seed = seed * 1103515245 + 12345;
			in[k] = (char)(seed >> 16);
		}
		autofree char *out = text_safe(in, n);
		assert_true(str_utf8_ok(out, strlen(out)));
		for (const unsigned char *p = (unsigned char *)out; *p; p++) {
			assert_true(*p >= 0x20 && *p != 0x7f);
			assert_false(p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0);
		}
	}
}

static void json_means_the_same(void **state)
{
	static const char hostile[] = "\x1b[2J\n\x7f\xc2\x9b\xe2\x80\xae\xe2\x80\xa8 caf\xc3\xa9 \\u0041 \"";
	json_t *v = json_pack("{s:s}", hostile, hostile), *back;
	autofree char *text = json_dumps(v, 0), *safe = text_json_safe(text);

	for (const unsigned char *p = (unsigned char *)safe; *p; p++)
		assert_true(*p >= 0x20 && *p != 0x7f && !(p[0] == 0xc2 && p[1] < 0xa0));
	assert_null(strstr(safe, "\xe2\x80"));
	assert_non_null(strstr(safe, "caf\xc3\xa9"));
	back = json_loads(safe, 0, NULL);
	assert_true(json_equal(v, back));
	json_decref(v);
	json_decref(back);
}

static void tables_keep_their_lines_and_columns(void **state)
{
	static const char *const heads[] = { "A", "B", "C" };
	char path[] = "/tmp/space-test-text-XXXXXX", text[512] = "";
	int fd = mkstemp(path), saved = dup(STDOUT_FILENO);
	struct table t;

	assert_true(fd >= 0);
	fflush(stdout);
	dup2(fd, STDOUT_FILENO);
	table_init(&t, 3, heads);
	table_add(&t, "x\ny");
	table_add(&t, "\xe6\x97\xa5\xe6\x9c\xac");
	table_add(&t, "end");
	table_addf(&t, "%d", 7);
	table_add(&t, NULL);
	table_add(&t, "\x1b[31m");
	table_print(&t);
	fflush(stdout);
	dup2(saved, STDOUT_FILENO);
	close(saved);
	assert_true(pread(fd, text, sizeof(text) - 1, 0) > 0);
	assert_string_equal(text, "A       B     C\n"
				  "x\\x0ay  \xe6\x97\xa5\xe6\x9c\xac  end\n"
				  "7       -     \\x1b[31m\n");
	close(fd);
	unlink(path);
}

static void numbers_for_people(void **state)
{
	static const struct { uint64_t n; const char *text; } sizes[] = {
		{ 0, "0 B" },	       { 999, "999 B" },       { 1024, "1.0 KiB" },
		{ 1536, "1.5 KiB" },   { 1 << 20, "1.0 MiB" }, { 500ull << 20, "500 MiB" },
		{ 1ull << 40, "1.0 TiB" }, { UINT64_MAX, "16.0 EiB" },
	};
	static const struct { int64_t ms; const char *text; } ages[] = {
		{ -5, "0s" },	      { 0, "0s" },	    { 119999, "119s" },
		{ 120000, "2m" },     { 7200000, "2h" },    { 172800000, "2d" },
		{ INT64_MAX, "106751991167d" },
	};
	char text[16];

	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		text_bytes(sizes[i].n, text);
		assert_string_equal(text, sizes[i].text);
	}
	for (size_t i = 0; i < ARRAY_LEN(ages); i++) {
		text_age(ages[i].ms, text);
		assert_string_equal(text, ages[i].text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_moves_a_cursor),
		cmocka_unit_test(whatever_comes_in),
		cmocka_unit_test(json_means_the_same),
		cmocka_unit_test(tables_keep_their_lines_and_columns),
		cmocka_unit_test(numbers_for_people),
	};

	setlocale(LC_CTYPE, "C.UTF-8");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
