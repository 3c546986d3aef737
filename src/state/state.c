#include "state/state.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "base/str.h"

const char *const life_state_names[] = {
	[LIFE_NONE] = "none",
	[LIFE_CREATING] = "creating",
	[LIFE_RUNNING] = "running",
	[LIFE_PAUSING] = "pausing",
	[LIFE_PAUSED] = "paused",
	[LIFE_RESUMING] = "resuming",
	[LIFE_SUSPENDING] = "suspending",
	[LIFE_SUSPENDED] = "suspended",
	[LIFE_RESTORING] = "restoring",
	[LIFE_MOVING] = "moving",
	[LIFE_STOPPING] = "stopping",
	[LIFE_STOPPED] = "stopped",
	[LIFE_STARTING] = "starting",
	[LIFE_FORKING] = "forking",
	[LIFE_ROLLING_BACK] = "rolling-back",
	[LIFE_DELETING] = "deleting",
	[LIFE_FAILED] = "failed",
};
static_assert(ARRAY_LEN(life_state_names) == LIFE_STATE_COUNT, "a state without a name");

const char *const life_event_names[] = {
	[LIFE_EV_CREATE] = "create",
	[LIFE_EV_PAUSE] = "pause",
	[LIFE_EV_RESUME] = "resume",
	[LIFE_EV_SUSPEND] = "suspend",
	[LIFE_EV_RESTORE] = "restore",
	[LIFE_EV_MOVE] = "move",
	[LIFE_EV_STOP] = "stop",
	[LIFE_EV_START] = "start",
	[LIFE_EV_DELETE] = "delete",
	[LIFE_EV_FORK] = "fork",
	[LIFE_EV_ROLLBACK] = "rollback",
	[LIFE_EV_DONE] = "done",
	[LIFE_EV_FAILED] = "failed",
	[LIFE_EV_CRASH] = "crash",
	[LIFE_EV_GUEST_OFF] = "guest-off",
	[LIFE_EV_GUEST_REBOOT] = "guest-reboot",
	[LIFE_EV_NODE_LOST] = "node-lost",
};
static_assert(ARRAY_LEN(life_event_names) == LIFE_EVENT_COUNT, "an event without a name");

/*
 * The state in which a request has its result already. A start has none: it always makes a new
 * execution.
 */
static const struct { enum life_event ev; enum life_state result; } life_results[] = {
	{ LIFE_EV_CREATE, LIFE_RUNNING },
	{ LIFE_EV_PAUSE, LIFE_PAUSED },
	{ LIFE_EV_RESUME, LIFE_RUNNING },
	{ LIFE_EV_SUSPEND, LIFE_SUSPENDED },
	{ LIFE_EV_RESTORE, LIFE_RUNNING },
	{ LIFE_EV_STOP, LIFE_STOPPED },
	{ LIFE_EV_DELETE, LIFE_NONE },
};

static bool has_result(enum life_state s, enum life_event ev)
{
	for (size_t i = 0; i < ARRAY_LEN(life_results); i++)
		if (life_results[i].ev == ev && life_results[i].result == s)
			return true;
	return false;
}

/*
 * A request that is not built in any state; else one that has a row elsewhere would look like a
 * wrong state.
 */
static bool built_anywhere(enum life_event ev)
{
	for (unsigned i = 0; i < life_rules_len; i++)
		if (life_rules[i].event == ev && life_rules[i].reachable)
			return true;
	return false;
}

const struct life_rule *life_find(enum life_state from, enum life_event ev)
{
	for (unsigned i = 0; i < life_rules_len; i++)
		if (life_rules[i].from == from && life_rules[i].event == ev)
			return &life_rules[i];
	return NULL;
}

bool life_in_transition(enum life_state s)
{
	return life_find(s, LIFE_EV_DONE) != NULL;
}

bool life_serves(enum life_state s)
{
	return s == LIFE_RUNNING;
}

bool life_resident(enum life_state s)
{
	return s == LIFE_RUNNING || s == LIFE_PAUSING || s == LIFE_PAUSED || s == LIFE_RESUMING;
}

int life_state_of(const char *name, enum life_state *ret)
{
	for (int i = 0; i < LIFE_STATE_COUNT; i++) {
		if (!str_eq(life_state_names[i], name))
			continue;
		*ret = (enum life_state)i;
		return 0;
	}
	return -EINVAL;
}

int life_check(enum life_state from, enum life_event ev, const struct life_rule **ret_rule,
	       struct err *e)
{
	const struct life_rule *r;

	if ((unsigned)from >= LIFE_STATE_COUNT || (unsigned)ev >= LIFE_EVENT_COUNT)
		return err_set(e, -EINVAL, "no such state or event");
	if (!built_anywhere(ev))
		return err_set_code(e, -ENOSYS, "not-built-yet", "\"%s\" is not built yet",
				    life_event_names[ev]);
	r = life_find(from, ev);
	if (r && !r->reachable)
		return err_set_code(e, -ENOSYS, "not-built-yet",
				    "\"%s\" of a sandbox that is %s is not built yet",
				    life_event_names[ev], life_state_names[from]);
	if (r || has_result(from, ev)) {
		*ret_rule = r;
		return 0;
	}
	if (life_in_transition(from))
		return err_set_code(e, -EBUSY, "in-transition",
				    "the sandbox is %s; try \"%s\" again when that has ended",
				    life_state_names[from], life_event_names[ev]);
	return err_set_code(e, -EINVAL, "wrong-state", "\"%s\" does not fit a sandbox that is %s",
			    life_event_names[ev], life_state_names[from]);
}
