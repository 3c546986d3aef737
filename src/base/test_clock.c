#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"

static void test_iso(void **state)
{
	static const struct {
		int64_t ms;
		const char *text;
	} rows[] = {
		{ 0, "1970-01-01T00:00:00.000Z" },
		{ 951782400000, "2000-02-29T00:00:00.000Z" },
		{ 1709251199999, "2024-02-29T23:59:59.999Z" },
		{ 1767366245678, "2026-01-02T15:04:05.678Z" },
		{ 4107542400000, "2100-03-01T00:00:00.000Z" },
		{ 253402300799999, "9999-12-31T23:59:59.999Z" },
	};
	char text[CLOCK_ISO_LEN];
	int64_t ms;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		clock_iso(text, rows[i].ms);
		assert_string_equal(text, rows[i].text);
		assert_int_equal(clock_parse_iso(text, &ms), 0);
		assert_true(ms == rows[i].ms);
	}
	clock_iso(text, -1);
	assert_string_equal(text, "1970-01-01T00:00:00.000Z");
	clock_iso(text, INT64_MAX);
	assert_string_equal(text, "9999-12-31T23:59:59.999Z");
}

/* Every day of 400 years, against the C library. */
static void test_days(void **state)
{
	for (int64_t day = 0; day < 146097; day++) {
		char text[CLOCK_ISO_LEN], want[CLOCK_ISO_LEN];
		time_t t = day * 86400 + 3661;
		struct tm tm;
		int64_t ms;

		clock_iso(text, (int64_t)t * 1000);
		strftime(want, sizeof(want), "%Y-%m-%dT%H:%M:%S.000Z", gmtime_r(&t, &tm));
		assert_string_equal(text, want);
		assert_int_equal(clock_parse_iso(text, &ms), 0);
		assert_true(ms == (int64_t)t * 1000);
	}
}

static void test_parse(void **state)
{
	static const char *const bad[] = {
		"",
		"2026",
		"2026-01-02",
		"2026-01-02T03:04:05",
		"2026-01-02 03:04:05Z",
		"2026-13-01T00:00:00Z",
		"2026-00-01T00:00:00Z",
		"2026-02-29T00:00:00Z",
		"2026-04-31T00:00:00Z",
		"2026-01-02T24:00:00Z",
		"2026-01-02T03:60:05Z",
		"2026-01-02T03:04:60Z",
		"2026-01-02T03:04:05.Z",
		"2026-01-02T03:04:05.1234567890Z",
		"2026-01-02T03:04:05Zx",
		"2026-01-02T03:04:05z",
		"2026-01-02T03:04:05+1:00",
		"2026-01-02T03:04:05+0100",
		"+026-01-02T03:04:05Z",
		"2100-02-29T00:00:00Z",
	};
	int64_t ms = 7;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(clock_parse_iso(bad[i], &ms), -EINVAL);
	assert_int_equal(clock_parse_iso("1969-12-31T23:59:59Z", &ms), -ERANGE);
	assert_int_equal(clock_parse_iso("1970-01-01T00:59:59+01:00", &ms), -ERANGE);
	assert_int_equal(clock_parse_iso("1600-02-29T00:00:00Z", &ms), -ERANGE);
	assert_int_equal(clock_parse_iso("1500-02-29T00:00:00Z", &ms), -EINVAL);
	assert_int_equal(ms, 7);
	assert_int_equal(clock_parse_iso("1970-01-01T01:00:00.5+01:00", &ms), 0);
	assert_int_equal(ms, 500);
	assert_int_equal(clock_parse_iso("1970-01-01T00:00:00.123456789-00:30", &ms), 0);
	assert_int_equal(ms, 1800123);
}

static void test_shift(void **state)
{
	int64_t mono = clock_mono_ms(), wall = clock_wall_ms(), d;

	clock_set_shift_ms(3600000);
	d = clock_wall_ms() - wall;
	assert_true(d >= 3600000 && d < 3610000);
	assert_true(clock_mono_ms() - mono < 10000);
	assert_true(clock_mono_us() / 1000 - clock_mono_ms() <= 0);
	clock_set_shift_ms(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_iso),
		cmocka_unit_test(test_days),
		cmocka_unit_test(test_parse),
		cmocka_unit_test(test_shift),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
