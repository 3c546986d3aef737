/* Between those that call OpenSSL: certificates, and what it says when it refuses something. */
#ifndef LOOP_TLS_CERT_H
#define LOOP_TLS_CERT_H

#include <openssl/ssl.h>
#include "base/err.h"

struct tls_cert {
	SSL_CTX *ctx;
	X509 *leaf;              /* of ctx */
};

void tls_openssl_init(void);
int tls_error(struct err *e, int num, const char *what);         /* with OpenSSL's reason; empties its queue */

#endif
