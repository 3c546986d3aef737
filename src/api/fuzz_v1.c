/*
 * What reaches the routes under /v1: bodies, targets, and texts that become problems. The first byte
 * chooses; whatever is refused has a sentence, and every answer is JSON.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "api/api.h"
#include "api/problem.h"
#include "api/v1_fields.h"
#include "base/alloc.h"
#include "base/str.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_body(const struct v1_field *fields, const char *text, size_t n)
{
	struct v1_body b = { 0 };
	struct err e = { 0 };

	if (v1_body_take(text, n, fields, &b, &e) == 0) {
		assert(b.timeout_s >= 0 && b.timeout_s <= FIELDS_TIMEOUT_MAX_S);
		assert((fields != v1_create || b.template[0]) && (!b.env || json_is_object(b.env)));
	} else {
		assert(e.num < 0 && e.text[0] && !b.metadata && !b.env);
	}
	v1_body_done(&b);
}

static void fuzz_problem(const char *text)
{
	static const char *const codes[] = { "sandbox-not-found", "none-such" };

	for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
		autofree char *body = problem_json(404, codes[i], text, "r-1");
		json_t *o = body ? json_loads(body, JSON_REJECT_DUPLICATES, NULL) : NULL;

		assert(json_object_size(o) == 6);
		json_decref(o);
	}
}

static void fuzz_target(const char *text)
{
	char id[ID_SANDBOX_LEN + 1], allow[64];
	bool wrong;
	const struct control_route *r = control_find("GET", text, id, &wrong);

	assert(!r || !wrong);
	assert(!id[0] || id_sandbox_ok(id));
	control_allow(text, allow, sizeof(allow));
	assert(r || !wrong || allow[0]);
	(void)problem_path(text, strlen(text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	autofree char *text = NULL;

	if (size < 1)
		return 0;
	text = x_alloc(size);
	memcpy(text, data + 1, size - 1);        /* x_alloc clears: it is ended */
	switch (data[0] % 6) {
	case 0: fuzz_body(v1_nothing, text, size - 1); break;
	case 1: fuzz_body(v1_create, text, size - 1); break;
	case 2: fuzz_body(v1_resume, text, size - 1); break;
	case 3: fuzz_body(v1_timeout, text, size - 1); break;
	case 4: fuzz_problem(text); break;
	default: fuzz_target(text); break;
	}
	return 0;
}
