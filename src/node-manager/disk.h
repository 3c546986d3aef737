/*
 * The node's storage: a btrfs at STATE/data. Every name below it is built here out of checked IDs,
 * and opened beneath its folder without following links. What is made becomes visible by one
 * rename; names that begin with a dot are unfinished work, swept away at the start.
 */
#ifndef NODE_MANAGER_DISK_H
#define NODE_MANAGER_DISK_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "node-manager/nm.h"

#define DISK_TEMPLATES "templates"
#define DISK_SANDBOXES "sandboxes"
#define DISK_ZERO "zero"                 /* all-zero memory files, one a size */
#define DISK_IMAGE "rootfs.img"
/*
 * Kept free, so that what is there can be written back and deleted. statfs(2) counts as free what
 * btrfs will yet make a chunk for metadata of (seen on 2 GiB: 200 MiB at once).
 */
#define DISK_RESERVE_BYTES (256ull << 20)
#define DISK_NAME_MAX 96

/* Opens STATE/data, which must be a btrfs; makes its folders; drops unfinished work. */
int disk_open(struct nm *nm, struct err *e);

/*
 * A reflink of the template's image in a subvolume of its own. There already, of the same template:
 * success.
 */
int disk_create(struct nm *nm, const char *sandbox, const char *template, struct err *e);
int disk_delete(struct nm *nm, const char *sandbox, struct err *e);
/* What it was made from. dir_fd: the folder DISK_SANDBOXES; -ENOENT: there is no such disk. */
int disk_template(int dir_fd, const char *sandbox, char ret[NM_TEMPLATE_MAX + 1], struct err *e);
int disk_open_image(struct nm *nm, const char *sandbox, int *ret_fd, struct err *e);      /* O_RDWR */
/* The name, below STATE/data, of a file of `memory_mib` that holds zeros alone, mode 0444. */
int disk_zero_file(struct nm *nm, uint32_t memory_mib, char dst[DISK_NAME_MAX], struct err *e);
int disk_stats(struct nm *nm, struct nm_stats_rep *ret, struct err *e);

/* ---- For templates too ---- */
int disk_folder(struct nm *nm, const char *name, struct err *e);         /* open for reading; the caller closes */
/* -ENOSPC unless that much is free beside the reserve; waits up to 10 s for the room of what was deleted. */
int disk_need_space(struct nm *nm, uint64_t bytes, struct err *e);
int disk_subvolume_make(int dir_fd, const char *name, struct err *e);    /* 0700; opened for reading */
int disk_subvolume_drop(int dir_fd, const char *name, struct err *e);    /* gone or not there: success */
bool disk_subvolume_is(int dir_fd, const char *name);
int disk_subvolume_read_only(int dir_fd, const char *name, bool *ret);   /* negative errno */
/* Data only: holes stay holes (lseek(2) SEEK_DATA). Both at offset 0; dst gets the same size. */
int disk_copy(int src_fd, int dst_fd, struct err *e);
/* Copies src_dir/name to dst_dir/name as a new file of this mode, fsynced. */
int disk_copy_file(int src_dir, const char *src, int dst_dir, const char *dst, mode_t mode,
		   struct err *e);
/* Calls fn for each name in a folder that does not begin with a dot. */
int disk_each(int dir_fd, void (*fn)(const char *name, void *arg), void *arg);

#endif
