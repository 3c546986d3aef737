/* See qmp_peer.h. */
#include "vmm/qmp_peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/fd.h"

/* Reads until a line has ended. False at the end of the connection. */
static bool hear_line(struct qmp_peer *p)
{
	char block[512];

	for (;;) {
		int fds[FD_PASS_MAX];
		size_t n_fds = FD_PASS_MAX, room;
		ssize_t n = fd_recv(p->fd, block, sizeof(block), fds, &n_fds, 0);

		if (n <= 0)
			return false;
		for (size_t i = 0; i < n_fds; i++)
			fd_close(fds[i]);
		p->n_fds += n_fds;
		room = sizeof(p->heard) - 1 - p->n_heard;
		room = (size_t)n < room ? (size_t)n : room;
		memcpy(p->heard + p->n_heard, block, room);
		p->n_heard += room;
		if (block[n - 1] == '\n')
			return true;
	}
}

static void *play(void *arg)
{
	struct qmp_peer *p = arg;
	const char *s = p->script, *end = s + p->n;

	for (;;) {
		const char *next = memchr(s, QMP_PEER_NEXT[0], (size_t)(end - s));
		size_t n = (size_t)((next ? next : end) - s);

		if (fd_write_all(p->fd, s, n, 60000) < 0 || !next)
			break;
		s = next + 1;
		if (!hear_line(p))
			break;
	}
	if (!p->linger)
		shutdown(p->fd, SHUT_WR);
	while (hear_line(p))
		;
	return NULL;
}

int qmp_peer_start(struct qmp_peer *p, const char *script, size_t n, bool linger)
{
	int s[2];

	memset(p, 0, sizeof(*p));
	p->script = script;
	p->n = n;
	p->linger = linger;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) < 0)
		abort();
	p->fd = s[1];
	if (pthread_create(&p->thread, NULL, play, p) != 0)
		abort();
	return s[0];
}

void qmp_peer_end(struct qmp_peer *p)
{
	pthread_join(p->thread, NULL);
	fd_close(p->fd);
}
