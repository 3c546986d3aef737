/*
 * What a download's request fields ask for (RFC 9110: 8.8 validators, 12.5.3 Accept-Encoding, 13
 * conditions, 14 ranges): pure functions of text, fuzzed.
 */
#ifndef GUEST_NEGOTIATE_H
#define GUEST_NEGOTIATE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "http/http.h"

#define NEGOTIATE_DATE_LEN 30            /* Sun, 06 Nov 1994 08:49:37 GMT */
#define NEGOTIATE_ETAG_LEN 64

enum coding { CODING_IDENTITY, CODING_GZIP, CODING_NONE /* nothing of ours is accepted: 406 */ };

/*
 * gzip is taken when it is asked for alone ("gzip"), or when identity is refused. The lists that
 * HTTP libraries send by themselves ("gzip, deflate") say what they can take, not what they want:
 * packing costs the sandbox's processor more than the bytes cost on the way.
 */
enum coding negotiate_coding(const char *accept_encoding);       /* NULL = absent */

/* The file that is there. */
struct validator {
	char etag[NEGOTIATE_ETAG_LEN];   /* quoted; "" = none; W/: it may change unseen */
	int64_t mtime_s;
};

/*
 * 0 = go on, 304, or 412: If-Match, If-Unmodified-Since, If-None-Match, If-Modified-Since in the
 * order of RFC 9110 13.2.2. *ret_conditional: one of them was there.
 */
int negotiate_condition(const struct http_head *h, const struct validator *v,
			bool *ret_conditional);

/*
 * One range of bytes of a file of `size`: 206 with first and last, 416, or 200 = the whole file
 * (none asked, malformed, several ranges, or If-Range names another state of the file).
 */
int negotiate_range(const struct http_head *h, const struct validator *v, uint64_t size,
		    uint64_t *ret_first, uint64_t *ret_last);

void negotiate_date(char dst[NEGOTIATE_DATE_LEN], int64_t s);    /* IMF-fixdate */

#endif
