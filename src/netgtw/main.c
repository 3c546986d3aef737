/* netgtw: options and role. What it does stands in gtw.h, inside.c and outside.h. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/str.h"
#include "json/strict.h"
#include "netgtw/gtw.h"
#include "netgtw/inside.h"
#include "netgtw/outside.h"

struct options {
	const char *role;
	struct gtw_conf main;
	struct outside outside;
	bool has_peer, has_key, has_internet;
};

static int opt_role(struct options *o, const char *v, struct err *e)
{
	o->role = v;
	return 0;
}

static int opt_sandbox(struct options *o, const char *v, struct err *e)
{
	if (!id_sandbox_ok(v))
		return err_set(e, -EINVAL, "This is no sandbox's name.");
	return str_copy(o->main.sandbox, sizeof(o->main.sandbox), v);
}

static int opt_generation(struct options *o, const char *v, struct err *e)
{
	if (str_to_u64(v, UINT64_C(1) << 53, &o->main.generation) < 0 || o->main.generation == 0)
		return err_set(e, -EINVAL, "This is no generation.");
	return 0;
}

static int opt_peer(struct options *o, const char *v, struct err *e)
{
	uint64_t uid;

	if (str_to_u64(v, UINT32_MAX - 1, &uid) < 0)
		return err_set(e, -EINVAL, "This is no uid.");
	o->main.peer_uid = (uid_t)uid;
	o->has_peer = true;
	return 0;
}

static int opt_key(struct options *o, const char *v, struct err *e)
{
	if (str_unhex(o->main.root_key, sizeof(o->main.root_key), v) < 0)
		return err_set(e, -EINVAL, "This is no public key in hex.");
	o->has_key = true;
	return 0;
}

static int opt_worker(struct options *o, const char *v, struct err *e)
{
	if (!id_uuid_ok(v))
		return err_set(e, -EINVAL, "This is no UUID.");
	return str_copy(o->main.worker, sizeof(o->main.worker), v);
}

static int opt_limit(struct options *o, const char *v, struct err *e)
{
	return limits_set(&o->main.limits, v, e);
}

static int opt_internet(struct options *o, const char *v, struct err *e)
{
	if (!str_eq(v, "yes") && !str_eq(v, "no"))
		return err_set(e, -EINVAL, "It is yes or no.");
	o->outside.internet = str_eq(v, "yes");
	o->has_internet = true;
	return 0;
}

static int opt_nameserver(struct options *o, const char *v, struct err *e)
{
	struct outside *out = &o->outside;

	if (out->n_nameservers == GTW_NAMESERVERS_MAX)
		return err_set(e, -ENOSPC, "At most %d nameservers can be given.",
			       GTW_NAMESERVERS_MAX);
	if (addr_parse(v, &out->nameservers[out->n_nameservers]) < 0)
		return err_set(e, -EINVAL, "This is no address.");
	out->n_nameservers++;
	return 0;
}

static int opt_allow(struct options *o, const char *v, struct err *e)
{
	return floor_allow_add(&o->outside.floor, v, e);
}

static int opt_deny(struct options *o, const char *v, struct err *e)
{
	return floor_deny_add(&o->outside.floor, v, e);
}

static const struct {
	const char *name;
	int (*fn)(struct options *, const char *, struct err *);
} option_fns[] = {
	{ "role", opt_role },	  { "sandbox", opt_sandbox },	{ "generation", opt_generation },
	{ "peer-uid", opt_peer }, { "root-key", opt_key },	{ "worker", opt_worker },
	{ "limit", opt_limit },	  { "internet", opt_internet }, { "nameserver", opt_nameserver },
	{ "allow", opt_allow },	  { "deny", opt_deny },
};

static int usage(void)
{
	static const char text[] =
		"usage: netgtw --role main --sandbox ID --generation N --peer-uid UID --root-key HEX\n"
		"                   [--worker UUID] [--limit NAME=VALUE]\n"
		"       netgtw --role inside --sandbox ID\n"
		"       netgtw --role outside --sandbox ID --internet yes|no [--nameserver ADDRESS]\n"
		"                   [--allow CIDR] [--deny CIDR]\n"
		"       netgtw --role check [--allow CIDR] [--deny CIDR] [--limit NAME=VALUE]\n"
		"                   (0: it takes them)\n"
		"Descriptors from 3 on as node-manager sets them up.\n";

	fputs(text, stderr);
	return 2;
}

/* 0, or the exit code: it was said what is wrong. */
static int options_parse(int argc, char **argv, struct options *o)
{
	struct option longs[ARRAY_LEN(option_fns) + 1] = { 0 };
	struct err e = { 0 };
	int opt;

	for (size_t i = 0; i < ARRAY_LEN(option_fns); i++)
		longs[i] = (struct option){ option_fns[i].name, required_argument, NULL, (int)i };
	limits_init(&o->main.limits);
	while ((opt = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (opt < 0 || (size_t)opt >= ARRAY_LEN(option_fns))
			return usage();
		if (option_fns[opt].fn(o, optarg, &e) < 0) {
			fprintf(stderr, "netgtw: --%s: %s\n", option_fns[opt].name, e.text);
			return 2;
		}
	}
	if (optind != argc || !o->role || (!o->main.sandbox[0] && !str_eq(o->role, "check")))
		return usage();
	return 0;
}

static int run_main(struct options *o)
{
	struct gtw *g = NULL;
	struct err e = { 0 };
	struct loop *l = loop_new();
	int r;

	if (!l || key_init() < 0 || gtw_new(l, &o->main, &g, &e) < 0) {
		log_error("the gateway cannot start", F_ERR(&e));
		return 1;
	}
	r = loop_run(l);
	gtw_free(g);
	loop_free(l);
	return r < 0 ? 1 : 0;
}

static int run_inside(struct options *o)
{
	struct err e = { 0 };
	struct loop *l = loop_new();
	int r = l ? inside_run(l, &e) : err_set(&e, -ENOMEM, "There is no loop.");

	if (r < 0)
		log_error("the gateway's inside process ends", F_ERR(&e));
	loop_free(l);
	return r < 0 ? 1 : 0;
}

static int run_outside(struct options *o)
{
	struct err e = { 0 };
	int r = outside_run(&o->outside);

	if (r < 0) {
		err_errno(&e, r, "The outside process cannot go on");
		log_error("the gateway's outside process ends", F_ERR(&e));
	}
	return r < 0 ? 1 : 0;
}

int main(int argc, char **argv)
{
	struct options o = { 0 };
	int r;

	if (argc == 2 && str_eq(argv[1], "--version")) {
		puts("netgtw " SPACE_VERSION);
		return 0;
	}
	r = options_parse(argc, argv, &o);
	if (r != 0 || str_eq(o.role, "check"))
		return r;
	if (strict_seed() < 0)
		return 1;
	x_give_back();
	log_open("netgtw", o.main.sandbox);
	if (str_eq(o.role, "main") && o.has_peer && o.has_key && o.main.generation)
		return run_main(&o);
	if (str_eq(o.role, "inside"))
		return run_inside(&o);
	if (str_eq(o.role, "outside") && o.has_internet)
		return run_outside(&o);
	return usage();
}
