#include "loop/pair.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"

/* By descriptor number; as long as the highest one needs. ops NULL: not live. */
struct pair_entry {
	ino_t ino;                       /* 0 = none */
	bool broken;
	const struct pair_ops *ops;
	void *arg;
};

static struct pair_entry *pair_table;
static size_t pair_table_len;

static ino_t pair_ino(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 ? st.st_ino : 0;
}

static struct pair_entry *pair_find(int fd)
{
	struct pair_entry *p;

	if (fd < 0 || (size_t)fd >= pair_table_len || pair_table[fd].ino == 0)
		return NULL;
	p = &pair_table[fd];
	if (pair_ino(fd) == p->ino)
		return p;
	if (!p->ops)
		*p = (struct pair_entry){ 0 };
	return NULL;
}

static void pair_room(int fd)
{
	size_t n = pair_table_len ? pair_table_len : 64;

	while (n <= (size_t)fd)
		n *= 2;
	if (n == pair_table_len)
		return;
	pair_table = x_realloc(pair_table, n * sizeof(*pair_table));
	memset(pair_table + pair_table_len, 0, (n - pair_table_len) * sizeof(*pair_table));
	pair_table_len = n;
}

int pair_new(struct pair *p, const struct pair_ops *ops, void *arg, int *ret_given, int *ret_own)
{
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) < 0)
		return -errno;
	*p = (struct pair){ .given = fds[0], .ino = pair_ino(fds[0]) };
	pair_room(p->given);
	pair_table[p->given] = (struct pair_entry){ .ino = p->ino, .ops = ops, .arg = arg };
	*ret_given = fds[0];
	*ret_own = fds[1];
	return 0;
}

void pair_end(struct pair *p, bool broken)
{
	struct pair_entry *entry;

	if (p->ino == 0)
		return;
	entry = &pair_table[p->given];
	/* Another one may have the number by now. */
	if (entry->ino == p->ino) {
		entry->ops = NULL;
		entry->arg = NULL;
		entry->broken = broken;
		if (!broken)
			entry->ino = 0;
	}
	*p = (struct pair){ 0 };
}

void *pair_arg(int fd, const struct pair_ops *ops)
{
	struct pair_entry *p = pair_find(fd);

	return p && p->ops == ops ? p->arg : NULL;
}

bool pair_reset(int fd)
{
	struct pair_entry *p = pair_find(fd);

	if (!p || !p->ops)
		return false;
	p->ops->reset(p->arg);
	return true;
}

bool pair_broken(int fd)
{
	struct pair_entry *p = pair_find(fd);

	return p && p->broken;
}

bool pair_idle(int fd)
{
	struct pair_entry *p = pair_find(fd);

	return p && p->ops && p->ops->idle(p->arg);
}
