/*
 * multipart/form-data (RFC 7578, RFC 2046 5.1) in pieces, sans-I/O. Limits: MULTIPART_HEAD_MAX
 * bytes for the fields of a part, a boundary of 1 to 70 characters.
 */
#ifndef GUEST_MULTIPART_H
#define GUEST_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>

#define MULTIPART_HEAD_MAX 8192
#define MULTIPART_BOUNDARY_MAX 70

struct multipart_ops {
	/* name and filename are NULL when absent. A negative result ends multipart_feed with it. */
	int (*begin)(void *arg, const char *name, const char *filename);
	int (*data)(void *arg, const char *p, size_t n);
	int (*end)(void *arg);
};

struct multipart;

/* From the Content-Type's value; NULL = no usable boundary. */
struct multipart *multipart_new(const char *content_type, const struct multipart_ops *ops,
				void *arg);
void multipart_free(struct multipart *m);
int multipart_feed(struct multipart *m, const char *p, size_t n);        /* 0, -EBADMSG, or what ops returned */
bool multipart_complete(const struct multipart *m);                      /* the last boundary was seen */

#endif
