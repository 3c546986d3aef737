#include "spaced-guest/watch_tree.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/str.h"

#define BUCKETS_FIRST 16
#define NAMES_FIRST 256
#define FREE UINT64_C(0)                         /* a place that was never used */
#define TAKEN UINT64_C(1)                        /* one that was given back */

/* FNV-1a, over a number and a name. */
static uint64_t hash(uint64_t seed, uintptr_t n, const char *name)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325) ^ seed;

	for (size_t i = 0; i < sizeof(n); i++)
		h = (h ^ ((n >> (8 * i)) & 0xff)) * UINT64_C(0x100000001b3);
	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
	return h ^ (h >> 32);
}

/* ---- folders ---- */

void wtree_init(struct wtree *t)
{
	*t = (struct wtree){ .buckets = BUCKETS_FIRST };
	t->by_wd = x_array(t->buckets, sizeof(*t->by_wd));
	t->by_name = x_array(t->buckets, sizeof(*t->by_name));
}

void wtree_done(struct wtree *t)
{
	if (t->root)
		wtree_drop(t, t->root, NULL, NULL);
	free(t->by_wd);
	free(t->by_name);
	*t = (struct wtree){ 0 };
}

static struct wdir **wd_bucket(const struct wtree *t, int wd)
{
	return &t->by_wd[(unsigned)wd & (t->buckets - 1)];
}

static struct wdir **name_bucket(const struct wtree *t, const struct wdir *parent, const char *name)
{
	return &t->by_name[hash(0, (uintptr_t)parent, name) & (t->buckets - 1)];
}

static void put(struct wtree *t, struct wdir *d)
{
	struct wdir **w = wd_bucket(t, d->wd), **n = name_bucket(t, d->parent, d->name);

	d->next_wd = *w;
	*w = d;
	d->next_name = *n;
	*n = d;
}

static void grow(struct wtree *t)
{
	struct wtree old = *t;

	t->buckets *= 2;
	t->by_wd = x_array(t->buckets, sizeof(*t->by_wd));
	t->by_name = x_array(t->buckets, sizeof(*t->by_name));
	for (size_t i = 0; i < old.buckets; i++) {
		for (struct wdir *d = old.by_wd[i], *next; d; d = next) {
			next = d->next_wd;
			put(t, d);
		}
	}
	free(old.by_wd);
	free(old.by_name);
}

struct wdir *wtree_add(struct wtree *t, struct wdir *parent, const char *name, int wd)
{
	size_t n = strlen(name) + 1;
	struct wdir *d = x_alloc(sizeof(*d) + n);

	d->parent = parent;
	d->wd = wd;
	memcpy(d->name, name, n);
	list_init(&d->children);
	list_init(&d->sibling);
	list_init(&d->scan);
	if (parent)
		list_add_tail(&parent->children, &d->sibling);
	else
		t->root = d;
	if (t->n >= t->buckets)
		grow(t);
	put(t, d);
	t->n++;
	return d;
}

struct wdir *wtree_find(const struct wtree *t, int wd)
{
	struct wdir *d = *wd_bucket(t, wd);

	while (d && d->wd != wd)
		d = d->next_wd;
	return d;
}

struct wdir *wtree_child(const struct wtree *t, const struct wdir *parent, const char *name)
{
	struct wdir *d = *name_bucket(t, parent, name);

	while (d && (d->parent != parent || !str_eq(d->name, name)))
		d = d->next_name;
	return d;
}

bool wtree_is_above(const struct wdir *above, const struct wdir *d)
{
	while (d && d != above)
		d = d->parent;
	return d;
}

static void take_out(struct wtree *t, struct wdir *d)
{
	struct wdir **p = wd_bucket(t, d->wd);

	while (*p != d)
		p = &(*p)->next_wd;
	*p = d->next_wd;
	p = name_bucket(t, d->parent, d->name);
	while (*p != d)
		p = &(*p)->next_name;
	*p = d->next_name;
	list_del(&d->sibling);
	list_del(&d->scan);
	if (t->root == d)
		t->root = NULL;
	t->n--;
}

/* Goes down to a leaf and back, since a tree may be deeper than a stack. */
void wtree_drop(struct wtree *t, struct wdir *d, void (*gone)(void *arg, struct wdir *d),
		void *arg)
{
	struct wdir *at = d, *up;

	for (;;) {
		while (!list_empty(&at->children))
			at = CONTAINER_OF(at->children.next, struct wdir, sibling);
		up = at == d ? NULL : at->parent;
		if (gone)
			gone(arg, at);
		take_out(t, at);
		free(at);
		if (!up)
			return;
		at = up;
	}
}

char *wtree_path(const struct wdir *d, const char *name, size_t max)
{
	size_t len = strlen(name);
	char *path, *p;

	for (const struct wdir *u = d; u->parent; u = u->parent)
		len += strlen(u->name) + 1;
	if (len > max)
		return NULL;
	path = x_alloc(len + 1);
	p = path + len - strlen(name);
	memcpy(p, name, strlen(name));
	for (const struct wdir *u = d; u->parent; u = u->parent) {
		size_t n = strlen(u->name);

		*--p = '/';
		p -= n;
		memcpy(p, u->name, n);
	}
	return path;
}

/* ---- names ---- */

void wnames_init(struct wnames *s)
{
	*s = (struct wnames){ 0 };
	if (getrandom(&s->seed, sizeof(s->seed), 0) != sizeof(s->seed))
		s->seed = (uintptr_t)s;
}

void wnames_clear(struct wnames *s)
{
	free(s->v);
	s->v = NULL;
	s->cap = s->n = 0;
}

static uint64_t name_hash(const struct wnames *s, int wd, const char *name)
{
	uint64_t h = hash(s->seed, (uintptr_t)wd, name);

	return h > TAKEN ? h : h + 2;
}

static void names_put(struct wnames *s, uint64_t h)
{
	size_t i = h & (s->cap - 1);

	while (s->v[i] > TAKEN)
		i = (i + 1) & (s->cap - 1);
	s->v[i] = h;
}

/* Half full at most; n counts places that were given back, too. */
static void names_grow(struct wnames *s)
{
	uint64_t *old = s->v;
	size_t cap = s->cap;

	s->cap = cap ? 2 * cap : NAMES_FIRST;
	s->v = x_array(s->cap, sizeof(*s->v));
	for (size_t i = 0; i < cap; i++)
		if (old[i] > TAKEN)
			names_put(s, old[i]);
	free(old);
}

void wnames_add(struct wnames *s, int wd, const char *name)
{
	if (s->n >= WNAMES_MAX)
		return;
	if (2 * (s->n + 1) > s->cap)
		names_grow(s);
	names_put(s, name_hash(s, wd, name));
	s->n++;
}

bool wnames_take(struct wnames *s, int wd, const char *name)
{
	uint64_t h = name_hash(s, wd, name);

	for (size_t i = h & (s->cap - 1), k = 0; k < s->cap; k++, i = (i + 1) & (s->cap - 1)) {
		if (s->v[i] == FREE)
			return false;
		if (s->v[i] == h) {
			s->v[i] = TAKEN;
			return true;
		}
	}
	return false;
}
