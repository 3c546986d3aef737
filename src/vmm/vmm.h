/*
 * VMM drivers: one small interface for whoever runs virtual machines (D-1, L-6).
 *
 * A driver has two halves. The first is pure: out of a typed description it makes the argument
 * vector and names the system calls that the VMM may use; node-manager uses it (it builds the jail
 * and executes). The second speaks over an already connected control socket (QMP with QEMU);
 * sbx-manager uses it. No path from outside enters either half.
 *
 * Everything blocks up to the given time-out and returns 0 or a negative errno with a sentence in
 * `e`. A `struct vmm` is used by one thread at a time. What a VMM says is hostile (S-12): bounded,
 * strictly parsed; a peer that breaks the protocol is given up (-EPROTO; the caller ends the VMM).
 */
#ifndef VMM_VMM_H
#define VMM_VMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/err.h"

/*
 * The device set: blk, serial channel, net, rng, pvpanic, serial console, RTC, in a fixed order. A
 * change of it makes old snapshots unusable or invisible to their guest, so it gets a new number,
 * which stands in every manifest.
 */
#define VMM_DEVICE_SET 1

#define VMM_MEMORY_MIB_MIN 128
#define VMM_MEMORY_MIB_MAX 16384
#define VMM_VCPUS_MAX 8
#define VMM_CMDLINE_MAX 512
#define VMM_ARGV_MAX 96
#define VMM_CONSOLE_BYTES 65536          /* the VMM keeps the last so many bytes of the console */
#define VMM_STATE_BYTES_MAX (16u << 20)  /* of a device state; seen: 13-22 kB, 370 kB with requests that wait for space */

/*
 * Descriptors that the VMM inherits. Control and channel: bound Unix stream sockets (the VMM
 * listens). KVM: /dev/kvm, O_RDWR, with that accelerator only (so the jail needs no device node and
 * the VMM's uid no right to it).
 */
enum { VMM_FD_CONTROL = 3, VMM_FD_CHANNEL = 4, VMM_FD_TAP = 5, VMM_FD_DISK = 6, VMM_FD_KVM = 7 };
#define VMM_KVM_DEVICE "/dev/kvm"

/* What the VMM finds in its jail. Kernel, initrd and linuxboot_dma.bin: with a boot only. */
#define VMM_JAIL_MEM "/mem"
#define VMM_JAIL_KERNEL "/vmlinuz"
#define VMM_JAIL_INITRD "/initrd.gz"
#define VMM_JAIL_FIRMWARE "/fw"
extern const char *const vmm_firmware[];         /* files of the firmware folder, ends with NULL */

#define VMM_CHANNEL_NAME "space.0"               /* /sys/class/virtio-ports/PORT/name in the guest */
#define VMM_GUEST_MAC "02:00:00:00:00:02"
#define VMM_TAP_MAC "02:00:00:00:00:01"          /* the same everywhere, else a restored guest talks to nobody (seen) */

enum vmm_accel { VMM_ACCEL_TCG, VMM_ACCEL_KVM, VMM_ACCEL_COUNT };
extern const char *const vmm_accel_names[VMM_ACCEL_COUNT];      /* "tcg", "kvm" */
int vmm_accel_of(const char *name, enum vmm_accel *ret);        /* -EINVAL */

enum vmm_mode {
	VMM_TEMPLATE,     /* boots; memory is shared with the file /mem (empty, of memory_mib), which becomes the template's */
	VMM_BOOT,         /* boots; /mem is an all-zero file of memory_mib that is only read; what is written stays private */
	VMM_RESTORE,      /* waits for vmm_load; /mem is the snapshot's memory, only read; what is written stays private */
	VMM_PROBE,        /* boots without disk and network, until the agent opens its port; see probe.h */
	VMM_MODE_COUNT,
};
extern const char *const vmm_mode_names[VMM_MODE_COUNT];        /* "template", "boot", "restore", "probe" */
int vmm_mode_of(const char *name, enum vmm_mode *ret);

struct vmm_spec {
	enum vmm_mode mode;
	enum vmm_accel accel;
	uint32_t memory_mib, vcpus;
	uint32_t tsc_khz;                /* vmm_tsc_khz(); boots only */
};

struct vmm_argv { char *argv[VMM_ARGV_MAX + 1]; size_t n; };    /* ends with NULL; argv[0] is a name, not a path */
void vmm_argv_done(struct vmm_argv *a);

/*
 * kHz of this machine's time-stamp counter, measured against CLOCK_MONOTONIC_RAW (about 30 ms the
 * first time, remembered in the process; call it before forking children). Software emulation hands
 * the host's counter to the guest. Two measurements agree within a few ppm: compare with
 * VMM_TSC_TOLERANCE_PPM. -ENODEV when the counter does not run evenly.
 */
#define VMM_TSC_TOLERANCE_PPM 250
int vmm_tsc_khz(uint32_t *ret);
bool vmm_tsc_same(uint32_t a_khz, uint32_t b_khz);

enum vmm_run_state {
	VMM_RUN_RUNNING,
	VMM_RUN_PAUSED,          /* stopped by us, or not started yet */
	VMM_RUN_INCOMING,        /* waits for a state, or has failed to load one */
	VMM_RUN_IO_ERROR,        /* stopped because the host's disk is full or broken */
	VMM_RUN_OFF,             /* guest powered off or reset; process still there */
	VMM_RUN_PANICKED,
	VMM_RUN_CRASHED,         /* internal-error and whatever we do not know */
	VMM_RUN_COUNT,
};
extern const char *const vmm_run_names[VMM_RUN_COUNT];

