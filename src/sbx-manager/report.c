/*
 * What this node has, for the control plane (L-4, R-5): node-manager is asked for the disk, the
 * rest is in memory.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/str.h"
#include "sbx-manager/sbx.h"
#include "sbx-manager/admit_stat.h"

#define REPORT_PAGE 100                  /* sandboxes in one packet, */
#define REPORT_BYTES_MAX 49152           /* and bytes of JSON text; it also holds the node */
#define REPORT_STATS_MS 2000

struct report { struct sbx *s; struct ipc_call *call; uint64_t cursor; };

static json_t *report_box(const struct box *b)
{
	const struct record *r = &b->rec;
	char activation[ID_ACTIVATION_HEX + 1];

	str_hex(activation, r->id.activation, ID_ACTIVATION_BYTES);
	return json_pack("{s:s, s:s, s:s, s:I, s:s, s:I, s:s, s:I, s:I, s:I, s:I, s:s}", "sandbox",
			 r->id.sandbox, "tenant", r->id.tenant, "state", life_state_names[r->state],
			 "generation", (json_int_t)r->id.generation, "activation", activation,
			 "attempt", (json_int_t)r->id.attempt, "reason", r->reason, "since_ms",
			 (json_int_t)r->since_ms, "memory_mib", (json_int_t)r->memory_mib, "vcpus",
			 (json_int_t)r->vcpus, "leases", (json_int_t)b->n_leases, "gateway",
			 !life_resident(r->state) ? "" : b->gateway.pid ? "up" : "away");
}

static void report_answer(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	const struct nm_stats_rep *stats = rep;
	struct report *q = arg;
	struct sbx *s = q->s;
	struct sbx_report_rep r = { .sandboxes = json_array() };
	size_t bytes = 0;

	r.node = json_pack("{s:s, s:s, s:I, s:s, s:I, s:I}", "worker", s->conf.worker, "version",
			   SPACE_VERSION, "bundle", (json_int_t)s->bundle_told, "accel",
			   s->conf.accel, "leases", (json_int_t)s->n_leases, "sandboxes",
			   (json_int_t)map_len(s->boxes));
	json_object_set_new(r.node, "admission", admit_stat_json());
	if (stats) {
		json_object_set_new(r.node, "data_total_bytes",
				    json_integer((json_int_t)stats->data_total_bytes));
		json_object_set_new(r.node, "data_free_bytes",
				    json_integer((json_int_t)stats->data_free_bytes));
		json_object_set_new(r.node, "slots", json_integer((json_int_t)stats->slots));
		json_object_set_new(r.node, "slots_used",
				    json_integer((json_int_t)stats->slots_used));
	}
	LIST_FOR(&s->box_list, b, struct box, node) {
		json_t *box;

		if (b->seq <= q->cursor)
			continue;
		box = report_box(b);
		bytes += json_dumpb(box, NULL, 0, JSON_COMPACT) + 1;
		if (json_array_size(r.sandboxes) == REPORT_PAGE || bytes > REPORT_BYTES_MAX) {
			json_decref(box);
			r.next = q->cursor;
			break;
		}
		json_array_append_new(r.sandboxes, box);
		q->cursor = b->seq;
	}
	ipc_answer(q->call, &r, NULL, 0);
	json_decref(r.node);
	json_decref(r.sandboxes);
	free(q);
}

void report_handle(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	const struct sbx_report *a = req;
	struct sbx *s = arg;
	struct report *q = x_alloc(sizeof(*q));

	q->s = s;
	q->call = call;
	q->cursor = a->cursor;
	if (ipc_client_connected(s->nm))
		ipc_client_call(s->nm, &nm_ops[NM_STATS], ipc_call_req_id(call), NULL, NULL, 0,
				REPORT_STATS_MS, report_answer, q);
	else
		report_answer(q, NULL, NULL, NULL, 0);
}
