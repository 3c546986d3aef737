/*
 * JSON text into a buffer, for answers and events that are written by hand. All return 0 or
 * -ENOBUFS.
 */
#ifndef GUEST_TEXT_H
#define GUEST_TEXT_H

#include <stddef.h>
#include "base/buf.h"

/* A JSON string with its quotes; control bytes escaped, bytes that are no UTF-8 as U+FFFD. */
int text_json(struct buf *b, const char *s, size_t n);
int text_json_s(struct buf *b, const char *s);
/* "key":"value" */
int text_member(struct buf *b, const char *key, const char *value);

#endif
