#include "base/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"

#define PROC_FILE_MAX 16384

static int proc_read(pid_t pid, const char *name, char **ret)
{
	char path[64];
	int r;

	if (pid <= 0)
		return -EINVAL;
	str_format(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
	r = fd_read_file(AT_FDCWD, path, PROC_FILE_MAX, ret, NULL);
	return r == -ENOENT ? -ESRCH : r;
}

/*
 * State (field 3) and start time (field 22); the command in field 2 may hold anything, so from the
 * last ')'.
 */
static int proc_stat(pid_t pid, char *ret_state, uint64_t *ret_start)
{
	autofree char *text = NULL;
	char *p;
	int r = proc_read(pid, "stat", &text);

	if (r < 0)
		return r;
	p = strrchr(text, ')');
	if (!p || p[1] != ' ' || !p[2])
		return -EBADMSG;
	p += 2;
	*ret_state = *p;
	for (int field = 3; field < 22; field++) {
		p = strchr(p, ' ');
		if (!p)
			return -EBADMSG;
		p++;
	}
	return str_to_u64_n(p, strcspn(p, " \n"), UINT64_MAX, ret_start) < 0 ? -EBADMSG : 0;
}

int proc_id_of(pid_t pid, struct proc_id *ret)
{
	uint64_t start;
	char state;
	int r = proc_stat(pid, &state, &start);

	if (r < 0)
		return r;
	*ret = (struct proc_id){ .pid = pid, .start_ticks = start };
	return 0;
}

bool proc_id_same(const struct proc_id *id)
{
	uint64_t start;
	char state;

	if (proc_stat(id->pid, &state, &start) < 0)
		return false;
	return start == id->start_ticks && state != 'Z' && state != 'X';
}

int proc_pidfd_open(pid_t pid)
{
	long r = syscall(SYS_pidfd_open, pid, 0);

	return r < 0 ? -errno : (int)r;
}

int proc_pidfd_signal(int pidfd, int sig)
{
	return syscall(SYS_pidfd_send_signal, pidfd, sig, NULL, 0) < 0 ? -errno : 0;
}

int proc_close_fds_from(int lowest)
{
	if (lowest < 0)
		return -EINVAL;
	return syscall(SYS_close_range, (unsigned)lowest, ~0U, 0) < 0 ? -errno : 0;
}
