/*
 * The template: taken from the node, or from the cache, or made: booted once, warmed, snapshotted
 * (N-3). Its manifest binds it to this VMM build, accelerator and CPU; a create looks at that each
 * time.
 */
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "sbx-manager/job.h"

#define TEMPLATE_NM_MS 600000            /* import and commit copy gigabytes */
#define TEMPLATE_QMP_MS 60000
#define TEMPLATE_PREPARE_MS 120000
#define TEMPLATE_BUSY_MS 10000
#define TEMPLATE_BUSY_POLL_US 5000
#define TEMPLATE_MEMORY_MIB 512
#define TEMPLATE_VCPUS 1
#define TEMPLATE_RELEASE_MAX 63
#define TEMPLATE_READ_BYTES 65536

/* ---- What it is bound to ---- */

static const char *template_base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static int template_accel(const struct sbx *s, enum vmm_accel *ret, struct err *e)
{
	/*
	 * `space up` has probed and written down what it found; "auto" that is still there means
	 * that nobody has.
	 */
	const char *name = str_eq(s->conf.accel, "auto") ? "tcg" : s->conf.accel;

	return vmm_accel_of(name, ret) < 0
		       ? err_set(e, -EINVAL, "The accelerator \"%s\" is unknown.", name)
		       : 0;
}

/* The host's part of a manifest: what this machine and its VMM offer. */
static int template_host(const struct sbx *s, struct manifest *m, struct err *e)
{
	const struct vmm_driver *d = vmm_driver_find("qemu");
	enum vmm_accel accel;
	uint32_t khz = 0;
	int r = template_accel(s, &accel, e);

	if (r == 0)
		r = vmm_tsc_khz(&khz);
	if (r == 0)
		r = manifest_cpu_host(accel, m->cpu_host, e);
	if (r < 0)
		return e->num ? r : err_errno(e, r, "The time-stamp counter");
	str_copy(m->driver, sizeof(m->driver), d->name);
	str_copy(m->vmm, sizeof(m->vmm), template_base_name(s->conf.vmm));
	str_copy(m->accel, sizeof(m->accel), vmm_accel_names[accel]);
	str_copy(m->cpu_model, sizeof(m->cpu_model), d->cpu_model(accel));
	m->tsc_khz = khz;
	m->device_set = VMM_DEVICE_SET;
	return 0;
}

int template_fits(struct sbx *s, const struct manifest *m, struct err *e)
{
	struct manifest here = { 0 };
	int r = template_host(s, &here, e);

	return r < 0 ? r : manifest_match(m, &here, MANIFEST_HOST, e);
}

/*
 * A committed template never changes, so what was read once is kept (one template is in use at a
 * time).
 */
struct template_known { struct sbx *s; const char *id; struct manifest *m; bool found; };

static void template_look_in_loop(void *arg)
{
	struct template_known *k = arg;

	k->found = str_eq(k->s->manifest.template_id, k->id);
	if (k->found)
		*k->m = k->s->manifest;
}

static void template_keep_in_loop(void *arg)
{
	struct template_known *k = arg;

	k->s->manifest = *k->m;
}

/*
 * node-manager does one thing at a time with a template: many creates at once wait for their turn.
 */
static int template_ask(struct job *j, const struct nm_template *q, struct nm_manifest_rep *rep,
			struct err *e)
{
	int64_t until = clock_mono_ms() + TEMPLATE_BUSY_MS;
	int r;

	for (;;) {
		*e = (struct err){ 0 };
		r = job_nm(j, NM_TEMPLATE_MANIFEST, q, NULL, 0, rep, NULL, NULL, SBX_NM_MS, e);
		if (r != -EBUSY || clock_mono_ms() > until)
			return r;
		usleep(TEMPLATE_BUSY_POLL_US);
	}
}

int template_manifest(struct job *j, const char *template, struct manifest *ret, struct err *e)
{
	struct template_known k = { j->s, template, ret, false };
	struct nm_template q = { 0 };
	struct nm_manifest_rep rep = { 0 };
	int r;

	if (str_copy(q.template, sizeof(q.template), template) < 0)
		return err_set(e, -ENOENT, "There is no template with such a long name.");
	r = sbx_in_loop(j->s, template_look_in_loop, &k);
	if (r < 0 || k.found)
		return r;
	r = template_ask(j, &q, &rep, e);
	if (r < 0)
		return r;
	r = manifest_from_json(rep.manifest, ret, e);
	ipc_done(nm_ops[NM_TEMPLATE_MANIFEST].rep, &rep);
	if (r == 0 && !str_eq(ret->template_id, template))
		r = err_set(e, -EBADMSG, "The manifest of template %s speaks of another one.",
			    template);
	return r < 0 ? r : sbx_in_loop(j->s, template_keep_in_loop, &k);
}

