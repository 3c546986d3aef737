/* gzip bodies (RFC 1952) in pieces, by zlib. What comes out has no limit of its own: the user's. */
#ifndef GUEST_GUNZIP_H
#define GUEST_GUNZIP_H

#include <stdbool.h>
#include <stddef.h>

struct gunzip;

struct gunzip *gunzip_new(void);
void gunzip_free(struct gunzip *g);
/* Calls out with what was inflated; its negative result ends the call. -EBADMSG = no gzip. */
int gunzip_feed(struct gunzip *g, const char *p, size_t n,
		int (*out)(void *arg, const char *p, size_t n), void *arg);
bool gunzip_complete(const struct gunzip *g);

#endif
