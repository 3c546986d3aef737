/* Folders, by tar(1) in the sandbox: the scripts that run there and what they say. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli/cp.h"

#define CP_REMOTE_LINES_MAX 100

/* ---- the program in the sandbox ---- */

static void remote_line(struct cp_remote *r)
{
	autofree char *safe = text_safe(r->line, r->n);

	if (r->n && r->lines++ < CP_REMOTE_LINES_MAX) {
		cp_progress_end(r->p);
		fprintf(stderr, "space cp: in the sandbox: %s\n", safe);
	}
	r->n = 0;
}

int cp_remote_output(void *remote, int which, const char *data, size_t n, struct err *e)
{
	struct cp_remote *r = remote;

	for (size_t i = 0; i < n; i++) {
		if (data[i] == '\n')
			remote_line(r);
		else if (r->n < sizeof(r->line))
			r->line[r->n++] = data[i];
	}
	return 0;
}

/* run: from run_in_box */
static int cp_remote_end(struct cp_remote *r, int run, struct err *e)
{
	remote_line(r);
	if (run == 127)
		return err_set_code(e, -ENOENT, "no-tar",
				    "folders need a shell and tar(1) in the sandbox");
	if (run > 128)
		return err_set_code(e, -EINTR, "interrupted", "the copy was ended by signal %d",
				    run - 128);
	/* It has said which parts it left out. */
	if (run > 0)
		r->p->failed += r->lines ? r->lines : 1;
	return run < 0 ? run : 0;
}

/* ---- the copies ---- */

static ssize_t up_read(void *arg, char *dst, size_t n)
{
	return cp_up_read(arg, dst, n);
}

/* The archive goes as soon as it is open, whatever happens then. */
static int unpack(struct cp *p, char *archive, const char *to, struct err *e)
{
	autofree char *octal = cp_octal(to);
	char *const argv[] = { (char *)"/bin/sh", (char *)"-c",
			       (char *)CP_SCRIPT_HEAD "exec <\"$2\" && rm -f -- \"$2\"; "
						      "mkdir -p -- \"$p\" && cd -- \"$p\" && "
						      "exec tar -xpof -",
			       (char *)"sh", octal, archive, NULL };
	struct cp_remote remote = { .p = p };
	struct run_spec spec = { .argv = argv,
				 .argc = 6,
				 .user = p->user,
				 .out = cp_remote_output,
				 .out_arg = &remote };

	return cp_remote_end(&remote, run_in_box(p->c, &p->b, &spec, e), e);
}

/*
 * The archive is uploaded as a file and unpacked then: as input of a command it would be base64 in
 * JSON on its way, which the sandbox takes many times slower.
 */
int cp_up_tree(struct cp *p, const char *from, const char *to, struct err *e)
{
	char random[17], archive[64];
	int fd = open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC), r;
	enum cp_kind kind;
	struct cp_up *u;

	if (fd < 0)
		return err_errno(e, -errno, "%s", from);
	r = cp_remote_kind(p, to, &kind, NULL, e);
	if (r < 0) {
		close(fd);
		return r;
	}
	str_random_hex(random, 8);
	(void)str_format(archive, sizeof(archive), "/tmp/.space-cp-%s.tar", random);
	/* A folder that was there keeps its own mode. */
	u = cp_up_new(p, fd, kind == CP_ABSENT);
	r = cp_upload(p, archive, up_read, u, e);
	cp_up_free(u);
	return r < 0 ? r : unpack(p, archive, to, e);
}

struct down_run { struct cp_remote remote; struct cp_down *d; };

static int down_out(void *arg, int which, const char *p, size_t n, struct err *e)
{
	struct down_run *r = arg;

	return which == 1 ? cp_remote_output(&r->remote, which, p, n, e)
			  : cp_down_feed(r->d, p, n, e);
}

int cp_down_tree(struct cp *p, const char *from, const char *to, struct err *e)
{
	autofree char *octal = cp_octal(from);
	char *const argv[] = { (char *)"/bin/sh", (char *)"-c",
			       (char *)CP_SCRIPT_HEAD "cd -- \"$p\" && exec tar -cf - .",
			       (char *)"sh", octal, NULL };
	struct down_run run = { .remote = { .p = p } };
	struct run_spec spec = { .argv = argv,
				 .argc = 5,
				 .user = p->user,
				 .out = down_out,
				 .out_arg = &run };
	autoclose int root = -1;
	int r;

	if (mkdir(to, 0777) < 0 && errno != EEXIST)
		return err_errno(e, -errno, "%s", to);
	root = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return err_errno(e, -errno, "%s", to);
	run.d = cp_down_new(p, root);
	r = run_in_box(p->c, &p->b, &spec, e);
	r = cp_remote_end(&run.remote, r, e);
	if (!cp_down_end(run.d) && r >= 0)
		r = err_set(e, -ECONNRESET, "the archive was cut short");
	cp_down_free(run.d);
	return r;
}

/* A folder on standard output is a tar archive, as docker cp gives it. */
int cp_tree_to_stdout(struct cp *p, const char *from, struct err *e)
{
	autofree char *octal = cp_octal(from);
	char *const argv[] = { (char *)"/bin/sh", (char *)"-c",
			       (char *)CP_SCRIPT_HEAD "cd -- \"$p\" && exec tar -cf - .",
			       (char *)"sh", octal, NULL };
	struct run_spec spec = { .argv = argv,
				 .argc = 5,
				 .user = p->user,
				 .out_fd = STDOUT_FILENO,
				 .err_fd = STDERR_FILENO };
	struct cp_remote remote = { .p = p };
	int r = run_in_box(p->c, &p->b, &spec, e);

	return r == 128 + SIGPIPE ? -EPIPE : cp_remote_end(&remote, r, e);
}
