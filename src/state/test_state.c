#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "base/str.h"
#include "state/state.h"

static void test_one_rule_each(void **st)
{
	for (unsigned i = 0; i < life_rules_len; i++)
		assert_ptr_equal(life_find(life_rules[i].from, life_rules[i].event),
				 &life_rules[i]);
}

/* Marks every state that can be reached from `from` by rules that `use` allows. */
static void flood(enum life_state from, bool only_reachable, bool seen[LIFE_STATE_COUNT])
{
	if (seen[from])
		return;
	seen[from] = true;
	for (unsigned i = 0; i < life_rules_len; i++)
		if (life_rules[i].from == from && (life_rules[i].reachable || !only_reachable))
			flood(life_rules[i].to, only_reachable, seen);
}

static void test_every_state_comes_up(void **st)
{
	bool all[LIFE_STATE_COUNT] = { false }, built[LIFE_STATE_COUNT] = { false };

	flood(LIFE_NONE, false, all);
	flood(LIFE_NONE, true, built);
	for (int i = 0; i < LIFE_STATE_COUNT; i++)
		assert_true(all[i]);
	/*
	 * A row is marked as built exactly in states that can come up now, for events that are
	 * built.
	 */
	for (unsigned i = 0; i < life_rules_len; i++)
		if (life_rules[i].reachable)
			assert_true(built[life_rules[i].from]);
	assert_true(built[LIFE_RUNNING] && built[LIFE_STOPPED] && built[LIFE_FAILED] &&
		    built[LIFE_STARTING]);
	assert_true(built[LIFE_PAUSED]);
	assert_false(built[LIFE_SUSPENDED] || built[LIFE_MOVING] || built[LIFE_FORKING]);
}

static void test_every_state_has_a_way_out(void **st)
{
	for (int s = LIFE_CREATING; s < LIFE_STATE_COUNT; s++) {
		bool seen[LIFE_STATE_COUNT] = { false };

		flood((enum life_state)s, false, seen);
		assert_true(seen[LIFE_NONE]);
		if (s != LIFE_DELETING) {
			assert_non_null(life_find((enum life_state)s, LIFE_EV_DELETE));
			assert_int_equal(life_find((enum life_state)s, LIFE_EV_DELETE)->to,
					 LIFE_DELETING);
		}
		assert_non_null(life_find((enum life_state)s, LIFE_EV_CRASH));
		assert_non_null(life_find((enum life_state)s, LIFE_EV_NODE_LOST));
	}
}

static void test_transitions_end(void **st)
{
	static const enum life_state in[] = { LIFE_CREATING,	 LIFE_PAUSING,	 LIFE_RESUMING,
					      LIFE_SUSPENDING,	 LIFE_RESTORING, LIFE_MOVING,
					      LIFE_STOPPING,	 LIFE_STARTING,	 LIFE_FORKING,
					      LIFE_ROLLING_BACK, LIFE_DELETING };
	size_t n = 0;

	for (int s = 0; s < LIFE_STATE_COUNT; s++)
		n += life_in_transition((enum life_state)s);
	assert_int_equal(n, sizeof(in) / sizeof(in[0]));
	for (size_t i = 0; i < n; i++) {
		assert_true(life_in_transition(in[i]));
		assert_non_null(life_find(in[i], LIFE_EV_FAILED));
		assert_false(life_serves(in[i]));
	}
	assert_true(life_serves(LIFE_RUNNING));
	assert_false(life_serves(LIFE_STOPPED));
	assert_false(life_serves(LIFE_PAUSED));
	for (int s = 0; s < LIFE_STATE_COUNT; s++)
		assert_int_equal(life_resident((enum life_state)s),
				 s == LIFE_RUNNING || s == LIFE_PAUSING || s == LIFE_PAUSED ||
					 s == LIFE_RESUMING);
}

/*
 * The generation grows with create, start, restore, rollback, move, recovery and reboot, and with
 * nothing else.
 */
