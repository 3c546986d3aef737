#include "node-manager/disk.h"

#include <btrfsutil.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/str.h"
#include "node-manager/jail_tree.h"

#define DISK_COPY_BLOCK (4u << 20)
#define DISK_RECLAIM_MS 10000
#define DISK_RECLAIM_STEP_MS 20u
#define DISK_TEMPLATE_NAME "template"    /* in a sandbox's subvolume: what it was made from */

/* btrfsutil has errors of its own and leaves errno as the kernel set it. */
static int btrfs_error(enum btrfs_util_error r, struct err *e, const char *what, const char *name)
{
	int num = errno ? -errno : -EIO;

	return err_set(e, num, "the subvolume %s cannot be %s: %s (%s)", name, what,
		       btrfs_util_strerror(r), strerror(-num));
}

int disk_subvolume_make(int dir_fd, const char *name, struct err *e)
{
	enum btrfs_util_error r;
	int fd;

	errno = 0;
	r = btrfs_util_create_subvolume_fd(dir_fd, name, 0, NULL, NULL);
	if (r != BTRFS_UTIL_OK)
		return btrfs_error(r, e, "made", name);
	fd = fd_openat_beneath(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	if (fd < 0)
		return err_errno(e, fd, "the subvolume %s cannot be opened", name);
	if (fchmod(fd, 0700) < 0) {
		fd_close(fd);
		return err_errno(e, -errno, "the mode of the subvolume %s cannot be set", name);
	}
	return fd;
}

int disk_subvolume_drop(int dir_fd, const char *name, struct err *e)
{
	enum btrfs_util_error r;

	errno = 0;
	r = btrfs_util_delete_subvolume_fd(dir_fd, name, 0);
	if (r == BTRFS_UTIL_OK || errno == ENOENT)
		return 0;
	return btrfs_error(r, e, "deleted", name);
}

bool disk_subvolume_is(int dir_fd, const char *name)
{
	autoclose int fd = fd_openat_beneath(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);

	return fd >= 0 && btrfs_util_is_subvolume_fd(fd) == BTRFS_UTIL_OK;
}

int disk_subvolume_read_only(int dir_fd, const char *name, bool *ret)
{
	autoclose int fd = fd_openat_beneath(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);

	if (fd < 0)
		return fd;
	return btrfs_util_get_subvolume_read_only_fd(fd, ret) == BTRFS_UTIL_OK ? 0 : -EIO;
}

int disk_folder(struct nm *nm, const char *name, struct err *e)
{
	int fd = fd_openat_beneath(nm->data_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);

	return fd < 0 ? err_errno(e, fd, "the storage folder %s cannot be opened", name) : fd;
}

int disk_each(int dir_fd, void (*fn)(const char *name, void *arg), void *arg)
{
	int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (!d) {
		int r = -errno;

		fd_close(fd);
		return r;
	}
	for (struct dirent *de; (de = readdir(d));) {
		if (de->d_name[0] != '.')
			fn(de->d_name, arg);
	}
	closedir(d);
	return 0;
}

/* ---- Start ---- */

static int drop_unfinished(int dir_fd, struct err *e)
{
	int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (!d) {
		fd_close(fd);
		return err_set(e, -EIO, "a storage folder cannot be read");
	}
	for (struct dirent *de; r == 0 && (de = readdir(d));) {
		if (de->d_name[0] == '.' && !str_eq(de->d_name, ".") && !str_eq(de->d_name, ".."))
			r = disk_subvolume_drop(dir_fd, de->d_name, e);
	}
	closedir(d);
	return r;
}

int disk_open(struct nm *nm, struct err *e)
{
	static const char *const folders[] = { DISK_TEMPLATES, DISK_SANDBOXES, DISK_ZERO,
					       JAIL_TREE_VMM, JAIL_TREE_BRIDGE, JAIL_TREE_GATEWAY };
	char path[PATH_MAX];
	struct statfs fs;
	int r = conf_path(&nm->conf, path, CONF_STATE, "data");

	if (r < 0)
		return err_errno(e, r, "the storage's path");
	nm->data_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (nm->data_fd < 0)
		return err_errno(e, -errno, "the storage %s cannot be opened", path);
	if (fstatfs(nm->data_fd, &fs) < 0 || fs.f_type != BTRFS_SUPER_MAGIC)
		return err_set(e, -EMEDIUMTYPE, "%s is not a btrfs file system; is it mounted?",
			       path);
	for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
		if (mkdirat(nm->data_fd, folders[i], 0755) < 0 && errno != EEXIST)
			return err_errno(e, -errno, "the storage folder %s cannot be made",
					 folders[i]);
	}
	for (size_t i = 0; i < 2; i++) {
		autoclose int fd = disk_folder(nm, folders[i], e);

		if (fd < 0)
			return fd;
		r = drop_unfinished(fd, e);
		if (r < 0)
			return r;
	}
	return 0;
}

