/*
 * What the gateway of an execution has seen (life-cycle kinds netlog, netstats): asked of the
 * gateway itself, nothing is kept here. Its numbers begin again with each gateway; `epoch` says
 * which one they are of.
 */
#include <errno.h>

#include "base/str.h"
#include "ipc/gtw_ops.h"
#include "sbx-manager/job.h"

#define NETLOG_ASK_MS 2000

/* 0, or the reason why there is no gateway to be asked. */
static int netlog_load(struct job *j, struct err *e)
{
	int r = lifecycle_load(j, e);

	if (r < 0)
		return r;
	if (lifecycle_gone(j))
		return lifecycle_not_found(j, e);
	if (!life_resident(j->rec.state))
		return err_set_code(e, -ESTALE, "not-running",
				    "The sandbox is %s: its network is gone.",
				    life_state_names[j->rec.state]);
	return lifecycle_installed(j, e);
}

static json_t *netlog_epoch(const struct record *r)
{
	char text[64];

	str_format(text, sizeof(text), "%llu.%llu.%llu", (unsigned long long)r->id.generation,
		   (unsigned long long)r->gateway.pid, (unsigned long long)r->gateway.start);
	return json_string(text);
}

static int netlog_away(struct err *e)
{
	return err_set_code(e, -EAGAIN, "gateway-away",
			    "The sandbox's network gateway does not answer; it is started again.");
}

int lifecycle_netlog(struct job *j, struct err *e)
{
	json_int_t after = json_integer_value(json_object_get(j->spec, "after"));
	struct gtw_log q = { .after = after > 0 ? (uint64_t)after : 0 };
	struct gtw_log_rep rep = { 0 };
	int r = netlog_load(j, e);

	if (r < 0)
		return r;
	r = gateway_ask(j, GTW_LOG, &q, &rep, NETLOG_ASK_MS, e);
	if (r < 0)
		return netlog_away(e);
	j->result = json_pack("{s:o, s:O, s:I, s:I, s:b}", "epoch", netlog_epoch(&j->rec), "records",
			      rep.records, "next", (json_int_t)rep.next, "lost",
			      (json_int_t)rep.lost, "more", rep.more);
	ipc_done(gtw_ops[GTW_LOG].rep, &rep);
	return j->result ? 0 : netlog_away(e);
}

struct netlog_why { struct job *j; char text[RECORD_REASON_MAX]; bool up; };

static void netlog_why_in_loop(void *arg)
{
	struct netlog_why *w = arg;
	const struct box *b = box_find(w->j->s, w->j->rec.id.sandbox);

	w->up = b && b->gateway.pid != 0;
	if (b)
		str_copy(w->text, sizeof(w->text), b->gateway_why);
}

int lifecycle_netstats(struct job *j, struct err *e)
{
	struct netlog_why why = { .j = j };
	struct gtw_stats_rep rep = { 0 };
	struct err lost = { 0 };
	int r = netlog_load(j, e);

	if (r < 0)
		return r;
	r = sbx_in_loop(j->s, netlog_why_in_loop, &why);
	if (r < 0)
		return err_set(e, r, "The node service is ending.");
	r = gateway_ask(j, GTW_STATS, NULL, &rep, NETLOG_ASK_MS, &lost);
	if (r < 0 && !why.text[0])
		str_copy(why.text, sizeof(why.text), lost.text);
	j->result = json_pack("{s:o, s:b, s:s, s:s, s:o}", "epoch", netlog_epoch(&j->rec),
			      "internet", j->rec.internet, "gateway",
			      r == 0 && why.up ? "up" : "away", "reason", why.text, "counters",
			      r == 0 ? json_incref(rep.counters) : json_object());
	if (r == 0)
		ipc_done(gtw_ops[GTW_STATS].rep, &rep);
	return j->result ? 0 : err_set(e, -EPROTO, "The gateway's counters are malformed.");
}
