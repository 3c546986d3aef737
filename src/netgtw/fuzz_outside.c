/*
 * What a main process that was taken over can ask: a struct that is not what it should be. Only the
 * judgement, nothing is dialled: OUT_CHECK, whatever else the input says.
 */
#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "netgtw/outside.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct outside o = { .n_nameservers = 1 };
	struct out_req q;
	struct out_rep rep;
	int fd = -1;

	if (size < sizeof(q))
		return 0;
	memcpy(&q, data, sizeof(q));
	o.internet = size % 2 == 0;
	if (o.floor.allow.n == 0)
		floor_allow_add(&o.floor, "10.1.0.0/16", NULL);
	q.kind = OUT_CHECK;
	outside_answer(&o, &q, size % 3 == 0, &rep, &fd);
	assert(fd == -1 && rep.id == q.id && rep.answer < OUT_ANSWER_COUNT);
	if (rep.answer == OUT_OK)
		assert(o.internet && (q.addr.family == 4 || q.addr.family == 6) &&
		       !floor_check(&q.addr, &o.floor));
	return 0;
}