enum vmm_event_kind {
	VMM_EV_STOP, VMM_EV_RESUME,
	VMM_EV_GUEST_OFF,        /* power-off inside the guest */
	VMM_EV_GUEST_RESET,      /* reboot inside the guest */
	VMM_EV_PANIC,            /* the guest's kernel died */
	VMM_EV_IO_ERROR,         /* no_space says whether the disk is full */
	VMM_EV_QUIT,             /* the VMM was told to end */
	VMM_EV_CHANNEL_OPEN,     /* with a probe only: the agent opened its port */
	VMM_EV_KIND_COUNT,
};
extern const char *const vmm_event_names[VMM_EV_KIND_COUNT];

#define VMM_EVENT_DETAIL_MAX 64
struct vmm_event {
	enum vmm_event_kind kind;
	bool no_space;
	char detail[VMM_EVENT_DETAIL_MAX];       /* the VMM's word for the reason; printable ASCII */
};

struct vmm;

struct vmm_driver {
	const char *name;                        /* "qemu"; stands in manifests */
	const char *program;                     /* name of the executable */
	const char *const *syscalls;             /* allow-list for the jail's seccomp filter, ends with NULL */
	const char *const *syscalls_kvm;         /* these too when the accelerator is KVM */
	const char *const *enosys;               /* answered with ENOSYS instead of death */
	const char *(*cpu_model)(enum vmm_accel accel);
	/* The kernel's command line of a boot; stands in the manifest. */
	int (*cmdline)(const struct vmm_spec *s, char dst[VMM_CMDLINE_MAX], struct err *e);
	int (*argv)(const struct vmm_spec *s, struct vmm_argv *ret, struct err *e);

	int (*open)(int control_fd, int timeout_ms, struct vmm **ret, struct err *e);
	void (*close)(struct vmm *vm);
	int (*fd)(const struct vmm *vm);
	int (*poll)(struct vmm *vm, struct err *e);
	bool (*next_event)(struct vmm *vm, struct vmm_event *ret);
	int (*status)(struct vmm *vm, enum vmm_run_state *ret, int timeout_ms, struct err *e);
	int (*cont)(struct vmm *vm, int timeout_ms, struct err *e);
	int (*stop)(struct vmm *vm, int timeout_ms, struct err *e);
	int (*load)(struct vmm *vm, int state_fd, int timeout_ms, struct err *e);
	int (*save)(struct vmm *vm, int state_fd, int timeout_ms, struct err *e);
	int (*console)(struct vmm *vm, char **ret, size_t *ret_len, int timeout_ms, struct err *e);
	int (*quit)(struct vmm *vm, int timeout_ms, struct err *e);
};

extern const struct vmm_driver vmm_qemu;
const struct vmm_driver *vmm_driver_find(const char *name);     /* NULL = none of that name */

/* ---- The same by plain names; the first driver is the default one ---- */

int vmm_argv(const struct vmm_spec *s, struct vmm_argv *ret, struct err *e);

/* Owns control_fd from here on, also on failure. Negotiates with the VMM. */
int vmm_open(const struct vmm_driver *d, int control_fd, int timeout_ms, struct vmm **ret,
	     struct err *e);
void vmm_close(struct vmm *vm);                  /* NULL is fine; the VMM lives on and can be opened again */

/*
 * For an event loop: wait for EPOLLIN on vmm_fd, then vmm_poll (never blocks; -ECONNRESET when the
 * VMM is gone), then take events until false. Every blocking call gathers events too, so ask for
 * them after each. Of each kind only the newest is kept, in the order of the newest ones: a guest
 * that causes events at will fills nothing.
 */
int vmm_fd(const struct vmm *vm);
int vmm_poll(struct vmm *vm, struct err *e);
bool vmm_next_event(struct vmm *vm, struct vmm_event *ret);

int vmm_status(struct vmm *vm, enum vmm_run_state *ret, int timeout_ms, struct err *e);
int vmm_cont(struct vmm *vm, int timeout_ms, struct err *e);     /* seen: 7-29 ms */
int vmm_stop(struct vmm *vm, int timeout_ms, struct err *e);     /* pause; a stopped one is fine */

/*
 * state_fd: open O_RDONLY, at its beginning (its offset moves); stays the caller's. A state that
 * does not fit: -EBADMSG with the VMM's reason, and the VMM is good for nothing but its end.
 * Afterwards the VM is stopped: vmm_cont.
 */
int vmm_load(struct vmm *vm, int state_fd, int timeout_ms, struct err *e);
/*
 * Only when stopped. state_fd: a memfd or file open O_WRONLY (O_RDWR is refused by QEMU); stays the
 * caller's.
 */
int vmm_save(struct vmm *vm, int state_fd, int timeout_ms, struct err *e);

/*
 * What the guest wrote to its console since the last call, at most VMM_CONSOLE_BYTES; bytes of a
 * hostile guest. Caller frees.
 */
int vmm_console(struct vmm *vm, char **ret, size_t *ret_len, int timeout_ms, struct err *e);

/* Tells the VMM to end and waits until it has closed the connection. */
int vmm_quit(struct vmm *vm, int timeout_ms, struct err *e);

#endif
