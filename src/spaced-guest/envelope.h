/*
 * The envelopes of a Connect stream that comes in pieces: flag byte, 4 bytes length big-endian,
 * payload. A pure parser, fuzzed. It holds at most one message and what came behind it.
 */
#ifndef GUEST_ENVELOPE_H
#define GUEST_ENVELOPE_H

#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"
#include "base/err.h"

#define ENVELOPE_BYTES 5
#define ENVELOPE_COMPRESSED 1
#define ENVELOPE_END 2

struct envelopes { struct buf in; size_t max; };

/* max: bytes of one message; behind: bytes that may come behind it before it is taken. */
void envelopes_init(struct envelopes *s, size_t max, size_t behind);
void envelopes_done(struct envelopes *s);
int envelopes_put(struct envelopes *s, const void *p, size_t n);         /* -ENOBUFS: over max and behind */
/*
 * 1 = *ret is the next message, valid until the next call on s; 0 = it is not whole yet; negative
 * = never: -ENOSYS compressed, -EMSGSIZE longer than max, -EINVAL any other flag.
 */
int envelopes_next(struct envelopes *s, const char **ret, size_t *ret_n, struct err *e);
void envelopes_take(struct envelopes *s, size_t n);                      /* a message of n bytes is done with */
bool envelopes_empty(const struct envelopes *s);

#endif
