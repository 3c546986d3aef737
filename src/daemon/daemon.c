#include "daemon/daemon.h"

#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <linux/capability.h>
#include <malloc.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "daemon/seccomp.h"

#define DAEMON_CAPS_MAX 64
#define DAEMON_FILES 65536               /* a stream is two descriptors in node-api; a shell's limit is often 1024 */
#define DAEMON_ARENAS 2                  /* of malloc; the default, 8 a core, keeps memory for every thread */

enum { DAEMON_EXIT_FAILED = 1, DAEMON_EXIT_USAGE = 2 };

/* Confinement. */

static int daemon_threads(void)
{
	DIR *d = opendir("/proc/self/task");
	int n = 0;

	if (!d)
		return -errno;
	for (struct dirent *de; (de = readdir(d)) != NULL;)
		n += de->d_name[0] != '.';
	closedir(d);
	return n;
}

static int daemon_get_caps(uint64_t *ret_permitted)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	if (syscall(SYS_capget, &head, data) < 0)
		return -errno;
	*ret_permitted = (uint64_t)data[1].permitted << 32 | data[0].permitted;
	return 0;
}

static int daemon_set_caps(uint64_t caps)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { 0 };

	for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
		data[i].permitted = data[i].effective = (uint32_t)(caps >> (32 * i));
	return syscall(SYS_capset, &head, data) < 0 ? -errno : 0;
}

static int daemon_drop_bounding(uint64_t keep)
{
	/* PR_CAPBSET_READ fails with EINVAL behind the last capability that the kernel knows. */
	for (unsigned long cap = 0; cap < DAEMON_CAPS_MAX; cap++) {
		int there = prctl(PR_CAPBSET_READ, cap, 0, 0, 0);

		if (there < 0)
			break;
		if (there && !(keep >> cap & 1) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
			return -errno;
	}
	return 0;
}

static int daemon_become(const struct daemon_def *def, uid_t id, gid_t gid, struct err *e)
{
	if (def->keep_caps && prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0)
		return err_errno(e, -errno, "cannot keep capabilities");
	if (syscall(SYS_setgroups, 0, NULL) < 0 || syscall(SYS_setresgid, gid, gid, gid) < 0 ||
	    syscall(SYS_setresuid, id, id, id) < 0)
		return err_errno(e, -errno,
				 "cannot become the user %s (%u); start this program as root",
				 def->user ? def->user : "root", (unsigned)id);
	return 0;
}

static int daemon_reduce(const struct daemon_def *def, uid_t id, gid_t gid, struct err *e)
{
	uint64_t permitted = 0;
	int r = daemon_get_caps(&permitted);

	if (r < 0)
		return err_errno(e, r, "cannot read the capabilities");
	/*
	 * Without CAP_SETPCAP the bounding set stays; no_new_privs keeps exec(2) from drawing on
	 * it.
	 */
	if (permitted >> CAP_SETPCAP & 1)
		r = daemon_drop_bounding(def->keep_caps);
	if (r < 0)
		return err_errno(e, r, "cannot reduce the capability bounding set");
	if (getuid() != id || geteuid() != id || getgid() != gid || getegid() != gid)
		r = daemon_become(def, id, gid, e);
	else if (permitted >> CAP_SETGID & 1 && syscall(SYS_setgroups, 0, NULL) < 0)
		r = err_errno(e, -errno, "cannot drop the supplementary groups");
	if (r < 0)
		return r;
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	r = daemon_set_caps(def->keep_caps);
	return r < 0 ? err_errno(e, r, "cannot set the capabilities") : 0;
}

static uid_t daemon_id(const char *name, const struct conf *c)
{
	if (!name)
		return 0;
	for (int i = 0; i < CONF_USER_COUNT; i++)
		if (str_eq(name, conf_user_names[i]))
			return c->users[i];
	return (uid_t)-1;
}

int daemon_confine(const struct daemon_def *def, const struct conf *c, struct err *e)
{
	const char *const *const lists[] = { seccomp_common, def->syscalls, NULL };
	const struct rlimit none = { 0, 0 };
	const char *group = def->group ? def->group : def->user;
	uid_t id = daemon_id(def->user, c);
	gid_t gid = daemon_id(group, c);
	int r;

	if (id == (uid_t)-1 || gid == (gid_t)-1)
		return err_set(e, -EINVAL, "there is no user \"%s\" in the configuration",
			       id == (uid_t)-1 ? def->user : group);
	if (daemon_threads() != 1)
		return err_set(e, -EBUSY, "confinement must come before threads");
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || setrlimit(RLIMIT_CORE, &none) < 0)
		return err_errno(e, -errno, "cannot set no_new_privs and the core limit");
	r = daemon_reduce(def, id, gid, e);
	if (r < 0)
		return r;
	/* After the change of user, which sets it anew (prctl(2)). */
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		return err_errno(e, -errno, "cannot become undumpable");
	return def->syscalls ? seccomp_apply(lists, e) : 0;
}

/* Start and end. */

static void daemon_on_signal(int signo, void *arg)
{
	loop_stop(arg);
}

static void daemon_on_lifeline(struct loop_io *io, uint32_t events)
{
	char byte[64];
	ssize_t r = read(io->fd, byte, sizeof(byte));

	if (r > 0 || (r < 0 && (errno == EAGAIN || errno == EINTR)))
		return;
	loop_del(io);
	log_info("supervisor is gone");
	loop_stop(io->arg);
}

