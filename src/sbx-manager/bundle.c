/*
 * The verification keys (K-2): a bundle signed by the root key that this node pinned when it was
 * first started. Kept in STATE/sbx; a number never goes back, not over a restart either. `root.pub`
 * and `bundle.txt` there are removed by whoever wants the node to trust another root key.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "sbx-manager/job.h"

#define BUNDLE_HEX_FILE_MAX 128

static int bundle_read_hex(const char *path, uint8_t dst[KEY_PUBLIC_BYTES])
{
	autofree char *text = NULL;
	size_t n = 0;
	int r = fd_read_file(AT_FDCWD, path, BUNDLE_HEX_FILE_MAX, &text, &n);

	if (r < 0)
		return r;
	text[strcspn(text, "\n")] = '\0';
	return str_unhex(dst, KEY_PUBLIC_BYTES, text);
}

static int bundle_pin(struct sbx *s, struct err *e)
{
	char pinned[PATH_MAX], offered[PATH_MAX], hex[2 * KEY_PUBLIC_BYTES + 1];
	uint8_t now[KEY_PUBLIC_BYTES];
	int r, seen;

	conf_path(&s->conf, pinned, CONF_STATE, "sbx/root.pub");
	conf_path(&s->conf, offered, CONF_STATE, "keys/root.pub");
	seen = bundle_read_hex(offered, now);
	r = bundle_read_hex(pinned, s->root_public);
	if (r == 0) {
		if (seen == 0 && memcmp(now, s->root_public, sizeof(now)) != 0)
			log_warn("the root key has changed; this node keeps the one that it pinned",
				 F_STR("pinned", pinned));
		return 0;
	}
	if (r != -ENOENT)
		return err_errno(e, r, "%s", pinned);
	if (seen < 0)
		return err_errno(e, seen, "The root key %s", offered);
	memcpy(s->root_public, now, sizeof(now));
	str_hex(hex, now, sizeof(now));
	r = fd_write_file(AT_FDCWD, pinned, hex, strlen(hex), 0600);
	return r < 0 ? err_errno(e, r, "%s", pinned) : 0;
}

int bundle_load(struct sbx *s, struct err *e)
{
	autofree char *text = NULL;
	char path[PATH_MAX];
	size_t n = 0;
	int r = bundle_pin(s, e);

	if (r < 0)
		return r;
	conf_path(&s->conf, path, CONF_STATE, "sbx/bundle.txt");
	r = fd_read_file(AT_FDCWD, path, BUNDLE_BYTES_MAX, &text, &n);
	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return err_errno(e, r, "%s", path);
	r = bundle_open(text, n, s->root_public, &s->bundle, e);
	if (r < 0)
		return err_wrap(e, "%s", path);
	free(s->bundle_text);
	s->bundle_text = TAKE(text);
	s->bundle_told = s->bundle.number;
	return 0;
}

struct bundle_next { struct key_bundle keys; char *text; };

static void bundle_set_in_loop(void *arg)
{
	struct job *j = arg;
	struct bundle_next *next = j->arg;

	j->s->bundle = next->keys;
	free(j->s->bundle_text);
	j->s->bundle_text = x_strdup(next->text);
	cap_cache_clear(j->s->caps);
}

/*
 * Only one such job runs at a time, and only such a job changes the bundle: reading it here is
 * safe. It is acknowledged, and stands in reports, when the gateways know it too: they check as
 * well (K-5), and signers go over to new keys by that number.
 */
static int bundle_run(struct job *j, struct err *e)
{
	struct bundle_next *next = j->arg;
	char path[PATH_MAX];
	int r = bundle_open(next->text, strlen(next->text), j->s->root_public, &next->keys, e);

	if (r == 0)
		r = bundle_may_replace(&j->s->bundle, &next->keys, e);
	if (r < 0)
		return r;
	conf_path(&j->s->conf, path, CONF_STATE, "sbx/bundle.txt");
	r = fd_write_file(AT_FDCWD, path, next->text, strlen(next->text), 0600);
	if (r < 0)
		return err_errno(e, r, "%s", path);
	r = job_fault("sbx.bundle.stored", e);
	if (r < 0)
		return r;
	if (sbx_in_loop(j->s, bundle_set_in_loop, j) < 0)
		return err_set(e, -ECANCELED, "The node service is ending.");
	gateway_push_bundle(j, next->text);
	return 0;
}

static void bundle_done(struct job *j)
{
	struct bundle_next *next = j->arg;
	struct sbx_bundle_rep rep = { 0 };

	if (j->e.num == 0) {
		rep.number = j->s->bundle_told = j->s->bundle.number;
		ipc_answer(j->call, &rep, NULL, 0);
	} else {
		ipc_fail(j->call, &j->e);
	}
	free(next->text);
	free(next);
}

void bundle_handle(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	const struct sbx_bundle *q = req;
	struct job *j = job_new(arg, "bundle", "", ipc_call_req_id(call), bundle_run);
	struct bundle_next *next = x_alloc(sizeof(*next));

	next->text = x_strdup(q->text);
	j->arg = next;
	j->call = call;
	j->done = bundle_done;
	job_start(j);
}
