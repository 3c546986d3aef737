/*
 * A packet from a hostile peer, as a server and as a client would read it: parsed, decoded by every
 * table, and what was accepted must come back the same when it is encoded and decoded again.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "ipc/gtw_ops.h"
#include "ipc/msg.h"
#include "ipc/nm_ops.h"
#include "ipc/sbx_ops.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void round_trip(const struct ipc_field *fields, size_t st_size, json_t *v)
{
	autofree void *a = x_alloc(st_size ? st_size : 1), *b = x_alloc(st_size ? st_size : 1);
	struct err e = { 0 };
	json_t *once, *twice;

	if (ipc_decode(fields, v, a, st_size, &e) < 0) {
		assert(e.num < 0 && e.text[0]);
		return;
	}
	once = ipc_encode(fields, a);
	assert(once && ipc_decode(fields, once, b, st_size, NULL) == 0);
	twice = ipc_encode(fields, b);
	assert(json_equal(once, twice));
	json_decref(once);
	json_decref(twice);
	ipc_done(fields, a);
	ipc_done(fields, b);
}

static void try_ops(const struct ipc_op *ops, size_t n, const char *name, json_t *v)
{
	for (size_t i = 0; i < n; i++) {
		if (!name)
			round_trip(ops[i].rep, ops[i].rep_size, v);
		else if (str_eq(ops[i].name, name))
			round_trip(ops[i].req, ops[i].req_size, v);
	}
}

static void try_all(const char *name, json_t *v)
{
	try_ops(nm_ops, NM_OP_COUNT, name, v);
	try_ops(sbx_ops, SBX_OP_COUNT, name, v);
	try_ops(bridge_ops, BRIDGE_OP_COUNT, name, v);
	try_ops(gtw_ops, GTW_OP_COUNT, name, v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ipc_request q;
	struct ipc_incoming m;

	if (size > IPC_MSG_MAX)
		return 0;
	if (ipc_request_parse((const char *)data, size, &q, NULL) == 0) {
		try_all(q.op, q.a);
		ipc_request_done(&q);
	}
	if (ipc_incoming_parse((const char *)data, size, &m, NULL) == 0) {
		assert(m.ev[0] || m.failed || m.r);
		if (m.r)
			try_all(NULL, m.r);
		round_trip(nm_exited_fields, sizeof(struct nm_exited), m.a);
		round_trip(sbx_revoked_fields, sizeof(struct sbx_lease), m.a);
		round_trip(bridge_lost_fields, sizeof(struct bridge_lost), m.a);
	}
	ipc_incoming_done(&m);
	return 0;
}
