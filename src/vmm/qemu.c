/*
 * The QEMU driver's live half: commands over QMP, what the events mean.
 *
 * Device state goes through descriptors: add-fd puts one into a set of QEMU's, `file:/dev/fdset/N`
 * names it, so the jail needs no file. QEMU wants the access mode to match exactly: O_RDONLY to
 * load, O_WRONLY to save.
 */
#include "vmm/qemu.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "vmm/qmp.h"
#include "vmm/vmm_impl.h"

#define MIGRATION_STATUS_MAX 24

struct qemu {
	struct vmm base;
	struct qmp *qmp;
	struct vmm_event events[VMM_EV_KIND_COUNT];     /* one of each kind at most */
	size_t n_events;
	char migration[MIGRATION_STATUS_MAX];           /* newest status of an incoming state; "" = none yet */
};

static void json_auto(json_t **j) { json_decref(*j); }
#define autojson __attribute__((cleanup(json_auto)))

static struct qemu *qemu_of(struct vmm *vm) { return (struct qemu *)vm; }

/* ---- Events ---- */

static void queue_event(struct qemu *q, struct vmm_event ev)
{
	for (size_t i = 0; i < q->n_events; i++) {
		if (q->events[i].kind != ev.kind)
			continue;
		memmove(&q->events[i], &q->events[i + 1], (q->n_events - i - 1) * sizeof(ev));
		q->n_events--;
		break;
	}
	q->events[q->n_events++] = ev;
}

/* Only words of letters, digits and dashes are kept of what the VMM gives as a reason. */
static void set_detail(struct vmm_event *ev, json_t *data, const char *key)
{
	const char *s = json_string_value(json_object_get(data, key));

	if (s && str_is(s, 1, VMM_EVENT_DETAIL_MAX - 1,
			"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"))
		str_copy(ev->detail, sizeof(ev->detail), s);
}

static void on_stop(struct qemu *q, json_t *data)
{
	queue_event(q, (struct vmm_event){ .kind = VMM_EV_STOP });
}

static void on_resume(struct qemu *q, json_t *data)
{
	queue_event(q, (struct vmm_event){ .kind = VMM_EV_RESUME });
}

/* With -no-reboot a reset arrives as SHUTDOWN too, with reason guest-reset. */
static void on_shutdown(struct qemu *q, json_t *data)
{
	struct vmm_event ev = { .kind = VMM_EV_QUIT };

	set_detail(&ev, data, "reason");
	if (str_eq(ev.detail, "guest-reset"))
		ev.kind = VMM_EV_GUEST_RESET;
	else if (str_eq(ev.detail, "guest-panic"))
		ev.kind = VMM_EV_PANIC;
	else if (json_is_true(json_object_get(data, "guest")))
		ev.kind = VMM_EV_GUEST_OFF;
	queue_event(q, ev);
}

static void on_reset(struct qemu *q, json_t *data)
{
	struct vmm_event ev = { .kind = VMM_EV_GUEST_RESET };

	set_detail(&ev, data, "reason");
	queue_event(q, ev);
}

static void on_panic(struct qemu *q, json_t *data)
{
	struct vmm_event ev = { .kind = VMM_EV_PANIC };

	set_detail(&ev, data, "action");
	queue_event(q, ev);
}

static void on_io_error(struct qemu *q, json_t *data)
{
	struct vmm_event ev = { .kind = VMM_EV_IO_ERROR };

	ev.no_space = json_is_true(json_object_get(data, "nospace"));
	set_detail(&ev, data, "operation");
	queue_event(q, ev);
}

static void on_migration(struct qemu *q, json_t *data)
{
	const char *status = json_string_value(json_object_get(data, "status"));

	if (status && str_copy(q->migration, sizeof(q->migration), status) < 0)
		q->migration[0] = '\0';
}

static void on_port(struct qemu *q, json_t *data)
{
	if (json_is_true(json_object_get(data, "open")))
		queue_event(q, (struct vmm_event){ .kind = VMM_EV_CHANNEL_OPEN });
}

/* All other events are ignored: NIC_RX_FILTER_CHANGED comes from the guest at will. */
static const struct {
	const char *name;
	void (*fn)(struct qemu *q, json_t *data);
} event_table[] = {
	{ "STOP", on_stop },
	{ "RESUME", on_resume },
	{ "SHUTDOWN", on_shutdown },
	{ "RESET", on_reset },
	{ "GUEST_PANICKED", on_panic },
	{ "BLOCK_IO_ERROR", on_io_error },
	{ "MIGRATION", on_migration },
	{ "VSERPORT_CHANGE", on_port },
};

static void on_event(const char *name, json_t *data, void *arg)
{
	for (size_t i = 0; i < ARRAY_LEN(event_table); i++) {
		if (str_eq(event_table[i].name, name))
			event_table[i].fn(arg, data);
	}
}

static bool qemu_next_event(struct vmm *vm, struct vmm_event *ret)
{
	struct qemu *q = qemu_of(vm);

	if (q->n_events == 0)
		return false;
	*ret = q->events[0];
	q->n_events--;
	memmove(&q->events[0], &q->events[1], q->n_events * sizeof(q->events[0]));
	return true;
}

