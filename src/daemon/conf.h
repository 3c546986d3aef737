/*
 * Configuration of an instance: one JSON file for all its programs, written by `space up` (or by
 * hand for systemd), read by every daemon. Unknown fields are refused. All paths are absolute.
 *
 *	{ "instance": "default", "state_dir": "/var/lib/space/default", "run_dir": "/run/space/default",
 *	  "cache_dir": "/var/cache/space", "lib_dir": "/usr/local/lib/space", "uid_base": 2000000000,
 *	  "cgroup_root": "space-default",
 *	  "users": { "space-api": 991, ... },          (names to numeric uid = gid)
 *	  "vmm": "/var/cache/space/vmm/DIGEST", "worker": "uuid", "accel": "auto",
 *	  "api_listen": "tcp:127.0.0.1:4983", "domain": "localhost:4983",
 *	  "origins": "https://console.example", "max_sandboxes": 64,
 *	  "plain_http": "loopback", "tls_listen": "tcp:0.0.0.0:443",
 *	  "network": { "allow": ["10.1.0.0/16"], "deny": ["192.0.2.7/32"],
 *	               "nameservers": ["192.0.2.53"], "limits": ["connections=1000"] } }
 *
 * `tls_listen` (may be missing): HTTPS for clients, with key and chain in STATE/keys/api/tls.pem, which
 * `space up` keeps up to date. `plain_http` (may be missing): "anywhere" lets api_listen be another
 * address than one of this machine's loopback.
 *
 * `network` (may be missing) is for the sandboxes' gateways: ranges that the operator opens
 * although the platform's floor closes them, others that he closes, where names are asked for, and
 * what each may use (`netgtw --limit`).
 *
 * Instance names: ^[a-z][a-z0-9]{0,11}$ (they become part of interface names: IFNAMSIZ).
 */
#ifndef DAEMON_CONF_H
#define DAEMON_CONF_H

#include <limits.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/err.h"

#define CONF_INSTANCE_MAX 12
#define CONF_PATH_MAX 200
#define CONF_RUN_MAX 51              /* of run_dir: the longest name of a socket in it fits into sun_path */
#define CONF_SANDBOXES_MAX 4096

enum conf_user { CONF_USER_API, CONF_USER_CTL, CONF_USER_NODE, CONF_USER_SBX, CONF_USER_COUNT };   /* space-api space-ctl space-node space-sbx */
extern const char *const conf_user_names[CONF_USER_COUNT];

#define CONF_NET_ALLOW_MAX 16
#define CONF_NET_DENY_MAX 16
#define CONF_NAMESERVERS_MAX 3       /* as resolv.conf(5) */
#define CONF_NET_LIMITS_MAX 16
#define CONF_NET_TEXT_MAX 50         /* the longest: an IPv6 address, "/128" and the final NUL */

/* Addresses in inet_ntop(3)'s form. Lists end with "" when they are not full. */
struct conf_network {
	char allow[CONF_NET_ALLOW_MAX][CONF_NET_TEXT_MAX];          /* "10.1.0.0/16", "fd00:1::/32" */
	char deny[CONF_NET_DENY_MAX][CONF_NET_TEXT_MAX];
	char nameservers[CONF_NAMESERVERS_MAX][CONF_NET_TEXT_MAX];  /* addresses without port: 53 */
	char limits[CONF_NET_LIMITS_MAX][CONF_NET_TEXT_MAX];        /* "connections=1000" */
};

struct conf {
	char instance[CONF_INSTANCE_MAX + 1];
	char state_dir[CONF_PATH_MAX], run_dir[CONF_PATH_MAX], cache_dir[CONF_PATH_MAX],
		lib_dir[CONF_PATH_MAX];
	char cgroup_root[64];            /* one path component below each hierarchy's root */
	uint32_t uid_base;               /* first of 4 * max_sandboxes uids */
	uid_t users[CONF_USER_COUNT];    /* gid = uid */
	char worker[37];                 /* UUID of this node */
	char accel[8];                   /* auto, kvm, tcg */
	char api_listen[128];            /* plain HTTP */
	char tls_listen[128];            /* HTTPS; "" = none */
	char plain_http[12];             /* where api_listen may be: "" or "loopback", "anywhere" */
	char domain[128];
	char origins[512];               /* whose pages may open terminals, beside our own; separated by blanks; may be "" or missing */
	uint32_t max_sandboxes;
	struct conf_network network;
	/*
	 * The files that the base template is made of (written by `space up`; node-manager reads
	 * them).
	 */
	char kernel[CONF_PATH_MAX], initrd[CONF_PATH_MAX], base_image[CONF_PATH_MAX];
	char vmm[CONF_PATH_MAX];             /* folder CACHE/vmm/DIGEST of image/vmm.sh: the root tree of the VMM's jail */
	char template_id[64];                /* "base-" and 16 hex digits: digest of everything in the recipe */
};

int conf_load(const char *path, struct conf *ret, struct err *e);      /* must be owned by root, not writable by others */
int conf_write(const char *path, const struct conf *c, struct err *e);
int conf_parse(const char *text, size_t len, struct conf *ret, struct err *e);   /* the file's text; sets *ret on success alone */
char *conf_text(const struct conf *c);                                 /* of one that conf_check takes; the caller frees; NULL: no memory */
int conf_check(const struct conf *c, struct err *e);                   /* limits and forms of every field */
/* Those fields alone that `name` has a name for, and under that name; then all numbers. */
int conf_check_as(const struct conf *c, const char *(*name)(const char *field), struct err *e);

/* Text of a range or an address -> inet_ntop(3)'s form. -EINVAL; a range with host bits is one. */
int conf_cidr(char dst[CONF_NET_TEXT_MAX], const char *text);
int conf_ip_address(char dst[CONF_NET_TEXT_MAX], const char *text);
int conf_limit(char dst[CONF_NET_TEXT_MAX], const char *text);      /* name and number in form alone */

/*
 * Paths of an instance, all made in one place: conf_path(c, dst, CONF_RUN, "nm.sock").
 * -ENAMETOOLONG.
 */
enum conf_dir { CONF_RUN, CONF_STATE, CONF_CACHE, CONF_LIB };
int conf_path(const struct conf *c, char dst[PATH_MAX], enum conf_dir dir, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* What a program of the control plane opens in the state folder; `keys` is its own folder there. */
struct conf_control { char store_url[PATH_MAX + 8], keys[PATH_MAX], root_pub[PATH_MAX]; };
int conf_control(const struct conf *c, const char *keys, struct conf_control *ret, struct err *e);

#endif
