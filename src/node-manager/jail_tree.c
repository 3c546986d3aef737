#include "node-manager/jail_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "node-manager/disk.h"

#define TREE_BLOCK (1u << 20)
#define TREE_DIGEST_BYTES (NM_TREE_DIGEST_HEX / 2)

struct tree_list {
	char *path[JAIL_TREE_FILES_MAX];         /* below the source folder */
	size_t n;
};

static void tree_list_done(struct tree_list *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->path[i]);
}

static int tree_walk(int dir_fd, const char *prefix, int depth, struct tree_list *l, struct err *e);

static int tree_take(int dir_fd, const char *prefix, const char *name, int depth,
		     struct tree_list *l, struct err *e)
{
	autofree char *path = x_asprintf("%s%s%s", prefix, prefix[0] ? "/" : "", name);
	struct stat st;

	if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return err_errno(e, -errno, "%s cannot be read", path);
	if (S_ISDIR(st.st_mode)) {
		autoclose int sub =
			openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

		if (sub < 0)
			return err_errno(e, -errno, "%s cannot be opened", path);
		return tree_walk(sub, path, depth + 1, l, e);
	}
	if (!S_ISREG(st.st_mode))
		return err_set(e, -EINVAL, "%s is neither a file nor a folder", path);
	if (l->n >= JAIL_TREE_FILES_MAX)
		return err_set(e, -E2BIG, "a jail's tree has over %d files", JAIL_TREE_FILES_MAX);
	l->path[l->n++] = TAKE(path);
	return 0;
}

static int tree_walk(int dir_fd, const char *prefix, int depth, struct tree_list *l, struct err *e)
{
	int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (!d) {
		fd_close(fd);
		return err_set(e, -EIO, "the folder %s cannot be read", prefix);
	}
	if (depth > JAIL_TREE_DEPTH_MAX)
		r = err_set(e, -E2BIG, "a jail's tree is over %d folders deep",
			    JAIL_TREE_DEPTH_MAX);
	for (struct dirent *de; r == 0 && (de = readdir(d));) {
		if (!str_eq(de->d_name, ".") && !str_eq(de->d_name, ".."))
			r = tree_take(dir_fd, prefix, de->d_name, depth, l, e);
	}
	closedir(d);
	return r;
}

