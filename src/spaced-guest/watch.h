/*
 * Watching folders, as the asking user: an inotify descriptor for each watch, read in pieces.
 *
 * Theory of operation
 *
 * States: a watch is SCANNING until all folders below are watched (at once when it is not
 * recursive), then RUNNING until it is freed or ENDED: the folder is gone, a limit was passed, or
 * the kernel's queue overflowed. A watch that has ended tells what came before its end, then why.
 * Nothing is passed over in silence, and an ended watch never goes on.
 *
 * New folders (recursive): the kernel reports the folder after it was made, so files may be in it
 * before it is watched. The folder is first watched, then read, and what is in it is reported as
 * created (and written, where it has contents). What is both read and reported by the kernel is
 * told once: the kernel's report can only be in the queue already, so the names that were read are
 * remembered until what was queued at the end of the reading has passed. A folder that is renamed
 * is dropped with all below it and read again under its new name. What cannot be seen this way: a
 * file that was made and removed again before its new folder was watched.
 *
 * Flow: the kernel's queue is read while the watch's own queue has room (WATCH_QUEUE_MAX, all
 * together WATCH_QUEUES_MAX). A client that does not take its events fills both; then the kernel
 * says so, and the watch ends.
 *
 * Uploads: an upload goes to a temporary file that takes its target's place (target.h). The
 * temporary name is not reported; its renaming is reported as the writing of the target, after its
 * making when it was not there.
 */
#ifndef GUEST_WATCH_H
#define GUEST_WATCH_H

#include <stdbool.h>
#include "base/err.h"
#include "spaced-guest/agent.h"
#include "spaced-guest/connect.h"

#define WATCH_MAX 64                     /* in a sandbox */
#define WATCH_DIRS_MAX 16384             /* folders of all of them */
#define WATCH_QUEUE_MAX (4u << 20)       /* bytes of events of one that were not taken */
#define WATCH_QUEUES_MAX (16u << 20)     /* and of all */
#define WATCH_EVENT_MAX (160u << 10)     /* one event, as JSON */

enum watch_state { WATCH_SCANNING, WATCH_RUNNING, WATCH_ENDED };

struct watch;

/* All watches of the agent. */
struct watches {
	struct list all, polled;         /* struct watch; struct watcher of watch_rpc.c */
	unsigned n, dirs;
	size_t bytes;                    /* of their queues */
};
struct watches *watches_new(void);
void watches_free(struct watches *ws);   /* they are empty */

struct watch_options {
	bool recursive;
	bool entries;                    /* EntryInfo in events of what is still there */
	bool network;                    /* network file systems too */
};

/*
 * `path` is copied. The folder itself is watched at once: -ENOENT, -ENOTDIR, -EACCES, -EOPNOTSUPP
 * (a network file system), -EAGAIN (a limit), each with a sentence. `wake` (may be NULL, and may
 * free the watch) is called in a later turn when SCANNING has ended.
 */
int watch_new(struct agent *a, const struct user *u, const char *path,
	      const struct watch_options *o, void (*wake)(struct watch *w, void *arg), void *arg,
	      struct watch **ret, struct err *e);
void watch_free(struct watch *w);
enum watch_state watch_state(const struct watch *w);
/* Why it has ended. */
enum connect_code watch_end_code(const struct watch *w);
const char *watch_end_text(const struct watch *w);
/* Takes in what the kernel has now, within a bound. */
void watch_catch_up(struct watch *w);
/*
 * The oldest event, {"name":...,"type":...[,"entry":...]}; false = none. Valid until the next call
 * on the watch.
 */
bool watch_peek(struct watch *w, const char **ret, size_t *ret_n);
void watch_pop(struct watch *w);

#endif
