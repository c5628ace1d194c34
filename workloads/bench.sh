#!/usr/bin/env bash
# Maintaining against recapture on the synthetic table, a line per query and size of change.
# Usage: bench.sh [FOLDER] [ROWS] [GROUPS], the folder for the table (default: demo 10000000 5000).
set -euo pipefail

workloads=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
rows=${2:-10000000}
groups=${3:-5000}
mkdir -p "${1:-demo}"
IMPCTL_DATA=$(cd "${1:-demo}" && pwd)/bench-$rows-$groups
IMPCTL_STORE=$IMPCTL_DATA/store
SYNTHETIC_LIMIT=$((groups / 3))
export IMPCTL_DATA IMPCTL_STORE SYNTHETIC_LIMIT

if [[ ! -d $IMPCTL_DATA/synthetic/_delta_log ]]; then
  impctl bench --generate "$IMPCTL_DATA" --example synthetic --rows "$rows" --groups "$groups" --sorted
fi
impctl bench "$workloads/synthetic.yaml" \
  --delta-rows 10 --delta-rows 1000 --delta-rows 100000 --repeat 5
