#include "spaced-guest/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"

#define THREADS_KEPT 8                           /* one of so many threads is not for commands */
#define AGENT_MEMORY_MIN "33554432" /* what reclaim never takes from the agent, bytes */

struct cgroups {
	int base, work;                          /* folders; -1 = none */
	uint64_t last;
	uint64_t pool[CGROUP_POOL_MAX];          /* empty ones */
	unsigned n_pool;
};

static int put(int dirfd, const char *name, const char *text)
{
	autoclose int fd = openat(dirfd, name, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		return -errno;
	return 0;
}

static int make(int dirfd, const char *name)
{
	int fd;

	if (mkdirat(dirfd, name, 0755) < 0 && errno != EEXIST)
		return -errno;
	fd = openat(dirfd, name, O_DIRECTORY | O_PATH | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* Each controller by itself, so that one that is missing does not take the others along. */
static void enable(int dirfd)
{
	static const char *const names[] = { "+cpu", "+memory", "+pids", "+io" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		put(dirfd, "cgroup.subtree_control", names[i]);
}

static void protect_agent(int base)
{
	autoclose int fd = make(base, "agent");

	if (fd < 0 || put(fd, "cgroup.procs", "0") < 0) {
		log_warn("the agent has no cgroup of its own");
		return;
	}
	enable(base);
	put(fd, "memory.min", AGENT_MEMORY_MIN);
	put(fd, "cpu.weight", "10000");
}

/*
 * A fork bomb must leave the kernel enough threads for the agent to start one more command, or to
 * kill it.
 */
static void limit_work(int work)
{
	autofree char *text = NULL;
	char limit[24];
	uint64_t max;
	size_t n;

	if (fd_read_file(AT_FDCWD, "/proc/sys/kernel/threads-max", 64, &text, &n) < 0)
		return;
	text[strcspn(text, "\n")] = '\0';
	if (str_to_u64(text, INT32_MAX, &max) < 0)
		return;
	str_format(limit, sizeof(limit), "%" PRIu64, max - max / THREADS_KEPT);
	put(work, "pids.max", limit);
	/*
	 * Each command has the same share, so that a new one gets its turn beside one with many
	 * busy processes.
	 */
	put(work, "cgroup.subtree_control", "+cpu");
}

struct cgroups *cgroups_open(const char *base, bool protect)
{
	struct cgroups *c = x_alloc(sizeof(*c));

	c->work = -1;
	c->base = *base ? open(base, O_DIRECTORY | O_PATH | O_CLOEXEC) : -1;
	if (c->base < 0)
		return c;
	if (protect)
		protect_agent(c->base);
	c->work = make(c->base, "w");
	if (c->work < 0) {
		c->work = -1;
	} else if (faccessat(c->work, "cgroup.kill", W_OK, 0) < 0) {
		fd_close(c->work);
		c->work = -1;
	} else if (protect) {
		limit_work(c->work);
	}
	return c;
}

static const char *name_of(char dst[24], uint64_t n)
{
	str_format(dst, 24, "%" PRIu64, n);
	return dst;
}

static void drop_pool(struct cgroups *c)
{
	char name[24];

	while (c->n_pool)
		unlinkat(c->work, name_of(name, c->pool[--c->n_pool]), AT_REMOVEDIR);
}

void cgroups_close(struct cgroups *c)
{
	if (!c)
		return;
	drop_pool(c);
	if (c->work >= 0)
		unlinkat(c->base, "w", AT_REMOVEDIR);
	fd_close(c->work);
	fd_close(c->base);
	free(c);
}

bool cgroups_there(const struct cgroups *c)
{
	return c->work >= 0;
}

uint64_t cgroup_make(struct cgroups *c, int *ret_dirfd)
{
	char name[24];
	uint64_t n;

	*ret_dirfd = -1;
	if (c->work < 0)
		return 0;
	if (c->n_pool) {
		n = c->pool[--c->n_pool];
	} else {
		while (mkdirat(c->work, name_of(name, ++c->last), 0755) < 0)
			if (errno != EEXIST)
				return 0;
		n = c->last;
	}
	*ret_dirfd = openat(c->work, name_of(name, n), O_DIRECTORY | O_RDONLY | O_CLOEXEC);
	return n;
}

int cgroup_kill(struct cgroups *c, uint64_t n)
{
	char name[24], path[48];

	if (n == 0)
		return -ENOENT;
	str_format(path, sizeof(path), "%s/cgroup.kill", name_of(name, n));
	return put(c->work, path, "1");
}

static bool is_empty(struct cgroups *c, uint64_t n)
{
	char name[24], path[48], text[128];
	autoclose int fd = -1;
	ssize_t len;

	str_format(path, sizeof(path), "%s/cgroup.events", name_of(name, n));
	fd = openat(c->work, path, O_RDONLY | O_CLOEXEC);
	len = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (len <= 0)
		return false;
	text[len] = '\0';
	return strstr(text, "populated 0");
}

int cgroup_remove(struct cgroups *c, uint64_t n, bool killed)
{
	char name[24];

	if (n == 0)
		return 0;
	if (!killed && c->n_pool < CGROUP_POOL_MAX) {
		if (!is_empty(c, n))
			return -EBUSY;
		c->pool[c->n_pool++] = n;
		return 0;
	}
	return unlinkat(c->work, name_of(name, n), AT_REMOVEDIR) == 0 || errno == ENOENT ? 0
											 : -errno;
}

int cgroups_kill_all(struct cgroups *c)
{
	drop_pool(c);
	return c->work < 0 ? -ENOENT : put(c->work, "cgroup.kill", "1");
}

int cgroups_freeze_all(struct cgroups *c, bool on)
{
	return c->work < 0 ? -ENOENT : put(c->work, "cgroup.freeze", on ? "1" : "0");
}
