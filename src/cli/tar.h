/*
 * Tar archives, sans-I/O: what `space cp` sends to and takes from the tar(1) of a sandbox. Written
 * in GNU's form; read: ustar, GNU (long names, sizes in base 256) and PAX (path, linkpath, size).
 *
 * An archive comes from a sandbox, so nothing in it is believed: checksums are checked, names have
 * TAR_NAME_MAX bytes at most and no NUL, extension headers TAR_EXTRA_MAX. What is done with a name
 * is the reader's own business (cp_down.c).
 */
#ifndef CLI_TAR_H
#define CLI_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/buf.h"

#define TAR_BLOCK 512
#define TAR_NAME_MAX 8192
#define TAR_EXTRA_MAX 65536

enum tar_type { TAR_FILE, TAR_DIR, TAR_SYMLINK, TAR_HARDLINK, TAR_OTHER, TAR_TYPE_COUNT };

struct tar_entry {
	enum tar_type type;
	char *name, *link;               /* link: "" unless it is one */
	unsigned mode;                   /* 07777 */
	uint64_t size;                   /* of its contents; only a file has some */
	int64_t mtime_s;
};

/* The head of an entry, without its contents and their padding. -ENAMETOOLONG, -ENOBUFS. */
int tar_put(struct buf *b, const struct tar_entry *t);
size_t tar_padding(uint64_t size);                         /* bytes of zeros behind contents of this size */
#define TAR_END_BYTES (2 * TAR_BLOCK)                      /* of zeros at the end of an archive */

enum tar_event {
	TAR_MORE,                        /* all input was used */
	TAR_ENTRY,                       /* t->entry is a new one; valid until the next */
	TAR_DATA,                        /* a piece of its contents */
	TAR_DONE,                        /* its contents are whole */
	TAR_END,                         /* the archive ended; what follows is ignored */
};

struct tar {
	int state;
	unsigned char block[TAR_BLOCK];
	size_t have;
	uint64_t left;                   /* contents, then padding */
	size_t pad;
	char kind;                       /* of an extension header that is being read */
	struct buf extra;
	char *long_name, *long_link;     /* for the next entry */
	int64_t pax_size;                /* likewise; -1 = none */
	struct tar_entry entry;
};

void tar_init(struct tar *t);
void tar_done(struct tar *t);
/*
 * Takes a part of p[0..n): *ret_used bytes. With TAR_DATA, *ret_data and *ret_n are a piece inside
 * of p. -EBADMSG: no archive.
 */
int tar_feed(struct tar *t, const char *p, size_t n, size_t *ret_used, const char **ret_data,
	     size_t *ret_n);
/* At the end of the stream: is it a whole archive? (One without end marks, between entries, is.) */
bool tar_whole(const struct tar *t);

#endif
