#include "node-manager/template.h"

#include <btrfsutil.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/map.h"
#include "base/str.h"

#define TEMPLATE_NAMED_MAX 4096

/*
 * In the order in which they are copied; the manifest is last, so a folder that has one is
 * complete.
 */
static const struct { const char *name; bool from_conf; } template_files[] = {
	{ DISK_IMAGE, true }, { TEMPLATE_KERNEL, true }, { TEMPLATE_INITRD, true },
	{ TEMPLATE_MEM, false }, { TEMPLATE_STATE, false }, { TEMPLATE_MANIFEST, false },
};

bool template_name_ok(const char *name)
{
	return str_is(name, 1, NM_TEMPLATE_MAX, "abcdefghijklmnopqrstuvwxyz0123456789-") &&
	       name[0] != '-';
}

int template_path(char dst[DISK_NAME_MAX + 32], const char *name, bool staging, const char *file)
{
	return str_format(dst, DISK_NAME_MAX + 32, DISK_TEMPLATES "/%s%s%s/%s", staging ? "." : "",
			  name, staging ? ".new" : "", file);
}

static char *staging_name(const char *name) { return x_asprintf(".%s.new", name); }

/*
 * 1 = complete: read-only, which is set after everything was written and named. 0 = not there; what
 * is half made is dropped.
 */
static int template_is_there(int dir, const char *name, struct err *e)
{
	bool read_only = false;
	int r;

	if (!disk_subvolume_is(dir, name))
		return 0;
	r = disk_subvolume_read_only(dir, name, &read_only);
	if (r < 0)
		return err_errno(e, r, "the template %s cannot be looked at", name);
	return read_only ? 1 : disk_subvolume_drop(dir, name, e);
}

struct template_scan { struct nm *nm; int dir; struct err *e; int r; };

static void drop_incomplete(const char *name, void *arg)
{
	struct template_scan *s = arg;

	if (s->r < 0 || !disk_subvolume_is(s->dir, name))
		return;
	s->r = template_is_there(s->dir, name, s->e);
	if (s->r == 0)
		log_warn("incomplete template dropped", F_STR("template", name));
}

int template_open(struct nm *nm, struct err *e)
{
	autoclose int dir = disk_folder(nm, DISK_TEMPLATES, e);
	struct template_scan s = { .nm = nm, .dir = dir, .e = e };
	int r;

	if (dir < 0)
		return dir;
	r = disk_each(dir, drop_incomplete, &s);
	if (r < 0)
		return err_errno(e, r, "the templates cannot be listed");
	return s.r < 0 ? s.r : 0;
}

/* ---- Pruning ---- */

struct template_use {
	int templates, sandboxes;        /* folders */
	struct map *named;
	char newest[NM_TEMPLATE_MAX + 1];
	struct timespec made;            /* the newest one */
	struct err e;                    /* the first failure: nothing is dropped after it */
};

static void note_use(const char *sandbox, void *arg)
{
	struct template_use *u = arg;
	char name[NM_TEMPLATE_MAX + 1];

	if (u->e.num == 0 && disk_template(u->sandboxes, sandbox, name, &u->e) == 0 &&
	    map_put(u->named, name, u) < 0)
		err_set(&u->e, -E2BIG, "the sandboxes' disks name too many templates");
}

