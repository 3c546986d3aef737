/*
 * Theory of operation
 *
 *	1 the one before ends  2 its sockets are replaced  3 sockets in the sandbox's namespace
 *	4 jail: three processes  5 record
 *
 * A failure at any step leaves an execution without a gateway: nothing goes out and no port comes
 * in, and the caller may try again. What the rules of the namespace (net_rules.c) do without one is
 * to refuse.
 */
#include "node-manager/gateway.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/str.h"
#include "identity/identity.h"
#include "node-manager/jail_gateway.h"
#include "node-manager/jail_tree.h"
#include "node-manager/sockets.h"

#define GATEWAY_POLL_MS 1
#define GATEWAY_ARGS_MAX 96
#define GATEWAY_ROOT_FILE_MAX 128

struct gateway {
	struct child_task *t;
	struct nm *nm;
	const struct nm_gateway *req;
	const char *name;
	struct exec_record rec;
	struct jail_gateway_spec jail;
	pid_t pid;
};

static int gateway_fault(const char *step, struct err *e)
{
	int r = FAULT(step);

	return r < 0 ? err_errno(e, r, "failpoint %s", step) : 0;
}

static int step_end(struct gateway *g, struct err *e)
{
	int64_t end = clock_mono_ms() + GATEWAY_END_MS;
	int r = gateway_fault("nm.gateway.begin", e);

	while (r == 0 && cgroup_kill_leaf(&g->nm->cgroups, g->name, CGROUP_GATEWAY) > 0) {
		if (clock_mono_ms() >= end)
			return err_set_code(e, -EBUSY, "process-stays",
					    "a process of the gateway before does not end");
		poll(NULL, 0, GATEWAY_POLL_MS);
	}
	return r;
}

static int step_sockets(struct gateway *g, struct err *e)
{
	int fds[EXEC_SOCKET_COUNT - EXEC_CORE_SOCKETS];
	int r = gateway_fault("nm.gateway.sockets", e);

	if (r == 0)
		r = sockets_make_gateway(g->nm, g->name, &g->rec, fds, e);
	if (r < 0)
		return r;
	g->jail.streams = fds[EXEC_GTW_STREAMS - EXEC_CORE_SOCKETS];
	g->jail.control = fds[EXEC_GTW_CONTROL - EXEC_CORE_SOCKETS];
	return 0;
}

static int step_net(struct gateway *g, struct err *e)
{
	char path[PATH_MAX];
	int r = gateway_fault("nm.gateway.net", e);

	if (r == 0)
		r = conf_path(&g->nm->conf, path, CONF_RUN, "nm/" NET_FOLDER "/%s", g->name);
	return r < 0 ? r : net_open_sockets(path, &g->jail.netns, g->jail.net, e);
}

/*
 * The root key that key bundles are signed with, as hex. Pinned when the first gateway of this node
 * is made: sbx-manager pins its own copy (STATE/sbx/root.pub), which it could replace.
 */
static int read_root_key(const struct conf *c, char dst[2 * KEY_PUBLIC_BYTES + 1], struct err *e)
{
	char pinned[PATH_MAX], offered[PATH_MAX];
	autofree char *text = NULL;
	uint8_t key[KEY_PUBLIC_BYTES];
	bool first = false;
	int r = conf_path(c, pinned, CONF_STATE, "root.pub");

	if (r == 0)
		r = conf_path(c, offered, CONF_STATE, "keys/root.pub");
	if (r == 0)
		r = fd_read_file(AT_FDCWD, pinned, GATEWAY_ROOT_FILE_MAX, &text, NULL);
	first = r == -ENOENT;
	if (first)
		r = fd_read_file(AT_FDCWD, offered, GATEWAY_ROOT_FILE_MAX, &text, NULL);
	if (r < 0)
		return err_errno(e, r, "the root key %s", first ? offered : pinned);
	text[strcspn(text, "\n")] = '\0';
	if (str_unhex(key, sizeof(key), text) < 0)
		return err_set(e, -EBADMSG, "%s holds no key", first ? offered : pinned);
	str_hex(dst, key, sizeof(key));
	r = first ? fd_write_file(AT_FDCWD, pinned, dst, strlen(dst), 0444) : 0;
	return r < 0 ? err_errno(e, r, "the root key cannot be kept in %s", pinned) : 0;
}

struct gateway_args { const char *argv[GATEWAY_ARGS_MAX]; size_t n; };

static void add_option(struct gateway_args *a, const char *name, const char *value)
{
	a->argv[a->n++] = name;
	a->argv[a->n++] = value;
}

