/*
 * Storage of an instance: its folders, the loop-mounted btrfs file where the state folder is on no
 * btrfs, and their end.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli/up.h"
#include "cli/up_exec.h"

#define REMOVE_DEPTH_MAX 16               /* of the run folder; deeper is nothing of ours */
#define MKFS_RESERVE_BYTES (1ULL << 30)    /* left free on the file system that holds the storage file */

struct up_dir { enum conf_dir base; const char *name; mode_t mode; int user, group; };     /* -1 = root */

static const struct up_dir state_dirs[] = {
	{ CONF_STATE, "", 0755, -1, -1 },
	{ CONF_STATE, "sbx", 0700, CONF_USER_SBX, CONF_USER_SBX },
	{ CONF_STATE, "control", 02770, CONF_USER_API, CONF_USER_CTL },
	{ CONF_STATE, "keys", 0755, -1, -1 },
	{ CONF_STATE, "keys/api", 0700, CONF_USER_API, CONF_USER_API },
	{ CONF_STATE, "keys/ctl", 0700, CONF_USER_CTL, CONF_USER_CTL },
	{ CONF_STATE, "log", 0755, -1, -1 },
	{ CONF_CACHE, "", 0755, -1, -1 },
};

static const struct up_dir run_dirs[] = {
	{ CONF_RUN, "", 0755, -1, -1 },
	{ CONF_RUN, "nm", 0711, -1, -1 },
	{ CONF_RUN, "sbx", 0711, -1, -1 },
	{ CONF_RUN, "sbx-manager", 0755, CONF_USER_SBX, CONF_USER_SBX },
	{ CONF_RUN, "node-api", 0755, CONF_USER_NODE, CONF_USER_NODE },
	{ CONF_RUN, "api", 0755, CONF_USER_API, CONF_USER_API },
};

static uid_t dir_owner(const struct conf *k, int user)
{
	return user < 0 ? 0 : k->users[user];
}

static int make_dirs(const struct conf *k, const struct up_dir *d, size_t n, struct err *e)
{
	char path[PATH_MAX];

	for (size_t i = 0; i < n; i++) {
		int r = conf_path(k, path, d[i].base, "%s", d[i].name);

		if (r >= 0)
			r = fd_mkdir_p(path, d[i].mode & 0777);
		if (r < 0)
			return err_errno(e, r, "cannot make the folder %s", path);
		if (chown(path, dir_owner(k, d[i].user), dir_owner(k, d[i].group)) < 0 ||
		    chmod(path, d[i].mode) < 0)
			return err_errno(e, -errno, "cannot set owner and mode of %s", path);
	}
	return 0;
}

int up_run_dirs(const struct conf *k, struct err *e)
{
	return make_dirs(k, run_dirs, ARRAY_LEN(run_dirs), e);
}

static bool is_btrfs(const char *path)
{
	struct statfs st;

	return statfs(path, &st) == 0 && st.f_type == BTRFS_SUPER_MAGIC;
}

static bool is_mount_point(const char *path)
{
	autofree char *parent = x_asprintf("%s/..", path);
	struct stat a, b;

	return stat(path, &a) == 0 && stat(parent, &b) == 0 && a.st_dev != b.st_dev;
}

/* Without --size: 64 GiB, or half of what is free, in whole GiB. */
static uint64_t default_size(const struct statvfs *vfs)
{
	uint64_t half = (uint64_t)vfs->f_bavail * vfs->f_frsize / 2 >> 30 << 30;

	return half > UP_SIZE_DEFAULT ? UP_SIZE_DEFAULT : half < UP_SIZE_MIN ? UP_SIZE_MIN : half;
}

static int make_file(const char *file, uint64_t size_bytes, struct err *e)
{
	autofree char *temp = x_asprintf("%s.new", file), *dir = x_strdup(file);
	struct statvfs vfs;
	autoclose int fd = -1;
	int r;

	*strrchr(dir, '/') = '\0';
	/* That of an `up` that was killed takes the room of the new one. */
	unlink(temp);
	if (statvfs(dir, &vfs) < 0)
		return err_errno(e, -errno, "%s", dir);
	if (!size_bytes)
		size_bytes = default_size(&vfs);
	if ((uint64_t)vfs.f_bavail * vfs.f_frsize < size_bytes + MKFS_RESERVE_BYTES) {
		uint64_t fits = (uint64_t)vfs.f_bavail * vfs.f_frsize;

		return err_set_code(
			e, -ENOSPC, "no-space",
			"%s has room for %llu GiB, the storage file would take %llu GiB; give a smaller --size (at least %llu GiB)",
			dir, (unsigned long long)(fits >> 30),
			(unsigned long long)(size_bytes >> 30),
			(unsigned long long)(UP_SIZE_MIN >> 30));
	}
	up_say("making the storage file %s (%llu GiB)", file,
	       (unsigned long long)(size_bytes >> 30));
	fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_errno(e, -errno, "cannot make %s", temp);
	if ((r = -posix_fallocate(fd, 0, (off_t)size_bytes)) < 0) {
		unlink(temp);
		return err_errno(e, r, "cannot reserve %llu GiB for %s",
				 (unsigned long long)(size_bytes >> 30), file);
	}
	r = up_exec((const char *const[]) { "mkfs.btrfs", "-q", "-f", "-L", "space", temp, NULL },
		    NULL, e);
	if (r >= 0 && rename(temp, file) < 0)
		r = err_errno(e, -errno, "%s", file);
	if (r < 0)
		unlink(temp);
	return r;
}

