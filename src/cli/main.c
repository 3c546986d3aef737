/* The table of commands. */
#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "base/alloc.h"
#include "base/str.h"
#include "cli/cli.h"

const struct cli_command cli_commands[] = {
	{ "up", "[--detach] [--size SIZE] [--port PORT] [--instance NAME]",
	  "run a node on this machine (root)", cmd_up, "The node",
	  "Examples:\n"
	  "  sudo space up                 in the foreground; Ctrl-C ends it\n"
	  "  sudo space up --detach        in the background; `sudo space down` ends it" },
	{ "down", "[--instance NAME]", "stop all sandboxes and the node (root)", cmd_down,
	  "The node", "Disks of sandboxes, keys and templates stay for the next `space up`." },
	{ "key", "new|ls|revoke|rotate|reset [...]", "API keys and signing keys (root)", cmd_key,
	  "The node",
	  "Examples:\n"
	  "  sudo space key new --tenant team-a      prints the key once\n"
	  "  sudo space key ls\n"
	  "  sudo space key revoke ID" },
	{ "env", "", "print the exports that move an existing agent here", cmd_env, "The node",
	  "Example:\n"
	  "  eval \"$(space env)\"           then run a program that uses the E2B SDK" },
	{ "create", "[OPTIONS] [TEMPLATE]", "make a sandbox and print its ID", cmd_create,
	  "Sandboxes",
	  "Examples:\n"
	  "  id=$(space create)\n"
	  "  space create --name web --timeout 2h --env MODE=test\n"
	  "  space create --on-timeout pause --auto-resume --label who=me" },
	{ "ls", "[-a] [-q] [--state STATE] [-l K=V]", "list sandboxes", cmd_ls, "Sandboxes",
	  "Examples:\n"
	  "  space ls -a                   stopped and failed ones too\n"
	  "  space ls --state paused -l who=me\n"
	  "  space kill $(space ls -q)     all that are shown" },
	{ "inspect", "SANDBOX...", "show all that is known of sandboxes, as JSON", cmd_inspect,
	  "Sandboxes", "Example:\n  space inspect web" },
	{ "pause", "SANDBOX...", "keep the memory, free the CPU; its time stops", cmd_life,
	  "Sandboxes",
	  "Processes go on where they were after `space resume`. The disk and the memory stay.\n\n"
	  "Example:\n"
	  "  space pause web" },
	{ "resume", "[--timeout TIME] SANDBOX...", "wake paused sandboxes", cmd_resume,
	  "Sandboxes",
	  "Example:\n"
	  "  space resume --timeout 1h web" },
	{ "stop", "SANDBOX...", "end the VM, keep the disk", cmd_life, "Sandboxes",
	  "Example:\n"
	  "  space stop web && space start web       as new, with its disk" },
	{ "start", "SANDBOX...", "boot from the kept disk; a running one is started anew", cmd_life,
	  "Sandboxes", "Example:\n  space start web" },
	{ "timeout", "SANDBOX... TIME", "set how long they live from now on", cmd_timeout,
	  "Sandboxes",
	  "TIME is a number of seconds, or 90s, 30m, 12h, 7d, 2w. It may shorten the life.\n\n"
	  "Examples:\n"
	  "  space timeout web 2h\n"
	  "  space timeout web db 1        their time is over in a second" },
	{ "kill", "SANDBOX...", "delete sandboxes; nothing stays", cmd_life, "Sandboxes",
	  "Examples:\n"
	  "  space kill web i3f\n"
	  "  space kill $(space ls -aq -l who=me)" },
	{ "exec", "[-i] [-t] [-d] [-u USER] [-w DIR] [-e K=V] SANDBOX [--] COMMAND [ARG...]",
	  "run a command and give its exit code", cmd_exec, "Inside a sandbox",
	  "Exit codes: those of the command; 128+N when signal N ended it; 127 not found, 126\n"
	  "cannot be run, 125 anything else that kept it from running.\n\n"
	  "Examples:\n"
	  "  space exec web -- python3 -c 'print(6 * 7)'\n"
	  "  space exec -it web -- vim notes.txt\n"
	  "  tar c . | space exec -i -w /tmp web -- tar x\n"
	  "  space exec web -- bash -lc 'cd src && make'" },
	{ "shell", "[-u USER] SANDBOX", "a login shell in a terminal", cmd_shell,
	  "Inside a sandbox", "Example:\n  space shell -u root web" },
	{ "connect", "[--timeout TIME] [--no-shell] SANDBOX",
	  "wake a sandbox if need be and open a shell", cmd_connect, "Inside a sandbox",
	  "Without a terminal, with --json and with --no-shell it prints the sandbox instead.\n\n"
	  "Example:\n"
	  "  space connect web" },
	{ "ps", "SANDBOX", "commands that run in a sandbox", cmd_ps, "Inside a sandbox",
	  "Example:\n  space ps web" },
	{ "cp", "[-r] [-u USER] SOURCE DESTINATION",
	  "copy files and folders to or from a sandbox", cmd_cp, "Inside a sandbox",
	  "One side is SANDBOX:PATH, the other a path of this machine, or - for standard input\n"
	  "or output. A path without a slash in front begins at the user's home.\n\n"
	  "Examples:\n"
	  "  space cp notes.txt web:/tmp/\n"
	  "  space cp -r src web:work                into the folder work, or as it\n"
	  "  space cp -r web:results/. out           what is in results, into out\n"
	  "  space cp web:log.txt - | grep error" },
	{ "logs", "[-f] [-n LINES] SANDBOX", "console and events of a sandbox", cmd_logs,
	  "Inside a sandbox", "Example:\n  space logs -f web" },
	{ "metrics", "[--watch] [SANDBOX...]", "CPU, memory and disk in use", cmd_metrics,
	  "Inside a sandbox",
	  "Without a sandbox: all that run.\n\n"
	  "Examples:\n"
	  "  space metrics\n"
	  "  space metrics --watch web" },
	{ "port-forward", "SANDBOX [LOCAL:]PORT...", "ports of this machine that lead into a sandbox",
	  cmd_port_forward, "Network",
	  "Raw TCP, for whatever speaks it; also to what listens on the sandbox's 127.0.0.1 alone. A\n"
	  "LOCAL of 0 is any port that is free. Ctrl-C ends it.\n\n"
	  "Examples:\n"
	  "  space port-forward web 8080\n"
	  "  space port-forward db 15432:5432 0:6379" },
	{ "net", "log [-f] SANDBOX | stats SANDBOX", "what a sandbox does in the network", cmd_net,
	  "Network",
	  "A flow is there when it has begun and when it has ended; what was refused says why.\n\n"
	  "Examples:\n"
	  "  space net log --follow web\n"
	  "  space net stats web" },
	{ "version", "", "print the version", cmd_version, "Other", NULL },
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
		fprintf(f, "  %-12s %s\n", k->name, k->help);
	}
	fputs("\nA SANDBOX is an ID, its beginning as long as it is unique, or its --name.\n"
	      "`space COMMAND --help` shows options and examples; `man space` tells the rest.\n"
	      "Begin with: sudo space up; then: id=$(space create); space exec $id -- uname -a\n",
	      f);
}

