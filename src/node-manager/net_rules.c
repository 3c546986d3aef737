/*
 * The packet filter of a sandbox's namespace: one constant text. Counters are for whoever looks:
 * nsenter --net=RUN/nm/netns/NAME nft list ruleset.
 *
 * early  before defragmentation (-400), which tproxy brings with it. What no honest guest sends is
 *        dropped without an answer: fragments, options, extension headers, other sources than the
 *        guest's two addresses, multicast, link-local destinations. Also nothing comes in by the loopback: what a process in
 *        here sends to an address that is local here ends there.
 * take   TCP of a connection that a listener took, or else a new one: to the listener. The rule does
 *        not match when there is no gateway, nor for the connections that the gateway made to the
 *        guest, whose sockets are not transparent: those are taken by the next rules. UDP of port
 *        53: only while a transparent socket is there.
 * input  what was taken, and who asks for the gateway's MAC in IPv6. All else is refused so that the
 *        guest knows at once: 200 answers a second. (A checksum that is wrong gets none.)
 * output to the guest alone: TCP, answers of DNS, refusals, neighbour advertisements.
 *
 * Protocols are numbers: their names would be looked up in /etc/protocols.
 */
#include <errno.h>
#include <nftables/libnftables.h>
#include <string.h>

#include "ipc/gtw_ops.h"
#include "node-manager/net.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define TAKEN "meta mark set 0x1 accept\n"
#define HOST_V6_ASKED "ff02::1:ff00:2"   /* the solicited-node address of GTW_HOST_V6 (RFC 4291, 2.7.1) */

/* clang-format off */
static const char net_rules[] =
"flush ruleset\n"
"table inet space {\n"
"	chain early {\n"
"		type filter hook prerouting priority -450; policy drop;\n"
"		iifname != \"" NET_TAP "\" drop\n"
"		ip frag-off & 0x3fff != 0 counter drop\n"
"		ip hdrlength != 5 counter drop\n"
"		ip6 nexthdr { 0, 43, 44, 51, 60, 135, 139, 140 } counter drop\n"
"		ip saddr != " GTW_GUEST_V4 " counter drop\n"
"		ip daddr { 0.0.0.0, 127.0.0.0/8, 224.0.0.0/4, 255.255.255.255 } counter drop\n"
"		ip daddr " GTW_GUEST_V4 " counter drop\n"
"		ip6 saddr != " GTW_GUEST_V6 " counter drop\n"
"		ip6 daddr " HOST_V6_ASKED " meta l4proto 58 accept\n"
"		ip6 daddr { ::/127, " GTW_GUEST_V6 ", fe80::/10, ff00::/8 } counter drop\n"
"		meta protocol { ip, ip6 } accept\n"
"	}\n"
"	chain take {\n"
"		type filter hook prerouting priority -150; policy accept;\n"
"		meta nfproto ipv4 meta l4proto 6 tproxy ip to :" TEXT(GTW_TCP_PORT) " " TAKEN
"		meta nfproto ipv6 meta l4proto 6 tproxy ip6 to :" TEXT(GTW_TCP_PORT) " " TAKEN
"		ip daddr " GTW_HOST_V4 " meta l4proto 6 socket transparent 0 " TAKEN
"		ip6 daddr " GTW_HOST_V6 " meta l4proto 6 socket transparent 0 " TAKEN
"		udp dport " TEXT(GTW_DNS_PORT) " socket transparent 1 " TAKEN
"	}\n"
"	chain input {\n"
"		type filter hook input priority 0; policy drop;\n"
"		meta mark 0x1 accept\n"
"		ip6 daddr { " GTW_HOST_V6 ", " HOST_V6_ASKED " } ip6 hoplimit 255 icmpv6 type nd-neighbor-solicit accept\n"
"		limit rate over 200/second burst 200 packets counter drop\n"
"		meta l4proto 6 counter reject with tcp reset\n"
"		counter reject with icmpx type admin-prohibited\n"
"	}\n"
"	chain forward {\n"
"		type filter hook forward priority 0; policy drop;\n"
"	}\n"
"	chain output {\n"
"		type filter hook output priority 0; policy drop;\n"
"		oifname != \"" NET_TAP "\" drop\n"
"		ip daddr " GTW_GUEST_V4 " jump to_guest\n"
"		ip6 daddr " GTW_GUEST_V6 " jump to_guest\n"
"	}\n"
"	chain to_guest {\n"
"		meta l4proto 6 accept\n"
"		udp sport " TEXT(GTW_DNS_PORT) " accept\n"
"		icmp type destination-unreachable accept\n"
"		icmpv6 type { destination-unreachable, nd-neighbor-advert } accept\n"
"	}\n"
"}\n"
"table arp space {\n"
"	chain input {\n"
"		type filter hook input priority 0; policy drop;\n"
"		iifname \"" NET_TAP "\" arp operation request arp saddr ip " GTW_GUEST_V4 " accept\n"
"	}\n"
"}\n";
/* clang-format on */

static void auto_ctx(struct nft_ctx **ctx)
{
	if (*ctx)
		nft_ctx_free(*ctx);
}

int net_rules_load(struct err *e)
{
	__attribute__((cleanup(auto_ctx))) struct nft_ctx *ctx = nft_ctx_new(NFT_CTX_DEFAULT);
	const char *why;
	int r;

	if (!ctx || nft_ctx_buffer_error(ctx) != 0)
		return err_set(e, -ENOMEM, "no context for the packet filter");
	r = nft_run_cmd_from_buffer(ctx, net_rules);
	if (r == 0)
		return 0;
	why = nft_ctx_get_error_buffer(ctx);
	return err_set(e, -EIO,
		       "the packet filter's rules cannot be loaded; the kernel needs nf_tables with "
		       "tproxy, socket and reject: %.*s",
		       (int)strcspn(why, "\n"), why);
}
