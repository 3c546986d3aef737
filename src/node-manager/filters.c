#include "node-manager/filters.h"

#include "base/alloc.h"
#include "daemon/seccomp.h"
#include "netgtw/syscalls.h"
#include "node-manager/jail_gateway.h"
#include "spaced-host/syscalls.h"
#include "vmm/vmm.h"

/*
 * Beside seccomp_common; all seen in the tests (docs/syscalls.md). The lists of the jails come to
 * it, because their programs run under both filters. The storage library makes ioctls alone.
 */
static const char *const own_syscalls[] = {
	/* jails: namespaces, mounts, rights */
	"clone:any", "unshare", "open_tree", "move_mount", "mount_setattr", "mount", "umount2",
	"pivot_root", "chdir", "setsid", "sethostname", "setresuid", "setresgid", "setgroups",
	"capget", "capset", "seccomp", "prctl", "prlimit64",
	/* processes, and the descriptors that they get */
	"wait4", "pidfd_open", "pidfd_send_signal", "getppid", "signalfd4", "pipe2", "socketpair",
	"dup3", "close_range",
	/* a sandbox's network namespace, entered and left; libnftables */
	"setns", "getuid", "pselect6",
	/* folders and files beneath them, owners */
	"openat2", "mkdir", "mkdirat", "rmdir", "renameat2", "umask", "fchown", "lchown",
	/* storage: subvolumes, reflinks (ioctl), sealing of templates, when a cached one was used; TAP */
	"ioctl", "fstatfs", "syncfs", "utimensat",
	NULL
};

/* jail-init: static glibc's start, and its own calls. */
static const char *const init_syscalls[] = {
	"execveat", "brk", "arch_prctl", "set_tid_address", "set_robust_list", "rseq", "prlimit64",
	"readlink", "getrandom", "mprotect", "prctl", "recvfrom", "wait4", "sendto", "exit_group",
	NULL
};

static const char *const empty[] = { NULL };

/* Beside gtw_common_syscalls, which all three have. */
static const struct {
	const char *const *list, *const *enosys;
	const struct seccomp_rule *rules;
} gateway_filters[NM_GATEWAY_PROCESSES] = {
	[JAIL_GATEWAY_MAIN] = { gtw_main_syscalls, gtw_main_enosys, gtw_main_rules },
	[JAIL_GATEWAY_INSIDE] = { gtw_inside_syscalls, NULL, gtw_inside_rules },
	[JAIL_GATEWAY_OUTSIDE] = { gtw_outside_syscalls, NULL, gtw_outside_rules },
};

static size_t count(const char *const *l)
{
	size_t n = 0;

	while (l[n])
		n++;
	return n;
}

/*
 * What gateways may do with certain arguments alone is in seccomp_common, as is what they may not
 * do at all there.
 */
const char *const *filters_own(void)
{
	static const char **all;
	const struct vmm_driver *d = &vmm_qemu;
	const char *const *parts[] = { own_syscalls, d->syscalls,   d->syscalls_kvm,
				       d->enosys,    init_syscalls, bridge_syscalls,
				       gtw_common_syscalls, gtw_main_syscalls,
				       gtw_inside_syscalls, gtw_outside_syscalls };
	size_t n = 1, at = 0;

	if (all)
		return all;
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		n += count(parts[i]);
	all = x_array(n, sizeof(*all));
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		for (size_t k = 0; parts[i][k]; k++)
			all[at++] = parts[i][k];
	}
	return all;
}

int filters_open(struct nm *nm, struct err *e)
{
	const struct vmm_driver *d = &vmm_qemu;
	const char *const *const init[] = { init_syscalls, NULL };
	const char *const *const bridge[] = { bridge_syscalls, NULL };
	int r = seccomp_export(init, NULL, &nm->init_filter_fd, e);

	if (r == 0)
		r = seccomp_export(bridge, NULL, &nm->bridge_filter_fd, e);
	for (int i = 0; i < VMM_ACCEL_COUNT && r == 0; i++) {
		const char *const *const vmm[] = { d->syscalls,
						   i == VMM_ACCEL_KVM ? d->syscalls_kvm : empty,
						   NULL };

		r = seccomp_export(vmm, d->enosys, &nm->vmm_filter_fd[i], e);
	}
	for (int i = 0; i < NM_GATEWAY_PROCESSES && r == 0; i++) {
		const char *const *const lists[] = { gtw_common_syscalls, gateway_filters[i].list,
						     NULL };

		r = seccomp_export_rules(lists, gateway_filters[i].rules, gateway_filters[i].enosys,
					 &nm->gateway_filter_fd[i], e);
	}
	return r;
}
