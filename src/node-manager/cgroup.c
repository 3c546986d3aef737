#include "node-manager/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"

#define CGROUP_MOUNTS_MAX (1u << 20)
#define CGROUP_PROCS_MAX (1u << 16)
#define CGROUP_PERIOD_US 100000

const char *const cgroup_leaf_names[] = { "vmm", "bridge", "gateway" };
_Static_assert(ARRAY_LEN(cgroup_leaf_names) == CGROUP_LEAF_COUNT, "every leaf has a name");

enum cgroup_controller { CG_MEMORY, CG_CPU, CG_PIDS, CG_FREEZER, CG_CONTROLLER_COUNT };
static const char *const controller_names[] = { "memory", "cpu", "pids", "freezer" };
_Static_assert(ARRAY_LEN(controller_names) == CG_CONTROLLER_COUNT, "every controller has a name");

/*
 * In the order in which they are written: memory.memsw.limit_in_bytes may not be below
 * memory.limit_in_bytes.
 */
static const struct cgroup_limit {
	enum cgroup_controller controller;
	const char *v1, *v2;             /* file; NULL = there is none */
	enum { LIMIT_MEMORY, LIMIT_NO_SWAP, LIMIT_MEMORY_SWAP, LIMIT_PIDS, LIMIT_CPU } what;
	bool optional;                   /* kernels without swap accounting have no such file */
} cgroup_limits[] = {
	{ CG_MEMORY, "memory.limit_in_bytes", "memory.max", LIMIT_MEMORY, false },
	{ CG_MEMORY, "memory.memsw.limit_in_bytes", NULL, LIMIT_MEMORY_SWAP, true },
	/*
	 * What the kernel holds for its TCP sockets: megabytes for each that is not read from, of a
	 * sum (tcp_mem) that the whole machine shares. Version 2 counts it in memory.max.
	 */
	{ CG_MEMORY, "memory.kmem.tcp.limit_in_bytes", NULL, LIMIT_MEMORY, true },
	{ CG_MEMORY, "memory.swappiness", NULL, LIMIT_NO_SWAP, true },
	{ CG_MEMORY, NULL, "memory.swap.max", LIMIT_NO_SWAP, true },
	{ CG_PIDS, "pids.max", "pids.max", LIMIT_PIDS, false },
	{ CG_CPU, "cpu.cfs_quota_us", NULL, LIMIT_CPU, true },
	{ CG_CPU, NULL, "cpu.max", LIMIT_CPU, true },
};

/* ---- Finding ---- */

static unsigned controllers_of(const char *list, const char *separators)
{
	autofree char *copy = x_strdup(list);
	unsigned mask = 0;
	char *save = NULL;

	for (char *w = strtok_r(copy, separators, &save); w;
	     w = strtok_r(NULL, separators, &save)) {
		for (int i = 0; i < CG_CONTROLLER_COUNT; i++) {
			if (str_eq(w, controller_names[i]))
				mask |= 1u << i;
		}
	}
	return mask;
}

static unsigned v2_controllers(const char *path)
{
	autofree char *file = x_asprintf("%s/cgroup.controllers", path);
	autofree char *text = NULL;

	return fd_read_file(AT_FDCWD, file, 4096, &text, NULL) < 0 ? 0
								   : controllers_of(text, " \n");
}

/*
 * A line of mountinfo (proc(5)): ... ROOT MOUNTPOINT OPTIONS [FIELDS] - TYPE SOURCE SUPER-OPTIONS.
 */
static void take_mount(struct cgroup_set *s, char *line)
{
	char *tail = strstr(line, " - "), *save = NULL, *word[5], *type, *super;
	struct cgroup_hierarchy h = { 0 };

	if (!tail || s->n >= CGROUP_HIERARCHIES_MAX)
		return;
	*tail = '\0';
	for (int i = 0; i < 5; i++) {
		word[i] = strtok_r(i ? NULL : line, " ", &save);
		if (!word[i])
			return;
	}
	type = strtok_r(tail + 3, " ", &save);
	strtok_r(NULL, " ", &save);
	super = strtok_r(NULL, " ", &save);
	h.v2 = str_eq(type, "cgroup2");
	if (!super || (!h.v2 && !str_eq(type, "cgroup")) ||
	    str_copy(h.path, sizeof(h.path), word[4]) < 0)
		return;
	h.controllers = h.v2 ? v2_controllers(h.path) : controllers_of(super, ",");
	/* Version 2 is kept without controllers too: cgroup.kill ends a group without a race. */
	if (!h.v2 && !h.controllers)
		return;
	for (unsigned i = 0; i < s->n; i++) {
		if (s->h[i].v2 == h.v2 && s->h[i].controllers == h.controllers)
			return;                  /* the same hierarchy, mounted twice */
	}
	s->h[s->n++] = h;
}

