/* For tests: a key and a certificate that signs itself. Needs cmocka.h before. */
#ifndef LOOP_TEST_CERT_H
#define LOOP_TEST_CERT_H

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include "base/alloc.h"

static inline X509 *sign_self(EVP_PKEY *key, const char *names, int serial)
{
	X509 *x = X509_new();
	X509_NAME *subject = X509_get_subject_name(x);
	X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, names);

	X509_set_version(x, 2);
	ASN1_INTEGER_set(X509_get_serialNumber(x), serial);
	X509_gmtime_adj(X509_getm_notBefore(x), -60);
	X509_gmtime_adj(X509_getm_notAfter(x), 3600);
	X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)"test", -1,
				   -1, 0);
	X509_set_issuer_name(x, subject);
	X509_set_pubkey(x, key);
	X509_add_ext(x, ext, -1);
	X509_EXTENSION_free(ext);
	assert_true(X509_sign(x, key, EVP_sha256()) > 0);
	return x;
}

/* Key and certificate as one text; with_key false: the certificate alone. */
static inline char *make_pem(const char *names, int serial, bool with_key)
{
	EVP_PKEY *key = EVP_EC_gen("P-256");
	X509 *x = sign_self(key, names, serial);
	BIO *out = BIO_new(BIO_s_mem());
	char *p, *text;
	long n;

	PEM_write_bio_X509(out, x);
	if (with_key)
		PEM_write_bio_PrivateKey(out, key, NULL, NULL, 0, NULL, NULL);
	n = BIO_get_mem_data(out, &p);
	text = x_strndup(p, (size_t)n);
	BIO_free(out);
	X509_free(x);
	EVP_PKEY_free(key);
	return text;
}

#endif
