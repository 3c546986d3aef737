/* The control socket (ipc/gtw_ops.h): identity, key bundles, opening, revocation, log, counters. */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "netgtw/gtw.h"
#include "netgtw/install.h"

#define CONTROL_LEASES_PAGE 512

static int control_bundle(struct gtw *g, const char *text, struct err *e)
{
	autofree struct key_bundle *next = x_alloc(sizeof(*next));
	int r = bundle_open(text, strlen(text), g->conf.root_key, next, e);

	if (r < 0)
		return r;
	if (g->bundle.number != 0) {
		r = bundle_may_replace(&g->bundle, next, e);
		if (r < 0)
			return err_set_code(e, r, "stale-bundle",
					    "A newer key bundle is installed.");
	}
	g->bundle = *next;
	cap_cache_clear(g->caps);
	return 0;
}

static int control_install(struct gtw *g, const struct gtw_install *i, struct err *e)
{
	struct identity id;
	int r = install_check(i, &g->conf, g->installed ? &g->id : NULL, &id, e);

	if (r == 0)
		r = control_bundle(g, i->bundle, e);
	if (r < 0)
		return r;
	g->id = id;
	g->installed = true;
	return 0;
}

static void control_op_install(struct ipc_call *call, const void *req, int *fds, size_t n_fds,
			       void *arg)
{
	struct gtw *g = arg;
	struct err e = { 0 };
	struct gtw_bundle_rep rep;

	if (control_install(g, req, &e) < 0) {
		ipc_fail(call, &e);
		return;
	}
	rep.number = g->bundle.number;
	ipc_answer(call, &rep, NULL, 0);
}

static void control_op_bundle(struct ipc_call *call, const void *req, int *fds, size_t n_fds,
			      void *arg)
{
	const struct gtw_bundle *b = req;
	struct gtw *g = arg;
	struct err e = { 0 };
	struct gtw_bundle_rep rep;

	if (control_bundle(g, b->text, &e) < 0) {
		ipc_fail(call, &e);
		return;
	}
	rep.number = g->bundle.number;
	ipc_answer(call, &rep, NULL, 0);
}

static void control_op_open(struct ipc_call *call, const void *req, int *fds, size_t n_fds,
			    void *arg)
{
	struct gtw *g = arg;
	struct err e = { 0 };

	if (!g->installed || g->closed) {
		err_set(&e, -EACCES, g->closed ? "Everything here was revoked."
					       : "No execution is installed here.");
		ipc_fail(call, &e);
		return;
	}
	g->open = true;
	ipc_answer(call, NULL, NULL, 0);
}

static void control_op_revoke(struct ipc_call *call, const void *req, int *fds, size_t n_fds,
			      void *arg)
{
	const struct ipc_revoke *r = req;
	struct gtw *g = arg;
	struct ipc_revoke_rep rep = { 0 };

	port_accept_all(g);
	if (r->lease == 0) {
		g->closed = true;
		g->open = false;
		flow_end_all(g, true, false, WHY_REVOKED);
		dns_end_all(g);
	}
	rep.ended = port_revoke(g, r->lease) + flow_revoke(g, r->lease);
	ipc_answer(call, &rep, NULL, 0);
}

/* The lease with the lowest number above `after`, one whose port is still dialled among them. */
static json_t *control_lease(struct gtw *g, uint64_t *after)
{
	const struct flow *best = NULL;
	uint16_t port = 0;
	uint64_t lease = port_next_lease(g, *after, &port);

	LIST_FOR(&g->flows, f, struct flow, node) {
		if (f->lease > *after && (!best || f->lease < best->lease))
			best = f;
	}
	if (best && (lease == 0 || best->lease < lease)) {
		lease = best->lease;
		port = best->addr.port;
	} else {
		best = NULL;
	}
	*after = lease;
	return lease == 0 ? NULL
			  : json_pack("{s:I, s:i, s:I, s:I}", "lease", (json_int_t)lease, "port",
				      (int)port, "in", (json_int_t)(best ? best->a_to_b : 0), "out",
				      (json_int_t)(best ? best->b_to_a : 0));
}

static void control_op_leases(struct ipc_call *call, const void *req, int *fds, size_t n_fds,
			      void *arg)
{
	const struct gtw_leases *q = req;
	struct gtw *g = arg;
	struct gtw_leases_rep rep = { .leases = json_array(), .installed = g->installed,
				      .open = g->open, .closed = g->closed,
				      .generation = g->conf.generation };
	uint64_t after = q->after;

	port_accept_all(g);
	/* By number; there are few, and this is asked after a restart only. */
	for (unsigned n = 0; n < CONTROL_LEASES_PAGE; n++) {
		json_t *lease = control_lease(g, &after);

		if (!lease)
			break;
		json_array_append_new(rep.leases, lease);
	}
	rep.next = after;
	ipc_answer(call, &rep, NULL, 0);
	json_decref(rep.leases);
}

static void control_op_log(struct ipc_call *call, const void *req, int *fds, size_t n_fds,
			   void *arg)
{
	const struct gtw_log *q = req;
	struct gtw *g = arg;
	struct gtw_log_rep rep = { 0 };

	flowlog_page(&g->log, q->after, &rep);
	ipc_answer(call, &rep, NULL, 0);
	json_decref(rep.records);
}

static void control_op_stats(struct ipc_call *call, const void *req, int *fds, size_t n_fds,
			     void *arg)
{
	struct gtw *g = arg;
	struct gtw_stats_rep rep = { .counters = json_object() };
	uint64_t c[COUNT_COUNT];

	memcpy(c, g->log.counters, sizeof(c));
	/* Counted when a flow ends; those that go on are added for this answer. */
	LIST_FOR(&g->flows, f, struct flow, node) {
		c[f->lease ? COUNT_LEASE_BYTES_IN : COUNT_BYTES_UP] += f->a_to_b;
		c[f->lease ? COUNT_LEASE_BYTES_OUT : COUNT_BYTES_DOWN] += f->b_to_a;
	}
	for (size_t i = 0; i < COUNT_COUNT; i++)
		json_object_set_new(rep.counters, counter_names[i], json_integer((json_int_t)c[i]));
	json_object_set_new(rep.counters, "flows_open", json_integer((json_int_t)g->n_flows));
	json_object_set_new(rep.counters, "leases_open", json_integer((json_int_t)g->n_leases));
	json_object_set_new(rep.counters, "dials_open", json_integer((json_int_t)g->n_dials));
	json_object_set_new(rep.counters, "buffered_bytes", json_integer((json_int_t)g->buffered));
	ipc_answer(call, &rep, NULL, 0);
	json_decref(rep.counters);
}

static const struct ipc_handler control_handlers[] = {
	{ &gtw_ops[GTW_INSTALL], control_op_install },
	{ &gtw_ops[GTW_BUNDLE], control_op_bundle },
	{ &gtw_ops[GTW_OPEN], control_op_open },
	{ &gtw_ops[GTW_REVOKE], control_op_revoke },
	{ &gtw_ops[GTW_LEASES], control_op_leases },
	{ &gtw_ops[GTW_LOG], control_op_log },
	{ &gtw_ops[GTW_STATS], control_op_stats },
	{ NULL, NULL },
};

int control_start(struct gtw *g, struct err *e)
{
	g->control = ipc_server_new(g->loop, GTW_MAIN_CONTROL, &(struct ipc_server_conf){
		.handlers = control_handlers, .uids = &g->conf.peer_uid, .n_uids = 1,
		.max_peers = GTW_CONTROL_PEERS_MAX, .arg = g });
	return g->control ? 0 : err_set(e, -ENOMEM, "The loop does not take the control socket.");
}
