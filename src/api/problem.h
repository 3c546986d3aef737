/*
 * Errors of the routes under /v1: problem details (RFC 9457). The machine word of an error (err_code)
 * names its type, whose page is served at PROBLEM_BASE<code> and printed into docs/errors.md; a word
 * without a row here has the type about:blank. src/api/check-codes.py (a test) holds this table
 * against the words in the source.
 */
#ifndef API_PROBLEM_H
#define API_PROBLEM_H

#include <stddef.h>
#include <stdbool.h>

#define PROBLEM_TYPE "application/problem+json"
#define PROBLEM_BASE "/v1/problems/"

struct problem {
	const char *code;
	int status;                      /* the usual one */
	const char *title;               /* what happened, the same each time */
	const char *advice;              /* what to do; ends every detail of this code */
};

extern const struct problem problems[];
extern const unsigned problems_len;

const struct problem *problem_find(const char *code);     /* NULL: has no row */
/* The page of a code, for people; caller frees. */
char *problem_page(const struct problem *p);
/* The body of an answer; text may be any bytes, "" = nothing more than the title. Caller frees. */
char *problem_json(int status, const char *code, const char *text, const char *request_id);
/* A target under /v1: its errors are problems. n: how much of it is there. */
bool problem_path(const char *target, size_t n);
/* The code of an error that the HTTP server found by itself. */
const char *problem_http_code(int status);

#endif
