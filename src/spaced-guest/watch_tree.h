/* The folders of one watch: found by the kernel's number, and by their folder and name. */
#ifndef GUEST_WATCH_TREE_H
#define GUEST_WATCH_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/list.h"

struct wdir {
	struct wdir *parent;             /* NULL = the watched folder itself */
	struct wdir *next_wd, *next_name;        /* in the buckets */
	struct list children, sibling;
	struct list scan;                /* linked while it waits to be read */
	int wd;
	char name[];                     /* "" for the watched folder */
};

struct wtree {
	struct wdir **by_wd, **by_name;
	size_t buckets, n;
	struct wdir *root;
};

void wtree_init(struct wtree *t);
void wtree_done(struct wtree *t);        /* frees all folders */
struct wdir *wtree_add(struct wtree *t, struct wdir *parent, const char *name, int wd);
struct wdir *wtree_find(const struct wtree *t, int wd);
struct wdir *wtree_child(const struct wtree *t, const struct wdir *parent, const char *name);
bool wtree_is_above(const struct wdir *above, const struct wdir *d);     /* or the same */
/*
 * Takes out d and all below; `gone` is called for each before it is freed, the deepest first.
 */
void wtree_drop(struct wtree *t, struct wdir *d, void (*gone)(void *arg, struct wdir *d),
		void *arg);
/* "a/b/NAME" below the watched folder; caller frees. NULL when it is longer than max. */
char *wtree_path(const struct wdir *d, const char *name, size_t max);

/* Names that were read from folders, as hashes; see watch.h. */
#define WNAMES_MAX (1u << 17)            /* beyond, a name may be told twice */

struct wnames { uint64_t *v; size_t cap, n; uint64_t seed; };
void wnames_init(struct wnames *s);
void wnames_clear(struct wnames *s);     /* frees */
void wnames_add(struct wnames *s, int wd, const char *name);
bool wnames_take(struct wnames *s, int wd, const char *name);    /* true = it was there */

#endif