int cmd_version(struct cli *c, int argc, char **argv)
{
	int n = cli_parse(c, argc, argv, NULL, -1);

	PARSED(n);
	if (n > 0)
		return cli_usage_error(c, "it takes no arguments");
	if (c->json)
		printf("{\"version\": \"%s\"}\n", SPACE_VERSION);
	else
		printf("space %s\n", SPACE_VERSION);
	return 0;
}

static int unknown(const char *word)
{
	autofree char *safe = text_safe(word, strlen(word));
	const char *near = cli_did_you_mean(word);

	if (word[0] == '-') {
		fprintf(stderr, "space: options stand behind the command: space COMMAND %s\n",
			safe);
		return 2;
	}
	fprintf(stderr, "space: there is no command \"%s\"", safe);
	if (near)
		fprintf(stderr, "; did you mean `space %s`?\n", near);
	else
		fputs("; `space --help` lists them\n", stderr);
	return 2;
}

/* `space help exec` is `space exec --help`. */
static int help(int argc, char **argv)
{
	static char *words[] = { NULL, (char *)"--help", NULL };
	const struct cli_command *k = argc > 2 ? find_command(argv[2]) : NULL;
	struct cli c = { .command = "help" };

	if (argc > 2 && !k && !str_eq(argv[2], "help"))
		return unknown(argv[2]);
	if (!k) {
		print_help(argc < 2 ? stderr : stdout);
		return argc < 2 ? 2 : 0;
	}
	words[0] = (char *)k->name;
	c.self = k;
	return k->run(&c, 2, words);
}

/* What could not be written is a failure; a reader who went away is one that says nothing. */
static int end(int code)
{
	if (fflush(stdout) == EOF || ferror(stdout)) {
		if (errno == EPIPE)
			return code ? code : 128 + SIGPIPE;
		fprintf(stderr, "space: cannot write standard output: %s\n", strerror(errno));
		return code ? code : 1;
	}
	return code;
}

int main(int argc, char **argv)
{
	struct cli c = { .command = "", .instance = "default" };
	const struct cli_command *k;

	signal(SIGPIPE, SIG_IGN);
	/* Widths of characters; nothing else depends on the locale. */
	setlocale(LC_CTYPE, "C.UTF-8");
	if (argc < 2 || str_eq(argv[1], "--help") || str_eq(argv[1], "-h") ||
	    str_eq(argv[1], "help"))
		return end(help(argc, argv));
	if (str_eq(argv[1], "--version"))
		argv[1] = (char *)"version";
	k = find_command(argv[1]);
	if (!k)
		return unknown(argv[1]);
	c.command = k->name;
	c.self = k;
	return end(k->run(&c, argc - 1, argv + 1));
}
