/* What a download's fields ask for, modes as Go prints them, the tree of a watch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/str.h"
#include "spaced-guest/entry.h"
#include "spaced-guest/files.h"
#include "spaced-guest/negotiate.h"
#include "spaced-guest/watch_tree.h"

#define AT "Sun, 06 Nov 1994 08:49:37 GMT\r\n"
#define BEFORE "Sun, 06 Nov 1994 08:49:36 GMT\r\n"

static void test_coding(void **state)
{
	static const struct { const char *field; enum coding coding; } cases[] = {
		{ NULL, CODING_IDENTITY },
		{ "", CODING_IDENTITY },
		{ "gzip", CODING_GZIP },
		{ "GZip", CODING_GZIP },
		{ " gzip ;q=0.5", CODING_GZIP },
		{ "gzip;q=0", CODING_IDENTITY },
		{ "gzip;q=0.000", CODING_IDENTITY },
		{ "gzip;q=0.001", CODING_GZIP },
		{ "gzip, deflate", CODING_IDENTITY },
		{ "gzip, deflate, br", CODING_IDENTITY },
		{ "identity", CODING_IDENTITY },
		{ "gzip, identity", CODING_IDENTITY },
		{ "gzip, *", CODING_IDENTITY },
		{ "gzip, identity;q=0", CODING_GZIP },
		{ "gzip, *;q=0", CODING_GZIP },
		{ "*;q=0, gzip;q=1.0", CODING_GZIP },
		{ "identity;q=0", CODING_NONE },
		{ "br, identity;q=0", CODING_NONE },
		{ "*;q=0", CODING_NONE },
		{ "*, identity;q=0", CODING_GZIP },
		{ "*;q=0, identity", CODING_IDENTITY },
		{ ",,,", CODING_IDENTITY },
		{ "zstd,gzip,br", CODING_IDENTITY },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		if (negotiate_coding(cases[i].field) != cases[i].coding)
			fail_msg("%s: %d", cases[i].field, negotiate_coding(cases[i].field));
}

static void head(struct http_head *h, const char *fields)
{
	autofree char *text = x_asprintf("GET / HTTP/1.1\r\nHost: x\r\n%s\r\n", fields);
	enum http_error e;

	assert_true(http_parse_request(text, strlen(text), h, &e) > 0);
}

static void test_range(void **state)
{
	static const struct {
		const char *field;
		uint64_t size, first, last;
		int status;
	} cases[] = {
		{ "", 10, 0, 0, 200 },
		{ "Range: bytes=0-3\r\n", 10, 0, 3, 206 },
		{ "Range: BYTES= 2-\r\n", 10, 2, 9, 206 },
		{ "Range: bytes=-4\r\n", 10, 6, 9, 206 },
		{ "Range: bytes=-40\r\n", 10, 0, 9, 206 },
		{ "Range: bytes=5-100\r\n", 10, 5, 9, 206 },
		{ "Range: bytes=9-9\r\n", 10, 9, 9, 206 },
		{ "Range: bytes=10-\r\n", 10, 0, 0, 416 },
		{ "Range: bytes=-0\r\n", 10, 0, 0, 416 },
		{ "Range: bytes=0-\r\n", 0, 0, 0, 416 },
		{ "Range: bytes=-1\r\n", 0, 0, 0, 416 },
		{ "Range: bytes=18446744073709551615-\r\n", 10, 0, 0, 416 },
		{ "Range: bytes=18446744073709551616-\r\n", 10, 0, 0, 200 },
		{ "Range: bytes=3-2\r\n", 10, 0, 0, 200 },
		{ "Range: bytes=0-1,4-5\r\n", 10, 0, 0, 200 },
		{ "Range: bytes=-\r\n", 10, 0, 0, 200 },
		{ "Range: bytes=a-b\r\n", 10, 0, 0, 200 },
		{ "Range: bytes=+1-2\r\n", 10, 0, 0, 200 },
		{ "Range: bytes=1-2x\r\n", 10, 0, 0, 200 },
		{ "Range: lines=1-2\r\n", 10, 0, 0, 200 },
		{ "Range: bytes=1-2\r\nIf-Range: \"t\"\r\n", 10, 1, 2, 206 },
		{ "Range: bytes=1-2\r\nIf-Range: W/\"t\"\r\n", 10, 0, 0, 200 },
		{ "Range: bytes=1-2\r\nIf-Range: \"u\"\r\n", 10, 0, 0, 200 },
		{ "Range: bytes=1-2\r\nIf-Range: " AT, 10, 1, 2, 206 },
		{ "Range: bytes=1-2\r\nIf-Range: " BEFORE, 10, 0, 0, 200 },
		{ "Range: bytes=1-2\r\nIf-Range: then\r\n", 10, 0, 0, 200 },
	};
	struct validator v = { .etag = "\"t\"", .mtime_s = 784111777 };

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		uint64_t first = 0, last = 0;
		struct http_head h;
		int status;

		head(&h, cases[i].field);
		status = negotiate_range(&h, &v, cases[i].size, &first, &last);
		if (status != cases[i].status || first != cases[i].first || last != cases[i].last)
			fail_msg("%s: %d %llu-%llu", cases[i].field, status,
				 (unsigned long long)first, (unsigned long long)last);
		http_head_done(&h);
	}
}

static void test_condition(void **state)
{
	static const struct { const char *fields; int status; bool conditional; } cases[] = {
		{ "", 0, false },
		{ "If-None-Match: \"t\"\r\n", 304, true },
		{ "If-None-Match: W/\"t\"\r\n", 304, true },
		{ "If-None-Match: \"a\", \"t\"\r\n", 304, true },
		{ "If-None-Match: *\r\n", 304, true },
		{ "If-None-Match: \"a\"\r\n", 0, true },
		{ "If-None-Match: t\r\n", 0, true },
		{ "If-None-Match: \"a, \"t\"\r\n", 0, true },
		{ "If-Modified-Since: " AT, 304, true },
		{ "If-Modified-Since: " BEFORE, 0, true },
		{ "If-Modified-Since: Sunday, 06-Nov-94 08:49:37 GMT\r\n", 304, true },
		{ "If-Modified-Since: Sun Nov  6 08:49:37 1994\r\n", 304, true },
		{ "If-Modified-Since: yesterday\r\n", 0, false },
		{ "If-None-Match: \"a\"\r\nIf-Modified-Since: " AT, 0, true },
		{ "If-Match: \"t\"\r\n", 0, true },
		{ "If-Match: W/\"t\"\r\n", 412, true },
		{ "If-Match: \"u\"\r\n", 412, true },
		{ "If-Match: *\r\n", 0, true },
		{ "If-Match: \"t\"\r\nIf-None-Match: \"t\"\r\n", 304, true },
		{ "If-Unmodified-Since: " AT, 0, true },
		{ "If-Unmodified-Since: " BEFORE, 412, true },
	};
	struct validator v = { .etag = "\"t\"", .mtime_s = 784111777 };
	char date[NEGOTIATE_DATE_LEN];

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct http_head h;
		bool conditional;
		int status;

		head(&h, cases[i].fields);
		status = negotiate_condition(&h, &v, &conditional);
		if (status != cases[i].status || conditional != cases[i].conditional)
			fail_msg("%s: %d", cases[i].fields, status);
		http_head_done(&h);
	}
	negotiate_date(date, v.mtime_s);
	assert_string_equal(date, "Sun, 06 Nov 1994 08:49:37 GMT");
	negotiate_date(date, -5);
	assert_string_equal(date, "Thu, 01 Jan 1970 00:00:00 GMT");
	negotiate_date(date, INT64_MAX);
	assert_string_equal(date, "Thu, 01 Jan 1970 00:00:00 GMT");
}

/* As Go's FileMode.String prints them. */
static void test_modes(void **state)
{
	static const struct { mode_t mode; const char *text; } cases[] = {
		{ S_IFREG | 0644, "-rw-r--r--" },   { S_IFDIR | 0755, "drwxr-xr-x" },
		{ S_IFLNK | 0777, "Lrwxrwxrwx" },   { S_IFDIR | 01777, "dtrwxrwxrwx" },
		{ S_IFREG | 04755, "urwxr-xr-x" },  { S_IFREG | 02755, "grwxr-xr-x" },
		{ S_IFDIR | 02775, "dgrwxrwxr-x" }, { S_IFCHR | 0666, "Dcrw-rw-rw-" },
		{ S_IFBLK | 0660, "Drw-rw----" },   { S_IFIFO | 0600, "prw-------" },
		{ S_IFSOCK | 0, "S---------" },	    { S_IFREG | 07777, "ugtrwxrwxrwx" },
	};
	char text[ENTRY_MODE_LEN];

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		entry_mode(text, cases[i].mode);
		assert_string_equal(text, cases[i].text);
	}
}

