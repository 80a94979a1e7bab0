#!/usr/bin/env bash
# Checks that the bandit's cost on Zeus's traces stays within bounds relative to Zeus's policy, the default and the oracle.
#
#     benches/bandit_bounds.sh WATTUNE ZEUS_TRACES
#
# Takes about four minutes of one processor. Fails where bandit_bounds.py or bandit_drift.py does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
wattune=$1
zeus=$2

bandit() {
    local targets=$1 seeds=$2 eta=$3
    "$wattune" simulate bandit --train-trace "$zeus/summary_train.csv" \
        --power-trace "$zeus/summary_power_v100.csv,$zeus/summary_power_a40.csv,$zeus/summary_power_p100.csv,$zeus/summary_power_rtx6000.csv" \
        --workload cifar100/shufflenetv2,imagenet/resnet50,squad/bert_base_uncased,librispeech/deepspeech2,movielens-1m/ncf,sentiment140/bert_base_uncased \
        --optimizer adadelta,adadelta,adamw,adamw,adam,adamw --target-metric "$targets" --max-epochs 100,100,6,16,100,10 \
        --default-batch-size 1024,256,32,192,1024,128 --policy zeus,wattune --seeds "$seeds" --eta "$eta" --format json
}
bandit 0.6,0.65,84,40,0.41,0.84 1-50 0.5 | python3 benches/bandit_bounds.py "$zeus" 0.5 0.50 1.0 1
# The same policy with other knobs and targets.
for eta in 0.2 0.8; do
    bandit 0.6,0.65,84,40,0.41,0.84 1-50 "$eta" | python3 benches/bandit_bounds.py "$zeus" "$eta" 0.6 1.2 0
done
# From targets of a few epochs, where rounding decides, up to the hardest that the traces reach.
while read -r cifar imagenet squad librispeech movielens sentiment; do
    bandit "$cifar,$imagenet,$squad,$librispeech,$movielens,$sentiment" 1-50 0.5 |
        python3 benches/bandit_bounds.py "$zeus" 0.5 0.6 1.2 0 "cifar100=$cifar" "imagenet=$imagenet" "squad=$squad" \
            "librispeech=$librispeech" "movielens-1m=$movielens" "sentiment140=$sentiment"
done <<'TARGETS'
0.5 0.5 83 50 0.375 0.83
0.4 0.4 83.5 55 0.4 0.82
0.3 0.45 82.5 60 0.35 0.85
0.1 0.2 83 65 0.375 0.852
TARGETS
# From far off: the default costs 24 times the best.
"$wattune" simulate bandit --train-trace "$zeus/summary_train.csv" \
    --power-trace "$zeus/summary_power_v100.csv,$zeus/summary_power_a40.csv,$zeus/summary_power_p100.csv,$zeus/summary_power_rtx6000.csv" \
    --workload cifar100/shufflenetv2 --optimizer adadelta --target-metric 0.6 --max-epochs 100 --default-batch-size 8 \
    --policy zeus,wattune --seeds 1-200 --eta 0.5 --format json |
    python3 benches/bandit_bounds.py "$zeus" 0.5 1.0 1.0 0 cifar100:default=8
# Runs of three epochs: the smallest batch size is the best, and a few per cent better than its neighbours.
"$wattune" simulate bandit --train-trace "$zeus/summary_train.csv" --power-trace "$zeus/summary_power_p100.csv" \
    --workload squad/bert_base_uncased --optimizer adamw --target-metric 82.5 --max-epochs 6 --default-batch-size 32 \
    --policy zeus,wattune --seeds 1-200 --eta 0.5 --format json |
    python3 benches/bandit_bounds.py "$zeus" 0.5 1.0 1.0 0 squad=82.5
python3 benches/bandit_drift.py "$wattune" "$zeus" 40
