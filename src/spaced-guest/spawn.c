#include "spaced-guest/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"

#define OOM_SCORE_ADJ "100"                      /* commands go before the agent */
#define LOOK_MS 10
#define LOOKS_MAX 2000                           /* 20 s: it is frozen, or its disk does not answer */

enum stage { STAGE_SETUP, STAGE_USER, STAGE_CWD, STAGE_EXEC };
static const char *const stage_names[] = {
	[STAGE_SETUP] = "prepare its descriptors", [STAGE_USER] = "become its user",
	[STAGE_CWD] = "enter its folder", [STAGE_EXEC] = "execute it",
};
_Static_assert(ARRAY_LEN(stage_names) == STAGE_EXEC + 1, "every stage has a name");

struct failure { enum stage stage; int num; };

/*
 * What the child needs, in memory that it shares with the waiting parent until it execs, as with
 * vfork(2): a fork copies page tables and faults in both, which is a third of a command's cost
 * under emulation (seen). The child runs on a stack of its own and changes nothing else but
 * `environ`, which the parent puts back, and errno, which the parent does not look at meanwhile.
 *
 * The parent does not wait in the kernel (CLONE_VFORK): as soon as the child is its user's, any
 * process of that user may stop it, and the agent would wait for ever.
 */
struct birth { const struct spawn *s; int status; bool shared; };

static void child_main(void *arg);

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define CHILD_STACK_BYTES                                                                          \
	(512 << 10) /* execvp copies the arguments there when it has to call a shell */

static char child_stack[CHILD_STACK_BYTES] __attribute__((aligned(64)));

static pid_t clone_child(struct clone_args *args, struct birth *b)
{
	long ret;

	b->shared = true;
	args->flags |= CLONE_VM;
	args->stack = (uint64_t)(uintptr_t)child_stack;
	args->stack_size = sizeof(child_stack);
	__asm__ volatile("syscall\n\t"
			 "testq %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xorl %%ebp, %%ebp\n\t"
			 "movq %[arg], %%rdi\n\t"
			 "callq *%[fn]\n\t"
			 "ud2\n"
			 "1:"
			 : "=a"(ret)
			 : "a"(SYS_clone3), "D"(args),
			   "S"(sizeof(*args)), [fn] "r"(child_main), [arg] "r"(b)
			 : "rcx", "r11", "memory", "cc");
	return (pid_t)ret;
}
#else
/* AddressSanitizer would keep what it knows of a stack that nobody returns from. */
static pid_t clone_child(struct clone_args *args, struct birth *b)
{
	pid_t pid = (pid_t)syscall(SYS_clone3, args, sizeof(*args));

	if (pid == 0)
		child_main(b);
	return pid < 0 ? -errno : pid;
}
#endif

/*
 * Where clone3 is not allowed (a container that tests run in): the child enters the cgroup itself.
 */
static pid_t fork_plain(struct birth *b)
{
	pid_t pid = fork();

	if (pid == 0) {
		int fd = b->s->cgroup < 0
				 ? -1
				 : openat(b->s->cgroup, "cgroup.procs", O_WRONLY | O_CLOEXEC);

		if (b->s->cgroup >= 0 && (fd < 0 || write(fd, "0", 1) != 1))
			_exit(127);
		child_main(b);
	}
	return pid < 0 ? -errno : pid;
}

/*
 * Straight into the cgroup (kernel 5.7), so that not one instruction of the command runs outside of
 * it.
 */
static pid_t give_birth(struct birth *b)
{
	struct clone_args args = { .exit_signal = SIGCHLD };
	pid_t pid;

	if (b->s->cgroup >= 0) {
		args.flags = CLONE_INTO_CGROUP;
		args.cgroup = (uint64_t)b->s->cgroup;
	}
	pid = clone_child(&args, b);
	if (pid == -ENOSYS || pid == -EINVAL || pid == -EOPNOTSUPP) {
		b->shared = false;
		pid = fork_plain(b);
	}
	return pid;
}

