#!/usr/bin/env bash
# What the daemon costs: CPU, memory and start-up time with eight fake GPUs read ten times a second.
#
#   cargo build --release --bin wattune && cargo build --release --example fake_nvml
#   benches/overhead.sh [seconds]
#
# The fake driver's own work counts as the daemon's.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
target=${CARGO_TARGET_DIR:-target}/release
dir=$(mktemp -d)
trap 'kill "$pid" 2>/dev/null && wait "$pid" || true; rm -rf "$dir"' EXIT

printf '{"boards":[{},{},{},{},{},{},{},{}]}' > "$dir/boards.json"
now=$(date -u +%s)
{
    echo timestamp,duration,value
    for i in $(seq -4 96); do
        echo "$(date -u -d "@$((now / 1800 * 1800 + i * 1800))" +%FT%TZ),30,$((300 + (i * 37) % 200))"
    done
} > "$dir/carbon.csv"

begun=$(date +%s%N)
FAKE_NVML_DIR=$dir "$target/wattune" serve --gpus nvml --nvml-library "$target/examples/libfake_nvml.so" \
    --state-dir "$dir/state" --listen 127.0.0.1:49380 --carbon-file "$dir/carbon.csv" 2> "$dir/log" &
pid=$!
until curl -sf -o /dev/null http://127.0.0.1:49380/readyz; do sleep 0.002; done
ready=$((($(date +%s%N) - begun) / 1000000))

for gpu in 0 1 2 3 4 5 6 7; do
    curl -sf -o /dev/null -H 'content-type: application/json' http://127.0.0.1:49380/v1/jobs \
        -d "{\"name\":\"job$gpu\",\"gpus\":[$gpu],\"lease_s\":3600}"
done
ticks() { awk '{ print $14 + $15 }' "/proc/$pid/stat"; }
sleep 5
before=$(ticks)
sleep "$seconds"
after=$(ticks)
awk -v t=$((after - before)) -v hz="$(getconf CLK_TCK)" -v s="$seconds" -v ready="$ready" \
    '/^VmRSS|^VmHWM/ { kib[$1] = $2 } END {
        printf "start to ready   %d ms\nCPU              %.2f %% of one core over %d s\n", ready, 100 * t / hz / s, s
        printf "resident         %.1f MiB (peak %.1f MiB)\n", kib["VmRSS:"] / 1024, kib["VmHWM:"] / 1024 }' "/proc/$pid/status"