static int cmp_path(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int hash_file(crypto_generichash_state *h, int dir_fd, const char *path, char *block,
		     struct err *e)
{
	autoclose int fd = fd_openat_beneath(dir_fd, path, O_RDONLY | O_CLOEXEC, 0);
	struct stat st;
	ssize_t n;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_errno(e, fd < 0 ? fd : -errno, "%s cannot be opened", path);
	/*
	 * Name with its NUL, size, executable or not, contents: two trees cannot run into one
	 * digest.
	 */
	crypto_generichash_update(h, (const unsigned char *)path, strlen(path) + 1);
	crypto_generichash_update(h, (const unsigned char *)&st.st_size, sizeof(st.st_size));
	crypto_generichash_update(h, (const unsigned char *)(st.st_mode & 0100 ? "x" : "-"), 1);
	while ((n = read(fd, block, TREE_BLOCK)) > 0)
		crypto_generichash_update(h, (const unsigned char *)block, (size_t)n);
	return n < 0 ? err_errno(e, -errno, "%s cannot be read", path) : 0;
}

static int tree_digest(int src_fd, struct tree_list *l, struct jail_tree *ret, struct err *e)
{
	unsigned char digest[TREE_DIGEST_BYTES];
	autofree char *block = x_alloc(TREE_BLOCK);
	crypto_generichash_state h;

	qsort(l->path, l->n, sizeof(l->path[0]), cmp_path);
	if (crypto_generichash_init(&h, NULL, 0, sizeof(digest)) < 0)
		return err_set(e, -EIO, "no digest");
	for (size_t i = 0; i < l->n; i++) {
		int r = hash_file(&h, src_fd, l->path[i], block, e);

		if (r < 0)
			return r;
	}
	crypto_generichash_final(&h, digest, sizeof(digest));
	str_hex(ret->digest, digest, sizeof(digest));
	return 0;
}

static int make_parents(int dir_fd, const char *path, struct err *e)
{
	autofree char *copy = x_strdup(path);

	for (char *p = strchr(copy, '/'); p; p = strchr(p + 1, '/')) {
		*p = '\0';
		if (mkdirat(dir_fd, copy, 0755) < 0 && errno != EEXIST)
			return err_errno(e, -errno, "the folder %s cannot be made", copy);
		*p = '/';
	}
	return 0;
}

static int copy_one(int src_fd, int dst_fd, const char *path, struct err *e)
{
	struct stat st;
	int r = make_parents(dst_fd, path, e);

	if (r < 0)
		return r;
	if (fstatat(src_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return err_errno(e, -errno, "%s cannot be read", path);
	return disk_copy_file(src_fd, path, dst_fd, path, st.st_mode & 0100 ? 0555 : 0444, e);
}

static int remove_all(int dir_fd, const char *name, int depth)
{
	int fd, r = 0;
	DIR *d;

	if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -errno;
	fd = depth > JAIL_TREE_DEPTH_MAX + 2
		     ? -1
		     : openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	d = fd < 0 ? NULL : fdopendir(fd);
	if (!d) {
		fd_close(fd);
		return -EIO;
	}
	for (struct dirent *de; r == 0 && (de = readdir(d));) {
		if (!str_eq(de->d_name, ".") && !str_eq(de->d_name, ".."))
			r = remove_all(fd, de->d_name, depth + 1);
	}
	closedir(d);
	if (r == 0 && unlinkat(dir_fd, name, AT_REMOVEDIR) < 0)
		r = -errno;
	return r;
}

static int tree_make(int kind_fd, int src_fd, const struct tree_list *l, const char *digest,
		     struct err *e)
{
	autofree char *staging = x_asprintf(".%s.new", digest);
	autoclose int dst = -1;
	int r;

	r = remove_all(kind_fd, staging, 0);
	if (r < 0)
		return err_errno(e, r, "an unfinished tree cannot be removed");
	if (mkdirat(kind_fd, staging, 0755) < 0)
		return err_errno(e, -errno, "a jail's tree cannot be made");
	dst = fd_openat_beneath(kind_fd, staging, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	if (dst < 0)
		return err_errno(e, dst, "a jail's tree cannot be opened");
	for (size_t i = 0; i < l->n && r == 0; i++)
		r = copy_one(src_fd, dst, l->path[i], e);
	if (r == 0 && renameat2(kind_fd, staging, kind_fd, digest, RENAME_NOREPLACE) < 0)
		r = err_errno(e, -errno, "a jail's tree cannot be named");
	return r;
}

/* The kinds: where their digests stand in struct nm and in a record. */
static const struct tree_kind {
	const char *name, *program;      /* program NULL: all of conf.vmm */
	size_t in_nm, in_record;
} tree_kinds[] = {
	{ JAIL_TREE_VMM, NULL, offsetof(struct nm, vmm_tree),
	  offsetof(struct exec_record, vmm_tree) },
	{ JAIL_TREE_BRIDGE, JAIL_BRIDGE_PROGRAM, offsetof(struct nm, bridge_tree),
	  offsetof(struct exec_record, bridge_tree) },
	{ JAIL_TREE_GATEWAY, JAIL_GATEWAY_PROGRAM, offsetof(struct nm, gateway_tree),
	  offsetof(struct exec_record, gateway_tree) },
};

static struct jail_tree *tree_now(const struct nm *nm, const struct tree_kind *k)
{
	return (struct jail_tree *)((char *)nm + k->in_nm);
}

/* The files that the tree of this start consists of. *ret_src: their folder. */
static int tree_source(const struct nm *nm, const struct tree_kind *k, int *ret_src,
		       struct tree_list *l, struct err *e)
{
	const char *source = k->program ? nm->conf.lib_dir : nm->conf.vmm;

	*ret_src = open(source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (*ret_src < 0)
		return err_errno(e, -errno, "the folder %s cannot be opened", source);
	return k->program ? tree_take(*ret_src, "", k->program, 0, l, e)
			  : tree_walk(*ret_src, "", 0, l, e);
}

static int tree_name(struct nm *nm, const struct tree_kind *k, struct err *e)
{
	__attribute__((cleanup(tree_list_done))) struct tree_list l = { 0 };
	autoclose int src = -1;
	int r = tree_source(nm, k, &src, &l, e);

	return r < 0 ? r : tree_digest(src, &l, tree_now(nm, k), e);
}

static int tree_ensure(struct nm *nm, const struct tree_kind *k, struct err *e)
{
	__attribute__((cleanup(tree_list_done))) struct tree_list l = { 0 };
	autoclose int kind_fd = disk_folder(nm, k->name, e), src = -1;
	int r;

	if (kind_fd < 0)
		return kind_fd;
	if (faccessat(kind_fd, tree_now(nm, k)->digest, F_OK, 0) == 0)
		return 0;
	r = tree_source(nm, k, &src, &l, e);
	return r < 0 ? r : tree_make(kind_fd, src, &l, tree_now(nm, k)->digest, e);
}

static bool tree_used(const struct nm *nm, const struct tree_kind *k, const char *digest)
{
	if (str_eq(digest, tree_now(nm, k)->digest))
		return true;
	LIST_FOR(&nm->execs, x, struct exec, node) {
		if (str_eq(digest, (const char *)&x->rec + k->in_record))
			return true;
	}
	return false;
}

static int clean_kind(struct nm *nm, const struct tree_kind *k, struct err *e)
{
	int kind_fd = disk_folder(nm, k->name, e), r = 0;
	DIR *d = kind_fd < 0 ? NULL : fdopendir(kind_fd);

	if (!d) {
		fd_close(kind_fd);
		return err_set(e, -EIO, "the folder %s cannot be read", k->name);
	}
	for (struct dirent *de; r == 0 && (de = readdir(d));) {
		if (str_eq(de->d_name, ".") || str_eq(de->d_name, "..") ||
		    tree_used(nm, k, de->d_name))
			continue;
		log_info("unused tree removed", F_STR("kind", k->name),
			 F_STR("digest", de->d_name));
		r = remove_all(kind_fd, de->d_name, 0);
	}
	closedir(d);
	return r < 0 ? err_errno(e, r, "an unused tree cannot be removed") : 0;
}

int jail_tree_open(struct nm *nm, struct err *e)
{
	static int (*const steps[])(struct nm *, const struct tree_kind *, struct err *) = {
		tree_name, clean_kind, tree_ensure
	};

	for (size_t step = 0; step < ARRAY_LEN(steps); step++) {
		for (size_t i = 0; i < ARRAY_LEN(tree_kinds); i++) {
			if (steps[step](nm, &tree_kinds[i], e) < 0)
				return err_wrap(e, "the tree of the %s", tree_kinds[i].name);
		}
	}
	return 0;
}
