/*
 * What the base template is made of: kernel, initramfs, base image, VMM, accelerator; and the
 * digest of all of it, which is the template's ID. The scripts in LIB/image do the work and are
 * quick when nothing is to do.
 */
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli/up.h"
#include "cli/up_exec.h"
#include "vmm/probe.h"
#include "vmm/vmm.h"

#define TEMPLATE_FORMAT "space template 1"

static int hash_file(crypto_hash_sha256_state *h, const char *path, struct err *e)
{
	autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
	autofree unsigned char *chunk = x_alloc(1 << 20);
	ssize_t n;

	if (fd < 0)
		return err_errno(e, -errno, "%s", path);
	while ((n = read(fd, chunk, 1 << 20)) > 0)
		crypto_hash_sha256_update(h, chunk, (unsigned long long)n);
	return n < 0 ? err_errno(e, -errno, "%s", path) : 0;
}

static void hash_text(crypto_hash_sha256_state *h, const char *s)
{
	crypto_hash_sha256_update(h, (const unsigned char *)s, strlen(s) + 1);
}

/*
 * One initramfs per agent and kernel, named by their digest, so that an old template keeps its own.
 */
static int prepare_initrd(struct conf *k, const char *kernel_dir, struct err *e)
{
	autofree char *agent = x_asprintf("%s/spaced-guest", k->lib_dir),
		      *script = x_asprintf("%s/image/initramfs.sh", k->lib_dir);
	autofree char *dir = NULL, *out = NULL;
	unsigned char digest[crypto_hash_sha256_BYTES];
	char hex[17];
	crypto_hash_sha256_state h;
	int r;

	crypto_hash_sha256_init(&h);
	if ((r = hash_file(&h, agent, e)) < 0 || (r = hash_file(&h, k->kernel, e)) < 0 ||
	    (r = hash_file(&h, script, e)) < 0)
		return r;
	crypto_hash_sha256_final(&h, digest);
	str_hex(hex, digest, 8);
	dir = x_asprintf("%s/initrd/%s", k->cache_dir, hex);
	if ((r = fd_mkdir_p(dir, 0755)) < 0)
		return err_errno(e, r, "cannot make %s", dir);
	if (str_format(k->initrd, sizeof(k->initrd), "%s/initrd.gz", dir) < 0)
		return err_set(e, -ENAMETOOLONG, "the cache folder's name is too long");
	if (access(k->initrd, F_OK) == 0)
		return 0;
	return up_exec((const char *const[]) { script, kernel_dir, agent, k->initrd, NULL }, NULL,
		       e);
}

static int template_id(struct conf *k, struct err *e)
{
	unsigned char digest[crypto_hash_sha256_BYTES];
	char text[160], hex[17];
	crypto_hash_sha256_state h;
	int r;

	crypto_hash_sha256_init(&h);
	(void)str_format(text, sizeof(text), "%s|set %d|accel %s|%s", TEMPLATE_FORMAT,
			 VMM_DEVICE_SET, k->accel,
			 vmm_qemu.cpu_model(str_eq(k->accel, "kvm") ? VMM_ACCEL_KVM
								    : VMM_ACCEL_TCG));
	hash_text(&h, text);
	hash_text(&h, k->base_image);       /* its folder's name is the digest of the recipe */
	hash_text(&h, k->vmm);              /* and this one's that of the build */
	if ((r = hash_file(&h, k->kernel, e)) < 0 || (r = hash_file(&h, k->initrd, e)) < 0)
		return r;
	crypto_hash_sha256_final(&h, digest);
	str_hex(hex, digest, 8);
	return str_format(k->template_id, sizeof(k->template_id), "base-%s", hex);
}

int up_image_prepare(struct conf *k, struct err *e)
{
	autofree char *kernel_sh = x_asprintf("%s/image/kernel.sh", k->lib_dir),
		      *base_sh = x_asprintf("%s/image/base.sh", k->lib_dir);
	autofree char *vmm_sh = x_asprintf("%s/image/vmm.sh", k->lib_dir);
	autofree char *kernel_dir = NULL, *base = NULL, *vmm = NULL;
	int r;

	setenv("SPACE_CACHE", k->cache_dir, 1);
	if ((r = up_exec((const char *const[]){ kernel_sh, NULL }, &kernel_dir, e)) < 0)
		return err_wrap(e, "guest kernel");
	if (str_format(k->kernel, sizeof(k->kernel), "%s/vmlinuz", kernel_dir) < 0)
		return err_set(e, -ENAMETOOLONG, "the cache folder's name is too long");
	if ((r = prepare_initrd(k, kernel_dir, e)) < 0)
		return err_wrap(e, "initramfs");
	if ((r = up_exec((const char *const[]){ base_sh, kernel_dir, NULL }, &base, e)) < 0)
		return err_wrap(e, "base image");
	if ((r = up_exec((const char *const[]){ vmm_sh, NULL }, &vmm, e)) < 0)
		return err_wrap(e, "VMM");
	if (str_copy(k->base_image, sizeof(k->base_image), base) < 0 ||
	    str_copy(k->vmm, sizeof(k->vmm), vmm) < 0)
		return err_set(e, -ENAMETOOLONG, "the cache folder's name is too long");
	return 0;
}

/*
 * The accelerator is asked for after the files are there: the probe boots this kernel with this
 * agent.
 */
static int choose_accel(struct conf *k, struct err *e)
{
	struct probe_conf pc = { .vmm_tree = k->vmm,
				 .kernel = k->kernel,
				 .initrd = k->initrd,
				 .cache_dir = k->cache_dir,
				 .uid = k->uid_base,
				 .timeout_ms = PROBE_TIMEOUT_MS };
	struct probe_result res;
	int r = probe_accel(&pc, k->accel, &res, e);

	if (r < 0)
		return r;
	(void)str_copy(k->accel, sizeof(k->accel), vmm_accel_names[res.accel]);
	if (res.accel == VMM_ACCEL_TCG) {
		up_say("WARNING: sandboxes run under software emulation (%s):", res.why);
		up_say("         good for development, slow, and NOT a security boundary");
	}
	return 0;
}

int up_image_template(struct conf *k, struct err *e)
{
	int r = choose_accel(k, e);

	return r < 0 ? r : template_id(k, e);
}
