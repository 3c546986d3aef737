/*
 * An archive of a hostile sandbox, to its unpacked state: nothing may appear beside the folder, and
 * the folder is the only thing that changes. The input's first byte is the size of the pieces.
 */
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/str.h"
#include "cli/cp.h"
#include "cli/tar.h"

#define FUZZ_TAR_BYTES_MAX 65536

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

void cp_failed(struct cp *p, const char *path, const char *fmt, ...)
{
	autofree char *safe = text_safe(path, strlen(path));

	if (!str_utf8_ok(safe, strlen(safe)))
		abort();
}

void cp_progress(struct cp *p, const char *name, uint64_t more_bytes)
{
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
	if (type == FTW_DNR)
		(void)chmod(path, 0700);
	return remove(path);
}

static unsigned entries_of(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 ? (unsigned)st.st_nlink : 0;
}

static void unpack(int root, const char *p, size_t n, size_t step)
{
	struct cp copy = { .umask = 022 };
	struct cp_down *d = cp_down_new(&copy, root);
	int r = 0;

	for (size_t off = 0; off < n && r == 0; off += step)
		r = cp_down_feed(d, p + off, n - off < step ? n - off : step, NULL);
	cp_down_end(d);
	cp_down_free(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char top[] = "/tmp/space-fuzz-tar-XXXXXX", dir[64];
	int root;

	if (size < 1 || size > FUZZ_TAR_BYTES_MAX || !mkdtemp(top))
		return 0;
	(void)str_format(dir, sizeof(dir), "%s/in", top);
	if (mkdir(dir, 0700) < 0 || (root = open(dir, O_RDONLY | O_DIRECTORY)) < 0)
		abort();
	unpack(root, (const char *)data + 1, size - 1, data[0] ? data[0] * 8u : 1);
	close(root);
	/* Links that lead out may stand in it, what they name may not have been touched. */
	if (entries_of(top) != 3)
		abort();
	nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	if (rmdir(top) < 0) {
		nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
		if (rmdir(top) < 0)
			abort();
	}
	return 0;
}
