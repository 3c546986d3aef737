/* The table of the data surface: what each request needs, what is never reached from outside. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/alloc.h"
#include "base/str.h"
#include "routes/routes.h"

static void test_rows(void **state)
{
	static const struct {
		const char *method, *target;
		enum id_access access;
		bool replay;
	} rows[] = {
		{ "POST", "/process.Process/Start", ID_ACCESS_WRITE, true },
		{ "POST", "/process.Process/SendInput", ID_ACCESS_WRITE, false },
		{ "POST", "/process.Process/Connect", ID_ACCESS_READ, false },
		{ "GET", "/files?path=/init", ID_ACCESS_READ, true },
		{ "POST", "/files?path=a&username=user", ID_ACCESS_WRITE, true },
		{ "GET", "/health", ID_ACCESS_READ, true },
		{ "POST", "/health", ID_ACCESS_WRITE, false },
		{ "GET", "/process.Process/Start", ID_ACCESS_WRITE, false },
		{ "DELETE", "/files", ID_ACCESS_WRITE, false },
		{ "GET", "/filesx", ID_ACCESS_WRITE, false },
		{ "GET", "/", ID_ACCESS_WRITE, false },
		{ "OPTIONS", "/files", ID_ACCESS_READ, true },
		{ "OPTIONS", "*", ID_ACCESS_WRITE, false },
		{ "GET", "/initial", ID_ACCESS_WRITE, false },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct route *r = routes_find(rows[i].method, rows[i].target);

		assert_non_null(r);
		assert_int_equal(r->access, rows[i].access);
		assert_int_equal(r->replay, rows[i].replay);
		assert_false(r->host_only);
	}
}

static void test_host_only(void **state)
{
	static const char *const targets[] = {
		"/init",
		"/init?x=1",
		"/prepare",
		"/activity",
		"/shutdown",
		"/freeze",
		"/unfreeze",
		"/collapse",
		"/fsfreeze",
		"/fsthaw",
		"/%69nit",
		"/init/",
		"//init",
		"/./init",
		"/a/../init",
		"/%2e%2e/init",
		"/%2Finit",
		"/files/../init",
		"/../../init",
		"/%zz",
		"/a%00b",
		"/init#x",
		"init",
		"",
		"example.com:443",
	};
	static const char *const methods[] = { "GET", "POST", "OPTIONS", "PUT" };

	for (size_t i = 0; i < ARRAY_LEN(targets); i++)
		for (size_t m = 0; m < ARRAY_LEN(methods); m++)
			if (!routes_find(methods[m], targets[i])->host_only)
				fail_msg("%s %s is reachable", methods[m], targets[i]);
}

/* Longer than any path that is served: nobody looks for what it might mean. */
static void test_long_path(void **state)
{
	char target[4000];

	memset(target, 'a', sizeof(target));
	target[0] = '/';
	target[1000] = '\0';
	assert_false(routes_find("GET", target)->host_only);
	target[1000] = '?';
	target[sizeof(target) - 1] = '\0';
	assert_false(routes_find("GET", target)->host_only);
	target[1000] = 'a';
	assert_true(routes_find("GET", target)->host_only);
	for (size_t i = 0; i < sizeof(target) - 7; i += 2)
		memcpy(target + i, "/.", 2);
	memcpy(target + sizeof(target) - 8, "/./init", 8);
	assert_true(routes_find("GET", target)->host_only);
	assert_true(routes_find("OPTIONS", target)->host_only);
}

/* No row is hidden behind an earlier one, and none is there twice. */
static void test_rows_are_found(void **state)
{
	for (unsigned i = 0; i < routes_control_len; i++) {
		const struct route *r = &routes_control[i];

		if (!str_ends(r->path, "*"))
			assert_ptr_equal(routes_find(r->method ? r->method : "POST", r->path), r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_host_only),
		cmocka_unit_test(test_long_path),
		cmocka_unit_test(test_rows_are_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
