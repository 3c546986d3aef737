/* Runs a program of the system and waits for it. */
#ifndef CLI_UP_EXEC_H
#define CLI_UP_EXEC_H

#include "base/err.h"

#define UP_EXEC_OUT_MAX 65536

/*
 * argv[0] is searched in PATH. With ret_out: its standard output without the final new line; caller
 * frees. Standard error stays ours (progress), unless `e` is NULL: then it is dropped. Another exit
 * code than 0: -EIO.
 */
int up_exec(const char *const *argv, char **ret_out, struct err *e);

#endif