static int mount_file(const char *file, const char *data, struct err *e)
{
	autofree char *dev = NULL;
	int r = up_exec((const char *const[]) { "losetup", "--find", "--show", "--direct-io=on",
						file, NULL },
			&dev, e);

	if (r < 0) {
		/* Not every file system that holds the file can do direct I/O. */
		r = up_exec((const char *const[]) { "losetup", "--find", "--show", file, NULL },
			    &dev, e);
		if (r < 0)
			return err_wrap(e, "no loop device for the storage file");
	}
	if (mount(dev, data, "btrfs", MS_NOSUID | MS_NODEV | MS_NOATIME, "discard=async") < 0) {
		r = err_errno(e, -errno, "cannot mount %s", file);
		(void)up_exec((const char *const[]){ "losetup", "-d", dev, NULL }, NULL, NULL);
	}
	return r;
}

int up_store_open(const struct conf *k, uint64_t size_bytes, struct err *e)
{
	char data[PATH_MAX], file[PATH_MAX];
	struct stat st = { 0 };
	int r = make_dirs(k, state_dirs, ARRAY_LEN(state_dirs), e);

	if (r < 0)
		return r;
	if (conf_path(k, data, CONF_STATE, "data") < 0 ||
	    conf_path(k, file, CONF_STATE, "storage.img") < 0)
		return err_set(e, -ENAMETOOLONG, "the state folder's name is too long");
	if ((r = fd_mkdir_p(data, 0700)) < 0)
		return err_errno(e, r, "cannot make %s", data);
	if (is_btrfs(data))
		return 0;
	if (stat(file, &st) < 0 && (r = make_file(file, size_bytes, e)) < 0)
		return r;
	if (r == 0 && size_bytes && st.st_size && (uint64_t)st.st_size != size_bytes)
		up_say("%s stays as it is, with %llu GiB: --size is for a new one", file,
		       (unsigned long long)st.st_size >> 30);
	r = mount_file(file, data, e);
	if (r >= 0 && chmod(data, 0700) < 0)
		r = err_errno(e, -errno, "%s", data);
	return r;
}

/* The loop devices of our file, also of a mount that was taken away behind our back. */
static int detach_loops(const char *file, struct err *e)
{
	autofree char *out = NULL;
	char *save = NULL;
	int r = up_exec((const char *const[]) { "losetup", "--noheadings", "--output", "NAME",
						"--associated", file, NULL },
			&out, e);

	if (r < 0)
		return r;
	for (char *dev = strtok_r(out, " \n", &save); dev && r >= 0;
	     dev = strtok_r(NULL, " \n", &save))
		r = up_exec((const char *const[]){ "losetup", "-d", dev, NULL }, NULL, e);
	return r;
}

int up_store_close(const struct conf *k, struct err *e)
{
	char data[PATH_MAX], file[PATH_MAX];
	int tries = 0;

	if (conf_path(k, data, CONF_STATE, "data") < 0 ||
	    conf_path(k, file, CONF_STATE, "storage.img") < 0)
		return err_set(e, -ENAMETOOLONG, "the state folder's name is too long");
	if (!is_mount_point(data) || access(file, F_OK) < 0)
		return 0;
	while (umount2(data, 0) < 0) {
		/* A child of a daemon that was just ended may still leave. */
		if (errno != EBUSY || ++tries > 50)
			return err_errno(e, -errno, "cannot unmount %s", data);
		usleep(100000);
	}
	return detach_loops(file, e);
}

/*
 * By descriptors and never through a link: folders in there belong to services, and what is left of
 * one that was taken over may put a link in the place of a folder while we are at it.
 */
static void remove_tree(int at, const char *name, dev_t dev, int depth)
{
	int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct dirent *de;
	struct stat st;
	DIR *d;

	if (fd < 0) {
		unlinkat(at, name, 0);
		return;
	}
	d = depth < REMOVE_DEPTH_MAX && fstat(fd, &st) == 0 && st.st_dev == dev ? fdopendir(fd)
										: NULL;
	if (!d) {
		fd_close(fd);
		return;
	}
	while ((de = readdir(d)))
		if (!str_eq(de->d_name, ".") && !str_eq(de->d_name, ".."))
			remove_tree(fd, de->d_name, dev, depth + 1);
	closedir(d);
	unlinkat(at, name, AT_REMOVEDIR);
}

static int rmdir_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)ftw;
	if (type == FTW_DP)
		rmdir(path);
	return 0;
}

static void remove_cgroups(const char *root)
{
	static const char *const hierarchies[] = { "",	      "unified",     "memory",
						   "cpu",     "cpu,cpuacct", "cpuacct",
						   "pids",    "freezer",     "blkio",
						   "devices", "cpuset",	     "systemd" };

	for (size_t i = 0; i < ARRAY_LEN(hierarchies); i++) {
		autofree char *path = x_asprintf("/sys/fs/cgroup/%s/%s", hierarchies[i], root);

		if (root[0] && access(path, F_OK) == 0)
			nftw(path, rmdir_one, 16, FTW_DEPTH | FTW_PHYS);
	}
}

void up_run_remove(const struct conf *k)
{
	struct stat st;

	if (k->run_dir[0] == '/' && strlen(k->run_dir) > 4 && lstat(k->run_dir, &st) == 0)
		remove_tree(AT_FDCWD, k->run_dir, st.st_dev, 0);
	remove_cgroups(k->cgroup_root);
}

int up_store_url(const struct conf *k, char dst[PATH_MAX + 16])
{
	char path[PATH_MAX];
	int r = conf_path(k, path, CONF_STATE, "control/space.db");

	return r < 0 ? r : str_format(dst, PATH_MAX + 16, "sqlite:%s", path);
}
