#!/bin/bash
# Builds the root file system of the base template: Debian 12 with what people and agents expect.
#
#   base.sh KERNELDIR     prints the path of rootfs.img; builds it first where it is not cached
#
# The result is a raw ext4 image of 8 GiB, sparse, in $SPACE_CACHE/base/DIGEST/ (the cache is
# /var/cache/space by default). DIGEST covers this recipe and the kernel, not the versions that the
# package archive has today: remove the folder to have it built anew. Needs root: mmdebstrap runs
# the packages' own scripts in a chroot.

. "${BASH_SOURCE[0]%/*}/common.sh"
. "${BASH_SOURCE[0]%/*}/apt-sources.sh"

SUITE='bookworm'
IMAGE_SIZE='8G'

# Raised when the files below change in a way that this file's own text does not show.
RECIPE_VERSION=1

PACKAGES=(
	bash coreutils util-linux mount procps psmisc file
	python3 python-is-python3 python3-pip python3-venv
	nodejs npm
	git curl wget ca-certificates openssl openssh-client
	sudo passwd login
	iproute2 iputils-ping netbase kmod
	less nano vim-tiny unzip zip xz-utils zstd bzip2 jq
	tzdata
)

# Left out of the image: papers, translations, what only a package manager's front end reads.
DPKG_OPTIONS=(
	path-exclude=/usr/share/doc/*
	path-exclude=/usr/share/man/*
	path-exclude=/usr/share/info/*
	path-exclude=/usr/share/locale/*
	path-exclude=/usr/share/lintian/*
	path-exclude=/usr/share/bug/*
	path-include=/usr/share/doc/*/copyright
)

# Features that the oldest guest kernel (6.1) mounts and the host's mkfs.ext4 knows, named one by
# one so that a newer e2fsprogs makes the same file system.
EXT4_FEATURES='none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg'
EXT4_FEATURES+=',sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum'

digest() {
	{
		cat "${BASH_SOURCE[0]}"
		printf '%s\n' "$RECIPE_VERSION" "$1"
	} | sha256sum | cut -c 1-32
}

# The machine's own entries for Debian, as one file; what speaks of passwords stays out of the image.
write_sources() {
	local suite entry
	for suite in "$SUITE" "$SUITE-updates" "$SUITE-security"; do
		if entry=$(find_source "$suite"); then
			source_stanza "$entry" "$suite"
			printf '\n'
		elif [ "$suite" = "$SUITE" ]; then
			die "no apt source of this machine has the suite $SUITE with the component main"
		fi
	done
}

# apt inside mmdebstrap reads no configuration of this machine; what concerns the network goes along.
apt_options() {
	apt-config dump --no-empty --format '%f "%v";%n' |
		grep -E '^(Acquire::(Check-Valid-Until|Check-Date|Max-FutureTime|Retries)|Acquire::(http|https|ftp)::)' ||
		true
	printf 'Acquire::Languages "none";\n'
}

