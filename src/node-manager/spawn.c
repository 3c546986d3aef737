/*
 * Theory of operation
 *
 *	1 cgroups  2 sockets  3 disk and memory  4 network namespace, TAP  5 jail: three processes
 *	6 QMP connection, peer checked  7 record  8 "go" to jail-init
 *
 * That the uids are unused was seen when the slot became free. The record is the point of return:
 * before it, the death of this child ends the processes (jail.c), and the sweep finds the rest by
 * its name. Between 7 and 8 the processes end too, and the record says whose remains they are.
 */
#include "node-manager/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/proc.h"
#include "base/str.h"
#include "jail-init/jail_init.h"
#include "node-manager/disk.h"
#include "node-manager/jail.h"
#include "node-manager/jail_tree.h"
#include "node-manager/net.h"
#include "node-manager/sockets.h"
#include "node-manager/template.h"

struct spawn {
	struct child_task *t;
	struct nm *nm;
	const struct nm_spawn *req;
	const char *name;
	struct vmm_spec vmm;
	struct vmm_argv argv;
	struct exec_record rec;
	struct jail_spec jail;
	pid_t pid[EXEC_CORE_COUNT];
	int state_fd;
};

static int spawn_fault(const char *step, struct err *e)
{
	int r = FAULT(step);

	return r < 0 ? err_errno(e, r, "failpoint %s", step) : 0;
}

static int step_cgroups(struct spawn *s, struct err *e)
{
	int r = spawn_fault("nm.spawn.begin", e);

	if (r == 0)
		r = spawn_fault("nm.spawn.cgroups", e);

	return r < 0 ? r
		     : cgroup_make(&s->nm->cgroups, s->name, s->vmm.memory_mib, s->vmm.vcpus, e);
}

static int step_sockets(struct spawn *s, struct err *e)
{
	int r = spawn_fault("nm.spawn.sockets", e);

	return r < 0 ? r : sockets_make(s->nm, s->name, &s->rec, s->jail.socket, e);
}

static int bind_file(struct spawn *s, const char *data_path, const char *target, bool writable,
		     struct err *e)
{
	struct jail_bind *b = &s->jail.bind[s->jail.n_binds];
	int r = conf_path(&s->nm->conf, b->source, CONF_STATE, "data/%s", data_path);

	if (r < 0)
		return err_errno(e, r, "a path of the storage");
	b->target = target + 1;                  /* below the jail's root, which is the working directory then */
	b->writable = writable;
	s->jail.n_binds++;
	return 0;
}

static int bind_template_file(struct spawn *s, const char *file, const char *target, bool writable,
			      struct err *e)
{
	char path[DISK_NAME_MAX + 32];
	int r = template_path(path, s->req->template, s->vmm.mode == VMM_TEMPLATE, file);

	return r < 0 ? err_errno(e, r, "the template's path")
		     : bind_file(s, path, target, writable, e);
}

static int open_template_file(struct spawn *s, const char *file, int flags, int *ret, struct err *e)
{
	char path[DISK_NAME_MAX + 32];
	int r = template_path(path, s->req->template, s->vmm.mode == VMM_TEMPLATE, file);

	if (r == 0)
		r = fd_openat_beneath(s->nm->data_fd, path, flags | O_CLOEXEC, 0);
	if (r == -ENOENT)
		return err_set_code(e, r, "template-not-found",
				    "the template %s has no file %s on this node", s->req->template,
				    file);
	if (r < 0)
		return err_errno(e, r, "the template's file %s cannot be opened", file);
	*ret = r;
	return 0;
}

/* Shared with the template's file: the VMM owns it until the template is committed. */
static int own_memory(struct spawn *s, struct err *e)
{
	autoclose int fd = -1;
	int r = open_template_file(s, TEMPLATE_MEM, O_RDWR, &fd, e);

	if (r == 0)
		r = disk_need_space(s->nm, (uint64_t)s->vmm.memory_mib << 20, e);
	if (r == 0 && (ftruncate(fd, 0) < 0 || ftruncate(fd, (off_t)s->vmm.memory_mib << 20) < 0 ||
		       fchown(fd, s->jail.vmm_uid, s->jail.vmm_uid) < 0))
		r = err_errno(e, -errno, "the memory file cannot be prepared");
	return r;
}

static int check_memory_size(struct spawn *s, struct err *e)
{
	autoclose int fd = -1;
	struct stat st;
	int r = open_template_file(s, TEMPLATE_MEM, O_RDONLY, &fd, e);

	if (r < 0)
		return r;
	if (fstat(fd, &st) < 0 || st.st_size != (off_t)s->vmm.memory_mib << 20)
		return err_set(e, -EINVAL, "the template's memory is not of %u MiB",
			       s->vmm.memory_mib);
	return 0;
}

