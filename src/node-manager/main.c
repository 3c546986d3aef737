/* node-manager: start and end. Theory of operation: nm.h. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "loop/listen.h"
#include "node-manager/child.h"
#include "node-manager/disk.h"
#include "node-manager/filters.h"
#include "node-manager/jail_tree.h"
#include "node-manager/net.h"
#include "node-manager/ops.h"
#include "node-manager/sockets.h"
#include "node-manager/sweep.h"
#include "node-manager/template.h"
#include "node-manager/watch.h"

#define LOCK_WAIT_MS 5000
#define LOCK_POLL_MS 20

/* Children of ours, and jail-inits whose maker has ended (PR_SET_CHILD_SUBREAPER). */
static void on_sigchld(int signo, void *arg)
{
	struct nm *nm = arg;
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		child_reaped(nm, pid);
		watch_reaped(nm, pid, status);
	}
}

static int open_folder(const struct conf *c, const char *name, mode_t mode, int *ret, struct err *e)
{
	char path[PATH_MAX];
	int r = conf_path(c, path, CONF_RUN, "%s", name);

	if (r == 0)
		r = fd_mkdir_p(path, mode);
	if (r < 0)
		return err_errno(e, r, "the folder %s of the run folder cannot be made", name);
	*ret = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	/* Also when it was there: a umask or a former version may have left it otherwise. */
	if (*ret < 0 || fchown(*ret, 0, 0) < 0 || fchmod(*ret, mode) < 0)
		return err_errno(e, -errno, "the folder %s cannot be used", path);
	return 0;
}

/*
 * One at a time: two would sweep away what the other has begun. The children of one that was killed
 * hold its lock with it, until they have ended too.
 */
static int take_lock(const struct nm *nm, struct err *e)
{
	int64_t end = clock_mono_ms() + LOCK_WAIT_MS;

	while (flock(nm->run_fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK)
			return err_errno(e, -errno, "the run folder cannot be locked");
		if (clock_mono_ms() >= end)
			return err_set(e, -EBUSY, "another node-manager works in %s",
				       nm->conf.run_dir);
		poll(NULL, 0, LOCK_POLL_MS);
	}
	return 0;
}

static int open_folders(struct nm *nm, struct err *e)
{
	char path[PATH_MAX];
	int fd = -1, r = open_folder(&nm->conf, "nm", 0711, &nm->run_fd, e);

	if (r == 0)
		r = take_lock(nm, e);
	if (r == 0)
		r = open_folder(&nm->conf, SOCKETS_FOLDER, 0711, &nm->sockets_fd, e);
	if (r == 0)
		r = open_folder(&nm->conf, "nm/" NET_FOLDER, 0700, &fd, e);
	fd_close(TAKE_FD(fd));
	if (r == 0)
		r = open_folder(&nm->conf, "nm/empty", 0555, &fd, e);
	fd_close(TAKE_FD(fd));
	if (r == 0)
		r = conf_path(&nm->conf, path, CONF_LIB, "jail-init");
	if (r < 0)
		return r;
	nm->init_fd = open(path, O_RDONLY | O_CLOEXEC);
	return nm->init_fd < 0 ? err_errno(e, -errno, "%s cannot be opened", path) : 0;
}

static void nm_prepare(struct nm *nm, struct daemon_ctx *d)
{
	nm->conf = d->conf;
	nm->loop = d->loop;
	nm->data_fd = nm->run_fd = nm->sockets_fd = nm->init_fd = nm->bridge_filter_fd =
		nm->init_filter_fd = -1;
	for (int i = 0; i < VMM_ACCEL_COUNT; i++)
		nm->vmm_filter_fd[i] = -1;
	for (int i = 0; i < NM_GATEWAY_PROCESSES; i++)
		nm->gateway_filter_fd[i] = -1;
	list_init(&nm->execs);
	list_init(&nm->children);
	slots_init(&nm->slots, nm->conf.uid_base, nm->conf.max_sandboxes);
}

