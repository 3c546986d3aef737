#include "ipc/gtw_ops.h"

static const struct ipc_field gtw_install_fields[] = {
	IPC_F_STR(struct gtw_install, tenant),
	IPC_F_STR(struct gtw_install, sandbox),
	IPC_F_STR(struct gtw_install, worker),
	IPC_F_STR(struct gtw_install, substrate),
	IPC_F_STR_OPT(struct gtw_install, pod_uid),
	IPC_F_U64(struct gtw_install, generation, 0),
	IPC_F_STR(struct gtw_install, activation),
	IPC_F_U64(struct gtw_install, attempt, 0),
	IPC_F_STR(struct gtw_install, bundle),
	IPC_F_END,
};

static const struct ipc_field gtw_bundle_fields[] = {
	IPC_F_STR(struct gtw_bundle, text),
	IPC_F_END,
};

static const struct ipc_field gtw_bundle_rep_fields[] = {
	IPC_F_U64(struct gtw_bundle_rep, number, 0),
	IPC_F_END,
};

static const struct ipc_field gtw_leases_fields[] = {
	IPC_F_U64_OPT(struct gtw_leases, after, 0),
	IPC_F_END,
};

static const struct ipc_field gtw_leases_rep_fields[] = {
	IPC_F_JSON(struct gtw_leases_rep, leases),
	IPC_F_U64_OPT(struct gtw_leases_rep, next, 0),
	IPC_F_BOOL(struct gtw_leases_rep, installed),
	IPC_F_BOOL(struct gtw_leases_rep, open),
	IPC_F_BOOL(struct gtw_leases_rep, closed),
	IPC_F_U64(struct gtw_leases_rep, generation, 0),
	IPC_F_END,
};

static const struct ipc_field gtw_log_fields[] = {
	IPC_F_U64_OPT(struct gtw_log, after, 0),
	IPC_F_END,
};

static const struct ipc_field gtw_log_rep_fields[] = {
	IPC_F_JSON(struct gtw_log_rep, records),
	IPC_F_U64(struct gtw_log_rep, next, 0),
	IPC_F_U64(struct gtw_log_rep, lost, 0),
	IPC_F_BOOL(struct gtw_log_rep, more),
	IPC_F_END,
};

static const struct ipc_field gtw_stats_rep_fields[] = {
	IPC_F_JSON(struct gtw_stats_rep, counters),
	IPC_F_END,
};

const char *const gtw_code_names[GTW_CODE_END] = {
	"none", "ok", "deny", "refresh-route", "port-closed", "limit", "timeout",
};

#define OP_REQ(st) .req = st##_fields, .req_size = sizeof(struct st)
#define OP_REP(st) .rep = st##_fields, .rep_size = sizeof(struct st)

const struct ipc_op gtw_ops[GTW_OP_COUNT] = {
	[GTW_INSTALL] = { "gtw-install", OP_REQ(gtw_install), OP_REP(gtw_bundle_rep) },
	[GTW_BUNDLE] = { "gtw-bundle", OP_REQ(gtw_bundle), OP_REP(gtw_bundle_rep) },
	[GTW_OPEN] = { "gtw-open" },
	[GTW_REVOKE] = { "gtw-revoke", OP_REQ(ipc_revoke), OP_REP(ipc_revoke_rep) },
	[GTW_LEASES] = { "gtw-leases", OP_REQ(gtw_leases), OP_REP(gtw_leases_rep) },
	[GTW_LOG] = { "gtw-log", OP_REQ(gtw_log), OP_REP(gtw_log_rep) },
	[GTW_STATS] = { "gtw-stats", OP_REP(gtw_stats_rep) },
};
