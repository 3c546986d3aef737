/*
 * A connection whose other end is inside this program: one half of a socketpair that stands for a
 * stream elsewhere (tls.h). A Unix socket knows ends of file but no resets; what holds the given
 * half says here that it wants one, and asks here whether an end of file was a cut. For descriptors
 * that are no such half, all of this says no.
 *
 * The one table of these is the loop thread's. An entry is known by number and inode of its socket,
 * so one that outlived its socket means nothing to the next socket of that number.
 */
#ifndef LOOP_PAIR_H
#define LOOP_PAIR_H

#include <stdbool.h>
#include <sys/types.h>

struct pair_ops {
	void (*reset)(void *arg);        /* end the stream so that its peer sees a cut; frees nothing before the turn's end */
	bool (*idle)(void *arg);         /* all that was written has reached the peer */
};

struct pair { int given; ino_t ino; };

/* Both are non-blocking and close-on-exec; *ret_given and *ret_own are the caller's. Negative errno. */
int pair_new(struct pair *p, const struct pair_ops *ops, void *arg, int *ret_given, int *ret_own);
/* ops are called no more. `broken`: the end of file that the given half reads is a cut. */
void pair_end(struct pair *p, bool broken);

void *pair_arg(int fd, const struct pair_ops *ops);      /* of a live one with these ops, else NULL */
bool pair_reset(int fd);                                 /* false: no pair, nothing was done */
bool pair_broken(int fd);
bool pair_idle(int fd);

#endif
