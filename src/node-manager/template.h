/*
 * Templates: STATE/data/templates/<id>, a read-only subvolume with image, memory, device state,
 * kernel, initramfs, manifest. While it is made it is the subvolume .<id>.new; the cache folder
 * CACHE/template/<id> holds plain copies for the other instances of the machine and for the next
 * installation.
 */
#ifndef NODE_MANAGER_TEMPLATE_H
#define NODE_MANAGER_TEMPLATE_H

#include "node-manager/disk.h"
#include "node-manager/nm.h"

#define TEMPLATE_MEM "mem"
#define TEMPLATE_STATE "state"
#define TEMPLATE_KERNEL "vmlinuz"
#define TEMPLATE_INITRD "initrd.gz"
#define TEMPLATE_MANIFEST "manifest.json"
#define TEMPLATE_MANIFEST_MAX 32768
#define TEMPLATE_CACHE_KEPT 4            /* each about 700 MB */
#define TEMPLATE_CACHE_MIN_S 600         /* one that was used since is left alone */

bool template_name_ok(const char *name);                                 /* ^[a-z0-9][a-z0-9-]*$ */

int template_open(struct nm *nm, struct err *e);                         /* at the start: drops what was not completed */
/*
 * At the start, after the records were read: drops the templates that no sandbox's disk, no
 * execution and not the configuration names. Until the configured one is there, the newest stays
 * too. What cannot be done is logged and costs room alone.
 */
void template_prune(struct nm *nm);
int template_begin(struct nm *nm, const char *name, struct err *e);      /* an unfinished one of that name is dropped; -EEXIST when complete */
int template_commit(struct nm *nm, const char *name, json_t *manifest, int state_fd, struct err *e);
int template_drop(struct nm *nm, const char *name, struct err *e);
int template_import(struct nm *nm, const char *name, struct err *e);
/* After one was added: those beyond TEMPLATE_CACHE_KEPT go, the least recently used first. */
void template_cache_prune(const char *folder);
int template_manifest(struct nm *nm, const char *name, json_t **ret, struct err *e);

/* The name of one of its files below STATE/data. */
int template_path(char dst[DISK_NAME_MAX + 32], const char *name, bool staging, const char *file);

#endif
