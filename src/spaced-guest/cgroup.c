#include "spaced-guest/cgroup.h"

#include <dirent.h>
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
#define BELOW_MAX 16                             /* levels that a command may have made below its own */

struct cgroups {
	int base, work;                          /* folders; -1 = none */
	bool protect;
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

static void make_work(struct cgroups *c)
{
	c->work = make(c->base, "w");
	if (c->work < 0) {
		c->work = -1;
	} else if (faccessat(c->work, "cgroup.kill", W_OK, 0) < 0) {
		fd_close(c->work);
		c->work = -1;
	} else if (c->protect) {
		limit_work(c->work);
	}
}

struct cgroups *cgroups_open(const char *base, bool protect)
{
	struct cgroups *c = x_alloc(sizeof(*c));

	c->work = -1;
	c->protect = protect;
	c->base = *base ? open(base, O_DIRECTORY | O_PATH | O_CLOEXEC) : -1;
	if (c->base < 0)
		return c;
	if (protect)
		protect_agent(c->base);
	make_work(c);
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

static int open_one(const struct cgroups *c, uint64_t n)
{
	char name[24];

	return openat(c->work, name_of(name, n), O_DIRECTORY | O_RDONLY | O_CLOEXEC);
}

static int make_one(struct cgroups *c)
{
	char name[24];

	while (mkdirat(c->work, name_of(name, ++c->last), 0755) < 0)
		if (errno != EEXIST)
			return -errno;
	return 0;
}

/* Root in the guest may remove what is empty: the pool, and then all. */
uint64_t cgroup_make(struct cgroups *c, int *ret_dirfd)
{
	int r;

	*ret_dirfd = -1;
	while (c->work >= 0 && c->n_pool) {
		*ret_dirfd = open_one(c, c->pool[--c->n_pool]);
		if (*ret_dirfd >= 0)
			return c->pool[c->n_pool];
	}
	r = c->work < 0 ? -ENOENT : make_one(c);
	if (r < 0 && c->work >= 0) {
		fd_close(c->work);
		make_work(c);
		r = c->work < 0 ? r : make_one(c);
	}
	if (r < 0)
		return 0;
	*ret_dirfd = open_one(c, c->last);
	return c->last;
}

int cgroup_kill(struct cgroups *c, uint64_t n)
{
	char name[24], path[48];

	if (n == 0)
		return -ENOENT;
	str_format(path, sizeof(path), "%s/cgroup.kill", name_of(name, n));
	return put(c->work, path, "1");
}

/* Whether a file begins so; one that is not there says what is wanted. */
static bool says(int dirfd, const char *file, const char *want)
{
	autoclose int fd = openat(dirfd, file, O_RDONLY | O_CLOEXEC);
	char text[128];
	ssize_t len = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (len < 0)
		return fd < 0 && errno == ENOENT;
	text[len] = '\0';
	return *want ? str_starts(text, want) : len == 0;
}

/* As it was made. Root in the guest may have set limits, or made cgroups in it. */
static bool is_untouched(int dirfd)
{
	static const struct { const char *file, *text; } made[] = {
		{ "cgroup.events", "populated 0\nfrozen 0\n" },
		{ "cgroup.type", "domain\n" },
		{ "cgroup.subtree_control", "" },
		{ "cpu.max", "max " },
		{ "cpu.weight", "100\n" },
		{ "cpu.idle", "0\n" },
		{ "memory.max", "max\n" },
		{ "memory.high", "max\n" },
		{ "pids.max", "max\n" },
	};
	struct stat st;

	if (fstat(dirfd, &st) < 0 || st.st_nlink != 2)
		return false;
	for (size_t i = 0; i < ARRAY_LEN(made); i++)
		if (!says(dirfd, made[i].file, made[i].text))
			return false;
	return true;
}

/* With those below it, which hold no process either. */
static int remove_tree(int dirfd, const char *name, unsigned depth)
{
	int fd = depth ? openat(dirfd, name, O_DIRECTORY | O_RDONLY | O_CLOEXEC) : -1;
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *de;

	while (d && (de = readdir(d)))
		if (de->d_type == DT_DIR && de->d_name[0] != '.')
			remove_tree(fd, de->d_name, depth - 1);
	if (d)
		closedir(d);
	else
		fd_close(fd);
	return unlinkat(dirfd, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : -errno;
}

int cgroup_remove(struct cgroups *c, uint64_t n, bool killed)
{
	autoclose int fd = -1;
	char name[24];

	if (n == 0 || c->work < 0)
		return 0;
	fd = open_one(c, n);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!says(fd, "cgroup.events", "populated 0\n"))
		return -EBUSY;
	if (!killed && c->n_pool < CGROUP_POOL_MAX && is_untouched(fd)) {
		c->pool[c->n_pool++] = n;
		return 0;
	}
	return remove_tree(c->work, name_of(name, n), BELOW_MAX);
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
