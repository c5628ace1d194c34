#!/usr/bin/env bash
# The examples through the real command line: each command is shown, then run.
# Usage: demo.sh [FOLDER], the folder for tables and sketches (default: demo; written anew).
set -euo pipefail

workloads=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "${1:-demo}"
IMPCTL_DATA=$(cd "${1:-demo}" && pwd)
export IMPCTL_DATA
cd "$workloads/.."

title() { printf '\n=== %s\n' "$*"; }
say() { printf '# %s\n' "$@"; }

keep() {
  export IMPCTL_STORE=$IMPCTL_DATA/store/$1
  printf '\n$ export IMPCTL_DATA=%q IMPCTL_STORE=%q\n' "$IMPCTL_DATA" "$IMPCTL_STORE"
}

run() {
  printf '\n$ %s\n' "${*//$PWD\//}"
  "$@"
}

title "Seven sales: which price ranges does the query need?"
rm -rf "$IMPCTL_DATA/sales" "$IMPCTL_DATA/store"
keep running-example
file=workloads/running-example.yaml
run impctl bench --generate "$IMPCTL_DATA" --example running
run impctl check $file
run impctl capture $file
say "{2, 3}: the ranges that the answer stems from, counted from 0; the whole is the sketch." \
  "rests on: facts about the data that make it safe, looked at again after every change."
run impctl apply $file s8
run impctl maintain $file
say "The change alone was read; the new sale brings in range 1. Nothing was captured anew."
run impctl rewrite $file --query q_top
run impctl query $file --query q_top
run impctl verify $file --results
say "slack: ranges of the stored sketch beyond those that capturing anew finds."

title "A million rows in 5,000 groups: what does the sketch save?"
rm -rf "$IMPCTL_DATA/synthetic"
keep synthetic
file=workloads/synthetic.yaml
run impctl bench --generate "$IMPCTL_DATA" --example synthetic --rows 1000000 --groups 5000 --sorted
run impctl capture $file --query q_avg
run impctl apply $file three-rows one-group
run impctl maintain $file --query q_avg
run impctl rewrite $file --query q_avg
run impctl bench $file --query q_avg --only changes --only skipping --report "$IMPCTL_DATA/bench.html"
say "recapture ratio: time to recapture (sketch only, Spark warm) over time to maintain, reading and commit" \
  "included. What the query saves: a million rows are few, most of its time is Spark's own either way." \
  "The page has every number, and what DuckDB takes."
run impctl status $file --query q_avg

if [[ -n ${IMPCTL_CRIMES:-} ]]; then
  title "Real data: reported incidents of a city, a batch a day"
  rm -rf "$IMPCTL_DATA/crimes" "$IMPCTL_DATA/crimes-batches"
  keep crimes
  file=workloads/crimes.yaml
  run impctl bench --generate "$IMPCTL_DATA" --example crimes
  run impctl capture $file
  run impctl apply $file day-1 day-2 day-3
  run impctl maintain $file
  run impctl query $file --query q_arrest_rate
  run impctl verify $file
else
  echo
  say "A third part, on real data, runs where IMPCTL_CRIMES names a file (docs/tutorial.md)."
fi

title "Done: every step worked"
say "Tables and sketches are in ${IMPCTL_DATA//$PWD\//}/; remove that folder when you are through. Go on with" \
  "  . .venv/bin/activate && export IMPCTL_DATA=$IMPCTL_DATA IMPCTL_STORE=$IMPCTL_DATA/store/synthetic" \
  "  impctl query workloads/synthetic.yaml --query q_avg --limit 5    # these tables, by these sketches" \
  "  . .venv/bin/activate && impctl init --demo    # a small example, typed by hand (README.md)" \
  "  impctl init PATH/TO/DELTA_TABLE               # a workload file for your own table"
