/* Whom a gateway may be told to serve, apart from any socket: for the fuzzer. */
#ifndef NETGTW_INSTALL_H
#define NETGTW_INSTALL_H

#include "netgtw/gtw.h"

/*
 * What GTW_INSTALL says, but for its bundle, against the command line and the identity that is
 * installed (NULL: none yet). *ret is set on success alone.
 */
int install_check(const struct gtw_install *i, const struct gtw_conf *conf,
		  const struct identity *installed, struct identity *ret, struct err *e);

#endif
