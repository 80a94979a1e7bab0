#!/bin/sh
# Checks the Python client: lint, format, types and all tests, against the daemon's binary in WATTUNE. Takes two minutes
# at most. The tools are installed once, in the versions of requirements-dev.txt, in a folder that CLIENT_VENV names.
set -eu
cd "$(dirname "$0")"
: "${WATTUNE:=$(pwd)/../../target/debug/wattune}"
export WATTUNE WATTUNE_REQUIRE=1
venv=${CLIENT_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/wattune-client}
if ! cmp -s requirements-dev.txt "$venv/requirements-dev.txt"; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement requirements-dev.txt
    cp requirements-dev.txt "$venv/requirements-dev.txt"
fi
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/mypy" --strict
# Most tests wait: the slowest files run beside the others.
slow="tests/test_chaos.py tests/test_zeus.py tests/test_codecarbon.py"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086 # a list of files
"$venv/bin/python" -m pytest --chaos-s 20 $slow >"$log" 2>&1 &
beside=$!
failed=0
"$venv/bin/python" -m pytest $(printf -- '--ignore=%s ' $slow) "$@" || failed=1
wait "$beside" || failed=1
cat "$log"
exit "$failed"
