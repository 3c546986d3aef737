/* See sanitizer.h. */
#include "daemon/sanitizer.h"

#include <stddef.h>

const char *const sanitizer_syscalls[] = {
#ifdef __SANITIZE_ADDRESS__
	/*
	 * ld.so loads their libraries and the program's own: there are no static programs with
	 * sanitizers
	 */
	"openat",
	"read",
	"pread64",
	"newfstatat",
	"fstat",
	"access",
	"mmap",
	"munmap",
	"mprotect",
	"brk",
	"close",
	"arch_prctl",
	"set_tid_address",
	"set_robust_list",
	"rseq",
	"getrandom",
	"prlimit64",
	"futex",
	/* the shadow, allocator and stacks of threads */
	"madvise",
	"mremap",
	"sigaltstack",
	"personality",
	"sched_getaffinity",
	"sysinfo",
	"getrlimit",
	"gettid",
	"getpid",
	/* a report: names of functions, the program's own path, where it goes */
	"readlink",
	"getcwd",
	"lseek",
	"open",
	"stat",
	"write",
	"writev",
	"pipe2",
	"dup2",
	"ioctl:basic",
	"fcntl",
	"getuid",
	"geteuid",
	"rt_sigaction",
	"rt_sigprocmask",
	"rt_sigreturn",
	"tgkill",
	"exit",
	"exit_group",
	"clock_gettime",
	"uname",
	"prctl",
	"sched_yield", /* also to find out that there is a filter, see base/alloc.c */
#endif
	NULL,
};
