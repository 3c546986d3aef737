/*
 * state-print: the life-cycle table as a page for the docs. Without an argument it prints; with a
 * file name it says (exit code 1) whether that file is out of date.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/fd.h"
#include "base/str.h"
#include "state/state.h"

#define PAGE_MAX (1 << 20)

static void put_head(struct buf *b)
{
	buf_puts(
		b,
		"# The life cycle of a sandbox\n"
		"\n"
		"Printed by `state-print` from `src/state/table.c`, which the control plane and the node both use; do not\n"
		"edit this page (`state-print > docs/life-cycle.md`). A transition that is not built yet is marked in the\n"
		"last column but one; the operation that would need it answers 501.\n"
		"\n"
		"*Generation*: a new execution begins with this transition. *Ends*: capabilities and streams of the running\n"
		"execution are revoked. A request that finds its result already there succeeds and changes nothing.\n"
		"\n");
}

/* Mermaid's names of states have no dash. */
static const char *node_name(enum life_state s, char dst[32])
{
	if (s == LIFE_NONE)
		return "[*]";
	str_format(dst, 32, "%s", life_state_names[s]);
	for (char *p = dst; *p; p++)
		if (*p == '-')
			*p = '_';
	return dst;
}

static void put_diagram(struct buf *b, bool reachable)
{
	buf_putf(b, "```mermaid\nstateDiagram-v2\n");
	for (unsigned i = 0; i < life_rules_len; i++) {
		const struct life_rule *r = &life_rules[i];
		char from[32], to[32];

		if (reachable && !r->reachable)
			continue;
		buf_putf(b, "    %s --> %s: %s%s\n", node_name(r->from, from), node_name(r->to, to),
			 life_event_names[r->event], r->generation_grows ? " (+1)" : "");
	}
	buf_puts(b, "```\n\n");
}

static void put_table(struct buf *b)
{
	buf_puts(
		b,
		"| state | event | next state | generation | ends | built | |\n| --- | --- | --- | --- | --- | --- | --- |\n");
	for (unsigned i = 0; i < life_rules_len; i++) {
		const struct life_rule *r = &life_rules[i];

		buf_putf(b, "| %s | %s | %s | %s | %s | %s | %s |\n", life_state_names[r->from],
			 life_event_names[r->event], life_state_names[r->to],
			 r->generation_grows ? "grows" : "", r->ends_execution ? "ends" : "",
			 r->reachable ? "yes" : "no", r->note);
	}
}

static int compare(const char *path, const char *page, size_t n)
{
	autofree char *have = NULL;
	size_t len = 0;
	int r = fd_read_file(AT_FDCWD, path, PAGE_MAX, &have, &len);

	if (r < 0) {
		fprintf(stderr, "%s: %s\n", path, strerror(-r));
		return EXIT_FAILURE;
	}
	if (len != n || memcmp(have, page, n) != 0) {
		fprintf(stderr,
			"%s is not what src/state/table.c says; make it anew: state-print > %s\n",
			path, path);
		return EXIT_FAILURE;
	}
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	struct buf b;
	int r = EXIT_SUCCESS;

	buf_init(&b, PAGE_MAX);
	put_head(&b);
	buf_puts(&b, "## What is built\n\n");
	put_diagram(&b, true);
	buf_puts(&b, "## Everything\n\n");
	put_diagram(&b, false);
	put_table(&b);
	if (argc > 1)
		r = compare(argv[1], buf_data(&b), buf_len(&b));
	else if (fwrite(buf_data(&b), 1, buf_len(&b), stdout) != buf_len(&b) || fflush(stdout) != 0)
		r = EXIT_FAILURE;
	buf_done(&b);
	return r;
}
