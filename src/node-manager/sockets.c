#include "node-manager/sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/proc.h"
#include "base/str.h"

#define SOCKETS_RETRY_MS 2

static const struct { int type; bool for_sbx; } socket_kinds[EXEC_SOCKET_COUNT] = {
	[EXEC_QMP] = { SOCK_STREAM, false },
	[EXEC_CHANNEL] = { SOCK_STREAM, false },
	[EXEC_STREAMS] = { SOCK_STREAM, true },
	[EXEC_CONTROL] = { SOCK_SEQPACKET, true },
	[EXEC_GTW_STREAMS] = { SOCK_STREAM, true },
	[EXEC_GTW_CONTROL] = { SOCK_SEQPACKET, true },
};

_Static_assert(CONF_RUN_MAX + sizeof("/" SOCKETS_FOLDER "/control.sock") + EXEC_NAME_MAX <=
		       sizeof(((struct sockaddr_un *)0)->sun_path),
	       "the longest path of a socket is one");

static int socket_address(const struct nm *nm, const char *name, enum exec_socket which,
			  struct sockaddr_un *ret, struct err *e)
{
	char path[PATH_MAX];
	int r = conf_path(&nm->conf, path, CONF_RUN, SOCKETS_FOLDER "/%s/%s", name,
			  exec_socket_names[which]);

	memset(ret, 0, sizeof(*ret));
	ret->sun_family = AF_UNIX;
	if (r == 0)
		r = str_copy(ret->sun_path, sizeof(ret->sun_path), path);
	return r < 0 ? err_errno(e, r, "the socket's path is too long; choose a shorter run folder")
		     : 0;
}

static int socket_bind(struct nm *nm, const char *name, enum exec_socket which,
		       struct exec_record *rec, int *ret, struct err *e)
{
	uid_t uid = socket_kinds[which].for_sbx ? nm->conf.users[CONF_USER_SBX] : 0;
	struct sockaddr_un sa;
	autoclose int fd = -1;
	struct stat st;
	mode_t mask;
	int r = socket_address(nm, name, which, &sa, e);

	if (r < 0)
		return r;
	fd = socket(AF_UNIX, socket_kinds[which].type | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return err_errno(e, -errno, "no socket");
	mask = umask(0177);
	r = bind(fd, (const struct sockaddr *)&sa, sizeof(sa));
	umask(mask);
	if (r < 0)
		return err_errno(e, -errno, "the socket %s cannot be bound", sa.sun_path);
	if (lchown(sa.sun_path, uid, uid) < 0 || lstat(sa.sun_path, &st) < 0)
		return err_errno(e, -errno, "the socket %s cannot be given to its user",
				 sa.sun_path);
	rec->socket[which].dev = st.st_dev;
	rec->socket[which].ino = st.st_ino;
	*ret = TAKE_FD(fd);
	return 0;
}

/* Those from `first` to before `end`: all or none. */
static int sockets_bind(struct nm *nm, const char *name, enum exec_socket first,
			enum exec_socket end, struct exec_record *rec, int *ret_fds, struct err *e)
{
	int fds[EXEC_SOCKET_COUNT] = { -1, -1, -1, -1, -1, -1 }, r = 0;

