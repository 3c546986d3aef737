/* Descriptors. Everything is made close-on-exec. */
#ifndef BASE_FD_H
#define BASE_FD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define autoclose __attribute__((cleanup(fd_auto_close)))
#define TAKE_FD(fd) ({ int take_ = (fd); (fd) = -1; take_; })

void fd_auto_close(int *fd);
void fd_close(int fd);                                      /* < 0 is fine; errno is kept */
int fd_set_nonblock(int fd, bool on);
int fd_set_cloexec(int fd, bool on);
/*
 * A TCP peer that has gone without a word is asked after a minute of silence, and is dead (an error
 * of the socket) a minute later. Accepted sockets inherit it. On others: no harm.
 */
void fd_keep_alive(int fd);
int fd_write_all(int fd, const void *p, size_t n, int timeout_ms);     /* blocking or not; poll(2) inside */
ssize_t fd_read_full(int fd, void *p, size_t n, int timeout_ms);       /* bytes read; short only at end of file */
/*
 * Whole file, at most max bytes, as a C string (NUL-terminated, *ret_len without it). -EFBIG,
 * errno.
 */
int fd_read_file(int dirfd, const char *path, size_t max, char **ret, size_t *ret_len);
/*
 * The same where others may have put anything under that name: -EINVAL for what is no regular file
 * (opening a FIFO for reading waits for its writer).
 */
int fd_read_regular(int dirfd, const char *path, size_t max, char **ret, size_t *ret_len);
/*
 * Atomic: temporary name, write, fsync, rename, fsync of the folder. Who is killed over it leaves a
 * file whose name ends with FD_WRITE_SUFFIX.
 */
#define FD_WRITE_SUFFIX ".tmp"
int fd_write_file(int dirfd, const char *path, const void *p, size_t n, mode_t mode);
int fd_openat_beneath(int dirfd, const char *path, int flags, mode_t mode);   /* openat2, RESOLVE_BENEATH|NO_SYMLINKS */

/* SCM_RIGHTS. At most FD_PASS_MAX descriptors a message. */
#define FD_PASS_MAX 16
ssize_t fd_send(int sock, const void *p, size_t n, const int *fds, size_t n_fds, int flags);
/*
 * *n_fds in: room; out: received. Truncated control data or payload: everything is closed,
 * -EMSGSIZE.
 */
ssize_t fd_recv(int sock, void *p, size_t n, int *fds, size_t *n_fds, int flags);

struct fd_peer { pid_t pid; uid_t uid; gid_t gid; };
int fd_peer_cred(int sock, struct fd_peer *ret);            /* SO_PEERCRED */

int fd_unix_listen(const char *path, int type, mode_t mode, int backlog);     /* removes an old socket file first */
int fd_unix_connect(const char *path, int type, int timeout_ms);              /* SOCK_STREAM or SOCK_SEQPACKET */
int fd_mkdir_p(const char *path, mode_t mode);              /* existing folders are fine */

#endif
