/*
 * Allocation that does not fail: on exhaustion the program aborts. Nothing that comes from outside
 * may size an allocation before a named limit was checked (STYLE.md).
 */
#ifndef BASE_ALLOC_H
#define BASE_ALLOC_H

#include <stddef.h>

void *x_alloc(size_t size_bytes);                 /* zeroed; caller frees with free() */
void *x_realloc(void *p, size_t size_bytes);
void *x_array(size_t n, size_t size_bytes);       /* zeroed; aborts on overflow of n * size */
char *x_strdup(const char *s);                    /* NULL in, NULL out */
char *x_strndup(const char *s, size_t n);
char *x_asprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/*
 * From here on large buffers go back to the kernel as soon as they are freed: a slow reader leaves
 * nothing behind. At the beginning of a program.
 */
void x_give_back(void);

void auto_free_ptr(void *pp);                     /* for autofree */

/* The variable is freed at the end of its scope; hand it over with TAKE(). */
#define autofree __attribute__((cleanup(auto_free_ptr)))
#define TAKE(p) ({ __typeof__(p) take_ = (p); (p) = NULL; take_; })

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define CONTAINER_OF(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))

#endif
