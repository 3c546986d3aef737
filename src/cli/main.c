/* The table of commands. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "base/alloc.h"
#include "base/str.h"
#include "cli/cli.h"

const struct cli_command cli_commands[] = {
	{ "up", "[--detach] [--size SIZE] [--port PORT] [--instance NAME]",
	  "run a node on this machine (root)", cmd_up, "The node" },
	{ "down", "[--instance NAME]", "stop all sandboxes and the node (root)", cmd_down,
	  "The node" },
	{ "key", "new|ls|revoke|rotate|reset [...]", "API keys and signing keys (root)", cmd_key,
	  "The node" },
	{ "env", "", "print the exports that move an existing agent here", cmd_env, "The node" },
	{ "create", "[--template NAME] [--timeout SECONDS] [--env K=V] [--meta K=V]",
	  "make a sandbox and print its ID", cmd_create, "Sandboxes" },
	{ "ls", "[--all]", "list sandboxes", cmd_ls, "Sandboxes" },
	{ "stop", "SANDBOX...", "end the VM, keep the disk", cmd_life, "Sandboxes" },
	{ "start", "SANDBOX...", "boot from the kept disk; a running one is started anew", cmd_life,
	  "Sandboxes" },
	{ "kill", "SANDBOX...", "delete sandboxes; nothing stays", cmd_life, "Sandboxes" },
	{ "exec", "[-i] [-t] [-u USER] [-w DIR] [-e K=V] SANDBOX [--] COMMAND [ARG...]",
	  "run a command and give its exit code", cmd_exec, "Inside a sandbox" },
	{ "shell", "[-u USER] SANDBOX", "a login shell in a terminal", cmd_shell,
	  "Inside a sandbox" },
	{ "ps", "SANDBOX", "commands that run in a sandbox", cmd_ps, "Inside a sandbox" },
	{ "cp", "SOURCE DESTINATION",
	  "copy a file: SANDBOX:PATH on one side, a path or - on the other", cmd_cp,
	  "Inside a sandbox" },
	{ "logs", "SANDBOX", "console and events of a sandbox", cmd_logs, "Inside a sandbox" },
	{ "version", "", "print the version", cmd_version, "Other" },
};
const unsigned cli_commands_len = ARRAY_LEN(cli_commands);

static const struct cli_command *find_command(const char *name)
{
	for (unsigned i = 0; i < cli_commands_len; i++)
		if (str_eq(cli_commands[i].name, name))
			return &cli_commands[i];
	return NULL;
}

static void print_help(FILE *f)
{
	const char *group = "";

	fputs("Usage: space COMMAND [OPTIONS] [ARGUMENTS]\n", f);
	for (unsigned i = 0; i < cli_commands_len; i++) {
		const struct cli_command *k = &cli_commands[i];

		if (!str_eq(group, k->group))
			fprintf(f, "\n%s:\n", k->group);
		group = k->group;
		fprintf(f, "  %-8s %s\n", k->name, k->help);
	}
	fputs("\nEvery command takes --json, --quiet and --help. Names of sandboxes may be cut short.\n"
	      "Begin with: sudo space up, then: space create; space exec ID -- uname -a\n",
	      f);
}

int cmd_version(struct cli *c, int argc, char **argv)
{
	int n = cli_parse(c, argc, argv, NULL, -1);

	if (n < 0)
		return n == -2 ? 0 : 2;
	if (c->json)
		printf("{\"version\": \"%s\"}\n", SPACE_VERSION);
	else
		printf("space %s\n", SPACE_VERSION);
	return 0;
}

int main(int argc, char **argv)
{
	struct cli c = { .command = "", .instance = "default" };
	const struct cli_command *k;

	signal(SIGPIPE, SIG_IGN);
	if (argc < 2 || str_eq(argv[1], "--help") || str_eq(argv[1], "-h") ||
	    str_eq(argv[1], "help")) {
		print_help(argc < 2 ? stderr : stdout);
		return argc < 2 ? 2 : 0;
	}
	if (str_eq(argv[1], "--version"))
		argv[1] = (char *)"version";
	k = find_command(argv[1]);
	if (!k) {
		fprintf(stderr, "space: there is no command \"%s\"; `space --help` lists them\n",
			argv[1]);
		return 2;
	}
	c.command = k->name;
	c.self = k;
	return k->run(&c, argc - 1, argv + 1);
}
