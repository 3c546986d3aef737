#include "cli/tar.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/str.h"

/* POSIX 1003.1-1990 with GNU's extensions (tar(5), "tar Internals" of GNU tar). */
struct head {
	char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100],
		magic[8], uname[32], gname[32], major[8], minor[8], prefix[155], unused[12];
};
_Static_assert(sizeof(struct head) == TAR_BLOCK, "a head is one block");

enum { ST_HEAD, ST_DATA, ST_PAD, ST_EXTRA, ST_EXTRA_PAD, ST_END };

size_t tar_padding(uint64_t size)
{
	return (size_t)((TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK);
}

/* ---- writing ---- */

static void put_octal(char *dst, size_t n, uint64_t v)
{
	dst[n - 1] = '\0';
	for (size_t i = n - 1; i-- > 0; v >>= 3)
		dst[i] = (char)('0' + (v & 7));
}

/* What does not fit in octal digits is written in base 256, marked by the first bit. */
static void put_number(char *dst, size_t n, uint64_t v)
{
	if (v < (uint64_t)1 << (3 * (n - 1))) {
		put_octal(dst, n, v);
		return;
	}
	memset(dst, 0, n);
	dst[0] = (char)0x80;
	for (size_t i = n - 1; v && i > 0; i--, v >>= 8)
		dst[i] = (char)(v & 0xff);
}

static unsigned checksum(const unsigned char *p)
{
	unsigned sum = 0;

	for (size_t i = 0; i < TAR_BLOCK; i++)
		sum += i >= offsetof(struct head, checksum) && i < offsetof(struct head, type)
			       ? ' '
			       : p[i];
	return sum;
}

static int put_head(struct buf *b, const struct tar_entry *t, char type, const char *name,
		    uint64_t size)
{
	struct head h = { 0 };

	memcpy(h.name, name, strnlen(name, sizeof(h.name)));
	memcpy(h.link, t->link, strnlen(t->link, sizeof(h.link)));
	put_octal(h.mode, sizeof(h.mode), t->mode & 07777);
	put_octal(h.uid, sizeof(h.uid), 0);
	put_octal(h.gid, sizeof(h.gid), 0);
	put_number(h.size, sizeof(h.size), size);
	put_number(h.mtime, sizeof(h.mtime), t->mtime_s > 0 ? (uint64_t)t->mtime_s : 0);
	h.type = type;
	memcpy(h.magic, "ustar  ", 8);
	put_octal(h.checksum, 7, checksum((unsigned char *)&h));
	h.checksum[7] = ' ';
	return buf_put(b, &h, sizeof(h));
}

/* A name that a head has no room for comes before it, as the contents of an entry of its own. */
static int put_long(struct buf *b, char type, const char *text)
{
	static const struct tar_entry none = { .link = (char *)"" };
	static const char zeros[TAR_BLOCK];
	size_t n = strlen(text) + 1;
	int r = put_head(b, &none, type, "././@LongLink", n);

	if (r == 0)
		r = buf_put(b, text, n);
	return r == 0 ? buf_put(b, zeros, tar_padding(n)) : r;
}

int tar_put(struct buf *b, const struct tar_entry *t)
{
	static const char types[TAR_TYPE_COUNT] = { '0', '5', '2', '1', '0' };
	int r = 0;

	if (strlen(t->name) > TAR_NAME_MAX || strlen(t->link) > TAR_NAME_MAX)
		return -ENAMETOOLONG;
	if (strlen(t->link) > sizeof(((struct head *)0)->link))
		r = put_long(b, 'K', t->link);
	if (r == 0 && strlen(t->name) > sizeof(((struct head *)0)->name))
		r = put_long(b, 'L', t->name);
	return r == 0 ? put_head(b, t, types[t->type], t->name, t->type == TAR_FILE ? t->size : 0)
		      : r;
}

/* ---- reading ---- */

static int get_number(const char *p, size_t n, uint64_t *ret)
{
	uint64_t v = 0;
	size_t i = 0;

	if ((unsigned char)p[0] & 0x80) {
		if ((unsigned char)p[0] != 0x80)         /* negative, or larger than 2^63 */
			return -EBADMSG;
		for (i = 1; i < n; i++) {
			if (v >> 55)
				return -EBADMSG;
			v = v << 8 | (unsigned char)p[i];
		}
		*ret = v;
		return 0;
	}
	while (i < n && p[i] == ' ')
		i++;
	for (; i < n && p[i] >= '0' && p[i] <= '7'; i++)
		v = v << 3 | (uint64_t)(p[i] - '0');
	if (i < n && p[i] && p[i] != ' ')
		return -EBADMSG;
	*ret = v;
	return 0;
}

static bool is_zero(const unsigned char *p)
{
	for (size_t i = 0; i < TAR_BLOCK; i++)
		if (p[i])
			return false;
	return true;
}

static void entry_done(struct tar_entry *e)
{
	free(e->name);
	free(e->link);
	*e = (struct tar_entry){ 0 };
}

void tar_init(struct tar *t)
{
	*t = (struct tar){ .state = ST_HEAD, .pax_size = -1 };
	buf_init(&t->extra, TAR_EXTRA_MAX);
}

void tar_done(struct tar *t)
{
	entry_done(&t->entry);
	free(t->long_name);
	free(t->long_link);
	buf_done(&t->extra);
	t->long_name = t->long_link = NULL;
}

bool tar_whole(const struct tar *t)
{
	return t->state == ST_END || (t->state == ST_HEAD && t->have == 0);
}

static enum tar_type type_of(char c)
{
	switch (c) {
	case '\0':
	case '0':
	case '7':
		return TAR_FILE;
	case '5':
		return TAR_DIR;
	case '2':
		return TAR_SYMLINK;
	case '1':
		return TAR_HARDLINK;
	default:
		return TAR_OTHER;
	}
}

static char *head_name(const struct head *h)
{
	bool ustar = memcmp(h->magic, "ustar\0", 6) == 0;
	autofree char *name = x_strndup(h->name, sizeof(h->name));
	size_t n = ustar ? strnlen(h->prefix, sizeof(h->prefix)) : 0;

	return n ? x_asprintf("%.*s/%s", (int)n, h->prefix, name) : TAKE(name);
}

/* The heads of 'L', 'K', 'x' and 'g' say how much text follows them. */
static int begin_extra(struct tar *t, const struct head *h, uint64_t size)
{
	if (size > TAR_EXTRA_MAX)
		return -EBADMSG;
	buf_clear(&t->extra);
	t->kind = h->type;
	t->left = size;
	t->pad = tar_padding(size);
	t->state = ST_EXTRA;
	return TAR_MORE;
}

static int begin_entry(struct tar *t, const struct head *h, uint64_t size)
{
	struct tar_entry *e = &t->entry;
	uint64_t mode, mtime;

	if (get_number(h->mode, sizeof(h->mode), &mode) < 0 ||
	    get_number(h->mtime, sizeof(h->mtime), &mtime) < 0)
		return -EBADMSG;
	entry_done(e);
	e->type = type_of(h->type);
	e->name = t->long_name ? TAKE(t->long_name) : head_name(h);
	e->link = t->long_link ? TAKE(t->long_link) : x_strndup(h->link, sizeof(h->link));
	e->mode = (unsigned)mode & 07777;
	e->mtime_s = mtime < INT64_MAX ? (int64_t)mtime : 0;
	/* Old archives mark a folder by a slash at its end only. */
	if (e->type == TAR_FILE && h->type != '7' && str_ends(e->name, "/"))
		e->type = TAR_DIR;
	if (t->pax_size >= 0)
		size = (uint64_t)t->pax_size;
	t->pax_size = -1;
	/* Links and folders have no contents, whatever their heads say (GNU tar reads so too). */
	if (e->type != TAR_FILE && e->type != TAR_OTHER)
		size = 0;
	if (strlen(e->name) > TAR_NAME_MAX || strlen(e->link) > TAR_NAME_MAX)
		return -EBADMSG;
	e->size = t->left = size;
	t->pad = tar_padding(size);
	t->state = ST_DATA;
	return TAR_ENTRY;
}

static int take_head(struct tar *t)
{
	struct head h;
	uint64_t size, sum;

	t->have = 0;
	if (is_zero(t->block)) {
		t->state = ST_END;
		return TAR_END;
	}
	memcpy(&h, t->block, sizeof(h));
	if (get_number(h.checksum, sizeof(h.checksum), &sum) < 0 || sum != checksum(t->block) ||
	    get_number(h.size, sizeof(h.size), &size) < 0 || size > INT64_MAX)
		return -EBADMSG;
	if (strchr("LKxg", h.type) && h.type)
		return begin_extra(t, &h, size);
	return begin_entry(t, &h, size);
}

/* One record "LENGTH KEY=VALUE\n"; LENGTH counts all of it. Bytes used, or -EBADMSG. */
static ssize_t take_pax_record(struct tar *t, const char *p, size_t n)
{
	const char *blank = memchr(p, ' ', n), *eq, *end;
	uint64_t len, size;

	if (!blank || str_to_u64_n(p, (size_t)(blank - p), n, &len) < 0 ||
	    len < (size_t)(blank - p) + 3 || p[len - 1] != '\n')
		return -EBADMSG;
	end = p + len - 1;
	eq = memchr(blank, '=', (size_t)(end - blank));
	if (!eq)
		return -EBADMSG;
	size_t key = (size_t)(eq - blank) - 1, value = (size_t)(end - eq) - 1;
	if (memchr(eq + 1, '\0', value))
		return -EBADMSG;
	if (key == 4 && memcmp(blank + 1, "path", 4) == 0) {
		free(t->long_name);
		t->long_name = x_strndup(eq + 1, value);
	} else if (key == 8 && memcmp(blank + 1, "linkpath", 8) == 0) {
		free(t->long_link);
		t->long_link = x_strndup(eq + 1, value);
	} else if (key == 4 && memcmp(blank + 1, "size", 4) == 0) {
		if (str_to_u64_n(eq + 1, value, INT64_MAX, &size) < 0)
			return -EBADMSG;
		t->pax_size = (int64_t)size;
	}
	return (ssize_t)len;
}

static int take_extra(struct tar *t)
{
	const char *p = buf_data(&t->extra);
	size_t n = buf_len(&t->extra);

	t->state = ST_HEAD;
	if (t->kind == 'L' || t->kind == 'K') {
		char **to = t->kind == 'L' ? &t->long_name : &t->long_link;

		free(*to);
		*to = x_strndup(p, n);           /* it ends at its NUL */
		return TAR_MORE;
	}
	while (t->kind == 'x' && n > 0) {
		ssize_t used = take_pax_record(t, p, n);

		if (used < 0)
			return (int)used;
		p += used;
		n -= (size_t)used;
	}
	return TAR_MORE;
}

static size_t least(uint64_t a, size_t b)
{
	return a < b ? (size_t)a : b;
}

static int feed_head(struct tar *t, const char *p, size_t n, size_t *ret_used)
{
	*ret_used = least(TAR_BLOCK - t->have, n);
	memcpy(t->block + t->have, p, *ret_used);
	t->have += *ret_used;
	return t->have == TAR_BLOCK ? take_head(t) : TAR_MORE;
}

static int feed_data(struct tar *t, const char *p, size_t n, size_t *ret_used,
		     const char **ret_data, size_t *ret_n)
{
	if (t->left == 0) {
		t->state = ST_PAD;
		return TAR_DONE;
	}
	*ret_used = *ret_n = least(t->left, n);
	*ret_data = p;
	t->left -= *ret_n;
	return *ret_n ? TAR_DATA : TAR_MORE;
}

static int feed_extra(struct tar *t, const char *p, size_t n, size_t *ret_used)
{
	*ret_used = least(t->left, n);
	t->left -= *ret_used;
	if (buf_put(&t->extra, p, *ret_used) < 0)
		return -EBADMSG;
	if (t->left == 0)
		t->state = ST_EXTRA_PAD;
	return TAR_MORE;
}

static int feed_pad(struct tar *t, size_t n, size_t *ret_used)
{
	bool extra = t->state == ST_EXTRA_PAD;

	*ret_used = least(t->pad, n);
	t->pad -= *ret_used;
	if (t->pad)
		return TAR_MORE;
	t->state = ST_HEAD;
	return extra ? take_extra(t) : TAR_MORE;
}

int tar_feed(struct tar *t, const char *p, size_t n, size_t *ret_used, const char **ret_data,
	     size_t *ret_n)
{
	size_t total = 0;

	*ret_data = NULL;
	*ret_n = 0;
	for (;;) {
		size_t used = 0;
		int was = t->state, r;

		if (t->state == ST_HEAD)
			r = feed_head(t, p + total, n - total, &used);
		else if (t->state == ST_DATA)
			r = feed_data(t, p + total, n - total, &used, ret_data, ret_n);
		else if (t->state == ST_EXTRA)
			r = feed_extra(t, p + total, n - total, &used);
		else if (t->state == ST_END)
			r = (used = n - total, TAR_MORE);
		else
			r = feed_pad(t, n - total, &used);
		total += used;
		*ret_used = total;
		if (r != TAR_MORE || (total == n && was == t->state))
			return r;
	}
}
