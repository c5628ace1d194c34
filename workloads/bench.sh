#!/usr/bin/env bash
# What the sketches of the synthetic workload cost and save: three figures, their record and its page.
# Usage: bench.sh [FOLDER] [ROWS] [GROUPS], the folder for the table (default: demo 1000000 5000).
set -euo pipefail

workloads=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
rows=${2:-1000000}
groups=${3:-5000}
mkdir -p "${1:-demo}"
IMPCTL_DATA=$(cd "${1:-demo}" && pwd)/bench-$rows-$groups
IMPCTL_STORE=$IMPCTL_DATA/store
SYNTHETIC_LIMIT=$((groups / 3))
export IMPCTL_DATA IMPCTL_STORE SYNTHETIC_LIMIT

if [[ ! -d $IMPCTL_DATA/synthetic/_delta_log ]]; then
  impctl bench --generate "$IMPCTL_DATA" --example synthetic --rows "$rows" --groups "$groups" --sorted
fi
impctl bench "$workloads/synthetic.yaml" --out "$IMPCTL_DATA/bench.json" --report "$IMPCTL_DATA/bench.html"
