/*
 * Which accelerator this machine really has. A device node proves nothing: some machines have a
 * software kind of /dev/kvm, on which a stock kernel dies in an emulation failure while QEMU stays
 * paused. So a probe VM with this VMM build and guest kernel is started, and KVM is chosen only
 * when the guest's agent has opened its port within PROBE_TIMEOUT_MS.
 *
 * The outcome is remembered in CACHE/probe/KEY, one file for each VMM build, guest kernel, host
 * kernel and host CPU; but for a probe that came to no end, as on a machine that is too busy. The
 * environment's SPACE_ACCEL=kvm|tcg decides without a probe. Needs root (a mount namespace and a
 * jail of its own); the VMM runs under the given uid, with no disk and no network. Used by
 * `space up`, once, before the daemons start.
 */
#ifndef VMM_PROBE_H
#define VMM_PROBE_H

#include <stdbool.h>
#include <sys/types.h>
#include "base/err.h"
#include "vmm/vmm.h"

#define PROBE_TIMEOUT_MS 8000
#define PROBE_MEMORY_MIB 256
#define PROBE_WHY_MAX 200

struct probe_conf {
	const char *vmm_tree;        /* folder that image/vmm.sh printed; its name is the build's digest */
	const char *kernel, *initrd; /* files */
	const char *cache_dir;
	uid_t uid;                   /* what the probe VM runs as, gid too; nobody else's */
	int timeout_ms;              /* PROBE_TIMEOUT_MS */
};

struct probe_result {
	enum vmm_accel accel;
	bool remembered, forced;
	char why[PROBE_WHY_MAX];     /* a sentence: why KVM is not used, or that it is */
};

/*
 * wanted: "auto", "kvm" or "tcg" (the configuration); SPACE_ACCEL goes before it. -EINVAL for
 * another word; -ENODEV when KVM is demanded and there is no device. A probe that fails is no
 * error: it means tcg.
 */
int probe_accel(const struct probe_conf *c, const char *wanted, struct probe_result *ret,
		struct err *e);

/*
 * One probe VM: 0 when its agent has opened its port; else -ETIMEDOUT, -EIO and a reason. Leaves
 * nothing behind.
 */
int probe_run(const struct probe_conf *c, enum vmm_accel accel, int timeout_ms, struct err *e);

#endif
