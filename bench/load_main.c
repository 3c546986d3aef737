/*
 * The load of load.c as a program. It is static, so that it runs in a guest as it was built here.
 *
 *	bench-load serve ADDR PORT          says `listening`
 *	bench-load FIGURE ADDR PORT AMOUNT  a line of JSON
 *	bench-load FIGURE self AMOUNT       the same with a server of its own over the loopback: what
 *	                                    this machine does when no network is in between
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/str.h"
#include "load.h"

static int usage(void)
{
	fputs("usage: bench-load serve ADDR PORT | FIGURE ADDR PORT AMOUNT | FIGURE self AMOUNT\n",
	      stderr);
	return 2;
}

/* A server in a process of its own; gives its address. */
static struct sockaddr_in self(void)
{
	struct sockaddr_in at = load_addr("127.0.0.1", 0);
	socklen_t n = sizeof(at);
	int listener = load_listen(&at);

	if (getsockname(listener, (struct sockaddr *)&at, &n) < 0) {
		perror("load: getsockname");
		exit(1);
	}
	if (fork() == 0)
		load_serve(listener);
	close(listener);
	return at;
}

int main(int argc, char **argv)
{
	struct sockaddr_in at;
	struct load_result r;
	int which = 0, amount, listener;

	if (argc == 4 && str_eq(argv[1], "serve")) {
		at = load_addr(argv[2], (unsigned)strtoul(argv[3], NULL, 10));
		listener = load_listen(&at);
		puts("listening");
		fflush(stdout);
		load_serve(listener);
	}
	while (argc > 1 && which < LOAD_FIGURES && !str_eq(argv[1], load_names[which]))
		which++;
	if (argc < 4 || argc > 5 || which == LOAD_FIGURES || (argc == 4 && !str_eq(argv[2], "self")))
		return usage();
	amount = (int)strtol(argv[argc - 1], NULL, 10);
	if (amount <= 0)
		return usage();
	at = argc == 4 ? self() : load_addr(argv[2], (unsigned)strtoul(argv[3], NULL, 10));
	load_measure(&at, (enum load_figure)which, amount, &r);
	printf("{\"value\": %.6g, \"units\": %.6g}\n", r.value, r.units);
	return 0;
}
