/* space cp: one copy, of a file or a folder, in one direction. cp.c; trees: cp_up.c, cp_down.c. */
#ifndef CLI_CP_H
#define CLI_CP_H

#include <sys/stat.h>
#include "cli/cli.h"

#define CP_FAILURES_SHOWN 100            /* beyond, they are only counted */
#define CP_TIMEOUT_MS 600000

struct cp {
	struct cli *c;
	struct box b;
	const char *user;                /* in the sandbox; NULL = its default */
	mode_t umask;
	uint64_t files, bytes;           /* copied; folders and links count as files */
	uint64_t size;                   /* of all; 0 = not known */
	uint64_t failed;
	json_t *failures;                /* with --json: [{"path", "message"}] */
	int64_t start_ms, shown_ms;
	bool shown;
	char what[64];                   /* the name that progress shows */
};

/* What the other side has at a path. */
enum cp_kind { CP_ABSENT, CP_IS_FILE, CP_IS_DIR };
int cp_remote_kind(struct cp *p, const char *path, enum cp_kind *ret, unsigned *ret_mode,
		   struct err *e);

/* A part was not copied: said at once (path is made harmless), the rest goes on. */
void cp_failed(struct cp *p, const char *path, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void cp_progress(struct cp *p, const char *name, uint64_t more_bytes);
void cp_progress_end(struct cp *p);

/*
 * A shell script in the sandbox with one path ("$p") that may hold any byte. The path's form is for
 * `cd` and others: never like an option, "~" is the user's home.
 */
#define CP_SCRIPT_HEAD "p=$(printf '%bx' \"$1\"); p=${p%x}; "
char *cp_octal(const char *path);

char *cp_join(const char *dir, const char *name);

/*
 * The program in the sandbox that packs or unpacks: what it says on stderr is shown line by line and
 * harmless; how it ended becomes the copy's result.
 */
struct cp_remote { struct cp *p; char line[1024]; size_t n; unsigned lines; };
int cp_remote_output(void *remote, int which, const char *data, size_t n, struct err *e);

/* A file of the sandbox from what `more` gives: bytes, 0 = the end, negative errno. */
typedef ssize_t cp_reader(void *arg, char *dst, size_t n);
int cp_upload(struct cp *p, const char *to, cp_reader *more, void *arg, struct err *e);

/* A local folder (its contents) to a folder of the sandbox, which is made; and the other way. */
int cp_up_tree(struct cp *p, const char *from, const char *to, struct err *e);
int cp_down_tree(struct cp *p, const char *from, const char *to, struct err *e);
int cp_tree_to_stdout(struct cp *p, const char *from, struct err *e);     /* -EPIPE: its reader went */

/* An archive on its way to a local folder (cp_down.c; also the fuzzer's way in). */
struct cp_down;
struct cp_down *cp_down_new(struct cp *p, int root_fd);
int cp_down_feed(struct cp_down *d, const char *data, size_t n, struct err *e);
/* False: the archive is not whole. Modes and times of folders are set now. */
bool cp_down_end(struct cp_down *d);
void cp_down_free(struct cp_down *d);                      /* half a file goes */
/*
 * The name of an entry as a path beneath the folder: without "./", doubled and final slashes. ""
 * for the folder itself; NULL for one that leads out ("/x", "a/../b") or is too long.
 */
char *cp_down_name(const char *name);

/* The local tree as an archive, piece by piece. */
struct cp_up;
struct cp_up *cp_up_new(struct cp *p, int root_fd, bool with_root);
ssize_t cp_up_read(struct cp_up *u, char *dst, size_t n);  /* bytes; 0 = the end */
void cp_up_free(struct cp_up *u);

#endif
