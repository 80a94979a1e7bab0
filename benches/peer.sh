#!/usr/bin/env bash
# Planning times beside those of a general solver, HiGHS through scipy, on the same problems in one run.
#
#   benches/peer.sh [seconds that HiGHS may take for one problem, 240 by default]
#
# Needs python3 with venv, and a package index for scipy; takes about ten minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${PEER_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/wattune-peer}
[[ -x $venv/bin/python ]] || python3 -m venv "$venv"
"$venv/bin/python" -c 'import scipy' 2>/dev/null || "$venv/bin/pip" install --quiet 'scipy>=1.14'
cargo build --release -p wattune-benches --example peer_problem
exec "$venv/bin/python" benches/peer.py "${CARGO_TARGET_DIR:-target}/release/examples/peer_problem" "${1:-240}"