/* SHA-256 of a file, read in pieces. */
static int template_digest(int fd, char ret[MANIFEST_DIGEST_HEX + 1], struct err *e)
{
	autofree unsigned char *p = x_alloc(TEMPLATE_READ_BYTES);
	unsigned char raw[crypto_hash_sha256_BYTES];
	crypto_hash_sha256_state st;
	off_t at = 0;
	ssize_t n;

	crypto_hash_sha256_init(&st);
	while ((n = pread(fd, p, TEMPLATE_READ_BYTES, at)) > 0) {
		crypto_hash_sha256_update(&st, p, (unsigned long long)n);
		at += n;
	}
	if (n < 0)
		return err_errno(e, -errno, "A file of the template cannot be read");
	crypto_hash_sha256_final(&st, raw);
	str_hex(ret, raw, sizeof(raw));
	return 0;
}

static int template_digest_path(const char *path, char ret[MANIFEST_DIGEST_HEX + 1], struct err *e)
{
	autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);

	return fd < 0 ? err_errno(e, -errno, "%s", path) : template_digest(fd, ret, e);
}

/* The kernel's folder says what `uname -r` will say. */
static int template_release(const struct conf *c, char dst[64], struct err *e)
{
	autofree char *path =
		x_asprintf("%.*s/release", (int)(template_base_name(c->kernel) - c->kernel - 1),
			   c->kernel);
	autofree char *text = NULL;
	size_t n = 0;
	int r = fd_read_file(AT_FDCWD, path, TEMPLATE_RELEASE_MAX, &text, &n);

	if (r < 0)
		return err_errno(e, r, "%s", path);
	text[strcspn(text, "\n")] = '\0';
	return str_copy(dst, 64, text);
}

static int template_software(const struct job *j, struct manifest *m, struct err *e)
{
	const struct conf *c = &j->s->conf;
	struct vmm_spec spec = { .mode = VMM_TEMPLATE,
				 .memory_mib = (uint32_t)j->rec.memory_mib,
				 .vcpus = (uint32_t)j->rec.vcpus,
				 .tsc_khz = (uint32_t)m->tsc_khz };
	struct stat st;
	int r = template_accel(j->s, &spec.accel, e);

	if (r == 0 && stat(c->base_image, &st) < 0)
		r = err_errno(e, -errno, "%s", c->base_image);
	if (r == 0)
		r = vmm_driver_find("qemu")->cmdline(&spec, m->cmdline, e);
	if (r == 0)
		r = template_release(c, m->kernel, e);
	if (r == 0)
		r = template_digest_path(c->kernel, m->kernel_digest, e);
	if (r == 0)
		r = template_digest_path(c->initrd, m->initrd_digest, e);
	if (r < 0)
		return r;
	m->memory_mib = j->rec.memory_mib;
	m->vcpus = j->rec.vcpus;
	m->disk_bytes = (uint64_t)st.st_size;
	str_copy(m->template_id, sizeof(m->template_id), j->template);
	str_copy(m->agent, sizeof(m->agent), SPACE_VERSION);
	return 0;
}

static json_t *template_describe(const struct job *j, int state_fd, struct err *e)
{
	struct manifest m = { .version = MANIFEST_VERSION,
			      .created_ms = (uint64_t)clock_wall_ms() };
	struct stat st;
	int r = template_host(j->s, &m, e);

	if (r == 0)
		r = template_software(j, &m, e);
	if (r == 0)
		r = template_digest(state_fd, m.state_digest, e);
	if (r == 0 && fstat(state_fd, &st) < 0)
		r = err_errno(e, -errno, "The device state");
	if (r < 0)
		return NULL;
	m.state_bytes = (uint64_t)st.st_size;
	return manifest_to_json(&m, e);
}

/* ---- Making it ---- */

struct template_say { struct job *j; struct sbx_progress ev; };

static void template_say_in_loop(void *arg)
{
	struct template_say *say = arg;

	if (say->j->call)
		ipc_peer_event(ipc_call_peer(say->j->call), "progress", sbx_progress_fields,
			       &say->ev);
}

static void template_say(struct job *j, const char *text)
{
	struct template_say say = { .j = j };

	log_info("template", F_REQ(j->req_id), F_STR("template", j->template), F_STR("step", text));
	str_copy(say.ev.text, sizeof(say.ev.text), text);
	sbx_in_loop(j->s, template_say_in_loop, &say);
}

static int template_nm(struct job *j, enum nm_op op, struct err *e)
{
	struct nm_template q = { 0 };

	str_copy(q.template, sizeof(q.template), j->template);
	return job_nm(j, op, &q, NULL, 0, NULL, NULL, NULL, TEMPLATE_NM_MS, e);
}

/* QEMU wants a descriptor that can only be written; the file is a memfd all the same. */
static int template_save(struct job *j, int memfd, struct err *e)
{
	autofree char *path = x_asprintf("/proc/self/fd/%d", memfd);
	autoclose int fd = open(path, O_WRONLY | O_CLOEXEC);
	int r;

	if (fd < 0)
		return err_errno(e, -errno, "The memory file for the device state");
	r = vmm_stop(j->vm, TEMPLATE_QMP_MS, e);
	return r < 0 ? r : vmm_save(j->vm, fd, TEMPLATE_QMP_MS, e);
}

