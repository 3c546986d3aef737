/*
 * `space up` and `space down`: a whole single node in the foreground.
 *
 * up.c       options, the lock, the order of starting and ending, the supervisor's loop
 * up_store.c storage: the btrfs file and its mount; the folders of an instance
 * up_image.c kernel, initramfs, base image, the digest that names the template
 * up_keys.c  signing keys, key bundle, API keys (`space key`)
 * up_proc.c  the daemons: start, restart with back-off, end
 * up_left.c  what nobody could stop in order
 * up_demo.c  the main job in front of the user's eyes
 */
#ifndef CLI_UP_H
#define CLI_UP_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "cli/cli.h"
#include "daemon/conf.h"
#include "loop/loop.h"
#include "store/store.h"

#define UP_SIZE_DEFAULT (64ULL << 30)
#define UP_SIZE_MIN (4ULL << 30)
#define UP_PORT_DEFAULT 4983

struct up_options {
	const char *instance, *state_dir, *run_dir, *cache_dir, *lib_dir;
	uint64_t size_bytes;
	uint16_t port;
	uint32_t service_uid;             /* 0 = the service users by name */
	uint32_t uid_base;
	uint32_t max_sandboxes;
	const char *origins;              /* whose pages may open terminals too; "" = none */
	bool detach, demo;
};

/* Says a step on stderr: "space: making the base template... done (12 s)". */
void up_say(struct cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

int up_conf_make(const struct up_options *o, struct conf *ret, struct err *e);

int up_store_open(struct cli *c, const struct conf *k, uint64_t size_bytes, struct err *e);      /* folders, file, mount */
int up_store_close(const struct conf *k, struct err *e);                                         /* unmount, detach */
int up_run_dirs(const struct conf *k, struct err *e);
void up_run_remove(const struct conf *k);                                                        /* run folder and cgroups */
int up_store_url(const struct conf *k, char dst[PATH_MAX + 16]);

int up_image_prepare(struct cli *c, struct conf *k, struct err *e);                              /* fills kernel, initrd, base_image, vmm */
int up_image_template(struct cli *c, struct conf *k, struct err *e);                             /* fills accel, template_id */

/* Gives a file away that lies in a folder of a service: never what a link there points to. */
int up_own(const char *path, uid_t uid, gid_t gid, mode_t mode, struct err *e);
int up_keys_prepare(const struct conf *k, struct store *s, struct err *e);
int up_key_first(struct cli *c, const struct conf *k, struct store *s, const char *api_url,
		 struct err *e);

struct up_proc;
int up_proc_new(struct loop *l, struct cli *c, const struct conf *k, struct up_proc **ret,
		struct err *e);
int up_proc_start(struct up_proc *p, struct err *e);
void up_proc_reap(struct up_proc *p);                                                            /* on SIGCHLD */
/*
 * SIGTERM, after 5 s SIGKILL, in reverse order. alone: node-manager is the last that still runs.
 */
void up_proc_end(struct up_proc *p, void (*alone)(void *arg), void (*done)(void *arg), void *arg);
void up_proc_free(struct up_proc *p);

int up_destroy_left(struct cli *c, const struct conf *k, struct err *e);

int up_demo(struct cli *c, struct err *e);

#endif
