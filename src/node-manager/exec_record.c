#include "node-manager/exec_record.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "identity/identity.h"
#include "node-manager/nm.h"
#include "node-manager/watch.h"

#define EXEC_RECORD_SUFFIX ".json"

const char *const exec_who_names[] = { "init", "vmm", "bridge", "gateway" };
_Static_assert(ARRAY_LEN(exec_who_names) == EXEC_WHO_COUNT, "every process has a name");

const char *const exec_socket_names[] = { "qmp.sock",     "chan.sock", "bridge.sock",
					  "control.sock", "gtw.sock",  "gtwctl.sock" };
_Static_assert(ARRAY_LEN(exec_socket_names) == EXEC_SOCKET_COUNT, "every socket has a name");

const char *const exec_state_names[] = { "none", "spawning", "alive", "ended", "destroying" };
_Static_assert(ARRAY_LEN(exec_state_names) == EXEC_STATE_COUNT, "every state has a name");

/* clang-format off */
#define R struct exec_record
#define F_NUMBER(name, member, optional) { name, IPC_U64, offsetof(R, member), 8, 0, optional }
#define F_FILE(name, member, o) \
	F_NUMBER(name "_dev", member.dev, o), F_NUMBER(name "_ino", member.ino, o), F_NUMBER(name "_size", member.size_bytes, o), \
	F_NUMBER(name "_mtime_s", member.mtime_s, o), F_NUMBER(name "_mtime_ns", member.mtime_ns, o), \
	F_NUMBER(name "_ctime_s", member.ctime_s, o), F_NUMBER(name "_ctime_ns", member.ctime_ns, o), \
	F_NUMBER(name "_links", member.links, o)
#define F_PROC(name, i, o) \
	F_NUMBER(name "_pid", proc[i].pid, o), F_NUMBER(name "_start", proc[i].start, o), F_NUMBER(name "_uid", proc[i].uid, o), \
	F_FILE(name "_exe", proc[i].exe, o)
#define F_SOCKET(name, i, o) F_NUMBER(name "_dev", socket[i].dev, o), F_NUMBER(name "_ino", socket[i].ino, o)

/* Optional: of the gateway, which records of former versions do not know. */
static const struct ipc_field exec_record_fields[] = {
	IPC_F_STR(R, boot_id), IPC_F_STR(R, sandbox), IPC_F_U64(R, generation, 0), IPC_F_U64(R, slot, 0),
	IPC_F_STR(R, template), IPC_F_STR(R, mode), IPC_F_STR(R, vmm_tree), IPC_F_STR(R, bridge_tree),
	IPC_F_STR_OPT(R, gateway_tree),
	F_PROC("init", EXEC_INIT, 0), F_PROC("vmm", EXEC_VMM, 0), F_PROC("bridge", EXEC_BRIDGE, 0),
	F_PROC("gateway", EXEC_GATEWAY, 1),
	F_SOCKET("qmp", EXEC_QMP, 0), F_SOCKET("channel", EXEC_CHANNEL, 0),
	F_SOCKET("streams", EXEC_STREAMS, 0), F_SOCKET("control", EXEC_CONTROL, 0),
	F_SOCKET("gtw_streams", EXEC_GTW_STREAMS, 1), F_SOCKET("gtw_control", EXEC_GTW_CONTROL, 1),
	IPC_F_END
};
#undef R
/* clang-format on */

int exec_name(char dst[EXEC_NAME_MAX], const char *sandbox, uint64_t generation)
{
	return str_format(dst, EXEC_NAME_MAX, "%s.%llu", sandbox, (unsigned long long)generation);
}

int exec_name_parse(const char *name, char sandbox[ID_SANDBOX_LEN + 1], uint64_t *ret_generation)
{
	char head[ID_SANDBOX_LEN + 1], again[EXEC_NAME_MAX];
	uint64_t generation;

	if (strlen(name) <= ID_SANDBOX_LEN + 1 || name[ID_SANDBOX_LEN] != '.')
		return -EINVAL;
	memcpy(head, name, ID_SANDBOX_LEN);
	head[ID_SANDBOX_LEN] = '\0';
	if (!id_sandbox_ok(head) ||
	    str_to_u64(name + ID_SANDBOX_LEN + 1, NM_GENERATION_MAX, &generation) < 0 ||
	    generation < 1)
		return -EINVAL;
	if (exec_name(again, head, generation) < 0 || !str_eq(again, name))
		return -EINVAL;
	memcpy(sandbox, head, sizeof(head));
	*ret_generation = generation;
	return 0;
}