static int template_identity(struct job *j, struct err *e)
{
	enum vmm_accel accel = VMM_ACCEL_TCG;
	struct identity *id = &j->rec.id;
	int r = template_accel(j->s, &accel, e);

	if (r < 0)
		return r;
	j->unrecorded = true;
	j->rec.memory_mib = TEMPLATE_MEMORY_MIB;
	j->rec.vcpus = TEMPLATE_VCPUS;
	str_copy(j->rec.template, sizeof(j->rec.template), j->template);
	str_copy(j->rec.accel, sizeof(j->rec.accel), vmm_accel_names[accel]);
	str_copy(id->tenant, sizeof(id->tenant), "template");
	str_copy(id->worker, sizeof(id->worker), j->s->conf.worker);
	id->generation = id->attempt = 1;
	if (id_new_sandbox(id->sandbox) < 0 || id_new_activation(id->activation) < 0 ||
	    str_random_hex(j->rec.guest_token, 32) < 0 || str_random_hex(j->rec.machine_id, 16) < 0)
		return err_set(e, -EIO, "The node has no random numbers.");
	return 0;
}

static int template_warm(struct job *j, struct err *e)
{
	json_t *body = json_pack("{s:b}", "warm", 1);
	int r = guest_post(j, "/prepare", body, TEMPLATE_PREPARE_MS, e);

	json_decref(body);
	return r;
}

static int template_commit(struct job *j, int memfd, struct err *e)
{
	struct nm_template_commit q = { .manifest = template_describe(j, memfd, e) };
	int r;

	if (!q.manifest)
		return e->num ? e->num : err_set(e, -EINVAL, "The manifest cannot be written.");
	str_copy(q.template, sizeof(q.template), j->template);
	r = job_nm(j, NM_TEMPLATE_COMMIT, &q, &memfd, 1, NULL, NULL, NULL, TEMPLATE_NM_MS, e);
	json_decref(q.manifest);
	return r;
}

/* What the console said may be the only trace of a boot that failed. */
static void template_say_console(struct job *j)
{
	autofree char *text = NULL, *shown = NULL;
	size_t n = 0, tail;

	if (!j->vm || vmm_console(j->vm, &text, &n, 1000, NULL) < 0)
		return;
	tail = n > 400 ? 400 : n;
	shown = str_printable(text + n - tail, tail);
	log_warn("the template's console ended so", F_REQ(j->req_id), F_STR("text", shown));
}

static int template_boot(struct job *j, int memfd, struct err *e)
{
	struct err end = { 0 };
	int r;

	template_say(j, "booting the base image once");
	r = exec_begin(j, "template", NULL, e);
	if (r == 0) {
		template_say(j, "warming it up");
		r = template_warm(j, e);
	}
	if (r == 0) {
		template_say(j, "taking the snapshot");
		r = template_save(j, memfd, e);
	}
	if (r < 0)
		template_say_console(j);
	if (j->vm)
		vmm_quit(j->vm, TEMPLATE_QMP_MS, NULL);
	vmm_close(TAKE(j->vm));
	if (exec_destroy(j, &end) < 0 && r == 0) {
		*e = end;
		r = end.num;
	}
	return r;
}

static int template_make(struct job *j, struct err *e)
{
	autoclose int memfd = memfd_create("device-state", MFD_CLOEXEC);
	int r;

	if (memfd < 0)
		return err_errno(e, -errno, "The memory file for the device state");
	r = template_identity(j, e);
	if (r == 0)
		r = template_nm(j, NM_TEMPLATE_BEGIN, e);
	if (r == 0)
		r = job_fault("sbx.template.begun", e);
	if (r == 0)
		r = template_boot(j, memfd, e);
	if (r == 0)
		r = job_fault("sbx.template.saved", e);
	if (r == 0) {
		template_say(j, "storing it");
		r = template_commit(j, memfd, e);
	}
	if (r < 0)
		template_nm(j, NM_TEMPLATE_DROP, NULL);
	return r;
}

static int template_run(struct job *j, struct err *e)
{
	struct manifest m;
	int r = template_manifest(j, j->template, &m, e);

	if (r == -ENOENT) {
		*e = (struct err){ 0 };
		r = template_nm(j, NM_TEMPLATE_IMPORT, e);
		if (r == 0)
			r = template_manifest(j, j->template, &m, e);
	}
	if (r == 0) {
		r = template_fits(j->s, &m, e);
		return r < 0 ? err_wrap(e, "The template %s was made for another machine",
					j->template)
			     : 0;
	}
	if (r != -ENOENT)
		return r;
	*e = (struct err){ 0 };
	j->made = true;
	return template_make(j, e);
}

static void template_done(struct job *j)
{
	struct sbx_template_rep rep = { .made = j->made,
					.ms = (uint64_t)((clock_mono_us() - j->begin_us) / 1000) };

	if (j->e.num < 0)
		ipc_fail(j->call, &j->e);
	else
		ipc_answer(j->call, &rep, NULL, 0);
}

void template_handle(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	const struct sbx_template *q = req;
	struct sbx *s = arg;
	struct job *j;

	if (!sbx_only_root(call))
		return;
	j = job_new(s, "template", "", ipc_call_req_id(call), template_run);
	j->call = call;
	j->done = template_done;
	str_copy(j->template, sizeof(j->template), q->template);
	job_start(j);
}
