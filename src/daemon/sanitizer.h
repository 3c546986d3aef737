/*
 * What differs in a build with ASan and UBSan (docs/sanitizers.md): their runtimes make system
 * calls of their own, which every allow-list gets in such a build, and only there. In a normal
 * build the list is empty.
 */
#ifndef DAEMON_SANITIZER_H
#define DAEMON_SANITIZER_H

extern const char *const sanitizer_syscalls[];       /* ends with NULL */

#endif
