/*
 * Strict JSON (RFC 8259) for everything that crosses a border: a limit on size and depth that is
 * checked before anything is allocated, duplicate keys refused, NUL refused (raw and as \u0000),
 * numbers beyond 2^53 refused (they would not survive a reader that holds numbers as doubles).
 */
#ifndef JSON_STRICT_H
#define JSON_STRICT_H

#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "base/err.h"

#define STRICT_BYTES_MAX (1 << 20)
#define STRICT_INT_MAX (INT64_C(1) << 53)

/*
 * The value (an object or array; caller json_decref's), or NULL with -EBADMSG or -EMSGSIZE in e. p
 * need not end with NUL.
 */
json_t *strict_parse(const char *p, size_t n, unsigned max_depth, struct err *e);

/*
 * Seeds jansson's tables, in a program whose jail has no /dev/urandom, where jansson would look.
 * Before the first object. -EIO
 */
int strict_seed(void);

#endif
