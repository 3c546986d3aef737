/*
 * gzip bodies (RFC 1952) in pieces, by zlib, both ways. What comes out of gunzip has no limit of
 * its own: the user's.
 */
#ifndef GUEST_GUNZIP_H
#define GUEST_GUNZIP_H

#include <stdbool.h>
#include <stddef.h>

struct gunzip;
struct gzip;

/* A negative result ends the feeding with it. */
typedef int gunzip_fn(void *arg, const char *p, size_t n);

struct gunzip *gunzip_new(void);
void gunzip_free(struct gunzip *g);
/* Calls out with what was inflated. -EBADMSG = no gzip. */
int gunzip_feed(struct gunzip *g, const char *p, size_t n, gunzip_fn *out, void *arg);
bool gunzip_complete(const struct gunzip *g);

/* Packing, at the fastest level; n == 0 is the end. */
struct gzip *gzip_new(void);
void gzip_free(struct gzip *g);
int gzip_feed(struct gzip *g, const char *p, size_t n, gunzip_fn *out, void *arg);

#endif
