/*
 * The main of a fuzzer in a normal build: gives every file of the folders (or each file) named as
 * arguments to LLVMFuzzerTestOneInput once. A corpus that is empty or cannot be read is a failure,
 * so that the test cannot pass by testing nothing.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/alloc.h"
#include "base/fd.h"

#define FUZZ_INPUT_MAX (4 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(int dirfd, const char *name)
{
	autofree char *text = NULL;
	size_t n;
	int r = fd_read_file(dirfd, name, FUZZ_INPUT_MAX, &text, &n);

	if (r < 0) {
		fprintf(stderr, "%s: %s\n", name, strerror(-r));
		return r;
	}
	/* A copy of exactly this size, so that a sanitizer sees a read past its end. */
	autofree uint8_t *copy = malloc(n > 0 ? n : 1);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, text, n);
	LLVMFuzzerTestOneInput(copy, n);
	return 0;
}

/* The number of files replayed, or negative errno. */
static int replay(const char *path)
{
	struct stat st;
	int count = 0, r = 0;

	if (stat(path, &st) < 0)
		return -errno;
	if (S_ISREG(st.st_mode))
		return replay_file(AT_FDCWD, path) < 0 ? -EIO : 1;
	DIR *d = opendir(path);
	if (!d)
		return -errno;
	for (struct dirent *ent; r == 0 && (ent = readdir(d));) {
		if (ent->d_name[0] == '.')
			continue;
		r = replay_file(dirfd(d), ent->d_name);
		count += r == 0;
	}
	closedir(d);
	return r < 0 ? r : count;
}

int main(int argc, char **argv)
{
	int total = 0;

	for (int i = 1; i < argc; i++) {
		int n = replay(argv[i]);
		if (n < 0) {
			fprintf(stderr, "%s: %s\n", argv[i], strerror(-n));
			return 1;
		}
		total += n;
	}
	printf("%d inputs replayed\n", total);
	return total > 0 ? 0 : 1;
}
