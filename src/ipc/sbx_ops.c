#include "ipc/sbx_ops.h"

static const struct ipc_field sbx_admit_fields[] = {
	IPC_F_STR(struct sbx_admit, capability),
	IPC_F_STR(struct sbx_admit, purpose),
	IPC_F_STR(struct sbx_admit, access),
	IPC_F_U64_OPT(struct sbx_admit, port, UINT16_MAX),
	IPC_F_STR_OPT(struct sbx_admit, protocol),
	IPC_F_END,
};

static const struct ipc_field sbx_admit_rep_fields[] = {
	IPC_F_U64(struct sbx_admit_rep, lease, 0),
	IPC_F_STR(struct sbx_admit_rep, guest_token),
	IPC_F_STR(struct sbx_admit_rep, sandbox),
	IPC_F_U64(struct sbx_admit_rep, generation, 0),
	IPC_F_END,
};

static const struct ipc_field sbx_lease_fields[] = {
	IPC_F_U64(struct sbx_lease, lease, 0),
	IPC_F_END,
};

static const struct ipc_field sbx_lifecycle_fields[] = {
	IPC_F_STR(struct sbx_lifecycle, capability),
	IPC_F_STR(struct sbx_lifecycle, kind),
	IPC_F_JSON_OPT(struct sbx_lifecycle, spec),
	IPC_F_END,
};

static const struct ipc_field sbx_lifecycle_rep_fields[] = {
	IPC_F_JSON(struct sbx_lifecycle_rep, result),
	IPC_F_END,
};

static const struct ipc_field sbx_bundle_fields[] = {
	IPC_F_STR(struct sbx_bundle, text),
	IPC_F_END,
};

static const struct ipc_field sbx_bundle_rep_fields[] = {
	IPC_F_U64(struct sbx_bundle_rep, number, 0),
	IPC_F_END,
};

static const struct ipc_field sbx_report_fields[] = {
	IPC_F_U64_OPT(struct sbx_report, cursor, 0),
	IPC_F_END,
};

static const struct ipc_field sbx_report_rep_fields[] = {
	IPC_F_JSON(struct sbx_report_rep, node),
	IPC_F_JSON(struct sbx_report_rep, sandboxes),
	IPC_F_U64_OPT(struct sbx_report_rep, next, 0),
	IPC_F_END,
};

static const struct ipc_field sbx_template_fields[] = {
	IPC_F_STR(struct sbx_template, template),
	IPC_F_END,
};

static const struct ipc_field sbx_template_rep_fields[] = {
	IPC_F_BOOL(struct sbx_template_rep, made),
	IPC_F_U64(struct sbx_template_rep, ms, 0),
	IPC_F_END,
};

const struct ipc_field sbx_revoked_fields[] = {
	IPC_F_U64(struct sbx_lease, lease, 0),
	IPC_F_END,
};

const struct ipc_field sbx_progress_fields[] = {
	IPC_F_STR(struct sbx_progress, text),
	IPC_F_END,
};

static const struct ipc_field bridge_attach_fields[] = {
	IPC_F_U64(struct bridge_attach, generation, 0),
	IPC_F_STR(struct bridge_attach, activation),
	IPC_F_END,
};

static const struct ipc_field bridge_leases_fields[] = {
	IPC_F_U64_OPT(struct bridge_leases, after, 0),
	IPC_F_END,
};

static const struct ipc_field bridge_leases_rep_fields[] = {
	IPC_F_JSON(struct bridge_leases_rep, leases),
	IPC_F_U64_OPT(struct bridge_leases_rep, next, 0),
	IPC_F_BOOL(struct bridge_leases_rep, attached),
	IPC_F_BOOL(struct bridge_leases_rep, closed),
	IPC_F_U64(struct bridge_leases_rep, generation, 0),
	IPC_F_END,
};

const struct ipc_field bridge_lost_fields[] = {
	IPC_F_STR(struct bridge_lost, reason),
	IPC_F_END,
};

#define OP_REQ(st) .req = st##_fields, .req_size = sizeof(struct st)
#define OP_REP(st) .rep = st##_fields, .rep_size = sizeof(struct st)

const struct ipc_op sbx_ops[SBX_OP_COUNT] = {
	[SBX_ADMIT] = { "admit", OP_REQ(sbx_admit), OP_REP(sbx_admit_rep), .rep_fds = 1 },
	[SBX_LEASE_END] = { "lease-end", OP_REQ(sbx_lease) },
	[SBX_LIFECYCLE] = { "lifecycle", OP_REQ(sbx_lifecycle), OP_REP(sbx_lifecycle_rep) },
	[SBX_BUNDLE] = { "bundle", OP_REQ(sbx_bundle), OP_REP(sbx_bundle_rep) },
	[SBX_REPORT] = { "report", OP_REQ(sbx_report), OP_REP(sbx_report_rep) },
	[SBX_TEMPLATE_ENSURE] = { "template-ensure", OP_REQ(sbx_template),
				  OP_REP(sbx_template_rep) },
};

const struct ipc_op bridge_ops[BRIDGE_OP_COUNT] = {
	[BRIDGE_ATTACH] = { "attach", OP_REQ(bridge_attach), .req_fds = 1 },
	[BRIDGE_REVOKE] = { "revoke", OP_REQ(ipc_revoke), OP_REP(ipc_revoke_rep) },
	[BRIDGE_LEASES] = { "leases", OP_REQ(bridge_leases), OP_REP(bridge_leases_rep) },
};
