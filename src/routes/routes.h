/*
 * One table maps every operation of the data surface to purpose, access and replay (K-1, V-2). Used
 * by space-api to choose what a capability grants, by node-api to say what an operation needs;
 * sbx-manager compares both. A path that is not in the table of control routes: write access, never
 * replayed.
 */
#ifndef ROUTES_ROUTES_H
#define ROUTES_ROUTES_H

#include <stdbool.h>
#include "identity/identity.h"

#define ROUTES_CONTROL_PORT 49983            /* envd's port in the E2B protocol */
#define ROUTES_TUNNEL "space-tunnel"         /* Upgrade: raw bytes to a port of a sandbox */

struct route {
	const char *method;                  /* "GET"; NULL = any */
	const char *path;                    /* exact, or with a final "*" prefix */
	enum id_access access;
	bool replay;                         /* may be sent once more after a refresh-route refusal, if the body can be replayed */
	bool host_only;                      /* refused from outside: 404 (/init, /freeze ...) */
};

extern const struct route routes_control[];
extern const unsigned routes_control_len;

/* A path of the table that clients may use, with whatever method. */
bool routes_known(const char *target);
const struct route *routes_find(const char *method, const char *target);   /* never NULL: the default row */

#endif
