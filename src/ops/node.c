/*
 * One life-cycle call to a node. While the node works, which may take longer than the lease of a
 * claim, the caller's tick is called. What never reached the node, or whose answer was lost, is
 * -EAGAIN ("node-unreachable"): all these calls are idempotent, so the same request is simply sent
 * again later.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "http/client.h"
#include "json/strict.h"
#include "ops/internal.h"

#define ANSWER_DEPTH_MAX 8

static int sign(const struct key_signer *k, const struct identity *id, const char *kind,
		char dst[CAP_TEXT_MAX], struct err *e)
{
	struct capability c = { .id = *id, .purpose = ID_PURPOSE_LIFECYCLE };

	if (id_access_of(kind, &c.access) < 0)
		return err_set(e, -EINVAL, "There is no life-cycle operation \"%s\".", kind);
	return cap_sign(&c, k, clock_wall_ms() / 1000, dst, e);
}

static int lost(struct err *e)
{
	struct err why = *e;

	return err_set_code(e, -EAGAIN, "node-unreachable", "The node cannot be reached: %s",
			    why.text);
}

/*
 * The body goes as one chunk: http_call_open returns before the answer then, and the wait can tick.
 */
static int send_request(const struct http_call *call, const char *body, int *ret_fd, struct err *e)
{
	struct buf chunks;
	int fd, r;

	r = http_call_open(call, true, &fd, NULL, NULL, e);
	if (r < 0)
		return r;
	buf_init(&chunks, strlen(body) + 64);
	http_put_chunk(&chunks, body, strlen(body));
	http_put_chunk(&chunks, NULL, 0);
	r = fd_write_all(fd, buf_data(&chunks), buf_len(&chunks), call->timeout_ms);
	buf_done(&chunks);
	if (r < 0) {
		fd_close(fd);
		return err_errno(e, r, "sending the request");
	}
	*ret_fd = fd;
	return 0;
}

static int await(int fd, int64_t until_ms, int (*tick)(void *arg), void *arg, struct err *e)
{
	int64_t next = clock_mono_ms() + OPS_TICK_MS, now;

	for (;;) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		int64_t wait;
		int r;

		now = clock_mono_ms();
		if (now >= until_ms)
			return err_set(e, -ETIMEDOUT, "there was no answer in time");
		wait = (next < until_ms ? next : until_ms) - now;
		r = poll(&p, 1, (int)(wait > 0 ? wait : 0));
		if (r > 0)
			return 0;
		if (r < 0 && errno != EINTR)
			return err_errno(e, -errno, "waiting for the answer");
		if (clock_mono_ms() < next)
			continue;
		next = clock_mono_ms() + OPS_TICK_MS;
		r = tick ? tick(arg) : 0;
		if (r < 0)
			return err_set_code(e, r, "claim-lost",
					    "Another driver has taken the operation over.");
	}
}

static int read_answer(int fd, int timeout_ms, int *ret_status, struct buf *body, struct err *e)
{
	enum http_error err = HTTP_BODY_CUT;
	struct http_head h = { 0 };
	struct http_dec dec;
	struct buf rest;
	int r;

	buf_init(&rest, 2 * HTTP_HEAD_MAX);
	r = http_call_answer(fd, "POST", timeout_ms, &h, &rest, e);
	if (r == 0) {
		*ret_status = h.status;
		http_dec_init(&dec, &h, OPS_ANSWER_MAX);
		r = h.body == HTTP_BODY_NONE ? 1 : 0;
		while (r == 0) {
			const char *data;
			size_t used, n;
			struct pollfd p = { .fd = fd, .events = POLLIN };

			r = http_dec_feed(&dec, buf_data(&rest), buf_len(&rest), &used, &data, &n,
					  &err);
			if (r >= 0)
				buf_put(body, data, n);
			buf_consume(&rest, used);
			if (r != 0 || used > 0)
				continue;
			if (poll(&p, 1, timeout_ms) != 1 || buf_read_fd(&rest, fd, 65536) <= 0)
				r = http_dec_eof(&dec) == 0 ? 1 : -EBADMSG;
		}
		r = r == 1 ? 0 : err_set(e, -EBADMSG, "%s", http_error_text(err));
	}
	http_head_done(&h);
	buf_done(&rest);
	return r;
}

/*
 * {"num","code","message"} of a refused call. A number of another node's errno table means nothing
 * less here: all are Linux.
 */
static int error_of(int status, json_t *body, struct err *e)
{
	const char *code = json_string_value(json_object_get(body, "code"));
	const char *text = json_string_value(json_object_get(body, "message"));
	json_int_t num = json_integer_value(json_object_get(body, "num"));

	if (num >= 0 || num < -4095)
		num = status == 503 || status == 504 ? -EAGAIN : -EPROTO;
	return err_set_code(e, (int)num, code ? code : "", "%s",
			    text ? text : "The node refused without a reason.");
}

int ops_post(const char *node_addr, const struct key_signer *k, const struct identity *id,
	     const char *kind, json_t *spec, const char *request_id, int timeout_ms,
	     int (*tick)(void *arg), void *arg, json_t **ret, struct err *e)
{
	int64_t until = clock_mono_ms() + timeout_ms;
	autofree char *target = x_asprintf("/lifecycle/%s", kind);
	autofree char *text = json_dumps(spec, JSON_COMPACT);
	char cap[CAP_TEXT_MAX];
	const struct http_field fields[] = {
		{ "Space-Op", "lifecycle" },
		{ "Space-Request-Id", request_id && *request_id ? request_id : "none" },
		{ "Space-Capability", cap },
		{ "Content-Type", "application/json" },
		{ "Connection", "close" },
		{ NULL, NULL },
	};
	const struct http_call call = { .addr = node_addr,
					.method = "POST",
					.target = target,
					.host = "node",
					.fields = fields,
					.timeout_ms = timeout_ms };
	struct buf body;
	json_t *answer;
	autoclose int fd = -1;
	int status = 0, r;

	r = sign(k, id, kind, cap, e);
	if (r < 0)
		return r;
	if (send_request(&call, text ? text : "{}", &fd, e) < 0)
		return lost(e);
	r = await(fd, until, tick, arg, e);
	if (r < 0)
		return r == -ETIMEDOUT ? lost(e) : r;
	buf_init(&body, OPS_ANSWER_MAX);
	r = read_answer(fd, timeout_ms, &status, &body, e);
	answer = r == 0 ? strict_parse(buf_data(&body), buf_len(&body), ANSWER_DEPTH_MAX, e) : NULL;
	buf_done(&body);
	if (!answer)
		return lost(e);
	if (status != 200) {
		r = error_of(status, answer, e);
		json_decref(answer);
		return r;
	}
	*ret = answer;
	return 0;
}

int ops_node_call(const char *node_addr, const struct key_signer *k, const struct identity *id,
		  const char *kind, json_t *spec, const char *request_id, int timeout_ms,
		  json_t **ret, struct err *e)
{
	return ops_post(node_addr, k, id, kind, spec, request_id, timeout_ms, NULL, NULL, ret, e);
}