/* With all rights still there: storage, trees, and the clearing up. */
static int nm_init(struct daemon_ctx *d, struct err *e)
{
	static struct nm nm;
	int r;

	nm_prepare(&nm, d);
	d->self = &nm;
	if (sodium_init() < 0)
		return err_set(e, -EIO, "libsodium cannot be used");
	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
		return err_errno(e, -errno, "PR_SET_CHILD_SUBREAPER");
	r = vmm_tsc_khz(&nm.tsc_khz);
	if (r < 0)
		return err_errno(e, r, "the rate of this machine's time-stamp counter");
	r = exec_boot_id(nm.boot_id, e);
	if (r == 0)
		r = open_folders(&nm, e);
	if (r == 0)
		r = cgroup_open(&nm.cgroups, nm.conf.cgroup_root, e);
	if (r == 0)
		r = disk_open(&nm, e);
	if (r == 0)
		r = template_open(&nm, e);
	if (r == 0)
		r = filters_open(&nm, e);
	if (r == 0)
		r = sweep_start(&nm, e);
	if (r < 0)
		return r;
	template_prune(&nm);
	return jail_tree_open(&nm, e);
}

static void peer_joined(struct ipc_peer *p, void *arg)
{
	log_info("peer joined", F_INT("pid", ipc_peer_cred(p)->pid),
		 F_UINT("uid", ipc_peer_cred(p)->uid));
}

static void peer_left(struct ipc_peer *p, void *arg)
{
	const char *fault = ipc_peer_fault(p);

	if (fault)
		log_error("peer broke the protocol and is closed", F_STR("why", fault),
			  F_INT("pid", ipc_peer_cred(p)->pid),
			  F_UINT("uid", ipc_peer_cred(p)->uid));
	else
		log_info("peer left", F_INT("pid", ipc_peer_cred(p)->pid));
}

static int nm_start(struct daemon_ctx *d, struct err *e)
{
	struct nm *nm = d->self;
	const uid_t uids[] = { nm->conf.users[CONF_USER_SBX], 0 };
	struct ipc_server_conf conf = {
		.handlers = ops_handlers(),
		.uids = uids,
		.n_uids = ARRAY_LEN(uids),
		.max_peers = NM_PEERS_MAX,
		.joined = peer_joined,
		.left = peer_left,
		.arg = nm,
	};
	char path[PATH_MAX];
	int fd, r = conf_path(&nm->conf, path, CONF_RUN, "nm/nm.sock");

	if (r == 0)
		r = loop_signal(nm->loop, SIGCHLD, on_sigchld, nm);
	if (r < 0)
		return err_errno(e, r, "the start of node-manager");
	fd = fd_unix_listen(path, SOCK_SEQPACKET, 0600, 64);
	if (fd < 0)
		return err_errno(e, fd, "the socket %s cannot be opened", path);
	if (lchown(path, uids[0], uids[0]) < 0) {
		fd_close(fd);
		return err_errno(e, -errno, "the socket %s cannot be given to its user", path);
	}
	r = child_lower_caps(ops_main_caps());
	if (r < 0) {
		fd_close(fd);
		return err_errno(e, r, "capabilities cannot be lowered");
	}
	nm->server = ipc_server_new(nm->loop, fd, &conf);
	return nm->server ? 0 : err_set(e, -EIO, "the socket %s cannot be served", path);
}

/* Executions live on: whoever wants them ended says so before. */
static void nm_stop(struct daemon_ctx *d)
{
	struct nm *nm = d->self;

	if (!nm)
		return;
	child_stop_all(nm);
	ipc_server_free(nm->server);
	nm->server = NULL;
	LIST_FOR_SAFE(&nm->execs, x, struct exec, node)
		exec_free(x);
	/* The top folder of a hierarchy has no write bit for anybody (0555). */
	if (child_lower_caps(ops_caps()) == 0)
		cgroup_close(&nm->cgroups);
}

int main(int argc, char **argv)
{
	const struct daemon_def def = {
		.name = "node-manager",
		.umask = 022,
		.keep_caps = ops_caps(),
		.syscalls = filters_own(),
		.init = nm_init,
		.start = nm_start,
		.stop = nm_stop,
	};

	return daemon_main(argc, argv, &def);
}