static void test_generation(void **st)
{
	for (unsigned i = 0; i < life_rules_len; i++) {
		const struct life_rule *r = &life_rules[i];
		bool begins = r->to == LIFE_CREATING || r->to == LIFE_STARTING ||
			      r->to == LIFE_RESTORING || r->to == LIFE_MOVING ||
			      r->to == LIFE_ROLLING_BACK;

		assert_int_equal(r->generation_grows, begins);
		assert_true(strlen(r->note) > 0);
		/* Where a running execution is followed by another one, the first has ended. */
		if (r->from == LIFE_RUNNING && (r->generation_grows || r->to == LIFE_STOPPED))
			assert_true(r->ends_execution);
	}
	assert_false(life_find(LIFE_PAUSED, LIFE_EV_RESUME)->generation_grows);
	assert_true(life_find(LIFE_RUNNING, LIFE_EV_START)->generation_grows);
	assert_true(life_find(LIFE_RUNNING, LIFE_EV_START)->ends_execution);
	assert_int_equal(life_find(LIFE_RUNNING, LIFE_EV_GUEST_REBOOT)->to, LIFE_STARTING);
	assert_int_equal(life_find(LIFE_RUNNING, LIFE_EV_CRASH)->to, LIFE_STOPPED);
	assert_int_equal(life_find(LIFE_RUNNING, LIFE_EV_GUEST_OFF)->to, LIFE_STOPPED);
}

static void check(enum life_state s, enum life_event ev, int want, int to, const char *code)
{
	const struct life_rule *r = NULL;
	struct err e = { 0 };

	assert_int_equal(life_check(s, ev, &r, &e), want);
	if (want < 0) {
		assert_int_equal(e.num, want);
		assert_string_equal(e.code, code);
	} else if (to < 0) {
		assert_null(r);
	} else {
		assert_int_equal(r->to, to);
	}
}

static void test_check(void **st)
{
	const struct life_rule *r;

	check(LIFE_NONE, LIFE_EV_CREATE, 0, LIFE_CREATING, NULL);
	check(LIFE_RUNNING, LIFE_EV_STOP, 0, LIFE_STOPPING, NULL);
	check(LIFE_RUNNING, LIFE_EV_START, 0, LIFE_STARTING, NULL);
	check(LIFE_STOPPED, LIFE_EV_STOP, 0, -1, NULL);
	check(LIFE_NONE, LIFE_EV_DELETE, 0, -1, NULL);
	check(LIFE_RUNNING, LIFE_EV_CREATE, 0, -1, NULL);
	check(LIFE_RUNNING, LIFE_EV_SUSPEND, -ENOSYS, 0, "not-built-yet");
	check(LIFE_STOPPED, LIFE_EV_MOVE, -ENOSYS, 0, "not-built-yet");
	check(LIFE_RUNNING, LIFE_EV_PAUSE, 0, LIFE_PAUSING, NULL);
	check(LIFE_PAUSED, LIFE_EV_PAUSE, 0, -1, NULL);
	check(LIFE_STOPPED, LIFE_EV_PAUSE, -EINVAL, 0, "wrong-state");
	check(LIFE_PAUSED, LIFE_EV_RESUME, 0, LIFE_RESUMING, NULL);
	check(LIFE_RUNNING, LIFE_EV_RESUME, 0, -1, NULL);
	check(LIFE_PAUSING, LIFE_EV_RESUME, -EBUSY, 0, "in-transition");
	check(LIFE_PAUSED, LIFE_EV_DELETE, 0, LIFE_DELETING, NULL);
	check(LIFE_STARTING, LIFE_EV_STOP, -EBUSY, 0, "in-transition");
	check(LIFE_CREATING, LIFE_EV_START, -EBUSY, 0, "in-transition");
	check(LIFE_FAILED, LIFE_EV_START, -EINVAL, 0, "wrong-state");
	check(LIFE_NONE, LIFE_EV_STOP, -EINVAL, 0, "wrong-state");
	check(LIFE_CREATING, LIFE_EV_DELETE, 0, LIFE_DELETING, NULL);
	assert_int_equal(life_check(LIFE_STATE_COUNT, LIFE_EV_STOP, &r, NULL), -EINVAL);
	assert_int_equal(life_check(LIFE_RUNNING, LIFE_EVENT_COUNT, &r, NULL), -EINVAL);
}

static void test_names(void **st)
{
	for (int i = 0; i < LIFE_STATE_COUNT; i++) {
		enum life_state s;

		assert_int_equal(life_state_of(life_state_names[i], &s), 0);
		assert_int_equal(s, i);
	}
	enum life_state s;

	assert_int_equal(life_state_of("", &s), -EINVAL);
	assert_int_equal(life_state_of("Running", &s), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_rule_each),
		cmocka_unit_test(test_every_state_comes_up),
		cmocka_unit_test(test_every_state_has_a_way_out),
		cmocka_unit_test(test_transitions_end),
		cmocka_unit_test(test_generation),
		cmocka_unit_test(test_check),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
