/* Errors of the API in all their forms; how processes end; what people type for a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "base/alloc.h"
#include "base/str.h"
#include "cli/cli.h"

const struct cli_command cli_commands[] = { { .name = "ls" } };
const unsigned cli_commands_len = 1;

static void errors_in_all_forms(void **state)
{
	static const struct {
		int status;
		const char *req_id, *body;
		int num;
		const char *code, *text, *id;
	} cases[] = {
		{ 404, "h", "{\"code\":404,\"message\":\"gone\",\"error_code\":\"x_y\"}", -ENOENT, "x_y",
		  "gone", "h" },
		{ 409, "h", "{\"title\":\"T\",\"detail\":\"Do this.\",\"code\":\"busy\",\"request_id\":\"b\"}",
		  -EBUSY, "busy", "Do this.", "b" },
		{ 409, NULL,
		  "{\"detail\":\"Resume (POST /v1/sandboxes/{id}/resume) or look: GET "
		  "/v1/sandboxes/{id}, GET /v1/sandboxes.\"}",
		  -EBUSY, NULL, "Resume (`space resume`) or look: `space inspect`, `space ls`.", "" },
		{ 400, NULL, "{\"title\":\"T\"}", -EREMOTEIO, NULL, "T", "" },
		{ 501, NULL, "", -ENOSYS, NULL, "Not Implemented", "" },
		{ 500, NULL, "<html>", -EREMOTEIO, NULL, "Internal Server Error", "" },
		{ 500, NULL, "[1]", -EREMOTEIO, NULL, "Internal Server Error", "" },
		{ 500, NULL, "{\"message\":7,\"code\":{}}", -EREMOTEIO, NULL, "Internal Server Error",
		  "" },
		{ 401, NULL, "{\"message\":\"no\"}", -EACCES, "unauthorized",
		  "the API refused the key: no; is the key right? `space env` shows which one is used",
		  "" },
		{ 503, NULL, "{\"code\":\"unavailable\",\"message\":\"m\"}", -EAGAIN, "unavailable",
		  "m; try again in a moment", "" },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct cli c = { 0 };
		struct err e = { 0 };

		assert_int_equal(api_error(&c, cases[i].status, cases[i].req_id, cases[i].body,
					   strlen(cases[i].body), &e),
				 cases[i].num);
		assert_string_equal(e.text, cases[i].text);
		assert_string_equal(c.request_id, cases[i].id);
		if (cases[i].code)
			assert_string_equal(err_code(&e), cases[i].code);
	}
}

static void ends_of_processes(void **state)
{
	static const struct { int code; const char *status; int exit; } ends[] = {
		{ 0, "exit status 0", 0 },
		{ 7, "exit status 7", 7 },
		{ -1, "signal: killed", 128 + SIGKILL },
		{ -1, "signal: terminated", 128 + SIGTERM },
		{ -1, "signal: hangup", 128 + SIGHUP },
		{ -1, "signal: interrupt", 128 + SIGINT },
		{ -1, "signal: segmentation fault (core dumped)", 128 + SIGSEGV },
		{ -1, "signal: aborted (core dumped)", 128 + SIGABRT },
		{ -1, "signal: broken pipe", 128 + SIGPIPE },
		{ -1, "signal: user defined signal 1", 128 + SIGUSR1 },
		{ -1, "SIGQUIT", 128 + SIGQUIT },
		{ -1, "signal: alarm clock", 128 + SIGALRM },
		{ -1, "who knows", 128 + SIGKILL },
		{ -1, NULL, 128 + SIGKILL },
	};

	for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
		assert_int_equal(run_code(ends[i].code, ends[i].status, NULL), ends[i].exit);
		assert_int_equal(run_code(ends[i].code, NULL, ends[i].status), ends[i].exit);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(errors_in_all_forms),
		cmocka_unit_test(ends_of_processes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
