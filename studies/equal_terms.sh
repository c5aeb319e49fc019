#!/usr/bin/env bash
# 2D regression on equal terms: one search for every row, then every row trained and scored on both ranges of inputs.
#
#   studies/equal_terms.sh search FOLDER [SECONDS] [AT_ONCE]    finishes with FOLDER/chosen.json, put into the package too
#   studies/equal_terms.sh train FOLDER [SECONDS] [AT_ONCE]     finishes with FOLDER/rows.jsonl: a line for each row and range
#
# Both go on where they were stopped; rows that take long come first. TRIALS, TASKS, ROUNDS, INNER, STEPS and ROWS change
# the budget; RANGES="0_5 -5_5" the ranges to train on.
set -u
stage=$1 folder=$2 seconds=${3:-570} at_once=${4:-6}
rows=${ROWS:-bmaml maml-attention anp tnp mmaml platipus st-maml st-maml-without-tailoring st-maml-without-augmentation st-maml-deterministic arml hsml np meta-sgd maml cnp}
export XLA_PYTHON_CLIENT_PREALLOCATE=false TF_CPP_MIN_LOG_LEVEL=3 PYTHONUNBUFFERED=1
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" python=${PYTHON:-python3} folder
export trials=${TRIALS:-24} tasks=${TASKS:-150000} rounds=${ROUNDS:-2} steps=${STEPS:-50000} inner=${INNER:-5 10}
export deadline=$(($(date +%s) + seconds))
mkdir -p "$folder/logs"

limited() { # the command, asked to stop at the deadline and killed soon after
  local left=$((deadline - $(date +%s)))
  ((left > 5)) && timeout -k 15 "$left" "$@"
}
search_row() {
  # shellcheck disable=SC2086
  limited "$python" -m stmaml search regression2d --method "$1" --trials "$trials" --tasks "$tasks" --rounds "$rounds" \
    --inner-steps $inner --out "$folder/search" >"$folder/logs/search-$1.json" 2>"$folder/logs/search-$1.log"
}
train_row() { # RANGE:ROW
  local range=${1%%:*} row=${1#*:}
  # shellcheck disable=SC2086
  limited "$python" -m stmaml reproduce regression2d --budget paper --rows "$row" --steps "$steps" --json \
    --input-range ${range/_/ } --out "$folder/$range" >"$folder/logs/$range-$row.json" 2>"$folder/logs/$range-$row.log"
}
export -f limited search_row train_row

if [ "$stage" = search ]; then
  printf '%s\n' $rows | xargs -P "$at_once" -I{} bash -c 'search_row {}'
  "$python" -m stmaml search regression2d --out "$folder/search" --collect "$folder/chosen.json" &&
    cp "$folder/chosen.json" src/stmaml/recipes/searched/regression2d.json
  cat "$folder"/logs/search-*.json
else
  for row in $rows; do for range in ${RANGES:-0_5 -5_5}; do echo "$range:$row"; done; done |
    xargs -P "$at_once" -I{} bash -c 'train_row {}'
  for file in "$folder"/logs/*_5-*.json; do
    name=$(basename "$file" .json)
    sed "s/^{/{\"range\": \"${name%%_5-*}_5\", /" "$file"
  done >"$folder/rows.jsonl"
  cat "$folder/rows.jsonl"
fi
