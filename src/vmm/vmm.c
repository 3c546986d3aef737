/* The drivers' plain names, name tables, and the clock rate of this machine. */
#include "vmm/vmm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <x86intrin.h>
#include "base/alloc.h"
#include "base/str.h"
#include "vmm/vmm_impl.h"

const char *const vmm_accel_names[VMM_ACCEL_COUNT] = {
	[VMM_ACCEL_TCG] = "tcg",
	[VMM_ACCEL_KVM] = "kvm",
};

const char *const vmm_mode_names[VMM_MODE_COUNT] = {
	[VMM_TEMPLATE] = "template",
	[VMM_BOOT] = "boot",
	[VMM_RESTORE] = "restore",
	[VMM_PROBE] = "probe",
};

const char *const vmm_run_names[VMM_RUN_COUNT] = {
	[VMM_RUN_RUNNING] = "running",   [VMM_RUN_PAUSED] = "paused",
	[VMM_RUN_INCOMING] = "incoming", [VMM_RUN_IO_ERROR] = "io-error",
	[VMM_RUN_OFF] = "off",           [VMM_RUN_PANICKED] = "panicked",
	[VMM_RUN_CRASHED] = "crashed",
};

const char *const vmm_event_names[VMM_EV_KIND_COUNT] = {
	[VMM_EV_STOP] = "stop",
	[VMM_EV_RESUME] = "resume",
	[VMM_EV_GUEST_OFF] = "guest-off",
	[VMM_EV_GUEST_RESET] = "guest-reset",
	[VMM_EV_PANIC] = "panic",
	[VMM_EV_IO_ERROR] = "io-error",
	[VMM_EV_QUIT] = "quit",
	[VMM_EV_CHANNEL_OPEN] = "channel-open",
};

static int name_of(const char *const *names, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++) {
		if (str_eq(names[i], name))
			return (int)i;
	}
	return -EINVAL;
}

int vmm_accel_of(const char *name, enum vmm_accel *ret)
{
	int i = name_of(vmm_accel_names, VMM_ACCEL_COUNT, name);

	if (i < 0)
		return i;
	*ret = (enum vmm_accel)i;
	return 0;
}

int vmm_mode_of(const char *name, enum vmm_mode *ret)
{
	int i = name_of(vmm_mode_names, VMM_MODE_COUNT, name);

	if (i < 0)
		return i;
	*ret = (enum vmm_mode)i;
	return 0;
}

static const struct vmm_driver *const drivers[] = { &vmm_qemu };

const struct vmm_driver *vmm_driver_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(drivers); i++) {
		if (str_eq(drivers[i]->name, name))
			return drivers[i];
	}
	return NULL;
}

void vmm_argv_done(struct vmm_argv *a)
{
	for (size_t i = 0; i < a->n; i++)
		free(a->argv[i]);
	memset(a, 0, sizeof(*a));
}

int vmm_argv(const struct vmm_spec *s, struct vmm_argv *ret, struct err *e)
{
	return drivers[0]->argv(s, ret, e);
}

int vmm_open(const struct vmm_driver *d, int control_fd, int timeout_ms, struct vmm **ret,
	     struct err *e)
{
	return d->open(control_fd, timeout_ms, ret, e);
}

void vmm_close(struct vmm *vm)
{
	if (vm)
		vm->driver->close(vm);
}

int vmm_fd(const struct vmm *vm) { return vm->driver->fd(vm); }

int vmm_poll(struct vmm *vm, struct err *e) { return vm->driver->poll(vm, e); }

bool vmm_next_event(struct vmm *vm, struct vmm_event *ret)
{
	return vm->driver->next_event(vm, ret);
}

int vmm_status(struct vmm *vm, enum vmm_run_state *ret, int timeout_ms, struct err *e)
{
	return vm->driver->status(vm, ret, timeout_ms, e);
}

int vmm_cont(struct vmm *vm, int timeout_ms, struct err *e)
{
	return vm->driver->cont(vm, timeout_ms, e);
}

int vmm_stop(struct vmm *vm, int timeout_ms, struct err *e)
{
	return vm->driver->stop(vm, timeout_ms, e);
}

int vmm_load(struct vmm *vm, int state_fd, int timeout_ms, struct err *e)
{
	return vm->driver->load(vm, state_fd, timeout_ms, e);
}

int vmm_save(struct vmm *vm, int state_fd, int timeout_ms, struct err *e)
{
	return vm->driver->save(vm, state_fd, timeout_ms, e);
}

int vmm_console(struct vmm *vm, char **ret, size_t *ret_len, int timeout_ms, struct err *e)
{
	return vm->driver->console(vm, ret, ret_len, timeout_ms, e);
}

int vmm_quit(struct vmm *vm, int timeout_ms, struct err *e)
{
	return vm->driver->quit(vm, timeout_ms, e);
}

/*
 * The clock rate. CPUID 0x15 is zero on AMD and on many virtual machines, /proc/cpuinfo shows the
 * speed of the moment, and a kernel log may be gone; so it is measured. A sample is a counter value
 * between two readings of the clock; the tightest of several bounds the error of each end to some
 * tens of nanoseconds, which over 30 ms is a few ppm.
 */
#define TSC_SAMPLES 64
#define TSC_INTERVAL_NS 30000000

static uint64_t raw_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_RAW, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void tsc_sample(uint64_t *ret_ns, uint64_t *ret_tsc)
{
	uint64_t best = UINT64_MAX;

	for (int i = 0; i < TSC_SAMPLES; i++) {
		uint64_t before = raw_ns();
		uint64_t tsc = __rdtsc();
		uint64_t after = raw_ns();

		if (after - before < best) {
			best = after - before;
			*ret_ns = before + (after - before) / 2;
			*ret_tsc = tsc;
		}
	}
}

static uint32_t tsc_measure(void)
{
	struct timespec wait = { .tv_nsec = TSC_INTERVAL_NS };
	uint64_t ns0, ns1, tsc0, tsc1;

	tsc_sample(&ns0, &tsc0);
	nanosleep(&wait, NULL);
	tsc_sample(&ns1, &tsc1);
	return (uint32_t)((double)(tsc1 - tsc0) * 1e6 / (double)(ns1 - ns0) + 0.5);
}

bool vmm_tsc_same(uint32_t a_khz, uint32_t b_khz)
{
	uint64_t diff = a_khz > b_khz ? a_khz - b_khz : b_khz - a_khz;

	return diff * 1000000 <= (uint64_t)a_khz * VMM_TSC_TOLERANCE_PPM;
}

int vmm_tsc_khz(uint32_t *ret)
{
	static uint32_t known;

	/*
	 * A machine that was stopped for a moment in between gives one odd value: two must agree.
	 */
	for (int i = 0; i < 8 && known == 0; i++) {
		uint32_t a = tsc_measure(), b = tsc_measure();

		if (a > 100000 && vmm_tsc_same(a, b))
			known = b;
	}
	if (known == 0)
		return -ENODEV;
	*ret = known;
	return 0;
}
