# Sourced by setup.sh and base.sh: where this machine gets Debian from.
#
# SPACE names no package archive of its own: it asks the one that the machine's own apt sources
# name, with the same key.

# The entry for backports that setup.sh writes; not one of the machine's own.
BACKPORTS_SOURCES='/etc/apt/sources.list.d/space-backports.sources'

# Reads the machine's own apt sources and prints, for the first entry that has the wanted suite:
# line 1 the URI, then the Signed-By field as it stands (perhaps of many lines, perhaps none).
# Both formats: stanzas (*.sources) and lines (sources.list, *.list).
find_source() {
	local suite=$1 file
	for file in /etc/apt/sources.list.d/*.sources; do
		[ -f "$file" ] && [ "$file" != "$BACKPORTS_SOURCES" ] || continue
		awk -v suite="$suite" '
			function flush(   n, i, a, ok) {
				ok = 0
				n = split(f["suites"], a, /[ \t\n]+/)
				for (i = 1; i <= n; i++)
					if (a[i] == suite)
						ok = 1
				if (ok && tolower(f["enabled"]) !~ /no|false|off|0/ &&
				    (" " f["types"] " ") ~ /[ \t]deb[ \t]/ &&
				    (" " f["components"] " ") ~ /[ \t]main[ \t]/) {
					sub(/^[ \t]+/, "", f["uris"])
					split(f["uris"], a, /[ \t\n]+/)
					print a[1]
					if (f["signed-by"] != "")
						print "Signed-By:" f["signed-by"]
					found = 1
					exit
				}
				delete f
				key = ""
			}
			/^#/ { next }
			/^[ \t]*$/ { flush(); next }
			/^[ \t]/ { if (key != "") f[key] = f[key] "\n" $0; next }
			{
				at = index($0, ":")
				key = tolower(substr($0, 1, at - 1))
				f[key] = substr($0, at + 1)
			}
			END { if (!found) flush(); exit !found }
		' "$file" && return 0
	done
	for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
		[ -f "$file" ] || continue
		awk -v suite="$suite" '
			$1 == "deb" {
				line = $0
				opts = ""
				if (match(line, /\[[^]]*\]/)) {
					opts = substr(line, RSTART + 1, RLENGTH - 2)
					line = substr(line, 1, RSTART - 1) substr(line, RSTART + RLENGTH)
				}
				sub(/#.*/, "", line)
				n = split(line, a, /[ \t]+/)
				if (a[3] != suite)
					next
				for (i = 4; i <= n; i++)
					if (a[i] == "main")
						ok = 1
				if (!ok)
					next
				print a[2]
				if (match(opts, /signed-by=[^ \t]+/)) {
					keys = substr(opts, RSTART + 10, RLENGTH - 10)
					gsub(/,/, " ", keys)
					print "Signed-By: " keys
				}
				found = 1
				exit
			}
			END { exit !found }
		' "$file" && return 0
	done
	return 1
}

# Prints a stanza for the given suite out of what find_source printed for another one.
source_stanza() {
	local entry=$1 suite=$2 uri
	uri=${entry%%$'\n'*}
	printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\n' "$uri" "$suite"
	[ "$uri" = "$entry" ] || printf '%s\n' "${entry#*$'\n'}"
}
