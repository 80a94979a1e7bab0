#!/usr/bin/env bash
# Shows that the trial finds what it is there for: each patch beside this file puts one defect back, and the kept case of
# the same name must then fail. Works on a copy of the last commit; a few minutes for each patch.
#
#     tests/trial/prove.sh [NAME...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

scratch=$(mktemp -d)
trap 'git worktree remove --force "$scratch/tree" 2>/dev/null || true; rm -rf "$scratch"' EXIT
git worktree add --quiet --detach "$scratch/tree" HEAD
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}/trial-patches"

build() {
    (cd "$scratch/tree" && cargo build --quiet --examples && cargo test --quiet --no-run --test trial) \
        2>"$scratch/build.txt" || { cat "$scratch/build.txt" >&2; return 1; }
}
# Whether the case fails.
fails() {
    ! (cd "$scratch/tree" && cargo test --quiet --test trial -- --case "tests/trial/found/$1.json" --keep "$scratch/kept") \
        >"$scratch/$1.txt" 2>&1
}

missed=0
patches=("${@/%/.patch}")
[ $# -gt 0 ] || patches=(tests/trial/patches/*.patch)
for patch in "${patches[@]}"; do
    name=$(basename "$patch" .patch)
    git -C "$scratch/tree" apply "$PWD/tests/trial/patches/$name.patch"
    build || { echo "$name: does not compile"; exit 1; }
    begun=$SECONDS
    if fails "$name" && grep -q "broken$" "$scratch/$name.txt"; then
        echo "$name: found after $((SECONDS - begun)) s: $(grep -m1 -A1 "broken$" "$scratch/$name.txt" | tail -1 | cut -c1-200)"
    else
        echo "$name: NOT FOUND"
        missed=1
    fi
    git -C "$scratch/tree" checkout --quiet .
done
exit $missed
