/* Shared by vmm.c and the drivers: every driver's own struct begins with this one. */
#ifndef VMM_VMM_IMPL_H
#define VMM_VMM_IMPL_H

#include "vmm/vmm.h"

struct vmm { const struct vmm_driver *driver; };

#endif
