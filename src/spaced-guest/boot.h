/*
 * The way from the initramfs to the root image: device file systems, modules in the order of
 * /modules/order (module.dep is not needed), the disk, switch_root as in the kernel's
 * ramfs-rootfs-initramfs.rst, the rest of the mounts.
 */
#ifndef GUEST_BOOT_H
#define GUEST_BOOT_H

#include "base/err.h"

#define BOOT_DISK "/dev/vda"
#define BOOT_DISK_WAIT_MS 10000

int boot_early(struct err *e);           /* /dev, /proc, /sys, so that there is a console */
void boot_modules(void);                 /* then the drivers */
int boot_root(struct err *e);            /* then everything else; the root image is the root */

#endif
