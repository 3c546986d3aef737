#include <errno.h>
#include <string.h>

#include "loop/tls.h"

#define HOST_NAME 0                      /* the only NameType of RFC 6066 */

static size_t get16(const unsigned char *p)
{
	return (size_t)p[0] << 8 | p[1];
}

/*
 * One list with one name. Letters, digits, "-", "_", and dots between labels that are not empty:
 * what stands in a certificate and can be looked up.
 */
int tls_hello_name(const unsigned char *p, size_t n, char dst[TLS_NAME_MAX + 1])
{
	size_t len;
	bool dot = true;

	if (n < 5 || get16(p) != n - 2 || p[2] != HOST_NAME || (len = get16(p + 3)) != n - 5 ||
	    len == 0 || len > TLS_NAME_MAX)
		return -EBADMSG;
	for (size_t i = 0; i < len; i++) {
		unsigned char c = p[5 + i];

		if (c >= 'A' && c <= 'Z')
			c += 'a' - 'A';
		if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '-' && c != '_' &&
		    (c != '.' || dot))
			return -EBADMSG;
		dot = c == '.';
		dst[i] = (char)c;
	}
	dst[len] = '\0';
	return dot ? -EBADMSG : 0;
}

int tls_hello_alpn(const unsigned char *p, size_t n, bool *ret_h2, bool *ret_http1)
{
	*ret_h2 = *ret_http1 = false;
	if (n < 3 || get16(p) != n - 2)
		return -EBADMSG;
	for (size_t i = 2; i < n; i += 1 + p[i]) {
		size_t len = p[i];

		if (len == 0 || len > n - i - 1)
			return -EBADMSG;
		*ret_h2 |= len == 2 && memcmp(p + i + 1, "h2", 2) == 0;
		*ret_http1 |= len == 8 && memcmp(p + i + 1, "http/1.1", 8) == 0;
	}
	return 0;
}
