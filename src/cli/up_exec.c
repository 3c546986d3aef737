#include "cli/up_exec.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/buf.h"
#include "base/fd.h"

static void child(const char *const *argv, int out, bool drop_errors)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	sigset_t none;

	/*
	 * The supervisor's loop has signals blocked and SIGPIPE ignored; a shell that inherits that
	 * hangs.
	 */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	dup2(null, STDIN_FILENO);
	dup2(out >= 0 ? out : null, STDOUT_FILENO);
	if (drop_errors)
		dup2(null, STDERR_FILENO);
	execvp(argv[0], (char *const *)(uintptr_t)argv);
	_exit(127);
}

static int collect(int fd, char **ret_out)
{
	struct buf b;
	ssize_t n;

	buf_init(&b, UP_EXEC_OUT_MAX);
	while ((n = buf_read_fd(&b, fd, 4096)) > 0 || n == -EINTR)
		;
	while (buf_len(&b) && buf_data(&b)[buf_len(&b) - 1] == '\n')
		b.len_--;
	*ret_out = buf_take_str(&b);
	return n < 0 ? (int)n : 0;
}

int up_exec(const char *const *argv, char **ret_out, struct err *e)
{
	int p[2] = { -1, -1 }, status, r = 0;
	pid_t pid;

	if (ret_out) {
		*ret_out = NULL;
		if (pipe2(p, O_CLOEXEC) < 0)
			return err_errno(e, -errno, "pipe");
	}
	pid = fork();
	if (pid == 0)
		child(argv, p[1], !e);
	fd_close(p[1]);
	if (pid < 0) {
		fd_close(p[0]);
		return err_errno(e, -errno, "fork");
	}
	if (ret_out)
		r = collect(p[0], ret_out);
	fd_close(p[0]);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (r >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == 127)
		r = err_set(e, -ENOENT, "cannot run %s; `make setup` installs what is needed",
			    argv[0]);
	else if (r >= 0 && (!WIFEXITED(status) || WEXITSTATUS(status)))
		r = err_set(e, -EIO, "%s failed (%s %d); what it said stands above", argv[0],
			    WIFEXITED(status) ? "exit code" : "signal",
			    WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
	if (r < 0 && ret_out) {
		free(*ret_out);
		*ret_out = NULL;
	}
	return r;
}
