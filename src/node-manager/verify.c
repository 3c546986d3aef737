#include "node-manager/verify.h"

#include <errno.h>
#include <poll.h>
#include <sys/stat.h>

#include "base/str.h"
#include "node-manager/sockets.h"

/*
 * One poll(2) for all. A pidfd was opened first and the start time of its process compared
 * then (watch.c), so while it does not say that its process has ended, the number belongs to that
 * process and to no other.
 */
static int verify_alive(const struct exec *x, int first, int end, struct err *e)
{
	struct pollfd p[EXEC_WHO_COUNT];

	for (int i = first; i < end; i++) {
		p[i] = (struct pollfd){ .fd = x->watch[i].pidfd, .events = POLLIN };
		if (p[i].fd < 0)
			return err_set_code(e, -ESRCH, "process-gone", "the process %s has ended",
					    exec_who_names[i]);
	}
	if (poll(&p[first], (nfds_t)(end - first), 0) == 0)
		return 0;
	for (int i = first; i < end; i++) {
		if (p[i].revents)
			return err_set_code(e, -ESRCH, "process-gone", "the process %s has ended",
					    exec_who_names[i]);
	}
	return err_set_code(e, -ESRCH, "process-gone", "the processes cannot be watched");
}

/*
 * One that is on its way out has no memory any more: then its folder is root's and its executable
 * is gone, before its pidfd says anything. A process that runs has one.
 */
static int verify_failed(const struct exec_proc *p, enum exec_who who, const char *code,
			 bool executable, struct err *e)
{
	struct stat st;
	char path[64];

	str_format(path, sizeof(path), "/proc/%llu/exe", (unsigned long long)p->pid);
	if (stat(path, &st) < 0 && errno == ENOENT)
		return err_set_code(e, -ESRCH, "process-gone", "the process %s is ending",
				    exec_who_names[who]);
	return err_set_code(e, -EPERM, code,
			    executable ? "the executable of %s was replaced or altered"
				       : "%s does not run under its uid",
			    exec_who_names[who]);
}

/*
 * The folder belongs to the effective uid of a dumpable process (proc(5)); neither program changes
 * that.
 */
static int verify_uid(const struct exec *x, enum exec_who who, struct err *e)
{
	const struct exec_proc *p = &x->rec.proc[who];
	struct stat st;
	char path[32];

	str_format(path, sizeof(path), "/proc/%llu", (unsigned long long)p->pid);
	if (stat(path, &st) < 0 || st.st_uid != p->uid || st.st_gid != p->uid)
		return verify_failed(p, who, "uid-changed", false, e);
	return 0;
}

static int verify_executable(const struct exec *x, enum exec_who who, struct err *e)
{
	const struct exec_proc *p = &x->rec.proc[who];
	struct exec_file now;
	char path[64];

	str_format(path, sizeof(path), "/proc/%llu/exe", (unsigned long long)p->pid);
	if (exec_file_of(path, &now) < 0 || !exec_file_eq(&now, &p->exe))
		return verify_failed(p, who, "executable-changed", true, e);
	return 0;
}

static int verify_sockets(struct nm *nm, const struct exec *x, int first, int end, struct err *e)
{
	for (int i = first; i < end; i++) {
		if (!sockets_same(nm, &x->rec, (enum exec_socket)i))
			return err_set_code(e, -EPERM, "socket-replaced",
					    "%s is not the socket of this execution",
					    exec_socket_names[i]);
	}
	return 0;
}

static int verify_gateway(struct nm *nm, const struct exec *x, uint64_t pid, struct err *e)
{
	int r = verify_alive(x, EXEC_GATEWAY, EXEC_WHO_COUNT, e);

	if (r == 0)
		r = verify_uid(x, EXEC_GATEWAY, e);
	if (r == 0)
		r = verify_executable(x, EXEC_GATEWAY, e);
	if (r == 0)
		r = verify_sockets(nm, x, EXEC_CORE_SOCKETS, EXEC_SOCKET_COUNT, e);
	if (r == 0 && pid != x->rec.proc[EXEC_GATEWAY].pid)
		r = err_set_code(e, -EPERM, "gateway-peer",
				 "process %llu listens at the gateway's socket, not the gateway",
				 (unsigned long long)pid);
	return r;
}

int verify_execution(struct nm *nm, const struct exec *x, uint64_t bridge_pid,
		     uint64_t gateway_pid, struct err *e)
{
	int r = verify_alive(x, 0, EXEC_CORE_COUNT, e);

	for (int i = 0; i < EXEC_CORE_COUNT && r == 0; i++)
		r = verify_uid(x, (enum exec_who)i, e);
	if (r == 0)
		r = verify_executable(x, EXEC_VMM, e);
	if (r == 0)
		r = verify_executable(x, EXEC_BRIDGE, e);
	if (r == 0)
		r = verify_sockets(nm, x, 0, EXEC_CORE_SOCKETS, e);
	if (r == 0 && bridge_pid && bridge_pid != x->rec.proc[EXEC_BRIDGE].pid)
		r = err_set_code(e, -EPERM, "bridge-peer",
				 "process %llu listens at the bridge's socket, not the bridge",
				 (unsigned long long)bridge_pid);
	if (r == 0 && gateway_pid)
		r = verify_gateway(nm, x, gateway_pid, e);
	return r;
}