/* ---- Connection ---- */

static int qemu_open(int control_fd, int timeout_ms, struct vmm **ret, struct err *e)
{
	struct qemu *q = x_alloc(sizeof(*q));
	int r;

	q->base.driver = &vmm_qemu;
	r = qmp_open(control_fd, on_event, q, timeout_ms, &q->qmp, e);
	if (r < 0) {
		free(q);
		return r;
	}
	*ret = &q->base;
	return 0;
}

static void qemu_close(struct vmm *vm)
{
	struct qemu *q = qemu_of(vm);

	qmp_free(q->qmp);
	free(q);
}

static int qemu_fd(const struct vmm *vm) { return qmp_fd(((const struct qemu *)vm)->qmp); }

static int qemu_poll(struct vmm *vm, struct err *e) { return qmp_poll(qemu_of(vm)->qmp, e); }

/* ---- Commands ---- */

/*
 * QEMU's RunState (qapi/run-state.json). What is not here is a crash: "internal-error", "watchdog",
 * "colo".
 */
static const struct {
	const char *name;
	enum vmm_run_state state;
} run_table[] = {
	{ "running", VMM_RUN_RUNNING },         { "paused", VMM_RUN_PAUSED },
	{ "prelaunch", VMM_RUN_PAUSED },        { "save-vm", VMM_RUN_PAUSED },
	{ "finish-migrate", VMM_RUN_PAUSED },   { "postmigrate", VMM_RUN_PAUSED },
	{ "restore-vm", VMM_RUN_INCOMING },     { "inmigrate", VMM_RUN_INCOMING },
	{ "io-error", VMM_RUN_IO_ERROR },       { "shutdown", VMM_RUN_OFF },
	{ "guest-panicked", VMM_RUN_PANICKED }, { "suspended", VMM_RUN_PAUSED },
};

static int qemu_status(struct vmm *vm, enum vmm_run_state *ret, int timeout_ms, struct err *e)
{
	autojson json_t *answer = NULL;
	const char *status;
	int r = qmp_call(qemu_of(vm)->qmp, "query-status", NULL, -1, timeout_ms, &answer, e);

	if (r < 0)
		return r;
	status = json_string_value(json_object_get(answer, "status"));
	if (!status)
		return err_set(e, -EPROTO, "the VMM gave no status");
	*ret = VMM_RUN_CRASHED;
	for (size_t i = 0; i < ARRAY_LEN(run_table); i++) {
		if (str_eq(run_table[i].name, status))
			*ret = run_table[i].state;
	}
	return 0;
}

static int qemu_cont(struct vmm *vm, int timeout_ms, struct err *e)
{
	return qmp_call(qemu_of(vm)->qmp, "cont", NULL, -1, timeout_ms, NULL, e);
}

static int qemu_stop(struct vmm *vm, int timeout_ms, struct err *e)
{
	return qmp_call(qemu_of(vm)->qmp, "stop", NULL, -1, timeout_ms, NULL, e);
}

/* Gives QEMU a descriptor; *ret_set is the number of its set. */
static int add_fd(struct qemu *q, int fd, int timeout_ms, json_int_t *ret_set, struct err *e)
{
	autojson json_t *answer = NULL;
	json_t *set;
	int r = qmp_call(q->qmp, "add-fd", NULL, fd, timeout_ms, &answer, e);

	if (r < 0)
		return r;
	set = json_object_get(answer, "fdset-id");
	if (!json_is_integer(set) || json_integer_value(set) < 0 ||
	    json_integer_value(set) > INT32_MAX)
		return err_set(e, -EPROTO, "the VMM did not say where it put the descriptor");
	*ret_set = json_integer_value(set);
	return 0;
}

static int remove_fd(struct qemu *q, json_int_t set, int timeout_ms, struct err *e)
{
	return qmp_call(q->qmp, "remove-fd", json_pack("{s:I}", "fdset-id", set), -1, timeout_ms,
			NULL, e);
}

static int load_failed(struct qemu *q, int timeout_ms, struct err *e)
{
	autojson json_t *answer = NULL;
	autofree char *text = NULL;
	const char *desc;
	int r = qmp_call(q->qmp, "query-migrate", NULL, -1, timeout_ms, &answer, e);

	if (r < 0)
		return r;
	desc = json_string_value(json_object_get(answer, "error-desc"));
	if (!desc)
		desc = "no reason given";
	text = str_printable(desc, strlen(desc));
	return err_set(e, -EBADMSG, "the VMM could not load the device state: %.300s", text);
}

static int load_wait(struct qemu *q, int64_t deadline_ms, struct err *e)
{
	while (!str_eq(q->migration, "completed")) {
		int left = (int)(deadline_ms - clock_mono_ms());
		int r;

		if (str_eq(q->migration, "failed"))
			return load_failed(q, left > 0 ? left : 0, e);
		r = qmp_wait(q->qmp, left > 0 ? left : 0, e);
		if (r < 0)
			return err_wrap(e, "loading the device state");
	}
	return 0;
}

