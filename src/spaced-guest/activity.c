#include "spaced-guest/activity.h"

#include <inttypes.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "spaced-guest/agent.h"
#include "spaced-guest/process.h"
#include "spaced-guest/serve.h"

static const char *const kind_names[] = {
	[ACTIVITY_INIT] = "init",
	[ACTIVITY_REQUEST] = "request",
	[ACTIVITY_COMMAND] = "command",
	[ACTIVITY_INPUT] = "input",
};
_Static_assert(ARRAY_LEN(kind_names) == ACTIVITY_KIND_COUNT, "every kind has a name");

void activity_note(struct agent *a, enum activity_kind kind)
{
	a->activity.last_ms[kind] = clock_mono_ms();
}

void activity_open(struct agent *a)
{
	a->activity.requests++;
	activity_note(a, ACTIVITY_REQUEST);
}

void activity_close(struct agent *a)
{
	a->activity.requests--;
	activity_note(a, ACTIVITY_REQUEST);
}

/*
 * A program in the foreground of a terminal ends without a word to us: that it ran is noted when
 * it is looked for.
 */
static unsigned running(struct agent *a)
{
	unsigned n = procs_running(a->procs);

	if (n)
		activity_note(a, ACTIVITY_COMMAND);
	return n;
}

int64_t activity_idle_ms(struct agent *a)
{
	int64_t last = 0;

	if (running(a) || a->activity.requests)
		return 0;
	for (int i = 0; i < ACTIVITY_KIND_COUNT; i++)
		if (a->activity.last_ms[i] > last)
			last = a->activity.last_ms[i];
	return clock_mono_ms() - last;
}

void activity_handle(struct req *r, const char *body, size_t n)
{
	struct agent *a = r->a;
	int64_t idle = activity_idle_ms(a), now = clock_mono_ms();
	const char *comma = "";
	struct buf b;

	buf_init(&b, 1024);
	buf_putf(&b, "{\"idle_ms\":%" PRId64 ",\"requests\":%u,\"commands\":%u,", idle,
		 a->activity.requests, procs_running(a->procs));
	buf_puts(&b, "\"since_ms\":{");
	for (int i = 0; i < ACTIVITY_KIND_COUNT; i++) {
		if (!a->activity.last_ms[i])
			continue;
		buf_putf(&b, "%s\"%s\":%" PRId64, comma, kind_names[i],
			 now - a->activity.last_ms[i]);
		comma = ",";
	}
	buf_puts(&b, "}}");
	req_answer_buf(r, 200, "application/json", &b);
}