	for (unsigned i = first; i < end && r == 0; i++)
		r = socket_bind(nm, name, (enum exec_socket)i, rec, &fds[i], e);
	for (unsigned i = first; i < end; i++) {
		if (r == 0)
			ret_fds[i - first] = fds[i];
		else
			fd_close(fds[i]);
	}
	return r;
}

int sockets_make(struct nm *nm, const char *name, struct exec_record *rec,
		 int ret_fds[EXEC_CORE_SOCKETS], struct err *e)
{
	if (mkdirat(nm->sockets_fd, name, 0711) < 0)
		return err_errno(e, -errno, "the folder of the sockets cannot be made");
	return sockets_bind(nm, name, 0, EXEC_CORE_SOCKETS, rec, ret_fds, e);
}

int sockets_make_gateway(struct nm *nm, const char *name, struct exec_record *rec,
			 int ret_fds[EXEC_SOCKET_COUNT - EXEC_CORE_SOCKETS], struct err *e)
{
	autoclose int dir =
		fd_openat_beneath(nm->sockets_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);

	if (dir < 0)
		return err_errno(e, dir, "the folder of the sockets cannot be opened");
	for (int i = EXEC_CORE_SOCKETS; i < EXEC_SOCKET_COUNT; i++) {
		if (unlinkat(dir, exec_socket_names[i], 0) < 0 && errno != ENOENT)
			return err_errno(e, -errno, "%s cannot be replaced", exec_socket_names[i]);
	}
	return sockets_bind(nm, name, EXEC_CORE_SOCKETS, EXEC_SOCKET_COUNT, rec, ret_fds, e);
}

int sockets_remove(struct nm *nm, const char *name)
{
	autoclose int dir =
		fd_openat_beneath(nm->sockets_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);

	if (dir < 0)
		return dir == -ENOENT ? 0 : dir;
	for (int i = 0; i < EXEC_SOCKET_COUNT; i++) {
		if (unlinkat(dir, exec_socket_names[i], 0) < 0 && errno != ENOENT)
			return -errno;
	}
	return unlinkat(nm->sockets_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT ? -errno : 0;
}

bool sockets_same(struct nm *nm, const struct exec_record *rec, enum exec_socket which)
{
	char path[EXEC_NAME_MAX + 32];
	struct stat st;

	return str_format(path, sizeof(path), "%s.%llu/%s", rec->sandbox,
			  (unsigned long long)rec->generation, exec_socket_names[which]) == 0 &&
	       fstatat(nm->sockets_fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       S_ISSOCK(st.st_mode) && st.st_dev == rec->socket[which].dev &&
	       st.st_ino == rec->socket[which].ino;
}

static int connect_once(const struct sockaddr_un *sa, int type, int *ret)
{
	autoclose int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0 || connect(fd, (const struct sockaddr *)sa, sizeof(*sa)) < 0)
		return -errno;
	*ret = TAKE_FD(fd);
	return 0;
}

/* Until somebody listens (or has room: EAGAIN), the process ends, or time is up. */
static int connect_retry(const struct sockaddr_un *sa, int type, int pidfd, int deadline_ms,
			 int *ret)
{
	int64_t end = clock_mono_ms() + deadline_ms;
	struct pollfd p = { .fd = pidfd, .events = POLLIN };

	for (;;) {
		int r = connect_once(sa, type, ret);

		if (r != -ECONNREFUSED && r != -EAGAIN)
			return r;
		if (clock_mono_ms() >= end)
			return r == -EAGAIN ? -ETIMEDOUT : r;
		if (poll(&p, 1, SOCKETS_RETRY_MS) > 0)
			return -ESRCH;
	}
}

int sockets_connect(struct nm *nm, const struct exec_record *rec, enum exec_socket which,
		    const struct exec_proc *proc, int deadline_ms, int *ret_fd, struct err *e)
{
	autoclose int pidfd = proc_pidfd_open((pid_t)proc->pid), fd = -1;
	struct proc_id id = { .pid = (pid_t)proc->pid, .start_ticks = proc->start };
	char name[EXEC_NAME_MAX];
	struct fd_peer peer;
	struct sockaddr_un sa;
	int r;

	if (pidfd < 0 || !proc_id_same(&id))
		return err_set_code(e, -ESRCH, "execution-gone", "the process behind %s has ended",
				    exec_socket_names[which]);
	if (!sockets_same(nm, rec, which))
		return err_set_code(e, -EPERM, "socket-replaced",
				    "%s is not the socket of this execution",
				    exec_socket_names[which]);
	exec_name(name, rec->sandbox, rec->generation);
	r = socket_address(nm, name, which, &sa, e);
	if (r < 0)
		return r;
	r = connect_retry(&sa, socket_kinds[which].type, pidfd, deadline_ms, &fd);
	if (r < 0)
		return err_errno(e, r, "%s does not answer", exec_socket_names[which]);
	r = fd_peer_cred(fd, &peer);
	if (r < 0 || (uint64_t)peer.pid != proc->pid || peer.uid != proc->uid)
		return err_set_code(e, -EPERM, "vmm-listener", "process %d of uid %u listens at %s",
				    (int)peer.pid, (unsigned)peer.uid, exec_socket_names[which]);
	r = fd_set_nonblock(fd, false);
	if (r < 0)
		return err_errno(e, r, "the connection's mode");
	*ret_fd = TAKE_FD(fd);
	return 0;
}