/* Version 2: children get the controllers that their parent hands down. */
static void hand_down(const char *path, unsigned controllers)
{
	autofree char *file = x_asprintf("%s/cgroup.subtree_control", path);
	autoclose int fd = open(file, O_WRONLY | O_CLOEXEC);

	for (int i = 0; fd >= 0 && i < CG_CONTROLLER_COUNT; i++) {
		char word[32];

		str_format(word, sizeof(word), "+%s", controller_names[i]);
		/*
		 * Freezing is no controller in version 2. One that cannot be had shows when its
		 * limit is written.
		 */
		if ((controllers & (1u << i)) && i != CG_FREEZER &&
		    write(fd, word, strlen(word)) < 0)
			continue;
	}
}

static int make_dir(const struct cgroup_hierarchy *h, const char *path, bool inner, struct err *e)
{
	if (mkdir(path, 0755) < 0 && errno != EEXIST)
		return err_errno(e, -errno, "the cgroup %s cannot be made", path);
	if (h->v2 && inner)
		hand_down(path, h->controllers);
	return 0;
}

int cgroup_open(struct cgroup_set *s, const char *root, struct err *e)
{
	autofree char *text = NULL;
	char *save = NULL;
	unsigned all = 0;
	int r = fd_read_file(AT_FDCWD, "/proc/self/mountinfo", CGROUP_MOUNTS_MAX, &text, NULL);

	if (r < 0)
		return err_errno(e, r, "/proc/self/mountinfo cannot be read");
	memset(s, 0, sizeof(*s));
	str_copy(s->root, sizeof(s->root), root);
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		take_mount(s, line);
	for (unsigned i = 0; i < s->n; i++) {
		autofree char *path = x_asprintf("%s/%s", s->h[i].path, root);

		all |= s->h[i].controllers;
		if (s->h[i].v2)
			hand_down(s->h[i].path, s->h[i].controllers);
		r = make_dir(&s->h[i], path, true, e);
		if (r < 0)
			return r;
	}
	if ((all & (1u << CG_MEMORY)) && (all & (1u << CG_PIDS)))
		return 0;
	return err_set(e, -ENOTSUP,
		       "the cgroup controllers memory and pids are needed and not mounted; "
		       "mount cgroup2 at /sys/fs/cgroup");
}

void cgroup_close(const struct cgroup_set *s)
{
	for (unsigned i = 0; i < s->n; i++) {
		autofree char *path = x_asprintf("%s/%s", s->h[i].path, s->root);

		rmdir(path);
	}
}

/* ---- Making ---- */

static void limit_text(char dst[64], const struct cgroup_limit *l, bool v2, uint64_t bytes,
		       unsigned pids, unsigned cpus)
{
	switch (l->what) {
	case LIMIT_MEMORY:
	case LIMIT_MEMORY_SWAP:
		str_format(dst, 64, "%llu", (unsigned long long)bytes);
		break;
	case LIMIT_NO_SWAP:
		str_format(dst, 64, "0");
		break;
	case LIMIT_PIDS:
		str_format(dst, 64, "%u", pids);
		break;
	case LIMIT_CPU:
		/* The period is the kernel's default, 100 ms, in both versions. */
		str_format(dst, 64, v2 ? "%u 100000" : "%u", cpus * CGROUP_PERIOD_US);
		break;
	}
}

static int write_limit(const char *dir, const char *file, const char *text, bool optional,
		       struct err *e)
{
	autofree char *path = x_asprintf("%s/%s", dir, file);
	autoclose int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text))
		return 0;
	if (optional && (errno == ENOENT || errno == EOPNOTSUPP || errno == EINVAL))
		return 0;
	return err_errno(e, -errno, "the limit %s cannot be set to %s", path, text);
}

static int set_limits(const struct cgroup_hierarchy *h, const char *dir, enum cgroup_leaf leaf,
		      uint32_t memory_mib, uint32_t vcpus, struct err *e)
{
	/* QEMU's main thread has work of its own; the gateway has one thread that may be busy. */
	const struct { uint64_t mib; unsigned pids, cpus; } leaves[CGROUP_LEAF_COUNT] = {
		[CGROUP_VMM] = { (uint64_t)memory_mib + CGROUP_VMM_OVERHEAD_MIB, CGROUP_VMM_PIDS,
				 vcpus + 1 },
		[CGROUP_BRIDGE] = { CGROUP_BRIDGE_MIB, CGROUP_BRIDGE_PIDS, 1 },
		[CGROUP_GATEWAY] = { CGROUP_GATEWAY_MIB, CGROUP_GATEWAY_PIDS, 1 },
	};

	for (size_t i = 0; i < ARRAY_LEN(cgroup_limits); i++) {
		const struct cgroup_limit *l = &cgroup_limits[i];
		const char *file = h->v2 ? l->v2 : l->v1;
		char text[64];
		int r;

		if (!file || !(h->controllers & (1u << l->controller)))
			continue;
		limit_text(text, l, h->v2, leaves[leaf].mib << 20, leaves[leaf].pids,
			   leaves[leaf].cpus);
		r = write_limit(dir, file, text, l->optional, e);
		if (r < 0)
			return r;
	}
	return 0;
}

