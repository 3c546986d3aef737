/* For tests of loop users: turns the loop until something is true, with a deadline. */
#ifndef LOOP_TEST_TURN_H
#define LOOP_TEST_TURN_H

#include "base/clock.h"
#include "loop/loop.h"

#define TURN_DEADLINE_MS 60000

#define TURN_UNTIL(l, condition) \
	do { \
		int64_t end_ = clock_mono_ms() + TURN_DEADLINE_MS; \
		while (!(condition) && clock_mono_ms() < end_) \
			assert_int_equal(loop_turn((l), 20), 0); \
		assert_true(condition); \
	} while (0)

#endif
