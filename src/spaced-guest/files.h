/*
 * /files as the asking user: downloads (download.c) and uploads (files.c) in pieces. An upload goes
 * to a temporary file beside its target and is renamed when the whole body was there; several parts
 * are renamed together at the end. What cannot be replaced (a file in a folder that the user cannot
 * write, a mount point, a character device) is written in place.
 */
#ifndef GUEST_FILES_H
#define GUEST_FILES_H

#include <sys/stat.h>
#include "spaced-guest/serve.h"

#define FILES_PARTS_MAX 4096             /* files in one upload */
/* Of files_open: neither regular nor, for writing, a character device. */
#define FILES_NOT_A_FILE (-EMEDIUMTYPE)

void files_get(struct req *r, const char *body, size_t n);       /* also HEAD */
void files_post(struct req *r);
void files_compose(struct req *r, const char *body, size_t n);

/* User and path of a request; false = answered. *ret_path NULL when there is none. */
bool files_who_and_where(struct req *r, struct user *u, char **ret_path);
int files_status(int num);               /* HTTP status of a negative errno */
/*
 * Opens what may be opened without waiting and without an effect, as the current effective user:
 * the path is looked up with O_PATH, and the file that was found is opened by its descriptor, so
 * that a FIFO, a socket or a disk is refused before it notices. flags: O_RDONLY or O_WRONLY. The fd
 * or a negative errno; *ret_st is set when something was found.
 */
int files_open(const char *path, int flags, struct stat *ret_st);
/*
 * Names of the temporary files of uploads; watches hide them. *ret_replaces: the upload replaces a
 * file that is there.
 */
bool files_is_tmp(const char *name, bool *ret_replaces);

#endif
