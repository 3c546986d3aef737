/* For tests of processes that pass bytes on: fills what lies before one that takes no more. */
#ifndef LOOP_TEST_FILL_H
#define LOOP_TEST_FILL_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"

#define FILL_DEADLINE_MS 60000
#define FILL_LOOK_MS 50

/* The process has nothing to do: it sleeps, however long it had to wait for a processor. */
static inline bool fill_asleep(pid_t pid)
{
	char path[64];
	autofree char *text = NULL;
	const char *state;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	assert_int_equal(fd_read_file(AT_FDCWD, path, 4096, &text, NULL), 0);
	state = strrchr(text, ')');
	assert_non_null(state);
	return state[2] == 'S';
}

/* Writes until the socket takes no more, and `reader` takes nothing from it. Bytes. */
static inline uint64_t fill_socket(int fd, pid_t reader)
{
	static const char block[16384] = { 'H' };
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	int64_t end = clock_mono_ms() + FILL_DEADLINE_MS;
	uint64_t sent = 0;

	while (clock_mono_ms() < end) {
		ssize_t n;

		if (poll(&p, 1, FILL_LOOK_MS) == 0 && fill_asleep(reader) && poll(&p, 1, 0) == 0)
			return sent;
		n = send(fd, block, sizeof(block), MSG_DONTWAIT | MSG_NOSIGNAL);
		assert_true(n > 0 || errno == EAGAIN);
		sent += n > 0 ? (uint64_t)n : 0;
	}
	fail_msg("it always takes more");
	return sent;
}

#endif