/*
 * The room of deleted subvolumes comes back when btrfs's cleaner has been through them, which begins
 * with the next commit: by itself, half a minute later. Waits until it is back. False: there was
 * nothing to wait for.
 */
static bool reclaim(struct nm *nm)
{
	int64_t end = clock_mono_ms() + DISK_RECLAIM_MS;
	bool some = false;

	for (;;) {
		uint64_t *ids = NULL;
		size_t n = 0;

		if (btrfs_util_deleted_subvolumes_fd(nm->data_fd, &ids, &n) != BTRFS_UTIL_OK)
			return some;
		free(ids);
		some = some || n > 0;
		/* Once more after the last: what the cleaner freed is usable after a commit. */
		if (some && btrfs_util_sync_fd(nm->data_fd) != BTRFS_UTIL_OK)
			return some;
		if (n == 0 || clock_mono_ms() >= end)
			return some;
		usleep(DISK_RECLAIM_STEP_MS * 1000);
	}
}

static int storage_bytes(struct nm *nm, uint64_t *ret_total, uint64_t *ret_free, struct err *e)
{
	struct statfs fs;

	if (fstatfs(nm->data_fd, &fs) < 0)
		return err_errno(e, -errno, "the storage's size cannot be read");
	*ret_total = (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize;
	*ret_free = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
	return 0;
}

int disk_need_space(struct nm *nm, uint64_t bytes, struct err *e)
{
	uint64_t total, left = 0;
	int r = storage_bytes(nm, &total, &left, e);

	if (r == 0 && left < bytes + DISK_RESERVE_BYTES && reclaim(nm))
		r = storage_bytes(nm, &total, &left, e);
	if (r < 0 || left >= bytes + DISK_RESERVE_BYTES)
		return r;
	return err_set_code(
		e, -ENOSPC, "node-disk-full",
		"the node's storage has less than %llu MiB left",
		(unsigned long long)((bytes + DISK_RESERVE_BYTES) >> 20));
}

int disk_stats(struct nm *nm, struct nm_stats_rep *ret, struct err *e)
{
	int r = storage_bytes(nm, &ret->data_total_bytes, &ret->data_free_bytes, e);

	if (r < 0)
		return r;
	ret->slots = nm->slots.n;
	for (uint32_t i = 0; i < nm->slots.n; i++)
		ret->slots_used += nm->slots.state[i] != SLOT_FREE;
	return 0;
}

/* ---- Sandboxes' disks ---- */

int disk_template(int dir_fd, const char *sandbox, char ret[NM_TEMPLATE_MAX + 1], struct err *e)
{
	autoclose int sub =
		fd_openat_beneath(dir_fd, sandbox, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	autofree char *text = NULL;
	int r;

	if (sub < 0)
		return err_errno(e, sub, "the disk of sandbox %s cannot be opened", sandbox);
	r = fd_read_file(sub, DISK_TEMPLATE_NAME, NM_TEMPLATE_MAX, &text, NULL);
	if (r < 0)
		return err_errno(e, r == -ENOENT ? -EBADMSG : r,
				 "the disk of sandbox %s does not say its template", sandbox);
	return str_copy(ret, NM_TEMPLATE_MAX + 1, text);
}

/* 1 = there, of this template; 0 = not there. */
static int disk_is_there(int dir_fd, const char *sandbox, const char *template, struct err *e)
{
	char of[NM_TEMPLATE_MAX + 1];
	int r = disk_template(dir_fd, sandbox, of, e);

	if (r == -ENOENT) {
		if (e)
			*e = (struct err){ 0 };
		return 0;
	}
	if (r < 0)
		return r;
	return str_eq(of, template)
		       ? 1
		       : err_set(e, -EEXIST, "the sandbox has a disk of another template");
}

static int fill_disk(struct nm *nm, int sub, const char *template, struct err *e)
{
	autofree char *folder = x_asprintf(DISK_TEMPLATES "/%s", template),
		      *path = x_asprintf("%s/" DISK_IMAGE, folder);
	autoclose int src = fd_openat_beneath(nm->data_fd, path, O_RDONLY | O_CLOEXEC, 0);
	autoclose int dst = -1;
	bool complete = false;
	int r;

	/* Read-only says that its commit was finished (template.c). */
	if (src == -ENOENT || disk_subvolume_read_only(nm->data_fd, folder, &complete) < 0 ||
	    !complete)
		return err_set_code(e, -ENOENT, "template-not-found",
				    "there is no template %s on this node", template);
	if (src < 0)
		return err_errno(e, src, "the template's image cannot be opened");
	dst = fd_openat_beneath(sub, DISK_IMAGE, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (dst < 0)
		return err_errno(e, dst, "the sandbox's image cannot be made");
	if (ioctl(dst, FICLONE, src) < 0)
		return err_errno(e, -errno, "the template's image cannot be cloned");
	r = fd_write_file(sub, DISK_TEMPLATE_NAME, template, strlen(template), 0600);
	return r < 0 ? err_errno(e, r, "the disk's template cannot be noted") : 0;
}

static int make_disk(struct nm *nm, int dir, const char *name, const char *template, struct err *e)
{
	autoclose int sub = disk_subvolume_make(dir, name, e);

	return sub < 0 ? sub : fill_disk(nm, sub, template, e);
}

int disk_create(struct nm *nm, const char *sandbox, const char *template, struct err *e)
{
	autoclose int dir = disk_folder(nm, DISK_SANDBOXES, e);
	autofree char *staging = x_asprintf(".%s.new", sandbox);
	int r;

	if (dir < 0)
		return dir;
	r = disk_is_there(dir, sandbox, template, e);
	if (r != 0)
		return r < 0 ? r : 0;
	r = disk_need_space(nm, 0, e);
	if (r == 0)
		r = FAULT("nm.disk-create.begin") < 0 ? err_set(e, -EIO, "failpoint") : 0;
	if (r == 0)
		r = disk_subvolume_drop(dir, staging, e);
	if (r < 0)
		return r;
	r = make_disk(nm, dir, staging, template, e);
	if (r == -ENOSPC && reclaim(nm)) {
		r = disk_subvolume_drop(dir, staging, e);
		if (r == 0)
			r = make_disk(nm, dir, staging, template, e);
	}
	if (r == 0 && FAULT("nm.disk-create.filled") < 0)
		r = err_set(e, -EIO, "failpoint");
	if (r == 0 && renameat2(dir, staging, dir, sandbox, RENAME_NOREPLACE) < 0)
		r = err_errno(e, -errno, "the sandbox's disk cannot be named");
	if (r < 0)
		disk_subvolume_drop(dir, staging, NULL);
	return r;
}

int disk_delete(struct nm *nm, const char *sandbox, struct err *e)
{
	autoclose int dir = disk_folder(nm, DISK_SANDBOXES, e);
	autofree char *gone = x_asprintf(".%s.gone", sandbox),
		      *staging = x_asprintf(".%s.new", sandbox);
	int r;

	if (dir < 0)
		return dir;
	/* What a create or a delete has left that did not come to its end. */
	r = disk_subvolume_drop(dir, staging, e);
	if (r == 0)
		r = disk_subvolume_drop(dir, gone, e);
	if (r < 0)
		return r;
	if (renameat(dir, sandbox, dir, gone) < 0)
		return errno == ENOENT ? 0
				       : err_errno(e, -errno, "the sandbox's disk cannot be moved");
	if (FAULT("nm.disk-delete.moved") < 0)
		return err_set(e, -EIO, "failpoint");
	return disk_subvolume_drop(dir, gone, e);
}

int disk_open_image(struct nm *nm, const char *sandbox, int *ret_fd, struct err *e)
{
	autofree char *path = x_asprintf(DISK_SANDBOXES "/%s/" DISK_IMAGE, sandbox);
	int fd = fd_openat_beneath(nm->data_fd, path, O_RDWR | O_CLOEXEC, 0);

	if (fd < 0)
		return err_errno(e, fd, "the sandbox's disk cannot be opened");
	*ret_fd = fd;
	return 0;
}

int disk_zero_file(struct nm *nm, uint32_t memory_mib, char dst[DISK_NAME_MAX], struct err *e)
{
	off_t size = (off_t)memory_mib << 20;
	autoclose int fd = -1;
	struct stat st;

	str_format(dst, DISK_NAME_MAX, DISK_ZERO "/%u", memory_mib);
	fd = fd_openat_beneath(nm->data_fd, dst, O_RDWR | O_CREAT | O_CLOEXEC, 0444);
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_errno(e, fd < 0 ? fd : -errno, "the empty memory file cannot be made");
	/* Two children may do this at once: the same size, and no byte is ever written. */
	if ((st.st_mode & 0777) != 0444 && fchmod(fd, 0444) < 0)
		return err_errno(e, -errno, "the empty memory file's mode cannot be set");
	if (st.st_size != size && ftruncate(fd, size) < 0)
		return err_errno(e, -errno, "the empty memory file's size cannot be set");
	return 0;
}

/* ---- Copies ---- */

static int copy_range(int src, int dst, off_t from, off_t to, char *block, struct err *e)
{
	while (from < to) {
		size_t want = (size_t)(to - from) < DISK_COPY_BLOCK ? (size_t)(to - from)
								    : DISK_COPY_BLOCK;
		ssize_t n = pread(src, block, want, from);

		if (n < 0)
			return err_errno(e, -errno, "reading while copying");
		if (n == 0)
			return err_set(e, -EIO, "a file became shorter while it was copied");
		for (ssize_t done = 0; done < n;) {
			ssize_t w = pwrite(dst, block + done, (size_t)(n - done), from + done);

			if (w < 0)
				return err_errno(e, -errno, "writing while copying");
			done += w;
		}
		from += n;
	}
	return 0;
}

int disk_copy(int src_fd, int dst_fd, struct err *e)
{
	autofree char *block = x_alloc(DISK_COPY_BLOCK);
	off_t at = 0, data, hole;
	struct stat st;
	int r = 0;

	if (fstat(src_fd, &st) < 0 || ftruncate(dst_fd, st.st_size) < 0)
		return err_errno(e, -errno, "a copy cannot be begun");
	while (r == 0 && at < st.st_size) {
		data = lseek(src_fd, at, SEEK_DATA);
		if (data < 0 && errno == ENXIO)
			break;                   /* the rest is a hole */
		hole = data < 0 ? -1 : lseek(src_fd, data, SEEK_HOLE);
		if (data < 0 || hole < 0)
			return err_errno(e, -errno, "the holes of a file cannot be found");
		r = copy_range(src_fd, dst_fd, data, hole, block, e);
		at = hole;
	}
	return r;
}

int disk_copy_file(int src_dir, const char *src, int dst_dir, const char *dst, mode_t mode,
		   struct err *e)
{
	autoclose int in = openat(src_dir, src, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	autoclose int out = -1;
	int r;

	if (in < 0)
		return err_errno(e, -errno, "%s cannot be opened", src);
	out = openat(dst_dir, dst, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (out < 0)
		return err_errno(e, -errno, "%s cannot be made", dst);
	r = disk_copy(in, out, e);
	if (r == 0 && (fchmod(out, mode) < 0 || fsync(out) < 0))
		r = err_errno(e, -errno, "%s cannot be completed", dst);
	return r;
}