static int step_memory(struct spawn *s, struct err *e)
{
	char zero[DISK_NAME_MAX];
	int r = 0;

	if (s->vmm.mode == VMM_BOOT) {
		r = disk_zero_file(s->nm, s->vmm.memory_mib, zero, e);
		return r < 0 ? r : bind_file(s, zero, VMM_JAIL_MEM, false, e);
	}
	r = s->vmm.mode == VMM_TEMPLATE ? own_memory(s, e) : check_memory_size(s, e);
	return r < 0 ? r
		     : bind_template_file(s, TEMPLATE_MEM, VMM_JAIL_MEM,
					  s->vmm.mode == VMM_TEMPLATE, e);
}

static int step_disk(struct spawn *s, struct err *e)
{
	struct stat st;
	int r = spawn_fault("nm.spawn.disk", e);

	if (r == 0 && s->vmm.mode == VMM_TEMPLATE)
		r = open_template_file(s, DISK_IMAGE, O_RDWR, &s->jail.disk, e);
	else if (r == 0)
		r = disk_open_image(s->nm, s->req->sandbox, &s->jail.disk, e);
	if (r == 0 && fstat(s->jail.disk, &st) < 0)
		r = err_errno(e, -errno, "the disk's size");
	if (r == 0)
		r = step_memory(s, e);
	if (r < 0)
		return r;
	/* What the VMM writes: image and memory, neither of which grows. */
	s->jail.vmm_file_bytes = (uint64_t)st.st_size > (uint64_t)s->vmm.memory_mib << 20
					 ? (uint64_t)st.st_size
					 : (uint64_t)s->vmm.memory_mib << 20;
	if (s->vmm.mode == VMM_RESTORE)
		return open_template_file(s, TEMPLATE_STATE, O_RDONLY, &s->state_fd, e);
	r = bind_template_file(s, TEMPLATE_KERNEL, VMM_JAIL_KERNEL, false, e);
	return r < 0 ? r : bind_template_file(s, TEMPLATE_INITRD, VMM_JAIL_INITRD, false, e);
}

static int step_net(struct spawn *s, struct err *e)
{
	char path[PATH_MAX];
	int r = spawn_fault("nm.spawn.net", e);

	if (r == 0)
		r = conf_path(&s->nm->conf, path, CONF_RUN, "nm/" NET_FOLDER "/%s", s->name);
	return r < 0 ? r : net_make(path, &s->jail.tap, e);
}

static int step_jail(struct spawn *s, struct err *e)
{
	char generation[24], peer[24];
	char *bridge[] = { (char *)JAIL_BRIDGE_PROGRAM,
			   (char *)"--sandbox",
			   s->rec.sandbox,
			   (char *)"--generation",
			   generation,
			   (char *)"--peer-uid",
			   peer,
			   NULL };
	int r = spawn_fault("nm.spawn.jail", e);

	if (r == 0)
		r = vmm_argv(&s->vmm, &s->argv, e);
	if (r < 0)
		return r;
	/* By descriptor: the jail has no device node, and the VMM's uid needs no right to it. */
	if (s->vmm.accel == VMM_ACCEL_KVM) {
		s->jail.kvm = open(VMM_KVM_DEVICE, O_RDWR | O_CLOEXEC);
		if (s->jail.kvm < 0)
			return err_errno(e, -errno, VMM_KVM_DEVICE);
	}
	str_format(generation, sizeof(generation), "%llu", (unsigned long long)s->rec.generation);
	str_format(peer, sizeof(peer), "%u", (unsigned)s->nm->conf.users[CONF_USER_SBX]);
	s->jail.null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (s->jail.null < 0)
		return err_errno(e, -errno, "/dev/null cannot be opened");
	s->jail.vmm_argv = s->argv.argv;
	s->jail.bridge_argv = bridge;
	return jail_start(&s->jail, s->pid, e);
}

static int step_record(struct spawn *s, struct err *e)
{
	const uid_t uid[] = { s->jail.init_uid, s->jail.vmm_uid, s->jail.bridge_uid };
	int qmp = -1, r = 0;

	for (int i = 0; i < EXEC_CORE_COUNT && r == 0; i++)
		r = exec_proc_note((enum exec_who)i, s->pid[i], uid[i], &s->rec.proc[i], e);
	if (r == 0)
		r = spawn_fault("nm.spawn.qmp", e);
	if (r == 0)
		r = sockets_connect(s->nm, &s->rec, EXEC_QMP, &s->rec.proc[EXEC_VMM],
				    SPAWN_QMP_WAIT_MS, &qmp, e);
	if (r < 0)
		return r;
	s->t->ret_fds[s->t->n_ret_fds++] = qmp;
	if (s->vmm.mode == VMM_RESTORE)
		s->t->ret_fds[s->t->n_ret_fds++] = s->state_fd;
	r = spawn_fault("nm.spawn.record", e);
	if (r == 0)
		r = exec_record_write(s->nm->run_fd, &s->rec, e);
	return r == 0 ? spawn_fault("nm.spawn.recorded", e) : r;
}

