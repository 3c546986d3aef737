/*
 * Listening sockets and dialling by address form. Listening sockets may be inherited from a
 * predecessor or a supervisor: LISTEN_FDS/LISTEN_FDNAMES as systemd passes them (sd_listen_fds(3));
 * the name is the `name` below.
 *
 * Address forms: "unix:/path", "tcp:127.0.0.1:8080", "tcp:[::1]:8080".
 */
#ifndef LOOP_LISTEN_H
#define LOOP_LISTEN_H

#include <sys/types.h>
#include "loop/loop.h"

struct err;
struct listener;

/*
 * fn owns the accepted fd (non-blocking, close-on-exec). On EMFILE accepting pauses for a second.
 */
int listener_new(struct loop *l, const char *name, const char *addr, mode_t unix_mode,
		 void (*fn)(int fd, void *arg), void *arg, struct listener **ret, struct err *e);
/* In two steps, for a port that only root may bind: the socket, inherited or made; then the listener. */
int listen_named(const char *name, const char *addr, mode_t unix_mode, struct err *e);
/* Owns fd, also on failure. */
int listener_new_fd(struct loop *l, int fd, void (*fn)(int fd, void *arg), void *arg,
		    struct listener **ret, struct err *e);
void listener_free(struct listener *ln);
int listener_fd(const struct listener *ln);
int listen_addr(const char *addr, int type, mode_t unix_mode, struct err *e);      /* the bound and listening fd */

/* Starts a non-blocking connect; the fd may still be in progress. */
int dial_start(const char *addr, struct err *e);
int dial_wait(const char *addr, int timeout_ms, struct err *e);                    /* blocking, for workers */

#endif
