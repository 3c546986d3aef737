/*
 * The argument vector of QEMU's microvm machine, and the system calls that it makes.
 *
 * Theory of operation
 *
 * A pure function of numbers: the vector differs between boot and restore in the memory's mapping
 * and at the end alone, because the device set of a process that loads a state must be the one that
 * saved it, in the same order. Three options are needed by all that follows:
 *
 * - tsc_early_khz: without it early boot hangs at random under emulation; tsc=reliable stops the
 *   tick of an idle guest.
 * - rom=off, readonly=on with share=off: memory is mapped privately from a file that the VMM may
 *   only read, so the page
 *   cache holds it once for all sandboxes of a template, and a page that was written is an anonymous one.
 * - migration.send-configuration=off: xen-save-devices-state writes no such section, so the
 *   loader must not expect it.
 *
 * pit, pic, rtc are "auto" by default and each is a section of the state, so they are said.
 * panic=-1 and pvpanic make a dead guest an event. -no-shutdown keeps the process when the guest
 * powers off, so that its end is ours to decide.
 */
#include "vmm/qemu.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/alloc.h"
#include "base/str.h"

const char *const vmm_firmware[] = { "bios-microvm.bin", "linuxboot_dma.bin", NULL };

/*
 * Recorded (docs/syscalls.md). getcwd: without /proc QEMU looks for its own folder by realpath(3)
 * of argv[0].
 */
const char *const qemu_syscalls[] = {
	/* start, loading of libraries, firmware and state */
	"execve", "access", "arch_prctl", "brk", "getcwd", "getrandom", "newfstatat", "openat",
	"prctl", "prlimit64", "read", "readlink", "rseq", "set_robust_list", "set_tid_address",
	"statfs", "sysinfo", "unlink", "seccomp",
	/* memory */
	"get_mempolicy", "madvise", "memfd_create", "mmap", "mprotect", "msync", "munmap",
	"set_mempolicy",
	/* threads and the end */
	"clone:thread", "exit", "exit_group", "futex", "gettid", "sched_getaffinity",
	/* loop, clocks, signals */
	"clock_nanosleep", "epoll_create1", "eventfd2", "poll", "ppoll", "restart_syscall",
	"rt_sigaction", "rt_sigprocmask", "signalfd4",
	/* the disk, the TAP; fallocate is the guest's discard */
	"fadvise64", "fallocate", "fcntl", "fdatasync", "fstatfs", "ftruncate", "ioctl", "lseek",
	"pread64", "preadv", "pwrite64", "pwritev", "readv", "writev",
	/* QMP and the guest channel */
	"accept4", "close", "getpeername", "getsockname", "getsockopt", "listen", "recvmsg",
	"sendmsg", "write",
	/*
	 * not seen: answered with ENOSYS before the point of recording; glibc tries it for each
	 * thread
	 */
	"clone3",
	/* not seen: QEMU's loop takes epoll when it has many descriptors */
	"epoll_ctl", "epoll_wait",
	/* not seen: clocks where the vDSO has none for the clock source */
	"clock_gettime", "gettimeofday",
	/* not seen: signals between threads, a failed assertion and abort(3) */
	"getpid", "tgkill", "rt_sigreturn",
	/* not seen: realloc(3) of large buffers */
	"mremap",
	/* not seen: waiting threads of QEMU give the processor away */
	"sched_yield",
	NULL
};

const char *const qemu_syscalls_kvm[] = {
	/*
	 * not seen: recording machines have no KVM; a vCPU thread under KVM takes its kick signal
	 * out of the queue (accel/kvm)
	 */
	"rt_sigpending", "rt_sigtimedwait",
	/*
	 * not seen: recording machines have no KVM; seen at QEMU's start with KVM
	 * (tests/long/test_kvm_rig.py)
	 */
	"uname",
	NULL
};

/* QEMU falls back to epoll when it hears ENOSYS. */
const char *const qemu_enosys[] = { "io_uring_setup", NULL };

