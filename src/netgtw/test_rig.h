/*
 * For tests and the bench: the three real processes of a gateway, under their real lists of system
 * calls and as another user, between network namespaces of the test's own:
 *
 *	guest (eth0 10.0.2.15) -- sandbox (tap0 10.0.2.2; inside)   node (9.9.10.1; outside) -- internet (9.9.10.2, and every other address)
 *
 * Sockets are made in any of them by the test itself, which is one thread. Needs root, ip and nft.
 */
#ifndef NETGTW_TEST_RIG_H
#define NETGTW_TEST_RIG_H

#include "identity/identity.h"
#include "ipc/gtw_ops.h"
#include "netgtw/addr.h"

#define RIG_WAIT_MS 60000
#define RIG_SANDBOX "i0123456789abcdefghij"
#define RIG_WORKER "0b0e8a5e-5d0c-4d55-9c1a-000000000001"
#define RIG_GENERATION 7
#define RIG_UID 61234

enum rig_ns { RIG_GUEST, RIG_SANDBOX_NS, RIG_NODE, RIG_INTERNET, RIG_EMPTY, RIG_NS_COUNT };

struct rig_conf {
	const char *program;             /* netgtw */
	const char *main_program;        /* in main's place, NULL = the same */
	const char *const *main_args;    /* more of them, NULL-terminated; may be NULL */
	const char *const *outside_args; /* NULL: --internet yes --nameserver 9.9.10.53 */
	unsigned files;                  /* RLIMIT_NOFILE of main; 0 = GTW_MAIN_NOFILE */
	unsigned part_files;             /* of the others; 0 = GTW_PART_NOFILE */
};

struct rig {
	int home, ns[RIG_NS_COUNT];
	char dir[64], stream[100], control[100];
	pid_t pid[3];                    /* main, inside, outside */
	struct ipc_sync *ctl;
	struct key_signer root, signer;
	uint8_t root_public[KEY_PUBLIC_BYTES];
	struct key_bundle bundle;
	struct identity id;
	uint64_t next_lease;
};

void rig_net(struct rig *r);                                 /* the namespaces alone */
void rig_start(struct rig *r, const struct rig_conf *c);     /* the processes, nothing installed */
void rig_stop(struct rig *r);                                /* all */
void rig_stop_processes(struct rig *r);
void rig_install(struct rig *r);
void rig_open(struct rig *r);                                /* GTW_OPEN */
/* The processes before, if there are any, end; new ones with their identity, open. */
void rig_fresh(struct rig *r, const struct rig_conf *c);
uint64_t rig_revoke(struct rig *r, uint64_t lease);          /* GTW_REVOKE; how many ended */
void rig_enter(struct rig *r, enum rig_ns ns);
void rig_leave(struct rig *r);
void rig_sh(struct rig *r, enum rig_ns ns, const char *program, const char *arg,
	    const char *input); /* program arg < input, must succeed */

int rig_socket(struct rig *r, enum rig_ns ns, int family, int type);
int rig_listen(struct rig *r, enum rig_ns ns, const char *addr, unsigned port);
int rig_udp(struct rig *r, enum rig_ns ns, const char *addr, unsigned port);
int rig_call(struct rig *r, enum rig_ns ns, const char *addr, unsigned port); /* -errno */
int rig_connect(struct rig *r, enum rig_ns ns, const char *addr, unsigned port); /* waits for what comes of it */
int rig_accept(int listener);                                /* waits */
bool rig_wait(int fd, short events, int ms);
void rig_send(int fd, const void *p, size_t n);
size_t rig_recv(int fd, void *p, size_t n);                  /* n bytes, or fewer at the end */
bool rig_ended(int fd);                                      /* waits for the end of file */
bool rig_was_reset(int fd);                                  /* waits for ECONNRESET */

/* A stream to gtw.sock with preamble and token; c and p are filled in by rig_capability first. */
void rig_capability(struct rig *r, unsigned port, enum id_protocol protocol, struct capability *c,
		    struct gtw_preamble *p);
int rig_port_open(struct rig *r, const struct capability *c, const struct key_signer *signer,
		  struct gtw_preamble *p);
unsigned rig_verdict(int fd);
int rig_port(struct rig *r, unsigned port, unsigned *ret_verdict);       /* both, as it should be */

json_t *rig_log(struct rig *r);                              /* all records that are kept */
/* The last record with this direction and address (NULL = any). Borrowed from `log`. */
json_t *rig_find(json_t *log, const char *dir, const char *addr);
uint64_t rig_counter(struct rig *r, const char *name);
size_t rig_main_fds(struct rig *r);                          /* descriptors of main; to compare */

#endif
