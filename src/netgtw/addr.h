/* An IP address and port, of fixed size, with no form that means another one. */
#ifndef NETGTW_ADDR_H
#define NETGTW_ADDR_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct addr {
	uint8_t family;              /* 4 or 6 */
	uint8_t ip[16];              /* network order; of IPv4 the first four, the rest 0 */
	uint16_t port;               /* host order */
};

#define ADDR_TEXT_MAX INET6_ADDRSTRLEN

bool addr_eq(const struct addr *a, const struct addr *b);                /* without the port */
int addr_parse(const char *text, struct addr *ret);                      /* -EINVAL; no port */
int addr_of_sockaddr(const struct sockaddr_storage *ss, struct addr *ret);       /* -EAFNOSUPPORT */
socklen_t addr_to_sockaddr(const struct addr *a, struct sockaddr_storage *ret);
void addr_text(const struct addr *a, char dst[ADDR_TEXT_MAX]);           /* "" when there is none */

#endif
