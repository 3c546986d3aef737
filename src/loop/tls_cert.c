#include "loop/tls_cert.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "loop/tls.h"

#define CHAIN_MAX 16

/* Without the machine's openssl.cnf: what is spoken stands here alone. */
void tls_openssl_init(void)
{
	OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, NULL);
}

/* With OpenSSL's reason; empties its queue. */
int tls_error(struct err *e, int num, const char *what)
{
	unsigned long code = ERR_peek_last_error();
	const char *reason = code ? ERR_reason_error_string(code) : NULL;

	ERR_clear_error();
	return reason ? err_set(e, num, "%s: %s", what, reason) : err_set(e, num, "%s", what);
}

static SSL_CTX *new_ctx(void)
{
	SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());

	if (!ctx)
		return NULL;
	SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
	SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET |
					 SSL_OP_NO_COMPRESSION | SSL_OP_SINGLE_ECDH_USE);
	SSL_CTX_set_num_tickets(ctx, 0);
	SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE |
				      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
				      SSL_MODE_RELEASE_BUFFERS);
	return ctx;
}

/* No prompt: an encrypted key is refused. */
static int no_password(char *buf, int size, int rw, void *arg)
{
	return -1;
}

static int use_key(SSL_CTX *ctx, const char *pem, size_t len, struct err *e)
{
	BIO *in = BIO_new_mem_buf(pem, (int)len);
	EVP_PKEY *key = in ? PEM_read_bio_PrivateKey(in, NULL, no_password, NULL) : NULL;
	int r = 0;

	if (!key)
		r = tls_error(e, -EINVAL,
			      "there is no private key in PEM that can be read without a password");
	else if (SSL_CTX_use_PrivateKey(ctx, key) != 1)
		r = tls_error(e, -EINVAL, "the private key cannot be used with the first certificate");
	EVP_PKEY_free(key);
	BIO_free(in);
	return r;
}

static int use_next(SSL_CTX *ctx, X509 *cert, unsigned n, struct err *e)
{
	if (n >= CHAIN_MAX)
		return err_set(e, -E2BIG, "the chain has more than %d certificates", CHAIN_MAX);
	if (n == 0 ? SSL_CTX_use_certificate(ctx, cert) != 1
		   : SSL_CTX_add1_chain_cert(ctx, cert) != 1)
		return tls_error(e, -EINVAL, "a certificate cannot be used");
	return 0;
}

static int use_chain(SSL_CTX *ctx, const char *pem, size_t len, struct err *e)
{
	BIO *in = BIO_new_mem_buf(pem, (int)len);
	unsigned n = 0;
	int r = 0;
	X509 *cert;

	while (in && r == 0 && (cert = PEM_read_bio_X509(in, NULL, no_password, NULL))) {
		r = use_next(ctx, cert, n++, e);
		X509_free(cert);
	}
	BIO_free(in);
	if (r == 0 && ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE)
		r = tls_error(e, -EINVAL, "a certificate cannot be read");
	ERR_clear_error();
	if (r == 0 && n == 0)
		r = err_set(e, -EINVAL, "there is no certificate in PEM");
	return r;
}

int tls_cert_load(const char *pem, size_t len, struct tls_cert **ret, struct err *e)
{
	struct tls_cert *c;
	SSL_CTX *ctx;
	int r;

	if (len > TLS_PEM_MAX)
		return err_set(e, -EFBIG, "the file is larger than %d bytes", TLS_PEM_MAX);
	tls_openssl_init();
	ERR_clear_error();
	ctx = new_ctx();
	if (!ctx)
		return tls_error(e, -ENOMEM, "TLS cannot be used");
	r = use_chain(ctx, pem, len, e);
	if (r == 0)
		r = use_key(ctx, pem, len, e);
	if (r == 0 && SSL_CTX_check_private_key(ctx) != 1)
		r = tls_error(e, -EINVAL, "the private key is not that of the first certificate");
	if (r < 0) {
		SSL_CTX_free(ctx);
		return r;
	}
	c = x_alloc(sizeof(*c));
	c->ctx = ctx;
	c->leaf = SSL_CTX_get0_certificate(ctx);
	*ret = c;
	return 0;
}

void tls_cert_free(struct tls_cert *c)
{
	if (!c)
		return;
	SSL_CTX_free(c->ctx);
	free(c);
}
