/*
 * jail-init: process 1 of the PID namespace that a sandbox's VMM and bridge share.
 *
 * Theory of operation
 *
 * node-manager's forked child has made the namespaces, forked both programs, given up every right
 * of this process (the spare uid of the sandbox, no capability, an empty read-only root, its own
 * system-call filter) and executed this file, all before either program runs. Descriptor 3 is a
 * SOCK_SEQPACKET pair whose other end node-manager holds.
 *
 *	HALF MADE   waits for the packet "go", which says that the execution has a record. End of file instead: whoever
 *	            built the execution is dead, so it ends, and the kernel ends the whole namespace with it.
 *	WHOLE       reaps. Each child's end is told as "PID STATUS" (the PID inside the namespace; status as wait(2)).
 *	            A broken link changes nothing any more: the sandbox outlives node-manager.
 *
 * It decides nothing: a bridge that died leaves the VMM running until node-manager says otherwise.
 * With no child left it ends. Its death, by whatever cause, is the death of VMM and bridge
 * (pid_namespaces(7)).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jail-init/jail_init.h"

/* False: the builder is gone. */
static int wait_for_go(void)
{
	char word[8];
	ssize_t n;

	do {
		n = recv(JAIL_INIT_LINK_FD, word, sizeof(word), 0);
	} while (n < 0 && errno == EINTR);
	return n == (ssize_t)strlen(JAIL_INIT_GO) && memcmp(word, JAIL_INIT_GO, (size_t)n) == 0;
}

int main(void)
{
	char line[JAIL_INIT_MSG_MAX];
	int status;
	pid_t pid;

	prctl(PR_SET_NAME, "jail-init");
	if (!wait_for_go())
		return 1;
	for (;;) {
		pid = waitpid(-1, &status, 0);
		if (pid < 0 && errno == EINTR)
			continue;
		if (pid < 0)
			return 0;
		snprintf(line, sizeof(line), "%d %u", (int)pid, (unsigned)status);
		send(JAIL_INIT_LINK_FD, line, strlen(line), MSG_NOSIGNAL | MSG_DONTWAIT);
	}
}
