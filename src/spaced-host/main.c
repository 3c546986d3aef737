/* spaced-host: options, the two descriptors, the loop. What it does stands in bridge.h. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/str.h"
#include "json/strict.h"
#include "spaced-host/bridge.h"

#define BRIDGE_STREAM_FD 3
#define BRIDGE_CONTROL_FD 4

static const struct option main_options[] = {
	{ "sandbox", required_argument, NULL, 's' },
	{ "generation", required_argument, NULL, 'g' },
	{ "peer-uid", required_argument, NULL, 'u' },
	{ "version", no_argument, NULL, 'V' },
	{ NULL, 0, NULL, 0 },
};

static int main_usage(void)
{
	static const char text[] =
		"usage: spaced-host --sandbox ID --generation N --peer-uid UID   (descriptors 3 and 4: bound sockets)\n";

	fputs(text, stderr);
	return 2;
}

static int main_parse(int argc, char **argv, struct bridge_conf *c)
{
	uint64_t uid = UINT64_MAX;
	int opt, r = 0;

	while ((opt = getopt_long(argc, argv, "", main_options, NULL)) != -1 && r == 0) {
		if (opt == 's')
			r = str_copy(c->sandbox, sizeof(c->sandbox), optarg);
		else if (opt == 'g')
			r = str_to_u64(optarg, UINT64_C(1) << 53, &c->generation);
		else if (opt == 'u')
			r = str_to_u64(optarg, UINT32_MAX - 1, &uid);
		else
			r = -1;
	}
	c->peer_uid = (uid_t)uid;
	return r < 0 || optind != argc || uid == UINT64_MAX || c->generation == 0 ||
			       c->sandbox[0] == '\0'
		       ? -1
		       : 0;
}

int main(int argc, char **argv)
{
	struct bridge_conf conf = { 0 };
	struct bridge *b = NULL;
	struct err e = { 0 };
	struct loop *l;
	int r;

	if (argc == 2 && str_eq(argv[1], "--version")) {
		puts("spaced-host " SPACE_VERSION);
		return 0;
	}
	if (main_parse(argc, argv, &conf) < 0)
		return main_usage();
	if (strict_seed() < 0)
		return 1;
	x_give_back();
	log_open("spaced-host", conf.sandbox);
	l = loop_new();
	if (!l || bridge_new(l, BRIDGE_STREAM_FD, BRIDGE_CONTROL_FD, &conf, &b, &e) < 0) {
		log_error("the bridge cannot start", F_ERR(&e));
		return 1;
	}
	r = loop_run(l);
	bridge_free(b);
	loop_free(l);
	return r < 0 ? 1 : 0;
}
