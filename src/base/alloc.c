#include "base/alloc.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *x_alloc(size_t size_bytes)
{
	void *p = calloc(1, size_bytes ? size_bytes : 1);

	if (!p)
		abort();
	return p;
}

void *x_realloc(void *p, size_t size_bytes)
{
	p = realloc(p, size_bytes ? size_bytes : 1);
	if (!p)
		abort();
	return p;
}

void *x_array(size_t n, size_t size_bytes)
{
	size_t total;

	if (__builtin_mul_overflow(n, size_bytes, &total))
		abort();
	return x_alloc(total);
}

char *x_strdup(const char *s)
{
	return s ? x_strndup(s, strlen(s)) : NULL;
}

char *x_strndup(const char *s, size_t n)
{
	size_t len = strnlen(s, n);
	char *p = x_alloc(len + 1);

	memcpy(p, s, len);
	return p;
}

char *x_asprintf(const char *fmt, ...)
{
	va_list ap;
	char *p = NULL;
	int r;

	va_start(ap, fmt);
	r = vasprintf(&p, fmt, ap);
	va_end(ap);
	if (r < 0)
		abort();
	return p;
}

void auto_free_ptr(void *pp)
{
	free(*(void **)pp);
}
