/*
 * spaced-guest: the agent. As PID 1 of the initramfs it boots the guest and serves the port
 * space.0; with --no-init it is an ordinary process that serves a socket it inherited (tests).
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "spaced-guest/agent.h"
#include "spaced-guest/boot.h"
#include "spaced-guest/cgroup.h"
#include "spaced-guest/channel.h"
#include "spaced-guest/door.h"
#include "spaced-guest/network.h"
#include "spaced-guest/process.h"
#include "spaced-guest/watch.h"
#include "spaced-guest/watch_rpc.h"

#define PORT_WAIT_MS 10000
#define CGROUPS "/sys/fs/cgroup"

struct options {
	bool init;
	const char *channel_fd, *port, *root, *cgroup;
};

struct signals { struct ev_watch watch; struct agent *a; };

static int usage(void)
{
	fprintf(stderr, "usage: spaced-guest [--no-init] [--channel-fd N | --port NAME] [--root "
			"DIR] [--cgroup DIR]\n");
	return 2;
}

static int parse_options(int argc, char **argv, struct options *o)
{
	const struct { const char *name, **value; } with_value[] = {
		{ "--channel-fd", &o->channel_fd },
		{ "--port", &o->port },
		{ "--root", &o->root },
		{ "--cgroup", &o->cgroup },
	};

	for (int i = 1; i < argc; i++) {
		size_t k = 0;

		if (str_eq(argv[i], "--no-init")) {
			o->init = false;
			continue;
		}
		while (k < ARRAY_LEN(with_value) && !str_eq(argv[i], with_value[k].name))
			k++;
		if (k < ARRAY_LEN(with_value) && i + 1 < argc)
			*with_value[k].value = argv[++i];
		else if (getpid() != 1) /* the kernel gives PID 1 what it does not know itself */
			return -EINVAL;
	}
	return 0;
}

static void on_signal(struct ev_watch *w, uint32_t events)
{
	struct signals *s = CONTAINER_OF(w, struct signals, watch);
	struct signalfd_siginfo si;

	while (read(w->fd, &si, sizeof(si)) == sizeof(si)) {
		if (si.ssi_signo == SIGTERM && !s->a->in_vm)
			s->a->quit = true;
	}
	procs_reap(s->a->procs);
}

static int watch_signals(struct agent *a, struct signals *s)
{
	sigset_t set;

	/* What was ignored by who started us would be ignored by all commands. */
	for (int sig = 1; sig < NSIG; sig++)
		signal(sig, SIG_DFL);
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	signal(SIGPIPE, SIG_IGN);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	s->a = a;
	s->watch.fn = on_signal;
	s->watch.fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	return s->watch.fd < 0 ? -errno : ev_watch_set(a->ev, &s->watch, EPOLLIN);
}

/*
 * The agent goes on when the workload eats all memory: locked as it is touched, and never chosen by
 * the OOM killer. All of its address space counts as locked, and while it acts as a user it has no
 * CAP_IPC_LOCK: with a limit, its next allocation would fail there (mlock(2)).
 */
static void protect(void)
{
	const struct rlimit none = { RLIM_INFINITY, RLIM_INFINITY };
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (fd >= 0 && write(fd, "-1000", 5) != 5)
		log_warn("no protection from the OOM killer");
	fd_close(fd);
	if (setrlimit(RLIMIT_MEMLOCK, &none) < 0 ||
	    mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) < 0)
		log_warn("memory is not locked", F_INT("errno", errno));
}

/*
 * The port is opened before there is a root image: a probe VM (vmm/probe.h) has none, and its
 * opening is what it waits for.
 */
