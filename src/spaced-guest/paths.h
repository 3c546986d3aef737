/*
 * Paths as a user means them: "~" and "~/x" are the home, relative ones start at the default
 * folder, else the home.
 */
#ifndef GUEST_PATHS_H
#define GUEST_PATHS_H

#include "base/err.h"
#include "spaced-guest/agent.h"

#define PATHS_MAX 4096

/*
 * An absolute path without "//", "." and ".." (taken as text); caller frees. -EINVAL,
 * -ENAMETOOLONG.
 */
int path_resolve(const struct agent *a, const struct user *u, const char *path, char **ret,
		 struct err *e);
const char *path_name(const char *path);         /* behind the last slash; "/" for the root */
/* Makes the folders above path, as the current effective user. 0 or errno. */
int path_make_parents(const char *path, mode_t mode);

#endif
