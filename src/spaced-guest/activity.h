/*
 * Activity: when somebody last used this sandbox, by the guest's monotonic clock (which stands
 * still while the sandbox is paused). What counts, and why, is the table in docs/activity.md.
 *
 * Two kinds: what goes on (a request that is open, a command that runs) makes the sandbox active
 * as long as it lasts; what happens (input) makes it active at that moment.
 */
#ifndef GUEST_ACTIVITY_H
#define GUEST_ACTIVITY_H

#include <stddef.h>
#include <stdint.h>

enum activity_kind {
	ACTIVITY_INIT,                   /* the execution began */
	ACTIVITY_REQUEST,                /* a request that counts came or ended */
	ACTIVITY_COMMAND,                /* a command began, ended, or was seen running */
	ACTIVITY_INPUT,                  /* bytes for a terminal or a stdin came */
	ACTIVITY_KIND_COUNT,
};

struct activity {
	int64_t last_ms[ACTIVITY_KIND_COUNT];    /* clock_mono_ms, 0 = never */
	unsigned requests;                       /* open ones that count */
};

struct agent;
struct req;

void activity_note(struct agent *a, enum activity_kind kind);
/* A request that counts is open from here on, until it is closed. */
void activity_open(struct agent *a);
void activity_close(struct agent *a);
/* 0 = active now. */
int64_t activity_idle_ms(struct agent *a);
/* GET /activity, for the host only: {"idle_ms","requests","commands","since_ms":{kind:ms}}. */
void activity_handle(struct req *r, const char *body, size_t n);

#endif
