#include "node-manager/verify.h"

#include <errno.h>
#include <poll.h>

#include "base/proc.h"
#include "base/str.h"
#include "node-manager/sockets.h"

static int verify_process(const struct exec *x, enum exec_who who, struct err *e)
{
	const struct exec_proc *p = &x->rec.proc[who];
	struct pollfd ended = { .fd = x->watch[who].pidfd, .events = POLLIN };
	struct proc_id id = { .pid = (pid_t)p->pid };
	uid_t uid;
	int r;

	if (ended.fd < 0 || poll(&ended, 1, 0) != 0)
		return err_set_code(e, -ESRCH, "process-gone", "the process %s has ended", exec_who_names[who]);
	r = proc_id_of((pid_t)p->pid, &id);
	if (r < 0 || id.start_ticks != p->start)
		return err_set_code(e, -EPERM, "process-reused", "process %llu is not the recorded %s: it began at another time",
				    (unsigned long long)p->pid, exec_who_names[who]);
	r = proc_uid_of((pid_t)p->pid, &uid);
	if (r < 0 || uid != p->uid)
		return err_set_code(e, -EPERM, "uid-changed", "%s does not run under its uid", exec_who_names[who]);
	return 0;
}

static int verify_executable(const struct exec *x, enum exec_who who, struct err *e)
{
	const struct exec_proc *p = &x->rec.proc[who];
	struct exec_file now;
	char path[64];

	str_format(path, sizeof(path), "/proc/%llu/exe", (unsigned long long)p->pid);
	if (exec_file_of(path, &now) < 0 || !exec_file_eq(&now, &p->exe))
		return err_set_code(e, -EPERM, "executable-changed", "the executable of %s was replaced or altered",
				    exec_who_names[who]);
	return 0;
}

int verify_execution(struct nm *nm, const struct exec *x, uint64_t bridge_pid, struct err *e)
{
	int r = 0;

	for (int i = 0; i < EXEC_WHO_COUNT && r == 0; i++)
		r = verify_process(x, (enum exec_who)i, e);
	if (r == 0)
		r = verify_executable(x, EXEC_VMM, e);
	if (r == 0)
		r = verify_executable(x, EXEC_BRIDGE, e);
	for (int i = 0; i < EXEC_SOCKET_COUNT && r == 0; i++) {
		if (!sockets_same(nm, &x->rec, (enum exec_socket)i))
			r = err_set_code(e, -EPERM, "socket-replaced", "%s is not the socket of this execution",
					 exec_socket_names[i]);
	}
	if (r == 0 && bridge_pid && bridge_pid != x->rec.proc[EXEC_BRIDGE].pid)
		r = err_set_code(e, -EPERM, "bridge-peer", "process %llu listens at the bridge's socket, not the bridge",
				 (unsigned long long)bridge_pid);
	return r;
}