int cgroup_make(const struct cgroup_set *s, const char *name, uint32_t memory_mib, uint32_t vcpus,
		struct err *e)
{
	int r = 0;

	for (unsigned i = 0; i < s->n && r == 0; i++) {
		autofree char *dir = x_asprintf("%s/%s/%s", s->h[i].path, s->root, name);

		r = make_dir(&s->h[i], dir, true, e);
		for (int leaf = 0; leaf < CGROUP_LEAF_COUNT && r == 0; leaf++) {
			autofree char *sub = x_asprintf("%s/%s", dir, cgroup_leaf_names[leaf]);

			r = make_dir(&s->h[i], sub, false, e);
			if (r == 0)
				r = set_limits(&s->h[i], sub, (enum cgroup_leaf)leaf, memory_mib,
					       vcpus, e);
		}
	}
	return r;
}

int cgroup_enter(const struct cgroup_set *s, const char *name, enum cgroup_leaf leaf, struct err *e)
{
	for (unsigned i = 0; i < s->n; i++) {
		autofree char *file = x_asprintf("%s/%s/%s/%s/cgroup.procs", s->h[i].path, s->root,
						 name, cgroup_leaf_names[leaf]);
		autoclose int fd = open(file, O_WRONLY | O_CLOEXEC);

		/* 0 = the writer; so no PID has to be translated between namespaces. */
		if (fd < 0 || write(fd, "0", 1) != 1)
			return err_errno(e, -errno, "the cgroup %s cannot be entered", file);
	}
	return 0;
}

/* ---- Unmaking ---- */

static int kill_members(const char *dir)
{
	autofree char *file = x_asprintf("%s/cgroup.procs", dir);
	autofree char *text = NULL;
	char *save = NULL;
	int n = 0;

	if (fd_read_file(AT_FDCWD, file, CGROUP_PROCS_MAX, &text, NULL) < 0)
		return 0;
	for (char *w = strtok_r(text, "\n", &save); w; w = strtok_r(NULL, "\n", &save)) {
		uint64_t pid;

		/* Zombies are not listed here. PID 0: a process of another PID namespace. */
		if (str_to_u64(w, INT32_MAX, &pid) == 0 && pid > 1) {
			kill((pid_t)pid, SIGKILL);
			n++;
		}
	}
	return n;
}

static void kill_group(const char *dir)
{
	autofree char *file = x_asprintf("%s/cgroup.kill", dir);
	autoclose int fd = open(file, O_WRONLY | O_CLOEXEC);

	if (fd >= 0 && write(fd, "1", 1) != 1)
		return;                          /* kernels before 5.14 have no such file; then by PID */
}

int cgroup_kill_leaf(const struct cgroup_set *s, const char *name, enum cgroup_leaf leaf)
{
	int n = 0;

	for (unsigned i = 0; i < s->n; i++) {
		autofree char *dir = x_asprintf("%s/%s/%s/%s", s->h[i].path, s->root, name,
						cgroup_leaf_names[leaf]);

		if (s->h[i].v2)
			kill_group(dir);
		n += kill_members(dir);
	}
	return n;
}

int cgroup_kill(const struct cgroup_set *s, const char *name)
{
	int n = 0;

	for (int leaf = 0; leaf < CGROUP_LEAF_COUNT; leaf++)
		n += cgroup_kill_leaf(s, name, (enum cgroup_leaf)leaf);
	return n;
}

static int remove_dir(const char *path)
{
	return rmdir(path) < 0 && errno != ENOENT ? -errno : 0;
}

int cgroup_remove(const struct cgroup_set *s, const char *name)
{
	int ret = 0;

	for (unsigned i = 0; i < s->n; i++) {
		autofree char *dir = x_asprintf("%s/%s/%s", s->h[i].path, s->root, name);
		int r = 0;

		for (int leaf = 0; leaf < CGROUP_LEAF_COUNT && r == 0; leaf++) {
			autofree char *sub = x_asprintf("%s/%s", dir, cgroup_leaf_names[leaf]);

			r = remove_dir(sub);
		}
		if (r == 0)
			r = remove_dir(dir);
		if (r < 0)
			ret = r;
	}
	return ret;
}

void cgroup_each(const struct cgroup_set *s,
		 void (*fn)(const char *name, const char *path, void *arg), void *arg)
{
	for (unsigned i = 0; i < s->n; i++) {
		autofree char *dir = x_asprintf("%s/%s", s->h[i].path, s->root);
		DIR *d = opendir(dir);

		if (!d)
			continue;
		for (struct dirent *de; (de = readdir(d));) {
			if (de->d_type == DT_DIR && de->d_name[0] != '.')
				fn(de->d_name, dir, arg);
		}
		closedir(d);
	}
}
