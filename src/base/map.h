/*
 * Hash map from string to pointer (SipHash-free FNV with a random seed; chained). Keys are copied.
 */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include <stddef.h>

struct map;

struct map *map_new(size_t max_entries);             /* a named limit of the user */
void map_free(struct map *m);                        /* NULL is fine; values are not freed */
int map_put(struct map *m, const char *key, void *value);    /* replaces; -ENOSPC at the limit */
void *map_get(const struct map *m, const char *key);         /* NULL = not there */
void *map_del(struct map *m, const char *key);               /* the value, or NULL */
size_t map_len(const struct map *m);
/*
 * Calls fn for every entry; fn may delete the entry that it was called for, nothing else. Stops on
 * non-zero.
 */
int map_each(struct map *m, int (*fn)(const char *key, void *value, void *arg), void *arg);

#endif
