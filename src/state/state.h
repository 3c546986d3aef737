/*
 * The life cycle of a sandbox: one table (spec C-1, I-5), used by the control plane and by the
 * node. docs/life-cycle.md is printed from it (program `state-print`).
 */
#ifndef STATE_STATE_H
#define STATE_STATE_H

#include <stdbool.h>
#include "base/err.h"

enum life_state {
	LIFE_NONE,            /* no such sandbox (before create, after delete) */
	LIFE_CREATING, LIFE_RUNNING,
	LIFE_PAUSING, LIFE_PAUSED, LIFE_RESUMING,
	LIFE_SUSPENDING, LIFE_SUSPENDED, LIFE_RESTORING,
	LIFE_MOVING,
	LIFE_STOPPING, LIFE_STOPPED, LIFE_STARTING,
	LIFE_FORKING,         /* the source, while its children are made */
	LIFE_ROLLING_BACK,
	LIFE_DELETING,
	LIFE_FAILED,          /* create failed for good; only delete leads out */
	LIFE_STATE_COUNT,
};

enum life_event {
	LIFE_EV_CREATE,
	LIFE_EV_PAUSE,
	LIFE_EV_RESUME,
	LIFE_EV_SUSPEND,
	LIFE_EV_RESTORE,
	LIFE_EV_MOVE,
	LIFE_EV_STOP,
	LIFE_EV_START,
	LIFE_EV_DELETE,
	LIFE_EV_FORK,
	LIFE_EV_ROLLBACK, /* what callers ask for */
	LIFE_EV_DONE,	  /* the running transition ended well */
	LIFE_EV_FAILED, /* the running transition ended with an error that a retry does not cure */
	LIFE_EV_CRASH,	/* VMM, bridge, jail-init or guest died (panic, reset, internal-error) */
	LIFE_EV_GUEST_OFF, /* power-off inside the guest */
	LIFE_EV_GUEST_REBOOT,
	LIFE_EV_NODE_LOST,
	LIFE_EVENT_COUNT,
};

extern const char *const life_state_names[];     /* "creating", "rolling-back" ... */
extern const char *const life_event_names[];

struct life_rule {
	enum life_state from;
	enum life_event event;
	enum life_state to;
	bool generation_grows;       /* a new execution begins with this transition (I-5) */
	bool ends_execution;         /* capabilities and streams of the running execution are revoked */
	bool reachable;              /* false: its operation is not built yet and answers 501 */
	const char *note;            /* one sentence for the docs */
};

extern const struct life_rule life_rules[];
extern const unsigned life_rules_len;

/* NULL = not allowed in that state. */
const struct life_rule *life_find(enum life_state from, enum life_event ev);
/*
 * -EINVAL/-ENOSYS ("not-built-yet", HTTP 501)/-EBUSY (409: in transition)/0. Repeating an operation
 * whose result already holds is allowed and has *ret_rule NULL (idempotent, L-3).
 */
int life_check(enum life_state from, enum life_event ev, const struct life_rule **ret_rule,
	       struct err *e);
bool life_in_transition(enum life_state s);
bool life_serves(enum life_state s);             /* may admit control traffic: running */
bool life_resident(enum life_state s);           /* an announced execution stands on its node: running, paused, on the way between */
int life_state_of(const char *name, enum life_state *ret);

#endif
