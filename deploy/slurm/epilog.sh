#!/bin/sh
# Slurm's Epilog: ends the job in wattune, and what its processes have registered. Runs as root on each node of a job.
# Never fails and takes at most three seconds: Slurm drains a node whose Epilog fails.
#
# Slurm gives its scripts no environment of the site's, so settings come from this file; all of them are optional:
#   WATTUNE=/usr/bin/wattune                    the program
#   WATTUNE_SOCKET=/run/wattune/wattune.sock    where the daemon answers: its Unix socket,
#   WATTUNE_LISTEN=127.0.0.1:4938               and its TCP address
#   WATTUNE_PROLOG_OPTIONS="--lease 300"        options of `wattune slurm prolog`
# Whatever goes wrong below, a mistake in that file included.
trap 'exit 0' EXIT
defaults=${WATTUNE_SLURM_DEFAULTS:-/etc/default/wattune-slurm}
set -a
# shellcheck source=/dev/null  # the site's
if [ -r "$defaults" ]; then . "$defaults"; fi
set +a
timeout --kill-after=1 2 "${WATTUNE:-/usr/bin/wattune}" slurm epilog ||
    echo "wattune slurm epilog did not run (code $?); the job goes on without it" >&2
exit 0
