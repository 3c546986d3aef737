/*
 * Request bodies from JSON (proto3 JSON as the SDKs send it, see docs/e2b.md): pure functions,
 * fuzzed. Names in lowerCamelCase or snake_case; unknown fields are passed over; null is as absent.
 * 0, or -EINVAL with a sentence in e. What they return is freed by the _done functions, which may
 * be called on a zeroed struct.
 */
#ifndef GUEST_DECODE_H
#define GUEST_DECODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "base/err.h"

#define DECODE_BODY_MAX (8 << 20)                /* any JSON body */
#define DECODE_VALUES_MAX 65536                  /* values and names in it */
#define DECODE_ARGS_MAX 8192
#define DECODE_ENVS_MAX 2048
#define DECODE_TAG_MAX 256
#define DECODE_ENTROPY_MAX 4096
#define DECODE_ENTROPY_MIN 64
#define DECODE_TTY_MAX 10000                     /* rows, columns */

/* Environment: "NAME=value" strings, ends with NULL. */
struct envs { char **v; size_t n; };
void envs_done(struct envs *e);

struct start_req {
	char **argv;                             /* cmd and args, ends with NULL */
	struct envs envs;
	char *cwd, *tag;                         /* NULL = absent */
	bool pty;
	uint16_t cols, rows;
	bool stdin_pipe;                         /* default true */
};
int decode_start(const char *body, size_t n, struct start_req *ret, struct err *e);
void start_req_done(struct start_req *r);

/* Which process: by pid or by tag. */
struct selector { int pid; char tag[DECODE_TAG_MAX + 1]; };
int decode_selector(const char *body, size_t n, struct selector *ret, struct err *e);

struct input_req { struct selector sel; bool pty; uint8_t *data; size_t n; };
int decode_input(const char *body, size_t n, struct input_req *ret, struct err *e);
void input_req_done(struct input_req *r);

/* One message of StreamInput. input: the selector of a START, the bytes of a DATA. */
enum stream_input { STREAM_INPUT_START, STREAM_INPUT_DATA, STREAM_INPUT_KEEPALIVE };
int decode_stream_input(const char *body, size_t n, enum stream_input *ret_what,
			struct input_req *ret, struct err *e);

int decode_nothing(const char *body, size_t n, struct err *e);   /* an object without known fields */

struct signal_req { struct selector sel; int sig; };
int decode_signal(const char *body, size_t n, struct signal_req *ret, struct err *e);

struct update_req { struct selector sel; uint16_t cols, rows; };
int decode_update(const char *body, size_t n, struct update_req *ret, struct err *e);

/*
 * filesystem.Filesystem: Stat, MakeDir, ListDir, Remove have path ("" when absent) and depth; Move
 * has source and destination, which must be there; WatchDir and CreateWatcher have path and
 * options; GetWatcherEvents and RemoveWatcher the watcher's ID.
 */
struct path_req {
	char *path, *destination;
	uint32_t depth;
	/* Of watches: folders below; EntryInfo in events; network mounts too. */
	bool recursive, entries, network;
};
int decode_path(const char *body, size_t n, struct path_req *ret, struct err *e);
int decode_move(const char *body, size_t n, struct path_req *ret, struct err *e);
int decode_watch(const char *body, size_t n, struct path_req *ret, struct err *e);
void path_req_done(struct path_req *r);

#define DECODE_WATCHER_MAX 64
struct watcher_req { char id[DECODE_WATCHER_MAX + 1]; };
int decode_watcher(const char *body, size_t n, struct watcher_req *ret, struct err *e);

struct init_req {
	char sandbox[64], tenant[64], template[128], hostname[65], machine_id[33], boot_id[37];
	char access_token[129], default_user[64];
	char *default_workdir;                   /* NULL = absent or "" */
	uint64_t generation;
	uint8_t activation[16];
	uint8_t entropy[DECODE_ENTROPY_MAX];
	size_t n_entropy;
	int64_t wall_ms;
	struct envs envs;
};
int decode_init(const char *body, size_t n, struct init_req *ret, struct err *e);
void init_req_done(struct init_req *r);          /* wipes token and entropy */

int decode_prepare(const char *body, size_t n, bool *ret_warm, struct err *e);

#endif