static void note_newest(const char *name, void *arg)
{
	struct template_use *u = arg;
	autofree char *path = x_asprintf("%s/" TEMPLATE_MANIFEST, name);
	struct stat st;

	if (fstatat(u->templates, path, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    st.st_mtim.tv_sec < u->made.tv_sec ||
	    (st.st_mtim.tv_sec == u->made.tv_sec && st.st_mtim.tv_nsec < u->made.tv_nsec) ||
	    str_copy(u->newest, sizeof(u->newest), name) < 0)
		return;
	u->made = st.st_mtim;
}

static void drop_unused(const char *name, void *arg)
{
	struct template_use *u = arg;

	if (u->e.num < 0 || map_get(u->named, name) || !disk_subvolume_is(u->templates, name))
		return;
	if (disk_subvolume_drop(u->templates, name, &u->e) == 0)
		log_info("template dropped: nothing needs it", F_STR("template", name));
}

static void each(struct template_use *u, int folder, void (*fn)(const char *name, void *arg))
{
	int r = u->e.num < 0 ? 0 : disk_each(folder, fn, u);

	if (r < 0)
		err_errno(&u->e, r, "a folder of the storage cannot be listed");
}

void template_prune(struct nm *nm)
{
	struct template_use u = { .named = map_new(TEMPLATE_NAMED_MAX) };
	autoclose int templates = disk_folder(nm, DISK_TEMPLATES, &u.e),
		      sandboxes = disk_folder(nm, DISK_SANDBOXES, &u.e);

	u.templates = templates;
	u.sandboxes = sandboxes;
	map_put(u.named, nm->conf.template_id, &u);
	LIST_FOR(&nm->execs, x, struct exec, node)
		map_put(u.named, x->rec.template, &u);
	each(&u, sandboxes, note_use);
	if (!disk_subvolume_is(templates, nm->conf.template_id)) {
		each(&u, templates, note_newest);
		map_put(u.named, u.newest, &u);
	}
	each(&u, templates, drop_unused);
	map_free(u.named);
	if (u.e.num < 0)
		log_warn("templates are not pruned", F_ERR(&u.e));
}

static int file_bytes(int dir, const char *path, uint64_t *sum)
{
	struct stat st;

	if (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	*sum += (uint64_t)st.st_blocks * 512;
	return 0;
}

/* ---- Making ---- */

static const char *conf_file(const struct nm *nm, const char *name)
{
	if (str_eq(name, DISK_IMAGE))
		return nm->conf.base_image;
	return str_eq(name, TEMPLATE_KERNEL) ? nm->conf.kernel : nm->conf.initrd;
}

static int fill_staging(struct nm *nm, int sub, struct err *e)
{
	autoclose int mem = -1;
	int r = 0;

	for (size_t i = 0; i < ARRAY_LEN(template_files) && r == 0; i++) {
		const char *name = template_files[i].name;

		if (template_files[i].from_conf)
			r = disk_copy_file(AT_FDCWD, conf_file(nm, name), sub, name,
					   str_eq(name, DISK_IMAGE) ? 0600 : 0444, e);
	}
	if (r < 0)
		return r;
	/* Its size and its owner are given when the VMM that fills it is started. */
	mem = fd_openat_beneath(sub, TEMPLATE_MEM, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	return mem < 0 ? err_errno(e, mem, "the memory file cannot be made") : 0;
}

int template_begin(struct nm *nm, const char *name, struct err *e)
{
	autoclose int dir = disk_folder(nm, DISK_TEMPLATES, e), sub = -1;
	autofree char *staging = staging_name(name);
	uint64_t bytes = (uint64_t)VMM_MEMORY_MIB_MIN << 20;
	int r = 0;

	if (dir < 0)
		return dir;
	r = template_is_there(dir, name, e);
	if (r != 0)
		return r < 0 ? r
			     : err_set_code(e, -EEXIST, "template-exists",
					    "the template %s is there already", name);
	for (size_t i = 0; i < ARRAY_LEN(template_files) && r == 0; i++) {
		if (template_files[i].from_conf)
			r = file_bytes(AT_FDCWD, conf_file(nm, template_files[i].name), &bytes);
	}
	if (r < 0)
		return err_errno(e, r, "the files of the base template cannot be found");
	r = disk_subvolume_drop(dir, staging, e);
	if (r == 0)
		r = disk_need_space(nm, bytes, e);
	if (r < 0)
		return r;
	sub = disk_subvolume_make(dir, staging, e);
	if (sub < 0)
		return sub;
	r = fill_staging(nm, sub, e);
	if (r == 0 && FAULT("nm.template-begin.filled") < 0)
		r = err_set(e, -EIO, "failpoint");
	if (r < 0)
		disk_subvolume_drop(dir, staging, NULL);
	return r;
}

int template_drop(struct nm *nm, const char *name, struct err *e)
{
	autoclose int dir = disk_folder(nm, DISK_TEMPLATES, e);
	autofree char *staging = staging_name(name);

	return dir < 0 ? dir : disk_subvolume_drop(dir, staging, e);
}

static int write_state(int sub, int state_fd, struct err *e)
{
	autoclose int out = -1;
	struct stat st;
	int r;

	if (fstat(state_fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size < 1 ||
	    st.st_size > VMM_STATE_BYTES_MAX)
		return err_set(e, -EINVAL, "the device state is empty, too large or no file");
	if (unlinkat(sub, TEMPLATE_STATE, 0) < 0 && errno != ENOENT)
		return err_errno(e, -errno, "an old device state cannot be removed");
	out = fd_openat_beneath(sub, TEMPLATE_STATE, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
	if (out < 0)
		return err_errno(e, out, "the device state's file cannot be made");
	r = disk_copy(state_fd, out, e);
	if (r == 0 && fsync(out) < 0)
		r = err_errno(e, -errno, "the device state cannot be written");
	return r;
}

/* Memory and image were written by the VMM; now they are the template's and nobody's to change. */
static int seal_files(int sub, struct err *e)
{
	static const char *const written[] = { TEMPLATE_MEM, DISK_IMAGE };

	for (size_t i = 0; i < ARRAY_LEN(written); i++) {
		autoclose int fd = fd_openat_beneath(sub, written[i], O_RDWR | O_CLOEXEC, 0);

		if (fd < 0)
			return err_errno(e, fd, "%s cannot be opened", written[i]);
		if (fchown(fd, 0, 0) < 0 || fchmod(fd, 0444) < 0 || fsync(fd) < 0)
			return err_errno(e, -errno, "%s cannot be completed", written[i]);
	}
	return 0;
}

static int publish(int dir, const char *staging, const char *name, struct err *e)
{
	autoclose int sub = -1;

	if (FAULT("nm.template-commit.written") < 0)
		return err_set(e, -EIO, "failpoint");
	if (renameat2(dir, staging, dir, name, RENAME_NOREPLACE) < 0)
		return err_errno(e, -errno, "the template cannot be named");
	if (FAULT("nm.template-commit.named") < 0)
		return err_set(e, -EIO, "failpoint");
	sub = fd_openat_beneath(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	if (sub < 0)
		return err_errno(e, sub, "the template cannot be opened");
	errno = 0;
	if (btrfs_util_set_subvolume_read_only_fd(sub, true) != BTRFS_UTIL_OK)
		return err_errno(e, errno ? -errno : -EIO, "the template cannot be made read-only");
	if (syncfs(sub) < 0)
		return err_errno(e, -errno, "the template cannot be written to the disk");
	return 0;
}

/* ---- Cache ---- */

static int cache_path(const struct nm *nm, char dst[PATH_MAX], const char *name, const char *suffix,
		      struct err *e)
{
	int r = conf_path(&nm->conf, dst, CONF_CACHE, "template/%s%s", name, suffix);

	return r < 0 ? err_errno(e, r, "the cache's path") : 0;
}

static void drop_copy(const char *path)
{
	autoclose int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

	for (size_t i = 0; fd >= 0 && i < ARRAY_LEN(template_files); i++)
		unlinkat(fd, template_files[i].name, 0);
	rmdir(path);
}

static int copy_all(int src, int dst, struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(template_files); i++) {
		int r = disk_copy_file(src, template_files[i].name, dst, template_files[i].name,
				       0444, e);

		if (r < 0)
			return r;
	}
	return fsync(dst) < 0 ? err_errno(e, -errno, "a template's folder cannot be written") : 0;
}

/*
 * The folder in `dir` that was not used for longest, of those that nothing younger than
 * TEMPLATE_CACHE_MIN_S may take; *ret_n: how many there are.
 */
static int cache_oldest(int dir, char ret[NAME_MAX + 1], unsigned *ret_n)
{
	int64_t oldest = INT64_MAX, young = clock_wall_ms() / 1000 - TEMPLATE_CACHE_MIN_S;
	int copy = fcntl(dir, F_DUPFD_CLOEXEC, 3);
	DIR *d = copy < 0 ? NULL : fdopendir(copy);

	if (!d) {
		fd_close(copy);
		return -errno;
	}
	rewinddir(d);
	ret[0] = '\0';
	*ret_n = 0;
	for (struct dirent *ent; (ent = readdir(d));) {
		struct stat st;

		if (ent->d_name[0] == '.' ||
		    fstatat(dir, ent->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode))
			continue;
		++*ret_n;
		if (st.st_mtim.tv_sec >= oldest || st.st_mtim.tv_sec > young)
			continue;
		oldest = st.st_mtim.tv_sec;
		str_copy(ret, NAME_MAX + 1, ent->d_name);
	}
	closedir(d);
	return 0;
}

void template_cache_prune(const char *folder)
{
	autoclose int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	char name[NAME_MAX + 1], path[PATH_MAX];
	struct stat st;
	unsigned n;

	while (dir >= 0 && cache_oldest(dir, name, &n) == 0 && n > TEMPLATE_CACHE_KEPT && name[0]) {
		if (str_format(path, sizeof(path), "%s/%s", folder, name) < 0)
			return;
		log_info("cached template dropped: not used for longest", F_STR("template", name));
		drop_copy(path);
		if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
			return;          /* something of somebody else's is in it */
	}
}

/* Instances share the cache: each writes under a name of its own, the first rename wins. */
static int cache_store(struct nm *nm, const char *name, struct err *e)
{
	char path[PATH_MAX], work[PATH_MAX], suffix[CONF_INSTANCE_MAX + 8];
	autoclose int src = -1, dst = -1;
	autofree char *from = x_asprintf(DISK_TEMPLATES "/%s", name);
	int r;

	str_format(suffix, sizeof(suffix), ".%s.new", nm->conf.instance);
	r = cache_path(nm, path, name, "", e);
	if (r == 0)
		r = cache_path(nm, work, name, suffix, e);
	if (r < 0)
		return r;
	if (access(path, F_OK) == 0)
		return 0;
	src = fd_openat_beneath(nm->data_fd, from, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	if (src < 0)
		return err_errno(e, src, "the template cannot be opened");
	drop_copy(work);
	r = fd_mkdir_p(work, 0700);
	if (r < 0)
		return err_errno(e, r, "the cache folder %s cannot be made", work);
	dst = open(work, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (dst < 0)
		return err_errno(e, -errno, "the cache folder %s cannot be opened", work);
	r = copy_all(src, dst, e);
	if (r == 0 && FAULT("nm.template-commit.cached") < 0)
		r = err_set(e, -EIO, "failpoint");
	if (r == 0 && renameat2(AT_FDCWD, work, AT_FDCWD, path, RENAME_NOREPLACE) < 0 &&
	    errno != EEXIST)
		r = err_errno(e, -errno, "the cached template cannot be named");
	drop_copy(work);
	if (r == 0 && conf_path(&nm->conf, path, CONF_CACHE, "template") == 0)
		template_cache_prune(path);
	return r;
}

int template_commit(struct nm *nm, const char *name, json_t *manifest, int state_fd, struct err *e)
{
	autoclose int dir = disk_folder(nm, DISK_TEMPLATES, e), sub = -1;
	autofree char *staging = staging_name(name),
		      *text = json_dumps(manifest, JSON_COMPACT | JSON_SORT_KEYS);
	struct err cache_err = { 0 };
	int r;

	if (dir < 0)
		return dir;
	if (!text || strlen(text) > TEMPLATE_MANIFEST_MAX)
		return err_set(e, -EINVAL, "the manifest is too long");
	sub = fd_openat_beneath(dir, staging, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	if (sub < 0)
		return err_set_code(e, -ENOENT, "template-not-begun",
				    "the template %s was not begun", name);
	r = seal_files(sub, e);
	if (r == 0)
		r = write_state(sub, state_fd, e);
	if (r == 0)
		r = fd_write_file(sub, TEMPLATE_MANIFEST, text, strlen(text), 0444) < 0
			    ? err_set(e, -EIO, "the manifest cannot be written") : 0;
	if (r == 0)
		r = publish(dir, staging, name, e);
	if (r < 0)
		return r;
	/* The template stands; a cache that cannot be filled costs time later and nothing else. */
	if (cache_store(nm, name, &cache_err) < 0)
		log_warn("template could not be cached", F_STR("template", name),
			 F_ERR(&cache_err));
	return 0;
}

int template_import(struct nm *nm, const char *name, struct err *e)
{
	autoclose int dir = disk_folder(nm, DISK_TEMPLATES, e), sub = -1, src = -1;
	autofree char *staging = staging_name(name);
	char path[PATH_MAX];
	struct stat st;
	uint64_t bytes = 0;
	int r;

	if (dir < 0)
		return dir;
	r = template_is_there(dir, name, e);
	if (r != 0)
		return r < 0 ? r : 0;
	r = cache_path(nm, path, name, "", e);
	if (r < 0)
		return r;
	src = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (src < 0)
		return err_errno(e, -errno, "the template %s is not in the cache", name);
	if (fstat(src, &st) < 0 || st.st_uid != 0 || (st.st_mode & 022))
		return err_set(e, -EPERM, "the cache folder %s must be root's alone to write",
			       path);
	for (size_t i = 0; i < ARRAY_LEN(template_files); i++) {
		if (file_bytes(src, template_files[i].name, &bytes) < 0)
			return err_set(e, -ENOENT, "the cached template %s is not complete", name);
	}
	futimens(src, NULL);             /* used now: the last that pruning takes */
	r = disk_subvolume_drop(dir, staging, e);
	if (r == 0)
		r = disk_need_space(nm, bytes, e);
	if (r < 0)
		return r;
	sub = disk_subvolume_make(dir, staging, e);
	if (sub < 0)
		return sub;
	r = copy_all(src, sub, e);
	if (r == 0)
		r = publish(dir, staging, name, e);
	if (r < 0)
		disk_subvolume_drop(dir, staging, NULL);
	return r;
}

int template_manifest(struct nm *nm, const char *name, json_t **ret, struct err *e)
{
	char path[DISK_NAME_MAX + 32];
	autofree char *text = NULL;
	autoclose int fd = -1;
	size_t len = 0;
	int r = template_path(path, name, false, TEMPLATE_MANIFEST);

	if (r == 0)
		fd = r = fd_openat_beneath(nm->data_fd, path, O_RDONLY | O_CLOEXEC, 0);
	if (r == -ENOENT)
		return err_set_code(e, -ENOENT, "template-not-found",
				    "there is no template %s on this node", name);
	if (r >= 0) {
		text = x_alloc(TEMPLATE_MANIFEST_MAX + 1);
		r = (int)fd_read_full(fd, text, TEMPLATE_MANIFEST_MAX, 1000);
	}
	if (r < 0)
		return err_errno(e, r, "the manifest cannot be read");
	len = (size_t)r;
	*ret = ipc_parse_json(text, len, IPC_DEPTH_MAX - 2, e);
	return *ret ? 0 : err_wrap(e, "the template's manifest");
}
