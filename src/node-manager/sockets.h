/*
 * The sockets of an execution, RUN/sbx/<name>/: qmp.sock and chan.sock (root 0600; the VMM
 * listens), bridge.sock and control.sock (owner space-sbx 0600; the bridge listens), gtw.sock and
 * gtwctl.sock (the same; the gateway listens; there once it was started). They are bound
 * here and handed over unlistened: SO_PEERCRED of a connection shows who called listen(2) last
 * (unix(7)), so it shows the program itself.
 */
#ifndef NODE_MANAGER_SOCKETS_H
#define NODE_MANAGER_SOCKETS_H

#include "base/err.h"
#include "node-manager/nm.h"

#define SOCKETS_FOLDER "sbx"             /* in RUN */

/* Folder and the first four. Fills rec->socket. On success the descriptors are the caller's. */
int sockets_make(struct nm *nm, const char *name, struct exec_record *rec,
		 int ret_fds[EXEC_CORE_SOCKETS], struct err *e);
/* The gateway's two, in place of those of a former one. */
int sockets_make_gateway(struct nm *nm, const char *name, struct exec_record *rec,
			 int ret_fds[EXEC_SOCKET_COUNT - EXEC_CORE_SOCKETS], struct err *e);
int sockets_remove(struct nm *nm, const char *name);                     /* not there: success */
/* Is the socket's file the one that was made for this execution? */
bool sockets_same(struct nm *nm, const struct exec_record *rec, enum exec_socket which);

/*
 * Connects, waiting up to deadline_ms until the listener is there; the peer must be proc.
 * -ECONNREFUSED: nobody listens; -ESRCH: the process has ended; -EPERM "vmm-listener": somebody
 * else listens.
 */
int sockets_connect(struct nm *nm, const struct exec_record *rec, enum exec_socket which,
		    const struct exec_proc *proc, int deadline_ms, int *ret_fd, struct err *e);

#endif
