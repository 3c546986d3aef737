/*
 * The manifest of a snapshot or template, version 1: all that binds it to the VMM which made it. It
 * is the only guard: a VMM loads a state that does not fit as "completed" and leaves a dead guest
 * (wrong CPU model, seen), or hides a device from it.
 *
 * JSON, strict: every field is there, no other one is, each within its size and its form
 * (manifest.c has the table). A field that a later version adds comes with a new version number.
 */
#ifndef VMM_MANIFEST_H
#define VMM_MANIFEST_H

#include <stdint.h>
#include <jansson.h>
#include "base/err.h"
#include "vmm/vmm.h"

#define MANIFEST_VERSION 1
#define MANIFEST_BYTES_MAX 16384
#define MANIFEST_DIGEST_HEX 64       /* SHA-256 */
#define MANIFEST_DISK_BYTES_MAX (1ull << 44)

struct manifest {
	uint64_t version;
	/* host: what the machine and the VMM must offer */
	char driver[16];
	char vmm[MANIFEST_DIGEST_HEX + 1];       /* digest of the VMM build: program, libraries, firmware */
	char accel[8];
	char cpu_model[32];                      /* as given to the VMM */
	char cpu_host[MANIFEST_DIGEST_HEX + 1];  /* manifest_cpu_host; with software emulation 64 zeros */
	uint64_t tsc_khz;
	uint64_t device_set;
	/* shape: what the VMM process is started with */
	uint64_t memory_mib, vcpus, disk_bytes;
	/* software: what runs in it */
	char template_id[64];
	char kernel[64];                         /* release */
	char kernel_digest[MANIFEST_DIGEST_HEX + 1];
	char initrd_digest[MANIFEST_DIGEST_HEX + 1];
	char cmdline[VMM_CMDLINE_MAX];
	char agent[32];                          /* version that the agent gave */
	/* not compared */
	uint64_t created_ms;                     /* wall clock */
	uint64_t state_bytes;                    /* size of the device state */
	char state_digest[MANIFEST_DIGEST_HEX + 1];
};

enum manifest_part {
	MANIFEST_HOST = 1,
	MANIFEST_SHAPE = 2,
	MANIFEST_SOFTWARE = 4,
	MANIFEST_ALL = 7
};

/*
 * -EBADMSG with a sentence: not JSON, not version 1, a field missing, unknown, of a wrong form.
 * *ret only on success.
 */
int manifest_parse(const char *text, size_t n, struct manifest *ret, struct err *e);
int manifest_from_json(json_t *obj, struct manifest *ret, struct err *e);
/* A new object; NULL when a field has a wrong form (a bug of the caller; `e` says which). */
json_t *manifest_to_json(const struct manifest *m, struct err *e);

/*
 * May a snapshot with manifest `have` run where `want` is offered? Compares the given parts, TSC
 * rates with VMM_TSC_TOLERANCE_PPM. 0, or -EXDEV with the first difference ("the snapshot needs
 * accel 'kvm', here is 'tcg'").
 */
int manifest_match(const struct manifest *have, const struct manifest *want, unsigned parts,
		   struct err *e);

/*
 * Digest of what this machine's CPU shows to a guest under `accel` (KVM: vendor, family, model,
 * stepping, flags of /proc/cpuinfo).
 */
int manifest_cpu_host(enum vmm_accel accel, char ret[MANIFEST_DIGEST_HEX + 1], struct err *e);

#endif
