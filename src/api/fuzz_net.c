/*
 * The network of a sandbox under /v1: what a gateway that was taken over may say in its log and its
 * counters, and the target of a tunnel. The first byte chooses.
 */
#include <assert.h>
#include <string.h>
#include "api/api.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "json/strict.h"

#define ANSWER_DEPTH 8
#define RECORD_FIELDS 12                 /* and "endTime" */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look_log(json_t *log)
{
	json_t *rec;
	size_t i;

	assert(json_object_size(log) == 4 && json_is_string(json_object_get(log, "epoch")));
	json_array_foreach(json_object_get(log, "records"), i, rec) {
		size_t ended = json_object_get(rec, "endTime") != NULL;

		assert(json_object_size(rec) == RECORD_FIELDS + ended);
		assert(strlen(json_string_value(json_object_get(rec, "time"))) ==
		       CLOCK_ISO_LEN - 1);
	}
}

static void look_stats(json_t *stats)
{
	const char *name;
	json_t *v;

	assert(json_object_size(stats) == 5);
	json_object_foreach(json_object_get(stats, "counters"), name, v)
		assert(json_is_integer(v));
}

static void look_answer(const char *p, size_t n)
{
	json_t *answer = strict_parse(p, n, ANSWER_DEPTH, NULL), *log, *stats;

	if (!answer)
		return;
	log = net_log_object(answer);
	stats = net_stats_object(answer);
	look_log(log);
	look_stats(stats);
	json_decref(log);
	json_decref(stats);
	json_decref(answer);
}

static void look_tunnel(const char *target)
{
	static const char before[] = "/v1/sandboxes/";
	char id[ID_SANDBOX_LEN + 1];
	struct err e = { 0 };
	uint16_t port = 0;
	bool wrong;
	const struct control_route *r = control_find("GET", target, id, &wrong);
	uint64_t want;
	const char *p;

	if (net_tunnel_port(target, &port, &e) < 0) {
		assert(e.num < 0 && e.text[0] && port == 0);
		return;
	}
	assert(port > 0);
	if (!r || !(r->flags & CONTROL_TUNNEL))
		return;
	/* The segment that the route calls {port}, and no other. */
	p = target + strlen(before);
	p += strcspn(p, "/");
	assert(str_starts(target, before) && str_starts(p, "/ports/"));
	p += strlen("/ports/");
	assert(str_to_u64_n(p, strcspn(p, "/"), UINT16_MAX, &want) == 0 && want == port);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	autofree char *text = NULL;

	if (size < 1)
		return 0;
	if (data[0] & 1) {
		text = x_strndup((const char *)data + 1, size - 1);
		look_tunnel(text);
	} else {
		look_answer((const char *)data + 1, size - 1);
	}
	return 0;
}
