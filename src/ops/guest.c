/*
 * One read of the guest's own JSON over the data path, as a client would ask for it: capability,
 * admission, lease (L-9). What comes back is hostile: bounded and parsed strictly.
 */
#include <errno.h>
#include <string.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "http/client.h"
#include "json/strict.h"
#include "ops/ops.h"

#define GUEST_DEPTH_MAX 4

static int answer_of(const struct http_answer *a, json_t **ret, struct err *e)
{
	json_t *v;

	if (http_get(&a->head, "Space-Refusal"))
		return err_set(e, -ESTALE, "The node does not run this execution.");
	if (a->head.status != 200)
		return err_set(e, -EAGAIN, "The sandbox answered with status %d.", a->head.status);
	v = strict_parse(a->body, a->body_len, GUEST_DEPTH_MAX, e);
	if (!v)
		return e ? e->num : -EBADMSG;
	if (!json_is_object(v)) {
		json_decref(v);
		return err_set(e, -EBADMSG, "The sandbox's answer is no JSON object.");
	}
	*ret = v;
	return 0;
}

int ops_guest_get(const char *node_addr, const struct key_signer *k, const struct identity *id,
		  const char *target, const char *request_id, int timeout_ms, json_t **ret,
		  struct err *e)
{
	const struct capability c = { .id = *id,
				      .purpose = ID_PURPOSE_CONTROL,
				      .access = ID_ACCESS_READ };
	char cap[CAP_TEXT_MAX];
	const struct http_field fields[] = {
		{ "Space-Op", "forward" },
		{ "Space-Request-Id", request_id },
		{ "Space-Capability", cap },
		{ NULL, NULL },
	};
	const struct http_call call = { .addr = node_addr,
					.method = "GET",
					.target = target,
					.host = "sandbox",
					.fields = fields,
					.timeout_ms = timeout_ms,
					.max_answer = OPS_GUEST_ANSWER_MAX };
	struct http_answer a;
	int r = cap_sign(&c, k, clock_wall_ms() / 1000, cap, e);

	if (r == 0)
		r = http_call(&call, &a, e);
	explicit_bzero(cap, sizeof(cap));
	if (r < 0)
		return r;
	r = answer_of(&a, ret, e);
	http_answer_done(&a);
	return r;
}
