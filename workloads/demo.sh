#!/usr/bin/env bash
# A dashboard over five million order lines, step by step: each command is shown, then run.
# Usage: demo.sh [FOLDER], the folder for the table and the store (default: demo; overwritten).
set -euo pipefail

workloads=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "${1:-demo}"
IMPCTL_DATA=$(cd "${1:-demo}" && pwd)
export IMPCTL_DATA
export IMPCTL_STORE=$IMPCTL_DATA/store
cd "$workloads/.."
file=workloads/orders.yaml

title() { printf '\n=== %s\n' "$*"; }
say() { printf '# %s\n' "$@"; }
show() { printf '\n$ %s\n' "${*//$PWD\//}"; }
run() { show "$@" && "$@"; }

compare() {
  show impctl rewrite $file --query "$1" --files files.json ">" query.sql
  impctl rewrite $file --query "$1" --files "$IMPCTL_DATA/files.json" >"$IMPCTL_DATA/query.sql"
  impctl query $file --query "$1" --out "$IMPCTL_DATA/answer.parquet" --quiet
  show python workloads/compare_with_duckdb.py orders query.sql files.json answer.parquet
  python workloads/compare_with_duckdb.py "$IMPCTL_DATA/orders" "$IMPCTL_DATA/query.sql" \
    "$IMPCTL_DATA/files.json" "$IMPCTL_DATA/answer.parquet"
}

began=$SECONDS
rm -rf "$IMPCTL_DATA/orders" "$IMPCTL_STORE"
say "Part 1 (about 30 seconds) needs no Spark. Part 2 (about 2 minutes) compares with Spark."

title "A table: 5,000,000 order lines in 1,000 files, appended by time"
run impctl bench --generate "$IMPCTL_DATA" --example orders

title "Before anything is captured: how many files would each query need?"
run impctl explain $file
title "Capture: find the ranges that each query needs, and keep its result"
run impctl capture $file

title "Query: from the materialized result, then by impctl's own engine, then in DuckDB"
run impctl query $file --query best_days
run impctl query $file --query best_days --by engine --quiet
compare best_days
compare large_orders

title "Another writer appends 1,000 rows"
run python workloads/append_orders.py "$IMPCTL_DATA/orders"
run impctl changes $file --query best_days
run impctl maintain $file
say "maintain read only the new rows. The result now has the new day:"
run impctl query $file --query best_days --format csv --quiet
run impctl why $file --query large_orders --row order_id=40745
compare best_days
compare large_orders
run impctl gain $file
say "Part 1 took $((SECONDS - began)) s."

title "Part 2: the same answers by Spark and by all other ways, in one warm process"
run impctl bench $file --query best_days --query large_orders --only ways --repeat 5 \
  --report "$IMPCTL_DATA/ways.html"
say "The demo took $((SECONDS - began)) s; its report is ${IMPCTL_DATA//$PWD\//}/ways.html." \
  "Next: \`impctl init TABLE\` writes a workload file for a Delta table of yours;" \
  "docs/first-steps.md continues from there."
