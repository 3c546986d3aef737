#!/bin/bash
# Installs the Debian 12 packages that building, running and testing SPACE needs.
#
#   setup.sh           what building, running and the default tests need
#   setup.sh --test    that, and what only the long tests, fuzzers and benchmarks need
#   setup.sh --list    prints both lists and changes nothing
#
# Quick when nothing is to do: one dpkg-query. QEMU comes from bookworm-backports; the address and
# the key of that suite are taken from the machine's own entry for the suite bookworm, and a pin
# lets nothing but QEMU come from there. No service is started by what is installed here.

set -euo pipefail
export LC_ALL=C
unset CDPATH

here=${BASH_SOURCE[0]%/*}
[ "$here" != "${BASH_SOURCE[0]}" ] || here=.
# shellcheck source=image/apt-sources.sh
. "$here/image/apt-sources.sh"

# The first QEMU whose memory-backend-file knows rom=off, with a margin: what the driver was tried on.
QEMU_MIN='1:10.0'
SUITE='bookworm'
SOURCES=$BACKPORTS_SOURCES
PIN='/etc/apt/preferences.d/space-backports'

# Building: compiler, libraries (the static ones of zlib, jansson, libsodium and c-ares are in the -dev
# packages), unit tests.
BUILD_PACKAGES=(
	gcc libc6-dev meson ninja-build pkg-config
	libjansson-dev libsodium-dev libsqlite3-dev libseccomp-dev libssl-dev
	libcurl4-openssl-dev libbtrfsutil-dev zlib1g-dev libcmocka-dev
	libwslay-dev nettle-dev libc-ares-dev libnftables-dev
)

# Running: storage, network, guest image.
RUN_PACKAGES=(
	qemu-system-x86
	btrfs-progs e2fsprogs mount util-linux
	iproute2 nftables kmod procps
	mmdebstrap cpio gzip xz-utils zstd
	ca-certificates
)

# The default tests and the first steps of the README.
CHECK_PACKAGES=(python3 python3-venv curl)

# The long tests, the fuzzers, the benchmarks, man page checks.
TEST_PACKAGES=(clang libclang-rt-14-dev llvm nginx-light libnginx-mod-stream wrk strace tmux git chromium)

say() { printf 'setup: %s\n' "$*" >&2; }

die() {
	printf 'setup: %s\n' "$*" >&2
	exit 1
}

check_system() {
	local id='' version=''
	if [ -r /etc/os-release ]; then
		id=$(. /etc/os-release && printf '%s' "${ID:-}")
		version=$(. /etc/os-release && printf '%s' "${VERSION_ID:-}")
	fi
	[ "$id" = debian ] && [ "$version" = 12 ] || die "this machine is '${id:-unknown} ${version}'," \
		"not Debian 12. SPACE is built and tested on Debian 12 (bookworm) alone; use such a" \
		"machine, or install these packages by hand (setup.sh --list) and run make SETUP=no."
	[ "$(dpkg --print-architecture)" = amd64 ] || die "this machine is not amd64," \
		"the only architecture that SPACE runs on"
}

# Prints those of the given packages that are not installed (QEMU: or that are too old).
missing() {
	local -A have=()
	local name status version list
	list=$(dpkg-query -W -f '${Package} ${db:Status-Status} ${Version}\n' "$@" 2>/dev/null) || true
	while read -r name status version; do
		[ "$status" = installed ] && have[$name]=$version
	done <<<"$list"
	for name in "$@"; do
		if [ -z "${have[$name]:-}" ]; then
			printf '%s\n' "$name"
		elif [ "$name" = qemu-system-x86 ] && dpkg --compare-versions "${have[$name]}" lt "$QEMU_MIN"; then
			printf '%s\n' "$name"
		fi
	done
}

write_file() {
	local path=$1 temp
	mkdir -p "${path%/*}"
	temp=$(mktemp "${path%/*}/.space.XXXXXX")
	cat >"$temp"
	chmod 0644 "$temp"
	mv -f "$temp" "$path"
}

add_backports() {
	local entry
	entry=$(find_source "$SUITE") || die "no apt source has the suite '$SUITE' with the component" \
		"'main'; add Debian's own to /etc/apt/sources.list.d/ and try again"
	if ! find_source "$SUITE-backports" >/dev/null; then
		{
			printf '# Written by the set-up of SPACE: QEMU comes from this suite.\n'
			source_stanza "$entry" "$SUITE-backports"
		} | write_file "$SOURCES"
	fi
	write_file "$PIN" <<-END
		# Written by the set-up of SPACE: QEMU and its firmware come from backports, nothing else.
		Package: src:qemu src:seabios src:ipxe
		Pin: release n=$SUITE-backports
		Pin-Priority: 990

		Package: *
		Pin: release n=$SUITE-backports
		Pin-Priority: 10
	END
}

# Packages start their services when installed; here none may start.
hold_services() {
	[ -e /usr/sbin/policy-rc.d ] && return 0
	printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
	chmod 0755 /usr/sbin/policy-rc.d
	trap 'rm -f /usr/sbin/policy-rc.d' EXIT
	trap 'exit 130' INT TERM HUP
}

apt() {
	DEBIAN_FRONTEND=noninteractive apt-get -y -q \
		-o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 \
		-o Dpkg::Options::=--force-confold --no-install-recommends "$@" </dev/null
}

# Runs apt with its chatter in a log, which is shown (its end) only when it fails.
quiet_apt() {
	local log
	log=$(mktemp)
	if ! apt "$@" >"$log" 2>&1; then
		tail -n 25 "$log" >&2
		rm -f "$log"
		return 1
	fi
	rm -f "$log"
}

install_packages() {
	local begin=$SECONDS
	[ "$(id -u)" = 0 ] || die "these packages are missing and only root can install them: $*" \
		"(run it with sudo)"
	hold_services
	if [[ " $* " = *' qemu-system-x86 '* ]]; then
		add_backports
	fi
	say "reading the package lists"
	quiet_apt update || die "apt-get update failed (see above): check the network and the sources" \
		"in /etc/apt"
	say "installing $# packages and what they need: $*"
	quiet_apt install "$@" || die "apt-get install failed (see above)"
	local left
	left=$(missing "$@")
	[ -z "$left" ] || die "still missing after the installation:" $left
	say "done in $((SECONDS - begin)) s"
}

main() {
	local packages=("${BUILD_PACKAGES[@]}" "${RUN_PACKAGES[@]}" "${CHECK_PACKAGES[@]}") need=
	case "${1:-}" in
	'') ;;
	--test)
		packages+=("${TEST_PACKAGES[@]}")
		# Debian's only where there is none. Is it too old, the tests bring their own (tests/nodejs).
		command -v node >/dev/null || packages+=(nodejs)
		command -v npm >/dev/null || packages+=(npm)
		;;
	--list)
		printf '%s\n' "${packages[@]}" | sort
		printf '%s (tests)\n' "${TEST_PACKAGES[@]}" nodejs npm | sort
		return 0
		;;
	*) die "usage: setup.sh [--test | --list]" ;;
	esac
	check_system
	need=$(missing "${packages[@]}")
	# Package names hold no blanks: the list is split on purpose.
	[ -z "$need" ] || install_packages $need
}

main "$@"
