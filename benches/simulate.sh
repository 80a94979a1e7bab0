#!/usr/bin/env bash
# How fast `wattune simulate carbon` is: one job of 64 hours and one of a whole year, all six policies, hourly data.
# Prints wall-clock seconds and policy runs per second. Needs the recorded traces in WATTUNE_TRACES.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
traces=$(cd "${WATTUNE_TRACES:-../shared/data}" && pwd)
cargo build --release --quiet
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')

run() {
    local what=$1
    shift
    local begun ended
    begun=$(date +%s.%N)
    "$target/release/wattune" simulate carbon --power-trace "$traces/zeus-traces/summary_power_a40.csv" \
        --carbon-trace "$traces/carbon/DE_2021_hourly.csv" --format csv --output /dev/null "$@"
    ended=$(date +%s.%N)
    awk -v what="$what" -v a="$begun" -v b="$ended" 'BEGIN { printf "%-60s %6.2f s\n", what, b - a }'
}

said=(--forecast-trace "$traces/carbon/DE_2021H2_carboncast_dayahead.csv")
run "64 h, 6 policies, day-ahead forecasts" --workload imagenet/resnet50/128 --hours 64 "${said[@]}"
run "a year less a tenth, 6 policies, no forecast" --workload imagenet/resnet50/128 --hours 7900 --max-slowdown 0.1
run "64 h, 6 policies, 3 budgets, 24 starts" --workload imagenet/resnet50/128 --hours 64 "${said[@]}" \
    --max-slowdown 0.01,0.03,0.1 --starts 24
