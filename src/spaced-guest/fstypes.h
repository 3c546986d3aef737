/* Kinds of file systems, by the magic number that statfs(2) tells. */
#ifndef GUEST_FSTYPES_H
#define GUEST_FSTYPES_H

#include <stdbool.h>
#include <sys/vfs.h>

/* Files that are made as they are read (/proc, /sys): what stat tells as their size is no size. */
bool fs_is_made_up(const struct statfs *fs);
/* Changes that others make may not be seen, and it may not answer. */
bool fs_is_network(const struct statfs *fs);

#endif
