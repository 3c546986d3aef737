/*
 * Strings: bounded, strict. All parsers refuse empty input, signs, blanks and overflow with
 * -EINVAL/-ERANGE.
 */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool str_eq(const char *a, const char *b);                          /* NULL equals only NULL */
bool str_ieq(const char *a, const char *b);                         /* ASCII only */
bool str_starts(const char *s, const char *prefix);
bool str_ends(const char *s, const char *suffix);
int str_copy(char *dst, size_t dst_size, const char *src);          /* -ENOSPC when cut, never inside a UTF-8 character; dst always ends */
int str_format(char *dst, size_t dst_size, const char *fmt, ...)    /* -ENOSPC when cut */
	__attribute__((format(printf, 3, 4)));
int str_to_u64(const char *s, uint64_t max, uint64_t *ret);         /* decimal digits only */
int str_to_u64_n(const char *s, size_t n, uint64_t max, uint64_t *ret);
bool str_is(const char *s, size_t min_len, size_t max_len, const char *alphabet);   /* every byte in alphabet */
bool str_utf8_ok(const char *s, size_t n);
/*
 * The bytes of the character at p that a terminal or an editor would obey: controls (C0, DEL, C1),
 * separators of lines, marks of direction; *ret: its number. 0: another one. p ends with a 0.
 */
size_t str_control(const char *p, unsigned *ret);

void str_hex(char *dst, const void *src, size_t n);                 /* writes 2n + 1 bytes, lower case */
int str_unhex(void *dst, size_t dst_size, const char *hex);         /* exact length, lower or upper case */

/* RFC 4648 base64 with padding. Encoded length: 4 * ((n + 2) / 3). */
#define STR_B64_LEN(n) (4 * (((n) + 2) / 3))
void str_b64(char *dst, const void *src, size_t n);                 /* writes STR_B64_LEN(n) + 1 bytes */
size_t str_b64_span(const char *s, size_t n);                       /* bytes up to the first that base64 does not have */
int str_unb64(void *dst, size_t dst_size, const char *src, size_t src_len, size_t *ret_len);   /* strict */

/*
 * Percent decoding (RFC 3986); plus_is_space for form data. In place is allowed. -EINVAL on bad
 * escapes or NUL.
 */
int str_pct_decode(char *dst, size_t dst_size, const char *src, size_t n, bool plus_is_space);

int str_random_hex(char *dst, size_t n_bytes);                      /* 2n + 1 bytes; from getrandom(2) */
/*
 * A printable copy for terminals: control bytes and invalid UTF-8 as \xNN, ESC never passes. Caller
 * frees.
 */
char *str_printable(const char *s, size_t n);

#endif
