/*
 * Test only: the other side of a QMP connection, played from a script by a thread. The script's
 * parts are separated by bytes of value 1: the first is sent at once, each further one after a
 * whole line from the client has come. After the last it stops writing (the client sees the end)
 * or, with `linger`, waits for the client to leave.
 */
#ifndef VMM_QMP_PEER_H
#define VMM_QMP_PEER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#define QMP_PEER_NEXT "\1"
#define QMP_PEER_HEARD_MAX 4096

struct qmp_peer {
	pthread_t thread;
	int fd;
	bool linger;
	const char *script;
	size_t n;
	char heard[QMP_PEER_HEARD_MAX];      /* what the client said, cut at the size */
	size_t n_heard, n_fds;               /* n_fds: descriptors that came along */
};

/* The client's descriptor. script is borrowed until qmp_peer_end. */
int qmp_peer_start(struct qmp_peer *p, const char *script, size_t n, bool linger);
void qmp_peer_end(struct qmp_peer *p);       /* after the client has closed its side */

#endif
