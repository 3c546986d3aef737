/* Terminals: pty(7), devpts of the guest. */
#ifndef GUEST_TERMINAL_H
#define GUEST_TERMINAL_H

#include <stdint.h>
#include "spaced-guest/users.h"

/*
 * The size is set before anything can run in it. *ret_master is non-blocking. Both are the
 * caller's.
 */
int terminal_open(uint16_t cols, uint16_t rows, const struct user *owner, int *ret_master,
		  int *ret_slave);
int terminal_resize(int master, uint16_t cols, uint16_t rows);

#endif
