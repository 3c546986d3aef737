#include "sbx-manager/test_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"

struct fixture *fx;

/* ---- In other programs' places ---- */

static void nm_verify(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	const struct nm_verify *v = req;
	struct err e = { 0 };

	fx->verified++;
	assert_string_equal(v->sandbox, SANDBOX);
	/* One of the two is what a stream goes to, and that one must be named. */
	assert_int_equal(v->bridge_pid + v->gateway_pid, fx->sweeps ? 0 : getpid());
	if (fx->on_verify)
		fx->on_verify();
	if (fx->verify_error) {
		err_set(&e, fx->verify_error, "not as recorded");
		ipc_fail(call, &e);
		return;
	}
	ipc_answer(call, NULL, NULL, 0);
}

static void nm_gateway(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	struct err e = { 0 };

	if (fx->on_gateway) {
		fx->on_gateway(call, req);
		return;
	}
	err_set(&e, -EOPNOTSUPP, "no gateway here");
	ipc_fail(call, &e);
}

static void nm_kill(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	if (fx->on_kill)
		fx->on_kill(call, req);
	ipc_answer(call, NULL, NULL, 0);
}

static void nm_destroy(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	fx->destroyed++;
	ipc_answer(call, NULL, NULL, 0);
}

static void nm_disk_delete(struct ipc_call *call, const void *req, int *fds, size_t n_fds,
			   void *arg)
{
	fx->disks_deleted++;
	ipc_answer(call, NULL, NULL, 0);
}

static void nm_stats(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	struct nm_stats_rep rep = { .slots = 16 };

	ipc_answer(call, &rep, NULL, 0);
}

static const struct ipc_handler nm_handlers[] = { { &nm_ops[NM_VERIFY], nm_verify },
						  { &nm_ops[NM_GATEWAY], nm_gateway },
						  { &nm_ops[NM_KILL], nm_kill },
						  { &nm_ops[NM_DESTROY], nm_destroy },
						  { &nm_ops[NM_DISK_DELETE], nm_disk_delete },
						  { &nm_ops[NM_STATS], nm_stats },
						  { NULL, NULL } };

static void on_admit(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	fx->answered = true;
	fx->e = e ? *e : (struct err){ 0 };
	if (e)
		return;
	fx->rep = *(const struct sbx_admit_rep *)rep;
	assert_int_equal(n_fds, 1);
	fx->fd = TAKE_FD(fds[0]);
}

static void on_bundle(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	fx->answered = true;
	fx->e = e ? *e : (struct err){ 0 };
	fx->number = e ? 0 : ((const struct sbx_bundle_rep *)rep)->number;
}

static void on_lifecycle(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	fx->answered = true;
	fx->e = e ? *e : (struct err){ 0 };
	json_decref(fx->result);
	fx->result = e ? NULL : json_incref(((const struct sbx_lifecycle_rep *)rep)->result);
}

static void on_event(const char *name, json_t *a, void *arg)
{
	fx->revoked += str_eq(name, "revoked");
}

/* ---- Fixture ---- */

void rig_in_dir(char dst[PATH_MAX], const char *name)
{
	str_format(dst, PATH_MAX, "%s/%s", fx->dir, name);
}

struct box *rig_box(void)
{
	return box_find(&fx->s, SANDBOX);
}

static void make_dir(const char *name)
{
	char path[PATH_MAX];

	rig_in_dir(path, name);
	assert_int_equal(fd_mkdir_p(path, 0755), 0);
}

void rig_add_key(struct key_bundle *b, const char *kid, struct key_signer *k, unsigned purposes)
{
	struct key_entry *x = &b->keys[b->n_keys++];

	assert_int_equal(key_generate(kid, k, x->public), 0);
	str_copy(x->kid, sizeof(x->kid), kid);
	x->purposes = purposes;
}

int rig_put_bundle(const struct key_bundle *b)
{
	static struct sbx_bundle q;
	autofree char *text = NULL;

	assert_int_equal(bundle_sign(b, &fx->root, &text, NULL), 0);
	str_copy(q.text, sizeof(q.text), text);
	fx->answered = false;
	ipc_client_call(fx->client, &sbx_ops[SBX_BUNDLE], "test", &q, NULL, 0, WAIT_MS, on_bundle,
			NULL);
	TURN_UNTIL(fx->answered);
	return fx->e.num;
}

void rig_admit(const struct sbx_admit *q)
{
	fx->answered = false;
	ipc_client_call(fx->client, &sbx_ops[SBX_ADMIT], "test", q, NULL, 0, WAIT_MS, on_admit,
			NULL);
	TURN_UNTIL(fx->answered);
}

void rig_lifecycle_as(const struct capability *c, int64_t age_s, const char *kind, json_t *spec)
{
	static struct sbx_lifecycle q;

	q = (struct sbx_lifecycle){ .spec = spec };
	str_copy(q.kind, sizeof(q.kind), kind);
	assert_int_equal(cap_sign(c, &fx->api, clock_wall_ms() / 1000 - age_s, q.capability, NULL),
			 0);
	fx->answered = false;
	ipc_client_call(fx->client, &sbx_ops[SBX_LIFECYCLE], "test", &q, NULL, 0, WAIT_MS,
			on_lifecycle, NULL);
	json_decref(spec);
	TURN_UNTIL(fx->answered);
}

void rig_lifecycle(const char *kind, json_t *spec)
{
	struct capability c = { .id = fx->rec.id, .purpose = ID_PURPOSE_LIFECYCLE };

	assert_int_equal(id_access_of(kind, &c.access), 0);
	rig_lifecycle_as(&c, 0, kind, spec);
}

