/*
 * Metrics of sandboxes. Nobody samples behind the guests' backs: a sample is taken when somebody
 * asks for one, over the data path, and the last METRICS_SAMPLES of a sandbox are kept in this
 * process's memory. So a paused sandbox answers with its last ones, and a restart forgets them.
 */
#ifndef API_METRICS_H
#define API_METRICS_H

#include <jansson.h>
#include <stdint.h>
#include "base/err.h"
#include "base/map.h"

#define METRICS_SAMPLES 60               /* kept of a sandbox */
#define METRICS_BOXES_MAX 1024           /* sandboxes with samples; beyond, the one that was asked longest ago goes */
#define METRICS_GUEST_MS 2000            /* a guest that takes longer gives no sample */
#define METRICS_MANY_MAX 100             /* sandboxes of one request */
#define METRICS_MANY_MS 10000            /* and the time for all of them */

struct metrics_sample {
	int64_t t_ms;                    /* of the host's clock; 0 = none */
	uint64_t cpu_count, mem_used, mem_total, mem_cache, disk_used, disk_total;
	double cpu_used_pct;
	int64_t idle_ms;                 /* without activity (docs/activity.md); -1 = not said */
};

/* From what a guest says, which may be anything: 0 or -EBADMSG. */
int metrics_parse(json_t *v, int64_t now_ms, struct metrics_sample *ret);
json_t *metrics_json(const struct metrics_sample *s);    /* E2B's SandboxMetric */

/* From the guest that runs, now; in a worker. */
struct call;
struct store;
struct store_sandbox;
int metrics_ask(struct call *c, struct store *s, const struct store_sandbox *b, int timeout_ms,
		struct metrics_sample *ret, struct err *e);

/* The kept ones; loop's thread. */
struct metrics_kept;
struct metrics_kept *metrics_kept_new(void);
void metrics_kept_free(struct metrics_kept *k);
void metrics_keep(struct metrics_kept *k, const char *sandbox, const struct metrics_sample *s);
const struct metrics_sample *metrics_last(struct metrics_kept *k, const char *sandbox);      /* NULL: none */
/* Those from start_ms to end_ms, oldest first. */
json_t *metrics_list(struct metrics_kept *k, const char *sandbox, int64_t start_ms, int64_t end_ms);
void metrics_drop(struct metrics_kept *k, const char *sandbox);

#endif