static int daemon_watch_lifeline(struct loop *l, struct loop_io *io, struct err *e)
{
	const char *s = getenv("SPACE_LIFELINE_FD");
	uint64_t fd;
	int r;

	if (!s)
		return 0;
	r = str_to_u64(s, 65535, &fd);
	if (r == 0)
		r = fd_set_cloexec((int)fd, true);
	if (r == 0)
		r = loop_add(l, io, (int)fd, EPOLLIN, daemon_on_lifeline, l);
	unsetenv("SPACE_LIFELINE_FD");
	return r < 0 ? err_errno(e, r, "SPACE_LIFELINE_FD is not a descriptor to watch") : 0;
}

/*
 * sd_notify(3): the socket is opened before confinement and used after it. -1 = nobody wants to
 * know.
 */
static int daemon_notify_open(void)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	autoclose int fd = -1;
	size_t n;

	if (!path || (path[0] != '/' && path[0] != '@'))
		return -1;
	n = strlen(path);
	if (n >= sizeof(sa.sun_path))
		return -1;
	memcpy(sa.sun_path, path, n);
	if (path[0] == '@')
		sa.sun_path[0] = '\0';
	unsetenv("NOTIFY_SOCKET");
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&sa,
			      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0)
		return -1;
	return TAKE_FD(fd);
}

static void daemon_notify(int fd, const char *text)
{
	if (fd >= 0 && send(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		log_warn("supervisor does not listen for readiness");
}

/* While we are root; else as many as there may be. */
static int daemon_raise_files(struct err *e)
{
	struct rlimit lim = { DAEMON_FILES, DAEMON_FILES };

	if (setrlimit(RLIMIT_NOFILE, &lim) == 0)
		return 0;
	if (getrlimit(RLIMIT_NOFILE, &lim) < 0)
		return err_errno(e, -errno, "cannot read the limit of descriptors");
	lim.rlim_cur = lim.rlim_max;
	return setrlimit(RLIMIT_NOFILE, &lim) < 0
		       ? err_errno(e, -errno, "cannot raise the limit of descriptors")
		       : 0;
}

static int daemon_prepare(struct daemon_ctx *d, struct loop_io *lifeline, struct err *e)
{
	int r = daemon_raise_files(e);

	if (r < 0)
		return r;
	d->loop = loop_new();
	if (!d->loop)
		return err_errno(e, -errno, "cannot make the event loop");
	r = loop_signal(d->loop, SIGTERM, daemon_on_signal, d->loop);
	if (r == 0)
		r = loop_signal(d->loop, SIGINT, daemon_on_signal, d->loop);
	if (r < 0)
		return err_errno(e, r, "cannot watch signals");
	return daemon_watch_lifeline(d->loop, lifeline, e);
}

static int daemon_serve(struct daemon_ctx *d, const struct daemon_def *def, struct err *e)
{
	autoclose int notify = daemon_notify_open();
	int r = def->init ? def->init(d, e) : 0;

	if (r < 0)
		return r;
	r = daemon_confine(def, &d->conf, e);
	if (r == 0 && def->start)
		r = def->start(d, e);
	if (r == 0) {
		log_info("ready", F_STR("version", SPACE_VERSION),
			 F_INT("failpoints", fault_count()));
		daemon_notify(notify, "READY=1");
		r = loop_run(d->loop);
		if (r < 0)
			err_errno(e, r, "the event loop failed");
		daemon_notify(notify, "STOPPING=1");
	}
	if (def->stop)
		def->stop(d);
	return r;
}

static int daemon_run(const char *config, const struct daemon_def *def)
{
	struct daemon_ctx d = { 0 };
	struct loop_io lifeline = { 0 };
	struct err e = { 0 };
	int r = conf_load(config, &d.conf, &e);

	if (r == 0) {
		log_open(def->name, d.conf.instance);
		fault_open(d.conf.run_dir, def->name);
		r = daemon_prepare(&d, &lifeline, &e);
	}
	if (r == 0)
		r = daemon_serve(&d, def, &e);
	loop_del(&lifeline);
	loop_free(d.loop);
	if (r < 0) {
		log_error("failed", F_ERR(&e));
		return DAEMON_EXIT_FAILED;
	}
	log_info("ended");
	return 0;
}

int daemon_main(int argc, char **argv, const struct daemon_def *def)
{
	static const struct option options[] = {
		{ "config", required_argument, NULL, 'c' },
		{ "version", no_argument, NULL, 'V' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	const char *config = NULL;

	for (int opt; (opt = getopt_long(argc, argv, "c:", options, NULL)) != -1;) {
		if (opt == 'c')
			config = optarg;
		if (opt == 'V') {
			printf("%s %s\n", def->name, SPACE_VERSION);
			return 0;
		}
		if (opt == 'h') {
			printf("Usage: %s --config FILE\n       %s --version | --help\n", def->name,
			       def->name);
			return 0;
		}
		if (opt == '?')
			return DAEMON_EXIT_USAGE;
	}
	if (!config || optind != argc) {
		fprintf(stderr, "Usage: %s --config FILE\n", def->name);
		return DAEMON_EXIT_USAGE;
	}
	umask(def->umask ? def->umask : 077);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	mallopt(M_ARENA_MAX, DAEMON_ARENAS);
	log_open(def->name, "");
	return daemon_run(config, def);
}