static void add_limits(struct gateway_args *a, const struct conf_network *n)
{
	_Static_assert(2 * (8 + CONF_NET_LIMITS_MAX) < GATEWAY_ARGS_MAX, "room for all");
	for (size_t i = 0; i < CONF_NET_LIMITS_MAX && n->limits[i][0]; i++)
		add_option(a, "--limit", n->limits[i]);
}

/* What the operator allows and denies is for outside alone, which has the last word. */
static void add_network(struct gateway_args *a, const struct conf_network *n, bool internet)
{
	_Static_assert(2 * (8 + CONF_NAMESERVERS_MAX + CONF_NET_ALLOW_MAX + CONF_NET_DENY_MAX) <
			       GATEWAY_ARGS_MAX,
		       "room for all");
	add_option(a, "--internet", internet ? "yes" : "no");
	for (size_t i = 0; i < CONF_NAMESERVERS_MAX && n->nameservers[i][0]; i++)
		add_option(a, "--nameserver", n->nameservers[i]);
	for (size_t i = 0; i < CONF_NET_ALLOW_MAX && n->allow[i][0]; i++)
		add_option(a, "--allow", n->allow[i]);
	for (size_t i = 0; i < CONF_NET_DENY_MAX && n->deny[i][0]; i++)
		add_option(a, "--deny", n->deny[i]);
}

static int step_jail(struct gateway *g, struct err *e)
{
	char generation[24], peer[24], root[2 * KEY_PUBLIC_BYTES + 1];
	struct gateway_args args[JAIL_GATEWAY_COUNT] = { 0 };
	int r = gateway_fault("nm.gateway.jail", e);

	if (r == 0)
		r = read_root_key(&g->nm->conf, root, e);
	if (r < 0)
		return r;
	str_format(generation, sizeof(generation), "%llu", (unsigned long long)g->rec.generation);
	str_format(peer, sizeof(peer), "%u", (unsigned)g->nm->conf.users[CONF_USER_SBX]);
	for (int i = 0; i < JAIL_GATEWAY_COUNT; i++) {
		args[i].argv[args[i].n++] = JAIL_GATEWAY_PROGRAM;
		add_option(&args[i], "--role", jail_gateway_names[i]);
		add_option(&args[i], "--sandbox", g->rec.sandbox);
		add_option(&args[i], "--generation", generation);
		g->jail.argv[i] = (char *const *)args[i].argv;
	}
	add_option(&args[JAIL_GATEWAY_MAIN], "--peer-uid", peer);
	add_option(&args[JAIL_GATEWAY_MAIN], "--root-key", root);
	add_option(&args[JAIL_GATEWAY_MAIN], "--worker", g->nm->conf.worker);
	add_limits(&args[JAIL_GATEWAY_MAIN], &g->nm->conf.network);
	add_network(&args[JAIL_GATEWAY_OUTSIDE], &g->nm->conf.network, g->req->internet);
	g->jail.null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (g->jail.null < 0)
		return err_errno(e, -errno, "/dev/null cannot be opened");
	return jail_gateway_start(&g->jail, &g->pid, e);
}

static int step_record(struct gateway *g, struct err *e)
{
	struct exec_proc *p = &g->rec.proc[EXEC_GATEWAY];
	struct nm_gateway_rep *rep = g->t->rep;
	int r = gateway_fault("nm.gateway.record", e);

	if (r == 0)
		r = exec_proc_note(EXEC_GATEWAY, g->pid, g->jail.uid, p, e);
	if (r == 0)
		r = exec_record_write(g->nm->run_fd, &g->rec, e);
	if (r == 0)
		r = gateway_fault("nm.gateway.recorded", e);
	if (r < 0)
		return r;
	*rep = (struct nm_gateway_rep){ .pid = p->pid, .start = p->start, .uid = p->uid };
	return 0;
}

static int (*const gateway_steps[])(struct gateway *g, struct err *e) = {
	step_end, step_sockets, step_net, step_jail, step_record,
};

int gateway_run(struct child_task *t, struct err *e)
{
	const struct slots *slots = &t->nm->slots;
	struct gateway g = { .t = t, .nm = t->nm, .req = t->req, .name = t->x->name,
			     .rec = t->x->rec };
	int r = 0;

	str_copy(g.rec.gateway_tree, sizeof(g.rec.gateway_tree), t->nm->gateway_tree.digest);
	g.jail.nm = t->nm;
	g.jail.name = g.name;
	g.jail.uid = slots_uid(slots, (uint32_t)g.rec.slot, SLOT_GATEWAY);
	g.jail.text = t->spare[GATEWAY_TEXT];
	for (size_t i = 0; i < sizeof(gateway_steps) / sizeof(gateway_steps[0]) && r == 0; i++)
		r = gateway_steps[i](&g, e);
	return r;
}
