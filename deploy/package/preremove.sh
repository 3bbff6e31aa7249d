#!/bin/sh
# Runs before the files are removed: as "remove" or 0, or with something else at an upgrade.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now hapax.service
	fi
	;;
esac
