#!/bin/sh
# Slurm's TaskProlog: tells each task the id of its job in wattune and where the daemon answers. Runs as the job's user;
# Slurm takes each line `export NAME=value` of its output into the task's environment. Settings: see prolog.sh.
# Whatever goes wrong below, a mistake in that file included.
trap 'exit 0' EXIT
defaults=${WATTUNE_SLURM_DEFAULTS:-/etc/default/wattune-slurm}
set -a
# shellcheck source=/dev/null  # the site's
if [ -r "$defaults" ]; then . "$defaults"; fi
set +a
timeout --kill-after=1 2 "${WATTUNE:-/usr/bin/wattune}" slurm task-prolog 2>/dev/null
exit 0