/*
 * Until the child has exec'ed or exited: both give up the memory before the descriptors (fs/exec.c
 * begin_new_exec, kernel/exit.c do_exit), so the end of the pipe is the end of the sharing.
 */
static void await_memory(int status, pid_t pid)
{
	struct pollfd p = { .fd = status };

	for (unsigned looks = 0; poll(&p, 1, LOOK_MS) <= 0; looks++)
		kill(pid, looks < LOOKS_MAX ? SIGCONT : SIGKILL);
}

static int set_fds(const struct spawn *s)
{
	const int from[3] = { s->in, s->out, s->err };
	int copy[3];

	/* Away from 0..2 first, so that no source is overwritten. */
	for (int i = 0; i < 3; i++) {
		copy[i] = fcntl(from[i], F_DUPFD_CLOEXEC, 3);
		if (copy[i] < 0)
			return -errno;
	}
	for (int i = 0; i < 3; i++)
		if (dup2(copy[i], i) < 0)
			return -errno;
	return 0;
}

/* The kernel's own (MLOCK_LIMIT); the agent has none (main.c). */
#define MEMLOCK_MAX (8u << 20)

static void reset_process(void)
{
	struct sigaction dfl = { .sa_handler = SIG_DFL };
	sigset_t none;
	int fd;

	sigaction(SIGPIPE, &dfl, NULL);          /* the only one that the agent ignores */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	if (fd >= 0) {
		if (write(fd, OOM_SCORE_ADJ, strlen(OOM_SCORE_ADJ)) < 0)
			errno = 0;
		close(fd);
	}
	setpriority(PRIO_PROCESS, 0, 0);
	setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ MEMLOCK_MAX, MEMLOCK_MAX });
	umask(022);
}

static int become(const struct user *u)
{
	if (getuid() != 0)
		return 0;
	if (setgroups(u->n_groups, u->groups) < 0 || setresgid(u->gid, u->gid, u->gid) < 0 ||
	    setresuid(u->uid, u->uid, u->uid) < 0)
		return -errno;
	return 0;
}

static struct failure child(const struct spawn *s)
{
	int r;

	setsid();
	r = set_fds(s);
	if (r == 0 && s->tty && ioctl(0, TIOCSCTTY, 0) < 0)
		r = -errno;
	if (r < 0)
		return (struct failure){ STAGE_SETUP, r };
	reset_process();
	r = become(s->user);
	if (r < 0)
		return (struct failure){ STAGE_USER, r };
	if (chdir(s->cwd) < 0)
		return (struct failure){ STAGE_CWD, -errno };
	environ = (char **)s->envp;
	execvp(s->argv[0], s->argv);
	return (struct failure){ STAGE_EXEC, -errno };
}

static void child_main(void *arg)
{
	struct birth *b = arg;
	struct failure f = child(b->s);

	if (write(b->status, &f, sizeof(f)) < 0)
		_exit(126);
	_exit(127);
}

pid_t spawn_start(const struct spawn *s, int *ret_status)
{
	struct birth b = { .s = s };
	char **env = environ;
	int status[2];
	pid_t pid;

	if (pipe2(status, O_CLOEXEC) < 0)
		return -errno;
	b.status = status[1];
	pid = give_birth(&b);
	close(status[1]);
	if (pid < 0) {
		close(status[0]);
		return pid;
	}
	if (b.shared) {
		await_memory(status[0], pid);
		environ = env;
	}
	fd_set_nonblock(status[0], true);
	*ret_status = status[0];
	return pid;
}

int spawn_status(int status, const char *name, struct err *e)
{
	struct failure f;
	ssize_t n = read(status, &f, sizeof(f));

	if (n < 0)
		return -errno;
	if (n == 0)
		return 0;
	if (n != sizeof(f) || (unsigned)f.stage > STAGE_EXEC)
		return err_set(e, -EIO, "error starting process '%s'", name);
	return err_errno(e, f.num, "error starting process '%s': cannot %s", name,
			 stage_names[f.stage]);
}
