#!/bin/bash
# The service users: each daemon has its own, none can log in. Sandboxes have numbers without entries.
#
#	users.sh add | remove
set -euo pipefail

USERS=(space-api space-ctl space-node space-sbx)

case "${1:-}" in
add)
	for user in "${USERS[@]}"; do
		getent passwd "$user" >/dev/null ||
			useradd --system --user-group --no-create-home --home-dir /nonexistent \
				--shell /usr/sbin/nologin "$user"
	done
	;;
remove)
	for user in "${USERS[@]}"; do
		if getent passwd "$user" >/dev/null; then userdel "$user"; fi
		if getent group "$user" >/dev/null; then groupdel "$user"; fi
	done
	;;
*)
	echo "usage: users.sh add | remove" >&2
	exit 2
	;;
esac