/*
 * The bytes of translated code that software emulation keeps: an upper bound, 22 MB are used after
 * two commands (seen).
 */
#define TCG_BUFFER_MIB 64

/*
 * Software emulation runs `rep movsb` byte by byte; a guest that does not hear of fast string
 * operations copies by words (seen: a pipe copy of 23 MB/s went to 38).
 */
const char *qemu_cpu_model(enum vmm_accel accel)
{
	return accel == VMM_ACCEL_TCG ? "max,erms=off,fsrm=off" : "max";
}

static int spec_check(const struct vmm_spec *s, struct err *e)
{
	if ((unsigned)s->mode >= VMM_MODE_COUNT || (unsigned)s->accel >= VMM_ACCEL_COUNT)
		return err_set(e, -EINVAL, "unknown mode or accelerator");
	if (s->memory_mib < VMM_MEMORY_MIB_MIN || s->memory_mib > VMM_MEMORY_MIB_MAX)
		return err_set(e, -EINVAL, "memory must be %d to %d MiB", VMM_MEMORY_MIB_MIN,
			       VMM_MEMORY_MIB_MAX);
	if (s->vcpus < 1 || s->vcpus > VMM_VCPUS_MAX)
		return err_set(e, -EINVAL, "a sandbox has 1 to %d virtual CPUs", VMM_VCPUS_MAX);
	if (s->mode != VMM_RESTORE && (s->tsc_khz < 100000 || s->tsc_khz > 10000000))
		return err_set(e, -EINVAL,
			       "the rate of this machine's time-stamp counter is unknown");
	return 0;
}

int qemu_cmdline(const struct vmm_spec *s, char dst[VMM_CMDLINE_MAX], struct err *e)
{
	int r = spec_check(s, e);

	if (r < 0)
		return r;
	/* lpj skips the calibration of the delay loop; no device here needs exact delays. */
	r = str_format(
		dst, VMM_CMDLINE_MAX,
		"console=ttyS0 quiet reboot=t panic=-1 tsc_early_khz=%u lpj=%u mitigations=off "
		"random.trust_cpu=on tsc=reliable nowatchdog",
		s->tsc_khz, 2 * s->tsc_khz);
	return r < 0 ? err_set(e, r, "the kernel's command line is too long") : 0;
}

