#include "spaced-guest/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/fd.h"

int terminal_resize(int master, uint16_t cols, uint16_t rows)
{
	struct winsize w = { .ws_col = cols, .ws_row = rows };

	return ioctl(master, TIOCSWINSZ, &w) < 0 ? -errno : 0;
}

int terminal_open(uint16_t cols, uint16_t rows, const struct user *owner, int *ret_master,
		  int *ret_slave)
{
	autoclose int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	autoclose int slave = -1;
	int unlocked = 0, r;

	if (master < 0 || ioctl(master, TIOCSPTLCK, &unlocked) < 0)
		return -errno;
	/*
	 * By the master, not by a path: the guest's /dev/pts may be anything (TIOCGPTPEER, kernel
	 * 4.13).
	 */
	slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (slave < 0)
		return -errno;
	r = terminal_resize(master, cols, rows);
	if (r < 0)
		return r;
	if (getuid() == 0 && fchown(slave, owner->uid, (gid_t)-1) < 0)
		return -errno;
	*ret_master = TAKE_FD(master);
	*ret_slave = TAKE_FD(slave);
	return 0;
}
