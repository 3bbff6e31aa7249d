#!/bin/sh
# Runs after the files are in place: as "configure" or 1 at an installation, and as
# "configure OLD" or 2 at an upgrade.
set -e
if ! getent passwd hapax >/dev/null; then
	useradd --system --user-group --home-dir /var/lib/hapax --no-create-home --shell /usr/sbin/nologin hapax
fi
install -d -o hapax -g hapax -m 0700 /var/lib/hapax
chgrp -R hapax /etc/hapax
chmod 0750 /etc/hapax
chmod 0640 /etc/hapax/hapax.yaml
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	if [ -n "$2" ] || [ "$1" = 2 ]; then
		systemctl try-restart hapax.service
	else
		systemctl enable --now hapax.service
	fi
fi