static void add(struct vmm_argv *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The vector's size is fixed by the code below, so passing its end is a bug, not an error. */
static void add(struct vmm_argv *a, const char *fmt, ...)
{
	va_list ap;
	char *s = NULL;

	va_start(ap, fmt);
	if (a->n >= VMM_ARGV_MAX || vasprintf(&s, fmt, ap) < 0)
		__builtin_trap();
	va_end(ap);
	a->argv[a->n++] = s;
}

static void add_all(struct vmm_argv *a, const char *const *words)
{
	for (; *words; words++)
		add(a, "%s", *words);
}

/* clang-format off */
static const char *const machine_words[] = {
	"-machine", "microvm,mem-merge=off,dump-guest-core=off,suppress-vmdesc=on,pit=off,pic=off,rtc=on",
	NULL
};

static const char *const common_words[] = {
	"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
	"-global", "migration.send-configuration=off",
	"-L", VMM_JAIL_FIRMWARE,
	NULL
};

static const char *const disk_words[] = {
	"-machine", "memory-backend=m0",
	"-add-fd", "fd=6,set=1",
	"-blockdev", "driver=file,node-name=f0,filename=/dev/fdset/1,auto-read-only=off,locking=off,"
		     "discard=unmap,cache.direct=off,cache.no-flush=off",
	"-blockdev", "driver=raw,node-name=d0,file=f0,discard=unmap",
	"-device", "virtio-blk-device,drive=d0,werror=stop,rerror=report,write-cache=on",
	NULL
};

static const char *const probe_disk_words[] = { "-machine", "memory-backend=m0", NULL };

static const char *const channel_words[] = {
	"-device", "virtio-serial-device",
	"-chardev", "socket,id=ch0,fd=4,server=on,wait=off",
	"-device", "virtserialport,chardev=ch0,name=" VMM_CHANNEL_NAME,
	"-netdev", "tap,id=n0,fd=5",
	"-device", "virtio-net-device,netdev=n0,mac=" VMM_GUEST_MAC,
	NULL
};

/* The port has a name here, so that its opening is an event (hw/char/virtio-console.c). */
static const char *const probe_channel_words[] = {
	"-device", "virtio-serial-device",
	"-chardev", "null,id=ch0",
	"-device", "virtserialport,chardev=ch0,id=port0,name=" VMM_CHANNEL_NAME,
	NULL
};

static const char *const last_words[] = {
	"-object", "rng-builtin,id=r0",
	"-device", "virtio-rng-device,rng=r0",
	"-chardev", "ringbuf,id=con,size=65536",
	"-serial", "chardev:con",
	"-chardev", "socket,id=qmp,fd=3,server=on,wait=off",
	"-mon", "chardev=qmp,mode=control",
	"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
	"-device", "pvpanic",
	"-no-shutdown",
	"-action", "panic=pause",
	NULL
};
/* clang-format on */

_Static_assert(VMM_FD_CONTROL == 3 && VMM_FD_CHANNEL == 4 && VMM_FD_TAP == 5 && VMM_FD_DISK == 6,
	       "the words above name descriptors");
_Static_assert(VMM_CONSOLE_BYTES == 65536, "the words above name the console's size");

static void add_accel(struct vmm_argv *a, enum vmm_accel accel)
{
	if (accel == VMM_ACCEL_TCG) {
		add(a, "-accel");
		add(a, "tcg,tb-size=%d", TCG_BUFFER_MIB);
	} else {
		add(a, "-add-fd");
		add(a, "fd=%d,set=2", VMM_FD_KVM);
		add(a, "-accel");
		add(a, "kvm,device=/dev/fdset/2");
	}
}

static void add_memory(struct vmm_argv *a, const struct vmm_spec *s)
{
	add(a, "-object");
	if (s->mode == VMM_PROBE)
		add(a, "memory-backend-ram,id=m0,size=%uM", s->memory_mib);
	else
		add(a, "memory-backend-file,id=m0,size=%uM,mem-path=" VMM_JAIL_MEM ",%s",
		    s->memory_mib,
		    s->mode == VMM_TEMPLATE ? "share=on" : "share=off,readonly=on,rom=off");
}

int qemu_argv(const struct vmm_spec *s, struct vmm_argv *ret, struct err *e)
{
	char cmdline[VMM_CMDLINE_MAX];
	bool probe = s->mode == VMM_PROBE;
	struct vmm_argv a = { 0 };
	int r = spec_check(s, e);

	if (r < 0)
		return r;
	add(&a, "%s", QEMU_PROGRAM);
	add_all(&a, machine_words);
	add_accel(&a, s->accel);
	add(&a, "-cpu");
	add(&a, "%s", qemu_cpu_model(s->accel));
	add(&a, "-m");
	add(&a, "%u", s->memory_mib);
	add(&a, "-smp");
	add(&a, "%u", s->vcpus);
	add_all(&a, common_words);
	add_memory(&a, s);
	add_all(&a, probe ? probe_disk_words : disk_words);
	add_all(&a, probe ? probe_channel_words : channel_words);
	add_all(&a, last_words);
	if (s->mode == VMM_RESTORE) {
		add(&a, "-S");
		add(&a, "-incoming");
		add(&a, "defer");
	} else {
		r = qemu_cmdline(s, cmdline, e);
		if (r < 0) {
			vmm_argv_done(&a);
			return r;
		}
		add(&a, "-kernel");
		add(&a, VMM_JAIL_KERNEL);
		add(&a, "-initrd");
		add(&a, VMM_JAIL_INITRD);
		add(&a, "-append");
		add(&a, "%s", cmdline);
	}
	*ret = a;
	return 0;
}