# Runs inside mmdebstrap as its last hook: the folder is $1, before the chroot is taken down.
customize() {
	local root=$1 kernel=$2
	chroot "$root" useradd --uid 1000 --user-group --create-home --shell /bin/bash user
	chroot "$root" usermod --append --groups sudo user
	printf 'user ALL=(ALL:ALL) NOPASSWD: ALL\n' >"$root/etc/sudoers.d/user"
	chmod 0440 "$root/etc/sudoers.d/user"

	printf 'LANG=C.UTF-8\n' >"$root/etc/default/locale"
	printf 'Etc/UTC\n' >"$root/etc/timezone"
	ln -snf /usr/share/zoneinfo/Etc/UTC "$root/etc/localtime"
	printf 'sandbox\n' >"$root/etc/hostname"
	printf '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 sandbox\n' \
		>"$root/etc/hosts"
	rm -f "$root/etc/resolv.conf"
	printf 'nameserver %s\noptions timeout:2 attempts:2\n' "$GUEST_GATEWAY" >"$root/etc/resolv.conf"
	printf '/dev/vda / ext4 defaults,noatime,discard 0 1\n' >"$root/etc/fstab"

	cp -a "$kernel/root/lib/modules" "$root/usr/lib/"
	printf 'APT::Install-Recommends "false";\nAcquire::Languages "none";\n' \
		>"$root/etc/apt/apt.conf.d/90space"

	# bash knows who it is; asking id(1) costs each login shell a process.
	sed -i 's/"$(id -u)"/"${EUID:-$(id -u)}"/; s/"`id -u`"/"${EUID:-$(id -u)}"/' "$root/etc/profile"

	# Nothing of this machine, nothing that two sandboxes must not share.
	: >"$root/etc/machine-id"
	rm -f "$root/var/lib/dbus/machine-id" "$root"/etc/ssh/ssh_host_*
	rm -f "$root/etc/apt/apt.conf.d/99mmdebstrap" "$root/etc/dpkg/dpkg.cfg.d/99mmdebstrap"
	sed -i 's#://[^/@ ]*@#://#' "$root"/etc/apt/sources.list.d/*.sources
	rm -rf "$root"/var/log/* "$root"/var/cache/* "$root"/var/lib/apt/lists/*
	# Not mmdebstrap's own configuration: without it its last `apt-get clean` would be this machine's.
	find "$root/tmp" -mindepth 1 -maxdepth 1 ! -name 'mmdebstrap.*' -exec rm -rf {} +
	rm -f "$root"/var/lib/dpkg/*-old "$root"/etc/*- "$root/var/lib/systemd/random-seed"
	mkdir -p "$root/var/cache/apt/archives/partial" "$root/var/lib/apt/lists/partial"
	mkdir -p "$root/var/log/apt"
}

# Says every few seconds what mmdebstrap is at, from its own notes.
watch_log() {
	local log=$1 last='' line
	while sleep 3; do
		line=$(grep -a '^I: ' "$log" 2>/dev/null | tail -n 1 || true)
		line=${line#I: }
		if [ -n "$line" ] && [ "$line" != "$last" ]; then
			say "$line"
			last=$line
		fi
	done
}

make_root() {
	local kernel=$1 root=$2 log="$WORK/log" option watcher status=0
	local args=(--mode=root --variant=minbase --format=directory)
	write_sources >"$WORK/debian.sources"
	apt_options >"$WORK/apt.conf"
	for option in "${DPKG_OPTIONS[@]}"; do
		args+=(--dpkgopt="$option")
	done
	args+=(--aptopt="$WORK/apt.conf" --include="$(IFS=,; printf '%s' "${PACKAGES[*]}")")
	args+=(--customize-hook="'$SELF' --customize \"\$1\" '$kernel'")
	say "making a Debian 12 root of ${#PACKAGES[@]} packages and what they need (a minute or so)"
	watch_log "$log" &
	watcher=$!
	TMPDIR=$WORK mmdebstrap "${args[@]}" "$SUITE" "$root" "$WORK/debian.sources" \
		>"$log" 2>&1 </dev/null || status=$?
	kill "$watcher" 2>/dev/null || true
	wait "$watcher" 2>/dev/null || true
	if [ "$status" != 0 ]; then
		grep -aE '^(E|W): |rror' "$log" | tail -n 12 >&2 || true
		die "mmdebstrap could not make the Debian root (see above): check the network and the" \
			"free space of $CACHE"
	fi
}

make_image() {
	local root=$1 image=$2 id=$3
	say "writing the ext4 image"
	truncate -s "$IMAGE_SIZE" "$image"
	# No lazy initialisation: else the guest's kernel would write the inode tables of every sandbox.
	mkfs.ext4 -q -F -O "$EXT4_FEATURES" -b 4096 -I 256 -i 16384 -m 1 -J size=64 -L space-root \
		-U "${id:0:8}-${id:8:4}-${id:12:4}-${id:16:4}-${id:20:12}" \
		-E "lazy_itable_init=0,lazy_journal_init=0,hash_seed=$HASH_SEED,root_owner=0:0" \
		-d "$root" "$image" >&2 || die "mkfs.ext4 failed (see above): is there space in $CACHE?"
	e2fsck -f -n "$image" >"$WORK/fsck" 2>&1 || {
		tail -n 5 "$WORK/fsck" >&2
		die "the new image is not clean"
	}
}

build() {
	local kernel=$1 id=$2 begin=$SECONDS out
	[ "$(id -u)" = 0 ] || die "making the base image needs root; run it with sudo"
	need_programs mmdebstrap apt-config mkfs.ext4 e2fsck flock sha256sum
	make_work "$CACHE/base"
	need_space "$CACHE/base" 2500
	make_root "$kernel" "$WORK/root"
	out="$WORK/out"
	mkdir "$out"
	make_image "$WORK/root" "$out/rootfs.img" "$id"
	chroot "$WORK/root" dpkg-query -W -f '${Package} ${Version}\n' >"$out/packages"
	publish "$out" "$CACHE/base/$id"
	say "done in $((SECONDS - begin)) s: $(du -m "$CACHE/base/$id/rootfs.img" | cut -f 1) MiB"
}

# The sandbox's side of the TAP; the agent gives the guest 10.0.2.15/24.
GUEST_GATEWAY='10.0.2.2'
HASH_SEED='5bace000-0000-4000-8000-000000000001'
SELF=$(readlink -f "${BASH_SOURCE[0]}")

main() {
	if [ "${1:-}" = --customize ] && [ "$#" = 3 ]; then
		customize "$2" "$3"
		return
	fi
	[ "$#" = 1 ] || die "usage: base.sh KERNELDIR"
	[ -f "$1/release" ] || die "$1 is no kernel folder of kernel.sh"
	local id
	id=$(digest "$(basename "$1")")
	[ -f "$CACHE/base/$id/rootfs.img" ] || build "$1" "$id"
	printf '%s\n' "$CACHE/base/$id/rootfs.img"
}

main "$@"
