/*
 * What an admission costs, part by part: the newest ADMIT_STAT_SAMPLES of each part, of which the
 * report gives medians (spec K-4: the price of the proof is known). Used in the loop's thread only.
 */
#ifndef SBX_MANAGER_ADMIT_STAT_H
#define SBX_MANAGER_ADMIT_STAT_H

#include <jansson.h>
#include <stdint.h>

#define ADMIT_STAT_SAMPLES 1024

enum admit_part {
	ADMIT_SIGNATURE,             /* computed */
	ADMIT_SIGNATURE_CACHED,      /* remembered: one keyed hash and the times */
	ADMIT_COMPARE,               /* identity against the record, state, limits */
	ADMIT_CONNECT,               /* socket, connect, who listens */
	ADMIT_VERIFY,                /* node-manager's answer */
	ADMIT_HAND_OVER,             /* the second comparison, lease, preamble, answer with the descriptor */
	ADMIT_TOTAL,
	ADMIT_PART_COUNT,
};

int64_t admit_stat_now(void);                                    /* ns, CLOCK_MONOTONIC */
/* Adds the time since `since` to the part and gives the time now. */
int64_t admit_stat_add(enum admit_part part, int64_t since);
/* {"signature": {"n": N, "p50_us": X, "p90_us": X}, ...}; a new object. */
json_t *admit_stat_json(void);

#endif
