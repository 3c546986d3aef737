/*
 * api-print: what docs and tests take from the tables of this program.
 *
 *	api-print errors [FILE]     docs/errors.md; with a file: whether it is out of date
 *	api-print codes             one code a line
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "api/problem.h"
#include "base/alloc.h"
#include "base/buf.h"
#include "base/fd.h"
#include "base/str.h"

#define PAGE_MAX (1 << 20)

static void put_errors(struct buf *b)
{
	buf_puts(
		b,
		"# Errors\n"
		"\n"
		"Printed by `api-print errors` from `src/api/problems.c`; do not edit this page.\n"
		"\n"
		"A request under `/v1` that fails is answered with `application/problem+json` (RFC 9457):\n"
		"\n"
		"```\n"
		"{\"type\": \"/v1/problems/sandbox-not-found\", \"title\": \"The sandbox was not found.\", \"status\": 404,\n"
		" \"detail\": \"The sandbox was not found. Check its ID: ...\", \"code\": \"sandbox-not-found\", \"request_id\": \"7a0c...\"}\n"
		"```\n"
		"\n"
		"`code` is stable; decide by it or by `status`. `detail` is for people and may change; it ends with what to do. `type` is the address\n"
		"of the row below, as text. `request_id` is also in the field `X-Request-Id` and in every log line about the request; a client\n"
		"may choose it by sending that field (1 to 64 letters, digits, `-`, `_`). 429 and 503 carry `Retry-After`.\n"
		"\n"
		"The status is the usual one of each code; a few codes come with another one where the error was found elsewhere. E2B's routes carry the\n"
		"same codes as `error_code` where they have one.\n"
		"\n"
		"| code | status | what happened | what to do |\n"
		"| --- | --- | --- | --- |\n");
	for (unsigned i = 0; i < problems_len; i++)
		buf_putf(b, "| `%s` | %d | %s | %s |\n", problems[i].code, problems[i].status,
			 problems[i].title, problems[i].advice);
}

static void put_codes(struct buf *b)
{
	for (unsigned i = 0; i < problems_len; i++)
		buf_putf(b, "%s\n", problems[i].code);
}

static const struct {
	const char *name;
	void (*put)(struct buf *b);
} pages[] = {
	{ "errors", put_errors },
	{ "codes", put_codes },
};

static int compare(const char *name, const char *path, const struct buf *page)
{
	autofree char *have = NULL;
	size_t len = 0;
	int r = fd_read_file(AT_FDCWD, path, PAGE_MAX, &have, &len);

	if (r == 0 && len == buf_len(page) && memcmp(have, buf_data(page), len) == 0)
		return EXIT_SUCCESS;
	fprintf(stderr, "%s is out of date; make it anew: api-print %s > %s\n", path, name, path);
	return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
	int r = EXIT_FAILURE;

	for (size_t i = 0; argc > 1 && i < ARRAY_LEN(pages); i++) {
		struct buf b;

		if (!str_eq(pages[i].name, argv[1]))
			continue;
		buf_init(&b, PAGE_MAX);
		pages[i].put(&b);
		if (argc > 2)
			r = compare(argv[1], argv[2], &b);
		else if (fwrite(buf_data(&b), 1, buf_len(&b), stdout) == buf_len(&b) &&
			 fflush(stdout) == 0)
			r = EXIT_SUCCESS;
		buf_done(&b);
		return r;
	}
	fprintf(stderr, "Usage: api-print errors [FILE] | codes\n");
	return 2;
}
