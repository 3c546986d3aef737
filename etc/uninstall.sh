#!/bin/bash
# Removes what `make install` put there: programs, man pages, service users. With --purge also the state
# folders (all sandboxes, keys and templates) and the cache.
#
#	uninstall.sh PREFIX [--purge]
set -euo pipefail

prefix=${1:?usage: uninstall.sh PREFIX [--purge]}
purge=${2:-}

die() {
	printf 'uninstall: %s\n' "$*" >&2
	exit 1
}

[ "$(id -u)" = 0 ] || die "it needs root: sudo make uninstall"

for lock in /run/space/*.lock; do
	[ -e "$lock" ] || continue
	instance=$(basename "$lock" .lock)
	flock -n "$lock" true || die "the instance $instance runs; end it first: sudo space down --instance $instance"
	if [ -d "/run/space/$instance" ]; then
		"$prefix/bin/space" down --instance "$instance"
	fi
done

rm -f "$prefix/bin/space" "$prefix/lib/systemd/system/space.service"
rm -rf "$prefix/lib/space"
rm -f "$prefix"/share/man/man1/space*.1 "$prefix"/share/man/man8/space*.8
rm -f "$prefix/share/bash-completion/completions/space" "$prefix/share/zsh/site-functions/_space"
rm -rf /run/space
rm -f /etc/apt/sources.list.d/space-backports.sources /etc/apt/preferences.d/space-backports
"${BASH_SOURCE[0]%/*}/users.sh" remove
if [ "$purge" = --purge ]; then
	rm -rf /var/lib/space /var/cache/space
	echo "uninstall: programs, users, state and cache are gone"
else
	echo "uninstall: programs and users are gone; /var/lib/space and /var/cache/space stay (PURGE=1 removes them)"
fi
