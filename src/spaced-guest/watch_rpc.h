/*
 * filesystem.Filesystem: WatchDir (a stream) and the polled watchers CreateWatcher,
 * GetWatcherEvents, RemoveWatcher. A watch that has ended (watch.h) ends its stream with that
 * error; GetWatcherEvents gives the events before it first, then the error each time. A watcher
 * that is not asked for WATCHER_IDLE_MS is removed.
 */
#ifndef GUEST_WATCH_RPC_H
#define GUEST_WATCH_RPC_H

#include "spaced-guest/serve.h"

#define WATCHER_IDLE_MS (24 * 3600 * 1000)

void watch_dir(struct req *r, const char *body, size_t n);
void watch_create(struct req *r, const char *body, size_t n);
void watch_events(struct req *r, const char *body, size_t n);
void watch_remove(struct req *r, const char *body, size_t n);
void watch_rpc_done(struct agent *a);            /* frees the polled watchers */

#endif