static int step_go(struct spawn *s, struct err *e)
{
	struct nm_spawn_rep *rep = s->t->rep;
	const struct exec_proc *p = s->rec.proc;

	if (send(s->t->spare[SPAWN_LINK_MAIN], JAIL_INIT_GO, strlen(JAIL_INIT_GO), MSG_NOSIGNAL) <
	    0)
		return err_errno(e, -errno, "jail-init does not listen");
	*rep = (struct nm_spawn_rep){
		.slot = s->rec.slot, .vmm_uid = p[EXEC_VMM].uid, .bridge_uid = p[EXEC_BRIDGE].uid,
		.vmm_pid = p[EXEC_VMM].pid, .vmm_start = p[EXEC_VMM].start,
		.bridge_pid = p[EXEC_BRIDGE].pid, .bridge_start = p[EXEC_BRIDGE].start,
		.init_pid = p[EXEC_INIT].pid, .init_start = p[EXEC_INIT].start,
	};
	return spawn_fault("nm.spawn.gone", e);
}

static int (*const spawn_steps[])(struct spawn *s, struct err *e) = {
	step_cgroups, step_sockets, step_disk, step_net, step_jail, step_record, step_go,
};

static int spawn_prepare(struct spawn *s, struct err *e)
{
	const struct slots *slots = &s->nm->slots;
	uint32_t slot = (uint32_t)s->rec.slot;
	enum vmm_mode mode;
	enum vmm_accel accel;

	if (vmm_mode_of(s->req->mode, &mode) < 0 || mode == VMM_PROBE ||
	    vmm_accel_of(s->req->accel, &accel) < 0)
		return err_set(e, -EINVAL, "unknown mode or accelerator");
	if (s->req->memory_mib > VMM_MEMORY_MIB_MAX || s->req->vcpus > VMM_VCPUS_MAX)
		return err_set(e, -EINVAL, "a sandbox has at most %d MiB and %d virtual CPUs",
			       VMM_MEMORY_MIB_MAX, VMM_VCPUS_MAX);
	s->vmm = (struct vmm_spec) { .mode = mode,
				     .accel = accel,
				     .memory_mib = (uint32_t)s->req->memory_mib,
				     .vcpus = (uint32_t)s->req->vcpus,
				     .tsc_khz = s->nm->tsc_khz };
	str_copy(s->rec.boot_id, sizeof(s->rec.boot_id), s->nm->boot_id);
	str_copy(s->rec.template, sizeof(s->rec.template), s->req->template);
	str_copy(s->rec.mode, sizeof(s->rec.mode), s->req->mode);
	str_copy(s->rec.vmm_tree, sizeof(s->rec.vmm_tree), s->nm->vmm_tree.digest);
	str_copy(s->rec.bridge_tree, sizeof(s->rec.bridge_tree), s->nm->bridge_tree.digest);
	s->jail.nm = s->nm;
	s->jail.name = s->name;
	s->jail.accel = accel;
	s->jail.kvm = -1;
	s->jail.vmm_uid = slots_uid(slots, slot, SLOT_VMM);
	s->jail.bridge_uid = slots_uid(slots, slot, SLOT_BRIDGE);
	s->jail.init_uid = slots_uid(slots, slot, SLOT_SPARE);
	s->jail.link = s->t->spare[SPAWN_LINK_INIT];
	s->jail.text[EXEC_INIT] = -1;
	s->jail.text[EXEC_VMM] = s->t->spare[SPAWN_TEXT_VMM];
	s->jail.text[EXEC_BRIDGE] = s->t->spare[SPAWN_TEXT_BRIDGE];
	return 0;
}

int spawn_run(struct child_task *t, struct err *e)
{
	struct spawn s = { .t = t,
			   .nm = t->nm,
			   .req = t->req,
			   .name = t->x->name,
			   .rec = t->x->rec,
			   .state_fd = -1 };
	int r = spawn_prepare(&s, e);

	for (size_t i = 0; i < ARRAY_LEN(spawn_steps) && r == 0; i++)
		r = spawn_steps[i](&s, e);
	return r;
}