struct exec *exec_add(struct nm *nm, const char *sandbox, uint64_t generation)
{
	struct exec *x = x_alloc(sizeof(*x));

	x->nm = nm;
	exec_name(x->name, sandbox, generation);
	str_copy(x->rec.sandbox, sizeof(x->rec.sandbox), sandbox);
	x->rec.generation = generation;
	x->link_fd = -1;
	for (int i = 0; i < EXEC_WHO_COUNT; i++) {
		x->watch[i] = (struct exec_watch){ .x = x, .who = (enum exec_who)i, .pidfd = -1 };
		x->text_fd[i] = -1;
	}
	list_init(&x->waiters);
	list_add_tail(&nm->execs, &x->node);
	return x;
}

void exec_free(struct exec *x)
{
	watch_stop(x);
	list_del(&x->node);
	free(x);
}

struct exec *exec_find(struct nm *nm, const char *sandbox, uint64_t generation)
{
	LIST_FOR(&nm->execs, x, struct exec, node) {
		if (x->rec.generation == generation && str_eq(x->rec.sandbox, sandbox))
			return x;
	}
	return NULL;
}

struct exec *exec_of_sandbox(struct nm *nm, const char *sandbox)
{
	LIST_FOR(&nm->execs, x, struct exec, node) {
		if (str_eq(x->rec.sandbox, sandbox))
			return x;
	}
	return NULL;
}

struct exec *exec_of_template(struct nm *nm, const char *template)
{
	LIST_FOR(&nm->execs, x, struct exec, node) {
		if (str_eq(x->rec.mode, vmm_mode_names[VMM_TEMPLATE]) &&
		    str_eq(x->rec.template, template))
			return x;
	}
	return NULL;
}

void exec_set_state(struct exec *x, enum exec_state s)
{
	if (x->state == s)
		return;
	log_info("execution changed state", F_STR("sandbox", x->rec.sandbox),
		 F_UINT("generation", x->rec.generation), F_STR("from", exec_state_names[x->state]),
		 F_STR("to", exec_state_names[s]));
	x->state = s;
}

int exec_boot_id(char dst[EXEC_BOOT_ID_MAX], struct err *e)
{
	autofree char *text = NULL;
	int r = fd_read_file(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 64, &text, NULL);

	if (r < 0)
		return err_errno(e, r, "the machine's boot ID cannot be read");
	text[strcspn(text, "\n")] = '\0';
	r = str_copy(dst, EXEC_BOOT_ID_MAX, text);
	return r < 0 ? err_set(e, r, "the machine's boot ID is too long") : 0;
}

int exec_file_of(const char *path, struct exec_file *ret)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return -errno;
	*ret = (struct exec_file){
		.dev = st.st_dev,
		.ino = st.st_ino,
		.size_bytes = (uint64_t)st.st_size,
		.mtime_s = (uint64_t)st.st_mtim.tv_sec,
		.mtime_ns = (uint64_t)st.st_mtim.tv_nsec,
		.ctime_s = (uint64_t)st.st_ctim.tv_sec,
		.ctime_ns = (uint64_t)st.st_ctim.tv_nsec,
		.links = st.st_nlink,
	};
	return 0;
}

