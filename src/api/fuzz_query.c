/*
 * What a client writes into queries and bodies of control routes. The first byte chooses the
 * parser, the rest is its text. Whatever is accepted has the form that the rest of the program
 * relies on; whatever is refused has a sentence.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>
#include "api/api.h"
#include "api/fields.h"
#include "api/metrics.h"
#include "api/query.h"
#include "base/alloc.h"
#include "base/str.h"
#include "json/strict.h"

#define SANDBOX "iaaaaaaaaaaaaaaaaaaaa"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_filter(const char *text)
{
	json_t *o = NULL, *value;
	const char *key;
	struct err e = { 0 };

	if (list_filter_parse(text, &o, &e) < 0) {
		assert(e.num < 0 && e.text[0] && !o);
		return;
	}
	json_object_foreach(o, key, value)
		assert(str_utf8_ok(key, strlen(key)) && json_is_string(value));
	json_decref(o);
}

static void fuzz_params(const char *text)
{
	static const char *const known[] = { "limit", "cursor", "nextToken", NULL };
	autofree char *target = x_asprintf("/v2/sandboxes?%s", text), *cursor = NULL;
	uint64_t v = 7;
	struct err e = { 0 };

	if (query_only(target, known, &e) < 0) {
		assert(e.text[0]);
		return;
	}
	if (query_number(target, "limit", 1, 100, &v, &e) == 0)
		assert((v >= 1 && v <= 100) || v == 7);
	if (query_take(target, "nextToken", &cursor, &e) == 0 && cursor && store_cursor_ok(cursor))
		assert(!cursor[0] || strlen(cursor) < STORE_CURSOR_MAX);
}

static void fuzz_signed(const char *text)
{
	static const struct token_key k = { .bytes = { 1 } };
	autofree char *target = x_asprintf("/files?%s", text);
	struct token_signed q = { 0 };
	struct err e = { 0 };

	if (token_signed_parse("GET", target, &q, &e) == 0) {
		assert(strlen(q.signature) == 46 && str_starts(q.signature, "v1_"));
		token_signed_by(&k, SANDBOX, &q);
		token_signed_time(&q, 1000, &e);
	} else {
		assert(!q.signature && !q.path && !q.user && !q.expiration);
	}
	token_signed_done(&q);
}

static void fuzz_create(const char *text, size_t n)
{
	for (enum fields_version v = FIELDS_V1; v <= FIELDS_V2; v++) {
		struct fields_create f = { 0 };
		struct err e = { 0 };
		int r = fields_create(v, text, n, &f, &e);

		if (r == 0)
			assert(f.template[0] && f.timeout_s >= 1 &&
			       f.timeout_s <= FIELDS_TIMEOUT_MAX_S && json_is_object(f.metadata) &&
			       json_is_object(f.env) && json_is_object(f.options));
		else
			assert(r == e.num && e.text[0]);
		fields_create_done(&f);
	}
}

static void fuzz_metrics(const char *text, size_t n)
{
	json_t *v = strict_parse(text, n, 4, NULL), *o;
	struct metrics_sample s;

	if (v && metrics_parse(v, 5000, &s) == 0) {
		o = metrics_json(&s);
		assert(o);
		json_decref(o);
	}
	json_decref(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	autofree char *text = NULL;

	if (size < 1)
		return 0;
	text = x_alloc(size);
	memcpy(text, data + 1, size - 1);        /* x_alloc clears: it is ended */
	switch (data[0] % 5) {
	case 0: fuzz_filter(text); break;
	case 1: fuzz_params(text); break;
	case 2: fuzz_signed(text); break;
	case 3: fuzz_create(text, size - 1); break;
	default: fuzz_metrics(text, size - 1); break;
	}
	return 0;
}
