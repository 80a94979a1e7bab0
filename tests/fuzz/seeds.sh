#!/usr/bin/env bash
# Writes the corpus as the guided run reads it, into the folder given: the source's number in the first byte.
set -euo pipefail
mkdir -p "$1"
to=$(cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/corpus"
# In the order of their names, as the targets are.
export LC_ALL=C
number=0
for source in *; do
    for file in "$source"/*; do
        { printf "\\x$(printf %02x "$number")"; cat "$file"; } >"$to/$source-$(basename "$file")"
    done
    number=$((number + 1))
done
