/*
 * What every main() of a daemon does, in one order: options, configuration, log, failpoints,
 * life-line, run, end.
 *
 *	int main(int argc, char **argv) { return daemon_main(argc, argv, &my_daemon); }
 *
 * Options: --config FILE (JSON, see conf.h; required), --version, --help. Exit codes: 0 ended on
 * request, 1 failed (said in one log line), 2 usage.
 *
 * Life-line: if the environment has SPACE_LIFELINE_FD, the daemon ends when that descriptor reads
 * end of file (its supervisor is gone). SIGTERM and SIGINT end it in order. SIGPIPE and SIGHUP are
 * ignored, SIGTERM and SIGINT blocked (signalfd): who execs puts that back. Ready: "READY=1" is
 * sent to NOTIFY_SOCKET (sd_notify(3) protocol), if set.
 *
 * Confinement (daemon_confine): user and group of the service (by name, from conf "users"; skipped
 * when already there), no supplementary groups, empty capability sets and bounding set except
 * `keep_caps`, no_new_privs, RLIMIT_CORE 0, PR_SET_DUMPABLE 0, and the seccomp allow-list
 * (src/daemon/seccomp.h).
 */
#ifndef DAEMON_DAEMON_H
#define DAEMON_DAEMON_H

#include <stdint.h>
#include <sys/stat.h>
#include "base/err.h"
#include "daemon/conf.h"
#include "loop/loop.h"

struct daemon_ctx {
	struct conf conf;
	struct loop *loop;
	void *self;                      /* the program's own context */
};

struct daemon_def {
	const char *name;                /* "sbx-manager" */
	const char *user;                /* key in conf.users; NULL = stays root */
	const char *group;               /* key in conf.users whose number is the gid; NULL = as user */
	mode_t umask;                    /* 0 = 077 */
	uint64_t keep_caps;              /* bit mask 1 << CAP_x */
	const char *const *syscalls;     /* beside seccomp_common, NULL-terminated; NULL = no filter at all */
	int (*init)(struct daemon_ctx *d, struct err *e);       /* before confinement: open what needs rights */
	int (*start)(struct daemon_ctx *d, struct err *e);      /* after confinement: threads, listeners */
	void (*stop)(struct daemon_ctx *d);      /* reverse order; also when start failed; may be NULL */
};

/*
 * The confinement alone; -EBUSY when the process has threads already (credentials are per thread).
 */
int daemon_confine(const struct daemon_def *def, const struct conf *c, struct err *e);

int daemon_main(int argc, char **argv, const struct daemon_def *def);

#endif
