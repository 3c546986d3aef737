/* The inside process; what it does stands in inside.c. */
#ifndef NETGTW_INSIDE_H
#define NETGTW_INSIDE_H

#include "base/err.h"
#include "loop/loop.h"

int inside_run(struct loop *l, struct err *e);   /* until main is gone: 0 */

#endif
