#!/usr/bin/env bash
# How fast `wattune simulate bandit` is: zeus and wattune on the six jobs and four boards of Zeus's traces, 50 seeds.
# With PYTHON naming an interpreter that has the package zeus 0.16.0 and pandas, the reference simulator runs one seed
# of the same beside it, and the ratio of CPU time per recurrence is printed. Needs the traces in WATTUNE_TRACES.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
traces=$(cd "${WATTUNE_TRACES:-../shared/data}" && pwd)/zeus-traces
seeds=${SEEDS:-50}
cargo build --release --quiet
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')

# CPU seconds of one policy; what the traces lack is of no interest here.
run() {
    local TIMEFORMAT='%U %S'
    { time "$target/release/wattune" simulate bandit --train-trace "$traces/summary_train.csv" \
        --power-trace "$traces/summary_power_v100.csv,$traces/summary_power_a40.csv,$traces/summary_power_p100.csv,$traces/summary_power_rtx6000.csv" \
        --workload cifar100/shufflenetv2,imagenet/resnet50,squad/bert_base_uncased,librispeech/deepspeech2,movielens-1m/ncf,sentiment140/bert_base_uncased \
        --optimizer adadelta,adadelta,adamw,adamw,adam,adamw --target-metric 0.6,0.65,84,40,0.41,0.84 \
        --max-epochs 100,100,6,16,100,10 --default-batch-size 1024,256,32,192,1024,128 \
        --policy "$1" --seeds "1-$seeds" --format csv --output /dev/null 2>/dev/null; } 2>&1 | awk '{ print $1 + $2 }'
}

# 2·|B|·|P| of the 24 pairs together.
recurrences=$((seeds * 2846))
for policy in zeus wattune; do
    spent=$(run "$policy")
    awk -v p="$policy" -v s="$spent" -v n="$recurrences" -v k="$seeds" \
        'BEGIN { printf "%-8s 24 pairs, %d seeds: %6.2f s of CPU, %.4f ms a recurrence\n", p, k, s, 1000 * s / n }'
    if [ "$policy" = zeus ]; then ours=$spent; fi
done
if [ -n "${PYTHON:-}" ]; then
    "$PYTHON" benches/bandit_reference.py "$traces" 1 | awk -v s="$ours" -v n="$recurrences" \
        '{ printf "reference, 1 seed: %d recurrences, %.1f s of CPU, %.2f ms each: %.0f times zeus above\n", $1, $2, $3, $3 * n / s / 1000 }'
fi
