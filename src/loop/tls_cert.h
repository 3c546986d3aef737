/* Between tls.c and tls_cert.c: certificates, and what OpenSSL says when it refuses something. */
#ifndef LOOP_TLS_CERT_H
#define LOOP_TLS_CERT_H

#include <openssl/ssl.h>
#include "base/err.h"

struct tls_cert {
	SSL_CTX *ctx;
	X509 *leaf;              /* of ctx */
};

void tls_openssl_init(void);

#endif
