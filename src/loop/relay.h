/*
 * relay: moves bytes between two stream sockets in both directions until both have ended. splice(2)
 * through a pipe per direction; the pipe is the only buffer (RELAY_PIPE_BYTES), so a slow reader
 * stalls its writer and memory does not grow. Half-close is passed on. Bytes that were read already
 * are given as prefixes.
 */
#ifndef LOOP_RELAY_H
#define LOOP_RELAY_H

#include <stddef.h>
#include <stdint.h>
#include "loop/loop.h"

#define RELAY_PIPE_BYTES 65536

struct relay;

struct relay_end { uint64_t a_to_b, b_to_a; int error; };     /* bytes; error 0 = both directions ended in order */

/*
 * Owns both fds. fn is called once, at the end, before everything is closed (shutdown(2) first).
 * Not from inside relay_new. NULL = no descriptors for the pipes: both fds are closed, fn is not
 * called. SIGPIPE must be ignored (splice(2) has no flag for it; daemon_main does that).
 */
struct relay *relay_new(struct loop *l, int a, int b, const void *prefix_to_b, size_t n_to_b,
			const void *prefix_to_a, size_t n_to_a,
			void (*fn)(struct relay *r, const struct relay_end *end, void *arg),
			void *arg);
void relay_cut(struct relay *r);          /* throws away what is buffered, resets both sides; fn is called with -ECONNRESET, before this returns */

#endif
