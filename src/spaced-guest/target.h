/*
 * One file of an upload: a temporary file beside it that takes its place at the end, or the file
 * itself where it cannot be replaced. All functions but target_done act as the current effective
 * user.
 */
#ifndef GUEST_TARGET_H
#define GUEST_TARGET_H

#include <stdbool.h>
#include "http/http.h"

struct target {
	char *shown;                             /* as the user named it */
	char *path;                              /* links followed */
	char *tmp;                               /* NULL = written in place */
	bool replaces;                           /* as the name of tmp says */
};

/*
 * Links are followed, folders made. An fd to write to, or a negative errno; FILES_NOT_A_FILE.
 * `path` is copied.
 */
int target_open(struct target *t, const char *path);
int target_commit(struct target *t);             /* tmp takes its place */
void target_done(struct target *t);              /* removes tmp when it is still there; as root */

/*
 * The X-Metadata-KEY fields of an upload as the attributes user.e2b.key of an open file, instead of
 * those that it had. metadata_check: -EINVAL when there are too many or other characters than
 * printable ASCII; metadata_put: -E2BIG when the file system has no room for so many, errno.
 */
int metadata_check(const struct http_head *h);
int metadata_put(const struct http_head *h, int fd);

#endif
