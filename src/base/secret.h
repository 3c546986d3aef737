/*
 * A secret has no printer: it cannot be logged or formatted by accident. Wiped at the end of its
 * life.
 */
#ifndef BASE_SECRET_H
#define BASE_SECRET_H

#include <stdbool.h>
#include <stddef.h>

struct secret { unsigned char *p; size_t n; };

void secret_init(struct secret *s, const void *p, size_t n);    /* copies */
void secret_done(struct secret *s);                             /* explicit_bzero, free */
bool secret_eq(const struct secret *a, const void *p, size_t n);    /* constant time in n */

#endif
