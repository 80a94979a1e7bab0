#!/usr/bin/env bash
# wattune and CodeCarbon beside one another: both watch the same imagined boards (tests/fake_nvml) once a second while a
# scripted load runs. Prints energy, CPU time and memory of both, and fails where bounds are missed.
#
#     benches/codecarbon.sh [seconds]        default 180; needs python3 with venv, and the package registry of pip
#
# FAKE_NVML names a built library. Otherwise it is built optimised, for which cargo compiles the daemon once more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# One after the other: together, the tests' dependencies would bring features into the daemon that nobody installs.
cargo build --release --bin wattune
[ -n "${FAKE_NVML:-}" ] || cargo build --release --example fake_nvml
target=$(cargo metadata --format-version 1 --no-deps |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet --disable-pip-version-check codecarbon==3.3.2
python3 benches/codecarbon.py "$target/release/wattune" "${FAKE_NVML:-$target/release/examples/libfake_nvml.so}" \
    "$scratch/venv/bin/python" "${1:-180}"