static int become_init(const struct options *o, int *ret_port, struct err *e)
{
	int console, r = boot_early(e);

	if (r < 0)
		return r;
	console = open("/dev/console", O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (console >= 0) {
		log_set_fd(console);
		for (int i = 0; i < 3; i++)
			if (fcntl(i, F_GETFD) < 0)
				dup2(console, i);
	}
	setsid();
	umask(022);
	boot_modules();
	*ret_port = channel_find_port(o->port, PORT_WAIT_MS, e);
	if (*ret_port < 0)
		return *ret_port;
	r = boot_root(e);
	if (r == 0)
		protect();
	return r;
}

static int open_channel(struct agent *a, const struct options *o, int port, struct err *e)
{
	uint64_t fd;

	if (o->channel_fd) {
		if (str_to_u64(o->channel_fd, INT32_MAX, &fd) < 0)
			return err_set(e, -EINVAL, "--channel-fd must be a number");
		port = (int)fd;
	} else if (port < 0) {
		port = channel_find_port(o->port, PORT_WAIT_MS, e);
		if (port < 0)
			return port;
	}
	a->channel = channel_open(a, port, e);
	return a->channel ? 0 : e->num;
}

static int serve(struct agent *a, const struct options *o, int port, struct err *e)
{
	struct signals signals = { 0 };
	struct door *door = NULL;
	int r = watch_signals(a, &signals);
	bool busy = true;

	if (r < 0)
		return err_errno(e, r, "cannot watch signals");
	a->cgroups = cgroups_open(o->cgroup, a->in_vm);
	a->procs = procs_new(a);
	a->watches = watches_new();
	if (a->in_vm && network_up(e) < 0)
		log_warn("no network", F_ERR(e));
	else if (a->in_vm && door_open(a, NETWORK_ADDRESS, DOOR_PORT, NETWORK_GATEWAY, &door, e) < 0)
		log_warn("no door", F_ERR(e));
	r = open_channel(a, o, port, e);
	if (r == 0)
		log_info("agent ready", F_STR("version", SPACE_VERSION),
			 F_STR("cgroups", cgroups_there(a->cgroups) ? "yes" : "no"));
	while (r == 0 && !a->quit) {
		r = ev_turn(a->ev, busy);
		busy = channel_run(a->channel);
	}
	if (r < 0)
		err_wrap(e, "the agent ends");
	door_close(door);
	watch_rpc_done(a);
	watches_free(a->watches);
	procs_free(a->procs);
	cgroups_close(a->cgroups);
	fd_close(signals.watch.fd);
	return r;
}

static int run(const struct options *o, struct err *e)
{
	struct agent a = { .in_vm = o->init };
	int port = -1, r = o->init ? become_init(o, &port, e) : 0;

	if (r < 0)
		return r;
	if (!o->init)
		prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (o->root && !str_eq(o->root, "/") && (chroot(o->root) < 0 || chdir("/") < 0))
		return err_errno(e, -errno, "cannot enter %s", o->root);
	list_init(&a.reqs);
	list_init(&a.walks);
	str_copy(a.default_user, sizeof(a.default_user), "user");
	a.ev = ev_new();
	if (!a.ev)
		return err_errno(e, -errno, "cannot make an epoll descriptor");
	r = serve(&a, o, port, e);
	channel_free(a.channel);
	ev_free(a.ev);
	secret_done(&a.token);
	envs_done(&a.envs);
	free(a.default_workdir);
	return r;
}

int main(int argc, char **argv)
{
	struct options o = { .init = getpid() == 1, .port = "space.0", .cgroup = "" };
	struct err e = { 0 };
	int r;

	x_give_back();                           /* what a large listing took is the guest's again */
	log_open("spaced-guest", "");
	if (parse_options(argc, argv, &o) < 0 || argc < 2 - o.init)
		return usage();
	if (o.init)
		o.cgroup = CGROUPS;
	r = run(&o, &e);
	if (r < 0)
		log_error("agent ends", F_ERR(&e));
	if (o.init) {
		/* With panic=-1 and -no-reboot the host sees it as the end of this execution. */
		sync();
		reboot(RB_AUTOBOOT);
	}
	return r < 0;
}
