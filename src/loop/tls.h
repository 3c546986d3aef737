/*
 * tls: takes TLS off a stream. It stands in front of an unchanged server: for each connection that
 * has passed its handshake the user gets one half of a socketpair with the plain bytes (pair.h: a
 * reset passes through it in both directions). Belongs to the loop's thread; OpenSSL.
 *
 * TLS 1.2 and 1.3, no renegotiation, no session tickets, no compression. Half-close is passed on
 * both ways (close_notify). A connection that ends without close_notify was cut: the plain side
 * reads an end of file that pair_broken() tells from an orderly one.
 *
 * The name that the client asks for (SNI) is decided by the user before a certificate is shown; the
 * user may answer later (the handshake is suspended, under its deadline). ALPN: "http/1.1" where
 * the client offers it; "h2" where the user allows it and the client offers nothing else that is
 * known here (the bytes then go to a peer of which nobody knows that it speaks HTTP/2: who can do
 * without is served without); no ALPN at all is HTTP/1.1. Anything else: the alert
 * no_application_protocol.
 */
#ifndef LOOP_TLS_H
#define LOOP_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include "base/err.h"
#include "loop/loop.h"

#define TLS_NAME_MAX 253                 /* characters of a host name */
#define TLS_PEM_MAX 262144               /* bytes of a file with key and chain */
#define TLS_RECORD 16384                 /* plain bytes of a record; most that is held each way and connection */

struct tls;
struct tls_server;
struct tls_cert;

/*
 * A private key and its chain, leaf first, in one text of PEM blocks, in any order of the two
 * kinds. The key must be that of the leaf and not encrypted. Does not block: may be called in a
 * worker.
 */
int tls_cert_load(const char *pem, size_t len, struct tls_cert **ret, struct err *e);
void tls_cert_free(struct tls_cert *c);

enum tls_answer {
	TLS_REFUSE,              /* the alert unrecognized_name */
	TLS_HTTP1,
	TLS_HTTP1_OR_H2,
	TLS_UNAVAILABLE,         /* we cannot know now: the alert internal_error */
};

struct tls_conf {
	struct loop *loop;
	int handshake_ms;                /* deadline for all of it */
	size_t max_handshakes;           /* unfinished ones; beyond: the oldest gives way */
	size_t max_conns;                /* all; beyond: closed at once */
	/*
	 * The client's hello. name: lower-case, NULL = none was said. only_h2: of the protocols
	 * known here it offers h2 alone. Answer once with tls_answer, at once or later. NULL: every
	 * name is served, without h2.
	 */
	void (*hello)(struct tls *t, const char *name, bool only_h2, void *arg);
	/* The handshake is done; the plain half is the callee's. */
	void (*ready)(struct tls *t, int plain, void *arg);
	void *arg;
};

struct tls_server *tls_server_new(const struct tls_conf *c);
/* Ends all connections. Answers that are still owed must not come any more. */
void tls_server_free(struct tls_server *s);
/* For handshakes from now on; running ones and connections keep what they have. Owns c. */
void tls_server_set_cert(struct tls_server *s, struct tls_cert *c);
/* Does the certificate speak for this name? No certificate: no. */
bool tls_server_names(const struct tls_server *s, const char *name);
/* The certificate's end, as seconds since 1970; 0 = there is none. */
int64_t tls_server_cert_end(const struct tls_server *s);
void tls_server_accept(struct tls_server *s, int fd);     /* owns fd; closed when there is no certificate */
size_t tls_server_conns(const struct tls_server *s);
size_t tls_server_handshakes(const struct tls_server *s);

void tls_answer(struct tls *t, enum tls_answer a);        /* t must not be used after it but in `ready` */
const char *tls_name(const struct tls *t);                /* NULL = none was said */
bool tls_is_h2(const struct tls *t);
/* The connection whose plain half this is; NULL: none. */
struct tls *tls_of(int fd);

/* ---- the two fields of the hello that are read here (RFC 6066 3, RFC 7301 3.1) ---- */

/* -EBADMSG malformed. The name in lower case. */
int tls_hello_name(const unsigned char *p, size_t n, char dst[TLS_NAME_MAX + 1]);
int tls_hello_alpn(const unsigned char *p, size_t n, bool *ret_h2, bool *ret_http1);

#endif
