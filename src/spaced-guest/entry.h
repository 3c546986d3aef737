/*
 * EntryInfo of filesystem.Filesystem: what is told about one file, in the words of the SDKs. Never
 * opens the file itself, so that a FIFO or a device is looked at like anything else.
 */
#ifndef GUEST_ENTRY_H
#define GUEST_ENTRY_H

#include <stdbool.h>
#include <sys/types.h>
#include "base/buf.h"
#include "spaced-guest/users.h"

#define ENTRY_XATTR "user.e2b."          /* X-Metadata-KEY of an upload is user.e2b.KEY */
#define ENTRY_KEY_MAX 246                /* names of attributes have at most 255 bytes */
#define ENTRY_METADATA_MAX 4096          /* bytes of all keys and values; the rest is not told */
#define ENTRY_MODE_LEN 16

/*
 * The entry as a JSON object, as the current effective user. 0, -ENOBUFS, or why it cannot be
 * looked at; then nothing is written. *ret_dir (may be NULL): a real folder, no link to one.
 */
int entry_put(struct buf *b, struct users_names *names, const char *path, bool *ret_dir);
/* {"key":"value",...} of a file; nothing and 0 when there is none. `before` is put before it. */
int entry_put_metadata(struct buf *b, const char *path, const char *before);
/* As Go prints a mode: letters for what it is, then rwx three times. */
void entry_mode(char dst[ENTRY_MODE_LEN], mode_t mode);

#endif
