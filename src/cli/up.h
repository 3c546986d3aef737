/*
 * `space up` and `space down`: a whole single node in the foreground.
 *
 * up.c       options, the lock, the order of starting and ending, the supervisor's loop
 * up_store.c storage: the btrfs file and its mount; the folders of an instance
 * up_image.c kernel, initramfs, base image, the digest that names the template
 * up_front.c where clients come in: addresses, domain, certificate
 * up_net.c   gateways: opened ranges, limits, name servers (up_resolv.c: the machine's)
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
	struct conf_network network;      /* no name server: those of /etc/resolv.conf */
	bool detach, demo;
	const char *listen;               /* numeric; of HTTPS, and of HTTP with plain_http */
	const char *tls_cert, *tls_key;   /* files; NULL = no HTTPS */
	uint16_t tls_port;
	bool plain_http;
	const char *domain;               /* of the sandboxes' ports; NULL = localhost:PORT */
};

struct up_front_strings { const char *listen, *cert, *key, *tls_port, *plain_http, *domain; };
/* 0, or the exit code: it was said on stderr. */
int up_front_options(struct cli *c, const struct up_front_strings *s, struct up_options *o);
int up_front_conf(const struct up_options *o, struct conf *k);                   /* 0, or a name is too long */
void up_front_url(const struct up_options *o, char dst[160]);                    /* of the API, for this machine */
/* What would else be seen as a daemon that dies again and again: certificate and key, taken ports. */
int up_front_check(const struct up_options *o, const struct conf *k, struct err *e);
int up_front_copy(const struct up_options *o, const struct conf *k, struct err *e);
struct up_front;
/* Copies again when a file changes; o and k must outlive it. */
struct up_front *up_front_watch(struct loop *l, const struct up_options *o, const struct conf *k);
void up_front_free(struct up_front *f);


/*
 * The numeric `nameserver` lines of a resolv.conf(5), the first CONF_NAMESERVERS_MAX. Link-local
 * ones with a zone are left out.
 */
void up_nameservers(const char *text, struct conf_network *ret);
/* --net-allow, --net-deny, --nameserver, --net-limit: lists that end with NULL. */
struct up_net_strings {
	const char *allow[CLI_REPEAT_MAX + 1], *deny[CLI_REPEAT_MAX + 1],
		*nameserver[CLI_REPEAT_MAX + 1], *limit[CLI_REPEAT_MAX + 1];
};
/* 0, or the exit code: it was said on stderr. */
int up_net_options(struct cli *c, const struct up_net_strings *s, struct conf_network *ret);
int up_net_check(const struct up_options *o, struct err *e);      /* would a gateway take ranges and limits? */
void up_net_conf(const struct up_options *o, struct conf *k);

/* Says a step on stderr: "space: making the base template... done (12 s)". */
void up_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

int up_store_open(const struct conf *k, uint64_t size_bytes, struct err *e);                     /* folders, file, mount */
int up_store_close(const struct conf *k, struct err *e);                                         /* unmount, detach */
int up_run_dirs(const struct conf *k, struct err *e);
void up_run_remove(const struct conf *k);                                                        /* run folder and cgroups */
int up_store_url(const struct conf *k, char dst[PATH_MAX + 16]);

int up_image_prepare(struct conf *k, struct err *e);                                             /* fills kernel, initrd, base_image, vmm */
int up_image_template(struct conf *k, struct err *e);                                            /* fills accel, template_id */

/* Gives a file away that lies in a folder of a service: never what a link there points to. */
int up_own(const char *path, uid_t uid, gid_t gid, mode_t mode, struct err *e);
int up_keys_prepare(const struct conf *k, struct store *s, struct err *e);
int up_key_first(struct cli *c, struct store *s, const char *api_url, struct err *e);

struct up_proc;
int up_proc_new(struct loop *l, const struct conf *k, struct up_proc **ret, struct err *e);
int up_proc_start(struct up_proc *p, struct err *e);
void up_proc_reap(struct up_proc *p);                                                            /* on SIGCHLD */
/*
 * SIGTERM, after 5 s SIGKILL, in reverse order. alone: node-manager is the last that still runs.
 */
void up_proc_end(struct up_proc *p, void (*alone)(void *arg), void (*done)(void *arg), void *arg);
void up_proc_free(struct up_proc *p);

int up_destroy_left(const struct conf *k, struct err *e);

int up_demo(struct cli *c, struct err *e);

#endif
