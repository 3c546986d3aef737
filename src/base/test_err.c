#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "base/err.h"

static void test_wrap(void **state)
{
	struct err e = { 0 };

	assert_int_equal(err_set_code(&e, -ENOENT, "sandbox-not-found", "the sandbox %s is unknown",
				      "x"),
			 -ENOENT);
	assert_int_equal(err_wrap(&e, "attempt %d", 2), -ENOENT);
	assert_string_equal(e.text, "attempt 2: the sandbox x is unknown");
	assert_string_equal(err_code(&e), "sandbox-not-found");
	assert_int_equal(err_http_status(&e), 404);
	assert_int_equal(err_set(&e, -EBUSY, "again: %s", e.text), -EBUSY);
	assert_string_equal(e.text, "again: attempt 2: the sandbox x is unknown");
	assert_string_equal(err_code(&e), "busy");
}

static void test_null(void **state)
{
	assert_int_equal(err_set(NULL, -EIO, "x"), -EIO);
	assert_int_equal(err_errno(NULL, -EIO, "x"), -EIO);
	assert_int_equal(err_set_code(NULL, -EIO, "c", "x"), -EIO);
	assert_int_equal(err_wrap(NULL, "x"), 0);
}

static void test_errno(void **state)
{
	struct err e = { 0 };

	err_errno(&e, -ENOSPC, "cannot write %s", "f");
	assert_string_equal(e.text, "cannot write f: No space left on device");
	assert_int_equal(err_http_status(&e), 507);
	err_errno(&e, -99999, "odd");
	assert_string_equal(e.text, "odd: error 99999");
	assert_int_equal(err_http_status(&e), 500);
	assert_string_equal(err_code(&e), "internal");
}

static void test_long(void **state)
{
	struct err e = { 0 };
	char big[2000];

	memset(big, 'x', sizeof(big) - 1);
	big[sizeof(big) - 1] = '\0';
	err_set(&e, -EINVAL, "%s", big);
	err_wrap(&e, "%s", big);
	err_errno(&e, -EINVAL, "%s", big);
	assert_int_equal(strlen(e.text), ERR_TEXT_MAX - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wrap),
		cmocka_unit_test(test_null),
		cmocka_unit_test(test_errno),
		cmocka_unit_test(test_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
