/*
 * The QEMU driver's halves (vmm.h says what they do). Used through vmm_qemu; the tests use them
 * directly.
 */
#ifndef VMM_QEMU_H
#define VMM_QEMU_H

#include "vmm/vmm.h"

#define QEMU_PROGRAM "qemu-system-x86_64"

extern const char *const qemu_syscalls[], *const qemu_syscalls_kvm[], *const qemu_enosys[];
const char *qemu_cpu_model(enum vmm_accel accel);
int qemu_cmdline(const struct vmm_spec *s, char dst[VMM_CMDLINE_MAX], struct err *e);
int qemu_argv(const struct vmm_spec *s, struct vmm_argv *ret, struct err *e);

#endif
