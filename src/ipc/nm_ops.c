#include "ipc/nm_ops.h"

#include <assert.h>

static const struct ipc_field nm_exec_fields[] = {
	IPC_F_STR(struct nm_exec, sandbox),
	IPC_F_U64(struct nm_exec, generation, 0),
	IPC_F_END,
};

static const struct ipc_field nm_sandbox_fields[] = {
	IPC_F_STR(struct nm_sandbox, sandbox),
	IPC_F_END,
};

static const struct ipc_field nm_template_fields[] = {
	IPC_F_STR(struct nm_template, template),
	IPC_F_END,
};

static const struct ipc_field nm_disk_create_fields[] = {
	IPC_F_STR(struct nm_disk_create, sandbox),
	IPC_F_STR(struct nm_disk_create, template),
	IPC_F_END,
};

static const struct ipc_field nm_spawn_fields[] = {
	IPC_F_STR(struct nm_spawn, sandbox),
	IPC_F_U64(struct nm_spawn, generation, 0),
	IPC_F_STR(struct nm_spawn, template),
	IPC_F_STR(struct nm_spawn, mode),
	IPC_F_STR(struct nm_spawn, accel),
	IPC_F_U64(struct nm_spawn, memory_mib, 0),
	IPC_F_U64(struct nm_spawn, vcpus, 0),
	IPC_F_END,
};

static const struct ipc_field nm_spawn_rep_fields[] = {
	IPC_F_U64(struct nm_spawn_rep, slot, 0),
	IPC_F_U64(struct nm_spawn_rep, vmm_uid, UINT32_MAX),
	IPC_F_U64(struct nm_spawn_rep, bridge_uid, UINT32_MAX),
	IPC_F_U64(struct nm_spawn_rep, vmm_pid, INT32_MAX),
	IPC_F_U64(struct nm_spawn_rep, vmm_start, 0),
	IPC_F_U64(struct nm_spawn_rep, bridge_pid, INT32_MAX),
	IPC_F_U64(struct nm_spawn_rep, bridge_start, 0),
	IPC_F_U64(struct nm_spawn_rep, init_pid, INT32_MAX),
	IPC_F_U64(struct nm_spawn_rep, init_start, 0),
	IPC_F_END,
};

static const struct ipc_field nm_verify_fields[] = {
	IPC_F_STR(struct nm_verify, sandbox),
	IPC_F_U64(struct nm_verify, generation, 0),
	IPC_F_U64(struct nm_verify, bridge_pid, INT32_MAX),
	IPC_F_U64_OPT(struct nm_verify, gateway_pid, INT32_MAX),
	IPC_F_END,
};

static const struct ipc_field nm_gateway_fields[] = {
	IPC_F_STR(struct nm_gateway, sandbox),
	IPC_F_U64(struct nm_gateway, generation, 0),
	IPC_F_BOOL(struct nm_gateway, internet),
	IPC_F_END,
};

static const struct ipc_field nm_gateway_rep_fields[] = {
	IPC_F_U64(struct nm_gateway_rep, pid, INT32_MAX),
	IPC_F_U64(struct nm_gateway_rep, start, 0),
	IPC_F_U64(struct nm_gateway_rep, uid, UINT32_MAX),
	IPC_F_END,
};

static const struct ipc_field nm_kill_fields[] = {
	IPC_F_STR(struct nm_kill, sandbox),
	IPC_F_U64(struct nm_kill, generation, 0),
	IPC_F_STR(struct nm_kill, what),
	IPC_F_END,
};

static const struct ipc_field nm_template_commit_fields[] = {
	IPC_F_STR(struct nm_template_commit, template),
	IPC_F_JSON(struct nm_template_commit, manifest),
	IPC_F_END,
};

static const struct ipc_field nm_manifest_rep_fields[] = {
	IPC_F_JSON(struct nm_manifest_rep, manifest),
	IPC_F_END,
};

static const struct ipc_field nm_list_fields[] = {
	IPC_F_U64_OPT(struct nm_list, cursor, 0),
	IPC_F_END,
};

static const struct ipc_field nm_list_rep_fields[] = {
	IPC_F_JSON(struct nm_list_rep, items),
	IPC_F_U64_OPT(struct nm_list_rep, next, 0),
	IPC_F_END,
};

static const struct ipc_field nm_stats_rep_fields[] = {
	IPC_F_U64(struct nm_stats_rep, data_total_bytes, 0),
	IPC_F_U64(struct nm_stats_rep, data_free_bytes, 0),
	IPC_F_U64(struct nm_stats_rep, slots, 0),
	IPC_F_U64(struct nm_stats_rep, slots_used, 0),
	IPC_F_END,
};

const struct ipc_field nm_exited_fields[] = {
	IPC_F_STR(struct nm_exited, sandbox),
	IPC_F_U64(struct nm_exited, generation, 0),
	IPC_F_STR(struct nm_exited, who),
	IPC_F_I64(struct nm_exited, status),
	IPC_F_END,
};

#define NM_REQ(st) .req = st##_fields, .req_size = sizeof(struct st)
#define NM_REP(st) .rep = st##_fields, .rep_size = sizeof(struct st)

const struct ipc_op nm_ops[NM_OP_COUNT] = {
	[NM_LIST] = { "list", NM_REQ(nm_list), NM_REP(nm_list_rep) },
	[NM_STATS] = { "stats", NM_REP(nm_stats_rep) },
	[NM_DISK_CREATE] = { "disk-create", NM_REQ(nm_disk_create) },
	[NM_DISK_DELETE] = { "disk-delete", NM_REQ(nm_sandbox) },
	[NM_SPAWN] = { "spawn", NM_REQ(nm_spawn), NM_REP(nm_spawn_rep), .rep_fds = 2 },
	[NM_QMP_OPEN] = { "qmp-open", NM_REQ(nm_exec), .rep_fds = 1 },
	[NM_CHANNEL_OPEN] = { "channel-open", NM_REQ(nm_exec), .rep_fds = 1 },
	[NM_VERIFY] = { "verify", NM_REQ(nm_verify) },
	[NM_KILL] = { "kill", NM_REQ(nm_kill) },
	[NM_GATEWAY] = { "gateway", NM_REQ(nm_gateway), NM_REP(nm_gateway_rep) },
	[NM_DESTROY] = { "destroy", NM_REQ(nm_exec) },
	[NM_TEMPLATE_BEGIN] = { "template-begin", NM_REQ(nm_template) },
	[NM_TEMPLATE_COMMIT] = { "template-commit", NM_REQ(nm_template_commit), .req_fds = 1 },
	[NM_TEMPLATE_DROP] = { "template-drop", NM_REQ(nm_template) },
	[NM_TEMPLATE_IMPORT] = { "template-import", NM_REQ(nm_template) },
	[NM_TEMPLATE_MANIFEST] = { "template-manifest", NM_REQ(nm_template),
				   NM_REP(nm_manifest_rep) },
};