static void test_tmp_names(void **state)
{
	bool replaces;

	assert_true(files_is_tmp(".space-upload-0123456789abcdef", &replaces) && replaces);
	assert_true(files_is_tmp(".space-upload-0123456789abcdee", &replaces) && !replaces);
	assert_false(files_is_tmp(".space-upload-0123456789abcde", &replaces));
	assert_false(files_is_tmp(".space-upload-0123456789abcdeff", &replaces));
	assert_false(files_is_tmp(".space-upload-0123456789abcdeX", &replaces));
	assert_false(files_is_tmp("space-upload-0123456789abcdef", &replaces));
}

static unsigned dropped;

static void gone(void *arg, struct wdir *d)
{
	dropped++;
}

static void test_tree(void **state)
{
	struct wdir *root, *a, *d;
	struct wtree t;
	char name[16], *p;

	wtree_init(&t);
	root = wtree_add(&t, NULL, "", 1);
	a = wtree_add(&t, root, "a", 2);
	for (int i = 0; i < 1000; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		wtree_add(&t, a, name, 3 + i);
	}
	/* Deeper than any stack would like. */
	d = wtree_find(&t, 3);
	for (int i = 0; i < 100000; i++)
		d = wtree_add(&t, d, "d", 2000 + i);
	assert_int_equal(t.n, 101002);
	assert_ptr_equal(wtree_child(&t, a, "n999"), wtree_find(&t, 1002));
	assert_null(wtree_child(&t, a, "n1000"));
	assert_null(wtree_find(&t, 999999));
	assert_true(wtree_is_above(root, d) && wtree_is_above(a, d) && wtree_is_above(d, d));
	assert_false(wtree_is_above(d, a));
	assert_null(wtree_path(d, "x", 4096));
	p = wtree_path(wtree_find(&t, 2000), "file", 4096);
	assert_string_equal(p, "a/n0/d/file");
	free(p);
	p = wtree_path(root, "file", 4096);
	assert_string_equal(p, "file");
	free(p);
	wtree_drop(&t, wtree_find(&t, 3), gone, NULL);
	assert_int_equal(dropped, 100001);
	assert_int_equal(t.n, 1001);
	assert_null(wtree_find(&t, 2000));
	assert_null(wtree_child(&t, a, "n0"));
	assert_non_null(wtree_child(&t, a, "n1"));
	wtree_drop(&t, root, gone, NULL);
	assert_int_equal(t.n, 0);
	assert_null(t.root);
	wtree_done(&t);
}

static void test_remembered_names(void **state)
{
	struct wnames s;
	char name[16];

	wnames_init(&s);
	assert_false(wnames_take(&s, 1, "x"));
	for (int i = 0; i < 10000; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		wnames_add(&s, i % 3, name);
	}
	assert_false(wnames_take(&s, 1, "f0"));
	for (int i = 0; i < 10000; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		assert_true(wnames_take(&s, i % 3, name));
		assert_false(wnames_take(&s, i % 3, name));
	}
	wnames_add(&s, 7, "");
	assert_true(wnames_take(&s, 7, ""));
	wnames_clear(&s);
	assert_false(wnames_take(&s, 7, ""));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_coding),	  cmocka_unit_test(test_range),
		cmocka_unit_test(test_condition), cmocka_unit_test(test_modes),
		cmocka_unit_test(test_tmp_names), cmocka_unit_test(test_tree),
		cmocka_unit_test(test_remembered_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
