/*
 * Load on a network, and the server at its other end: in the guest's place on a veth (gateway.c),
 * and as a program in a real guest (load_main.c). IPv4. What goes wrong ends the process with a
 * sentence: a bench has nothing to rescue.
 */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

#include <netinet/in.h>

#define LOAD_STREAMS 8               /* of LOAD_DOWN and LOAD_UP */
#define LOAD_CLIENTS 32              /* at once, of LOAD_RATE */

enum load_figure { LOAD_DOWN, LOAD_UP, LOAD_RATE, LOAD_LATENCY, LOAD_FIGURES };
extern const char *const load_names[LOAD_FIGURES];

struct load_result {
	double value;                    /* bytes a second, connections a second, microseconds */
	double units;                    /* what was done for it: GB, connections */
};

struct sockaddr_in load_addr(const char *addr, unsigned port);
int load_listen(const struct sockaddr_in *at);
_Noreturn void load_serve(int listener);                     /* ends with its parent */
int load_dial(const struct sockaddr_in *to);                 /* blocking; each call has a deadline */
void load_echo(int fd);                                      /* a byte there and back */

/*
 * LOAD_DOWN, LOAD_UP: for `amount` milliseconds, and then until all that is on its way has come.
 * LOAD_RATE: `amount` connections with a byte there and back, LOAD_CLIENTS at once. LOAD_LATENCY:
 * as many, one after the other; the median time to the byte that comes back.
 */
void load_measure(const struct sockaddr_in *to, enum load_figure which, int amount,
		  struct load_result *ret);
double load_median(double *v, int n);                        /* sorts */

#endif
