#include "base/alloc.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SANITIZE_ADDRESS__
#include <linux/seccomp.h>
#include <sys/prctl.h>
#endif

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

void x_give_back(void)
{
	mallopt(M_MMAP_THRESHOLD, 65536);
	mallopt(M_TRIM_THRESHOLD, 65536);
}

void auto_free_ptr(void *pp)
{
	free(*(void **)pp);
}

#ifdef __SANITIZE_ADDRESS__
/*
 * The search for leaks at the end stops all threads by ptrace(2). Under an allow-list of system
 * calls that would be death, so there is none (docs/sanitizers.md); leaks are found by the unit
 * tests, which run without one.
 */
int __lsan_is_turned_off(void);

int __lsan_is_turned_off(void)
{
	return prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == SECCOMP_MODE_FILTER;
}
#endif
