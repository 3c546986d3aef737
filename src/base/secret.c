#include "base/secret.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

void secret_init(struct secret *s, const void *p, size_t n)
{
	s->p = x_alloc(n);
	s->n = n;
	if (n)
		memcpy(s->p, p, n);
}

void secret_done(struct secret *s)
{
	if (s->p)
		explicit_bzero(s->p, s->n);
	free(s->p);
	s->p = NULL;
	s->n = 0;
}

bool secret_eq(const struct secret *a, const void *p, size_t n)
{
	const volatile unsigned char *x = a->p, *y = p;
	unsigned char diff = 0;

	if (a->n != n)
		return false;
	for (size_t i = 0; i < n; i++)
		diff |= x[i] ^ y[i];
	return diff == 0;
}