static int qemu_load(struct vmm *vm, int state_fd, int timeout_ms, struct err *e)
{
	int64_t deadline = clock_mono_ms() + timeout_ms;
	struct qemu *q = qemu_of(vm);
	char uri[48];
	json_int_t set;
	int r = add_fd(q, state_fd, timeout_ms, &set, e);

	if (r < 0)
		return r;
	q->migration[0] = '\0';
	r = qmp_call(q->qmp, "migrate-set-capabilities",
		     json_pack("{s:[{s:s,s:b}]}", "capabilities", "capability", "events", "state",
			       1),
		     -1, timeout_ms, NULL, e);
	if (r < 0)
		return r;
	str_format(uri, sizeof(uri), "file:/dev/fdset/%" JSON_INTEGER_FORMAT, set);
	r = qmp_call(q->qmp, "migrate-incoming",
		     json_pack("{s:s,s:b}", "uri", uri, "exit-on-error", 0), -1, timeout_ms, NULL,
		     e);
	if (r < 0)
		return r;
	r = load_wait(q, deadline, e);
	if (r < 0)
		return r;
	return remove_fd(q, set, timeout_ms, e);
}

static int qemu_save(struct vmm *vm, int state_fd, int timeout_ms, struct err *e)
{
	struct qemu *q = qemu_of(vm);
	enum vmm_run_state state;
	char name[32];
	json_int_t set;
	int r = qemu_status(vm, &state, timeout_ms, e);

	if (r < 0)
		return r;
	if (state != VMM_RUN_PAUSED && state != VMM_RUN_IO_ERROR)
		return err_set(e, -EBUSY, "a VM that is %s cannot be saved: stop it first",
			       vmm_run_names[state]);
	r = add_fd(q, state_fd, timeout_ms, &set, e);
	if (r < 0)
		return r;
	str_format(name, sizeof(name), "/dev/fdset/%" JSON_INTEGER_FORMAT, set);
	/* live:false: the images stay active, so the VM can go on in this process. */
	r = qmp_call(q->qmp, "xen-save-devices-state",
		     json_pack("{s:s,s:b}", "filename", name, "live", 0), -1, timeout_ms, NULL, e);
	if (r == -EREMOTEIO) {
		remove_fd(q, set, timeout_ms, NULL);
		return r;
	}
	return r < 0 ? r : remove_fd(q, set, timeout_ms, e);
}

static int qemu_console(struct vmm *vm, char **ret, size_t *ret_len, int timeout_ms, struct err *e)
{
	autojson json_t *answer = NULL;
	autofree char *bytes = NULL;
	size_t n;
	/* base64: as text QEMU would replace what is not UTF-8. */
	int r = qmp_call(qemu_of(vm)->qmp, "ringbuf-read",
			 json_pack("{s:s,s:i,s:s}", "device", "con", "size", VMM_CONSOLE_BYTES,
				   "format", "base64"),
			 -1, timeout_ms, &answer, e);

	if (r < 0)
		return r;
	if (!json_is_string(answer))
		return err_set(e, -EPROTO, "the VMM gave no console");
	bytes = x_alloc(VMM_CONSOLE_BYTES + 1);
	r = str_unb64(bytes, VMM_CONSOLE_BYTES, json_string_value(answer),
		      json_string_length(answer), &n);
	if (r < 0)
		return err_set(e, -EPROTO, "the VMM's console is not base64 of at most %d bytes",
			       VMM_CONSOLE_BYTES);
	*ret_len = n;
	*ret = TAKE(bytes);
	return 0;
}

static int qemu_quit(struct vmm *vm, int timeout_ms, struct err *e)
{
	int64_t deadline = clock_mono_ms() + timeout_ms;
	struct qemu *q = qemu_of(vm);
	int r = qmp_call(q->qmp, "quit", NULL, -1, timeout_ms, NULL, e);

	while (r == 0) {
		int64_t left = deadline - clock_mono_ms();

		r = qmp_wait(q->qmp, left > 0 ? (int)left : 0, e);
	}
	if (r != -ECONNRESET)
		return r;
	if (e)
		*e = (struct err){ 0 };
	return 0;
}

const struct vmm_driver vmm_qemu = {
	.name = "qemu",
	.program = QEMU_PROGRAM,
	.syscalls = qemu_syscalls,
	.syscalls_kvm = qemu_syscalls_kvm,
	.enosys = qemu_enosys,
	.cpu_model = qemu_cpu_model,
	.cmdline = qemu_cmdline,
	.argv = qemu_argv,
	.open = qemu_open,
	.close = qemu_close,
	.fd = qemu_fd,
	.poll = qemu_poll,
	.next_event = qemu_next_event,
	.status = qemu_status,
	.cont = qemu_cont,
	.stop = qemu_stop,
	.load = qemu_load,
	.save = qemu_save,
	.console = qemu_console,
	.quit = qemu_quit,
};