int exec_proc_note(enum exec_who who, pid_t pid, uid_t uid, struct exec_proc *ret, struct err *e)
{
	struct exec_proc p = { .uid = uid };
	struct proc_id id;
	char path[64];
	struct stat st;
	int r = proc_id_of(pid, &id);

	str_format(path, sizeof(path), "/proc/%d/exe", (int)pid);
	if (r == 0)
		r = exec_file_of(path, &p.exe);
	if (r < 0)
		return err_errno(e, r, "%s cannot be looked at", exec_who_names[who]);
	/* Last: whose number was anybody else's by then has not this uid, which is of this slot alone. */
	str_format(path, sizeof(path), "/proc/%d", (int)pid);
	if (stat(path, &st) < 0 || st.st_uid != uid)
		return err_set_code(e, -ESRCH, "execution-gone", "%s ended as it was started",
				    exec_who_names[who]);
	p.pid = (uint64_t)id.pid;
	p.start = id.start_ticks;
	*ret = p;
	return 0;
}

bool exec_file_eq(const struct exec_file *a, const struct exec_file *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;    /* eight numbers of eight bytes: no padding */
}

static int record_path(char dst[EXEC_NAME_MAX + 8], const char *name)
{
	return str_format(dst, EXEC_NAME_MAX + 8, "%s" EXEC_RECORD_SUFFIX, name);
}

int exec_record_write(int dir_fd, const struct exec_record *r, struct err *e)
{
	char name[EXEC_NAME_MAX], path[EXEC_NAME_MAX + 8];
	json_t *obj = ipc_encode(exec_record_fields, r);
	autofree char *text = obj ? json_dumps(obj, JSON_COMPACT) : NULL;
	int n;

	json_decref(obj);
	if (!text || exec_name(name, r->sandbox, r->generation) < 0 || record_path(path, name) < 0)
		return err_set(e, -EINVAL, "the execution's record cannot be encoded");
	n = fd_write_file(dir_fd, path, text, strlen(text), 0600);
	return n < 0 ? err_errno(e, n, "the execution's record cannot be written") : 0;
}

int exec_record_read(int dir_fd, const char *name, struct exec_record *ret, struct err *e)
{
	char path[EXEC_NAME_MAX + 8], sandbox[ID_SANDBOX_LEN + 1], again[EXEC_NAME_MAX];
	autofree char *text = NULL;
	uint64_t generation;
	struct exec_record rec = { 0 };
	size_t len = 0;
	json_t *obj;
	int r;

	if (exec_name_parse(name, sandbox, &generation) < 0 || record_path(path, name) < 0)
		return err_set(e, -EINVAL, "not a record's name");
	r = fd_read_file(dir_fd, path, EXEC_RECORD_BYTES_MAX, &text, &len);
	if (r < 0)
		return err_errno(e, r, "the execution's record cannot be read");
	obj = ipc_parse_json(text, len, 2, e);
	if (!obj)
		return err_set(e, -EBADMSG, "the execution's record is not JSON");
	r = ipc_decode(exec_record_fields, obj, &rec, sizeof(rec), e);
	json_decref(obj);
	if (r < 0)
		return err_wrap(e, "the execution's record");
	if (exec_name(again, rec.sandbox, rec.generation) < 0 || !str_eq(again, name))
		return err_set(e, -EBADMSG, "the record is about another execution");
	*ret = rec;
	return 0;
}

int exec_record_remove(int dir_fd, const char *name)
{
	char path[EXEC_NAME_MAX + 8];

	if (record_path(path, name) < 0)
		return -EINVAL;
	return unlinkat(dir_fd, path, 0) < 0 && errno != ENOENT ? -errno : 0;
}

int exec_record_each(int dir_fd, void (*fn)(const char *name, void *arg), void *arg)
{
	int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (!d) {
		int r = -errno;

		fd_close(fd);
		return r;
	}
	for (struct dirent *de; (de = readdir(d));) {
		char name[EXEC_NAME_MAX];
		size_t len = strlen(de->d_name), suffix = strlen(EXEC_RECORD_SUFFIX);

		if (str_ends(de->d_name, FD_WRITE_SUFFIX))
			unlinkat(dir_fd, de->d_name, 0);
		if (len <= suffix || len - suffix >= sizeof(name) ||
		    !str_ends(de->d_name, EXEC_RECORD_SUFFIX))
			continue;
		memcpy(name, de->d_name, len - suffix);
		name[len - suffix] = '\0';
		fn(name, arg);
	}
	closedir(d);
	return 0;
}