struct record rig_running(void)
{
	struct record r = { .state = LIFE_RUNNING,
			    .installed_ms = 1,
			    .internet = true,
			    .proc = { .bridge_uid = getuid(), .bridge_pid = (uint64_t)getpid() },
			    .gateway = { .uid = getuid(), .pid = (uint64_t)getpid() } };

	str_copy(r.id.sandbox, sizeof(r.id.sandbox), SANDBOX);
	str_copy(r.id.tenant, sizeof(r.id.tenant), "acme");
	str_copy(r.id.worker, sizeof(r.id.worker), WORKER);
	r.id.generation = 7;
	r.id.attempt = 1;
	memset(r.id.activation, 7, sizeof(r.id.activation));
	memset(r.guest_token, 'f', 64);
	return r;
}

void rig_write_root_pub(const uint8_t public[KEY_PUBLIC_BYTES])
{
	char path[PATH_MAX], hex[2 * KEY_PUBLIC_BYTES + 1];

	rig_in_dir(path, "state/keys/root.pub");
	str_hex(hex, public, KEY_PUBLIC_BYTES);
	assert_int_equal(fd_write_file(AT_FDCWD, path, hex, strlen(hex), 0644), 0);
}

static void open_program(uid_t *me)
{
	char path[PATH_MAX];
	struct err e = { 0 };

	*me = getuid();
	fx->s.loop = loop_new();
	fx->s.nm_uid = *me;
	fx->s.conf.users[CONF_USER_NODE] = *me;
	fx->s.conf.max_sandboxes = 16;
	str_copy(fx->s.conf.worker, sizeof(fx->s.conf.worker), WORKER);
	str_format(fx->s.conf.run_dir, sizeof(fx->s.conf.run_dir), "%s/run", fx->dir);
	str_format(fx->s.conf.state_dir, sizeof(fx->s.conf.state_dir), "%s/state", fx->dir);
	rig_in_dir(path, "run/nm/nm.sock");
	fx->nm = ipc_server_new(fx->s.loop, fd_unix_listen(path, SOCK_SEQPACKET, 0600, 8),
				&(struct ipc_server_conf) { .handlers = nm_handlers,
							    .uids = me,
							    .n_uids = 1,
							    .max_peers = 16 });
	if (sbx_open(&fx->s, &e) < 0 || sbx_serve(&fx->s, &e) < 0)
		fail_msg("%s", e.text);
	rig_in_dir(path, "run/sbx-manager/sbx.sock");
	fx->client = ipc_client_new(fx->s.loop, path, *me);
	ipc_client_on_event(fx->client, on_event, NULL);
	rig_in_dir(path, "run/sbx/" SANDBOX ".7/bridge.sock");
	fx->bridge_fd = fd_unix_listen(path, SOCK_STREAM, 0600, 64);
	rig_in_dir(path, "run/sbx/" SANDBOX ".7/gtw.sock");
	fx->gateway_fd = fd_unix_listen(path, SOCK_STREAM, 0600, 64);
	assert_true(fx->bridge_fd >= 0 && fx->gateway_fd >= 0);
}

int rig_setup(void **state)
{
	static const char *const dirs[] = {
		"run/nm",    "run/sbx-manager", "run/sbx/" SANDBOX ".7", "run/sbx/" SANDBOX ".8",
		"state/sbx", "state/keys"
	};
	static struct key_bundle b;
	static uid_t me;
	uint8_t public[KEY_PUBLIC_BYTES];

	fx = x_alloc(sizeof(*fx));
	fx->fd = -1;
	str_copy(fx->dir, sizeof(fx->dir), "/tmp/test-sbx-XXXXXX");
	assert_non_null(mkdtemp(fx->dir));
	for (unsigned i = 0; i < ARRAY_LEN(dirs); i++)
		make_dir(dirs[i]);
	assert_int_equal(key_init(), 0);
	assert_int_equal(key_generate("root", &fx->root, public), 0);
	rig_write_root_pub(public);
	open_program(&me);
	b = (struct key_bundle){ .number = 3 };
	rig_add_key(&b, "api-1", &fx->api,
		    1u << ID_PURPOSE_CONTROL | 1u << ID_PURPOSE_LIFECYCLE |
			    1u << ID_PURPOSE_SERVICE_PORT);
	rig_add_key(&b, "ctl-1", &fx->ctl, 1u << ID_PURPOSE_LIFECYCLE);
	assert_int_equal(key_generate("api-1", &fx->stranger, public), 0);
	assert_int_equal(rig_put_bundle(&b), 0);
	assert_int_equal(fx->number, 3);
	fx->rec = rig_running();
	assert_non_null(box_set(&fx->s, &fx->rec));
	return 0;
}

/* A job that does not end, of a test that has failed: sbx_close would end this process with 0. */
static void end_jobs(void)
{
	int64_t until = clock_mono_ms() + WAIT_MS;

	atomic_store(&fx->s.leaving, true);
	while (work_pending(fx->s.work) > 0 && clock_mono_ms() < until)
		loop_turn(fx->s.loop, 20);
	if (work_pending(fx->s.work) > 0)
		abort();
}

int rig_teardown(void **state)
{
	ipc_client_free(fx->client);
	end_jobs();
	sbx_close(&fx->s);
	ipc_server_free(fx->nm);
	loop_turn(fx->s.loop, 0);
	loop_free(fx->s.loop);
	close(fx->bridge_fd);
	close(fx->gateway_fd);
	fd_close(fx->fd);
	json_decref(fx->result);
	if (fork() == 0) {
		execlp("rm", "rm", "-rf", fx->dir, (char *)NULL);
		_exit(127);
	}
	free(fx);
	return 0;
}
