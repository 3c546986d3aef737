#!/bin/bash
# Fetches the guest kernel: Debian's linux-image-*-cloud-amd64 of bookworm (6.1), unpacked and
# never installed, so that the machine's own boot menu does not change.
#
#   kernel.sh            prints the folder of the newest kernel in the cache; fetches one if none is
#   kernel.sh --update   asks the machine's package lists for a newer one first
#
# The folder is $SPACE_CACHE/kernel/VERSION (default /var/cache/space) and holds:
#   vmlinuz                     the kernel
#   release                     what `uname -r` will say
#   modules/order               names of modules, one a line, in the order of loading
#   modules/NAME.ko             those modules, not compressed (the agent uses finit_module)
#   root/lib/modules/RELEASE/   modules for the root image, with what modprobe needs

. "${BASH_SOURCE[0]%/*}/common.sh"

META='linux-image-cloud-amd64'

# Loaded by the agent at boot: the device set, and what people expect to find loaded.
BOOT_MODULES=(
	virtio_mmio virtio_blk virtio_net virtio_console virtio-rng pvpanic-mmio
	overlay fuse tun
)

# In the root image for modprobe: nested containers, file systems in files, packet filters.
ROOT_MODULES=(
	overlay fuse tun loop zram nbd squashfs isofs btrfs
	veth bridge br_netfilter dummy macvlan ipvlan vxlan wireguard
	nf_tables nf_conntrack nf_nat nf_log_syslog
	'nft_*' 'xt_*' ip_tables ip6_tables 'iptable_*' 'ip6table_*' ip_set 'ip_set_hash_*'
)

newest_cached() {
	local name
	name=$(ls -1 "$CACHE/kernel" 2>/dev/null | sort -V | tail -n 1)
	[ -n "$name" ] && [ -f "$CACHE/kernel/$name/vmlinuz" ] && printf '%s\n' "$CACHE/kernel/$name"
}

# Prints "PACKAGE VERSION" of the kernel that the machine's package lists offer.
resolve() {
	local package version
	# awk reads to the end: who closes a pipe early makes apt-cache fail.
	package=$(apt-cache depends --no-recommends --no-suggests "$META" 2>/dev/null |
		awk '$1 == "Depends:" && $2 ~ /^linux-image-6\.1\.[0-9]+-[0-9]+-cloud-amd64$/ { print $2 }') ||
		return 1
	[ -n "$package" ] && [ "$package" = "${package%%$'\n'*}" ] || return 1
	version=$(apt-cache policy "$package" 2>/dev/null | awk '$1 == "Candidate:" { print $2 }')
	[ -n "$version" ] && [ "$version" != '(none)' ] || return 1
	printf '%s %s\n' "$package" "$version"
}

# Files of the named modules (patterns allowed) and of all they need, each once, needed ones first.
with_needed() {
	local tree=$1 release=$2 name file
	shift 2
	for name in "$@"; do
		case "$name" in
		*'*'*)
			find "$tree/lib/modules/$release" -name "$name.ko" -o -name "$name.ko.xz" | sort |
				sed 's#.*/##; s#\.ko.*##'
			;;
		*) printf '%s\n' "$name" ;;
		esac
	done | while read -r name; do
		modprobe --dirname "$tree" --set-version "$release" --show-depends "$name" ||
			die "the kernel $release has no module $name"
	done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

unpack_modules() {
	local tree=$1 release=$2 out=$3 file name list
	list=$(with_needed "$tree" "$release" "${BOOT_MODULES[@]}")
	mkdir -p "$out/modules" "$out/root/lib/modules/$release"
	for file in $list; do
		name=${file##*/}
		name=${name%%.ko*}
		case "$file" in
		*.xz) xz -dc "$file" >"$out/modules/$name.ko" ;;
		*) cp "$file" "$out/modules/$name.ko" ;;
		esac
		printf '%s\n' "$name" >>"$out/modules/order"
	done
	list=$(with_needed "$tree" "$release" "${ROOT_MODULES[@]}")
	for file in $list; do
		name=${file#"$tree/"}
		mkdir -p "$out/root/${name%/*}"
		cp "$file" "$out/root/$name"
	done
	cp "$tree/lib/modules/$release/"modules.{builtin,builtin.modinfo,order} \
		"$out/root/lib/modules/$release/"
	depmod -b "$out/root" "$release" 2>/dev/null || die "depmod failed"
}

fetch() {
	local package=$1 version=$2 release=${1#linux-image-} out
	make_work "$CACHE/kernel"
	need_space "$CACHE/kernel" 300
	say "fetching the guest kernel: $package $version"
	(cd "$WORK" && apt-get download -q -q -o APT::Sandbox::User=root -o Acquire::Retries=3 \
		"$package=$version") >&2 || die "the download of $package $version failed (see above):" \
		"check the network, or run apt-get update"
	mkdir "$WORK/deb"
	dpkg-deb -x "$WORK"/*.deb "$WORK/deb"
	depmod -b "$WORK/deb" "$release" 2>/dev/null || die "depmod failed on $package"
	out="$WORK/out"
	mkdir "$out"
	cp "$WORK/deb/boot/vmlinuz-$release" "$out/vmlinuz"
	printf '%s\n' "$release" >"$out/release"
	unpack_modules "$WORK/deb" "$release" "$out"
	publish "$out" "$CACHE/kernel/$version"
	printf '%s\n' "$CACHE/kernel/$version"
}

main() {
	local cached found
	case "${1:-}" in
	'') cached=$(newest_cached) && printf '%s\n' "$cached" && return 0 ;;
	--update) ;;
	*) die "usage: kernel.sh [--update]" ;;
	esac
	need_programs apt-cache apt-get dpkg-deb depmod modprobe xz flock
	if ! found=$(resolve); then
		[ "$(id -u)" = 0 ] || die "the package lists know no $META; run apt-get update as root"
		say "reading the package lists"
		apt-get update -q -q -o Acquire::Retries=3 >&2 || die "apt-get update failed (see above)"
		found=$(resolve) || die "no apt source of this machine offers Debian 12's $META (6.1)"
	fi
	if [ -d "$CACHE/kernel/${found#* }" ]; then
		printf '%s\n' "$CACHE/kernel/${found#* }"
	else
		fetch ${found% *} "${found#* }"
	fi
}

main "$@"
