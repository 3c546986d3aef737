#include "netgtw/flowlog.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"

static const char *const dir_names[] = { "out", "in", "dns" };
static const char *const proto_names[] = { "tcp", "udp", "http", "h2" };
static const char *const why_names[] = {
	"", "no-internet", "floor", "not-open", "limit", "unreachable", "reset", "revoked", "denied",
	"port-closed", "malformed", "type", "no-nameserver", "source",
};
static_assert(ARRAY_LEN(dir_names) == FLOW_DIR_COUNT, "each has a name");
static_assert(ARRAY_LEN(proto_names) == FLOW_PROTO_COUNT, "each has a name");
static_assert(ARRAY_LEN(why_names) == WHY_COUNT, "each has a name");

const char *const counter_names[COUNT_COUNT] = {
	[COUNT_FLOWS] = "flows",
	[COUNT_FLOWS_REFUSED] = "flows_refused",
	[COUNT_FLOWS_FAILED] = "flows_failed",
	[COUNT_BYTES_UP] = "bytes_up",
	[COUNT_BYTES_DOWN] = "bytes_down",
	[COUNT_LEASES] = "leases",
	[COUNT_LEASES_REFUSED] = "leases_refused",
	[COUNT_LEASE_BYTES_IN] = "lease_bytes_in",
	[COUNT_LEASE_BYTES_OUT] = "lease_bytes_out",
	[COUNT_DNS] = "dns",
	[COUNT_DNS_REFUSED] = "dns_refused",
	[COUNT_DNS_FAILED] = "dns_failed",
	[COUNT_DNS_FLOOR] = "dns_floor",
	[COUNT_LIMIT] = "limit",
};

void flowlog_init(struct flowlog *l, uint64_t seed)
{
	memset(l, 0, sizeof(*l));
	l->next = l->next_flow = 1;
	l->seed = seed;
	bucket_init(&l->limit_rate, FLOWLOG_LIMIT_RATE, FLOWLOG_LIMIT_RATE, clock_mono_us());
}

void flowlog_done(struct flowlog *l)
{
	for (size_t i = 0; i < ARRAY_LEN(l->ring); i++)
		free(l->ring[i].name);
	for (size_t i = 0; i < ARRAY_LEN(l->names); i++)
		free(l->names[i].name);
}

void flowlog_add(struct flowlog *l, const struct flow_record *r)
{
	struct flow_record *slot = &l->ring[l->next % GTW_LOG_RECORDS];

	if (r->refused && r->why == WHY_LIMIT && !bucket_one(&l->limit_rate, clock_mono_us()))
		return;
	free(slot->name);
	*slot = *r;
	slot->n = l->next++;
	slot->name = r->name && r->name[0] ? x_strndup(r->name, FLOWLOG_NAME_MAX - 1) : NULL;
}

static json_t *record_json(const struct flow_record *r)
{
	char addr[ADDR_TEXT_MAX];

	addr_text(&r->addr, addr);
	return json_pack("{s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:i, s:s, s:I, s:I, s:s, s:s}", "n",
			 (json_int_t)r->n, "flow", (json_int_t)r->flow, "t_ms",
			 (json_int_t)r->t_ms, "end_ms", (json_int_t)r->end_ms, "dir",
			 dir_names[r->dir], "proto", proto_names[r->proto], "addr", addr, "port",
			 (int)r->addr.port, "name", r->name ? r->name : "", "up",
			 (json_int_t)r->up, "down", (json_int_t)r->down, "verdict",
			 r->refused ? "refuse" : "allow", "reason", why_names[r->why]);
}

void flowlog_page(const struct flowlog *l, uint64_t after, struct gtw_log_rep *rep)
{
	uint64_t first = l->next > GTW_LOG_RECORDS ? l->next - GTW_LOG_RECORDS : 1;
	uint64_t at = after + 1;
	json_t *a = json_array();

	/* A number that was never given is one of another process: a follower begins anew. */
	if (after >= l->next)
		at = first;
	rep->lost = at < first ? first - at : 0;
	at = at < first ? first : at;
	for (unsigned i = 0; i < GTW_LOG_PAGE && at < l->next; i++, at++)
		json_array_append_new(a, record_json(&l->ring[at % GTW_LOG_RECORDS]));
	rep->next = at - 1;
	rep->more = at < l->next;
	rep->records = a;
}

/*
 * FNV-1a with a seed: a guest that aims at one place of the table only loses names of its own log.
 */
static size_t name_slot(const struct flowlog *l, const struct addr *a)
{
	uint64_t h = UINT64_C(14695981039346656037) ^ l->seed;

	for (size_t i = 0; i < sizeof(a->ip); i++)
		h = (h ^ a->ip[i]) * UINT64_C(1099511628211);
	return (size_t)((h ^ h >> 32) % FLOWLOG_NAMES);
}

void flowlog_name_put(struct flowlog *l, const struct addr *a, const char *name)
{
	struct flowlog_name *s = &l->names[name_slot(l, a)];

	if (s->name && addr_eq(&s->addr, a) && str_eq(s->name, name))
		return;
	free(s->name);
	s->addr = *a;
	s->name = x_strndup(name, FLOWLOG_NAME_MAX - 1);
}

const char *flowlog_name(const struct flowlog *l, const struct addr *a)
{
	const struct flowlog_name *s = &l->names[name_slot(l, a)];

	return s->name && addr_eq(&s->addr, a) ? s->name : NULL;
}
