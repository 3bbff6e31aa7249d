#!/bin/sh
# Runs after the files are removed: as "remove", "purge" or 0, or with something else at an upgrade.
set -e
case "$1" in
remove | purge | 0)
	if [ -d /run/systemd/system ]; then
		systemctl daemon-reload
	fi
	echo "hapax: /var/lib/hapax and the user hapax stay: with them a new installation goes on above every number that was issued. Remove them only if no number of theirs is in use."
	;;
esac
