#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measure everything `ckv bench` can on this machine, and write the figures into docs/benchmarks.md and README.md:
#   ci/bench.sh [PACKAGES] OUT      PACKAGES, CUDNN_ROOT and NCCL_ROOT are what ci/gpu_build.sh says
# OUT receives build.log, and NAME.json and NAME.txt of each measurement. Without a GPU the host is measured. The exchange
# between GPUs takes two of them; what torch does there is measured where $PYTHON (python3) has it. CKV, when it is set, is a
# program to measure instead of one built here. Ends inside nine minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

usage="usage: ci/bench.sh [PACKAGES] OUT"
packages=-
if [ $# -eq 2 ]; then
  packages=$1
  shift
fi
out=${1:?$usage}
deadline=$((SECONDS + 530))
mkdir -p "$out"
out=$(cd "$out" && pwd)
failed=0
names=(attention attention_fp8 attention_window attention_page attention_blocks chunk_cycle chunk_cycle_ranks chunk_cycle_2
  chunk_cycle_4 commit write exchange exchange_threads exchange_torch roofline roofline_ranks blocks)
for name in "${names[@]}"; do rm -f "$out/$name.json"; done # what an earlier run left is no result of this one

# shellcheck source=ci/gpu_build.sh
source ci/gpu_build.sh
if nvidia-smi -L >/dev/null 2>&1; then
  machine=gpu preset=cuda gpus=$(nvidia-smi -L | grep -c '^GPU')
else
  echo "bench: no GPU here, so the host is measured"
  machine=host preset=release gpus=0
  [ "$packages" != - ] || ci/deps
fi
ckv=${CKV:-build/$preset/tools/ckv}
gpu_environment "$packages"
[ -n "${CKV:-}" ] || gpu_build "$preset" "$out" ckv_program


run() { # NAME COMMAND...: what it writes becomes NAME.txt, inside what time is left
  local name=$1 started=$SECONDS
  shift
  if [ $((deadline - SECONDS)) -lt 10 ]; then
    echo "bench: $name: no time is left"
    failed=1
  elif timeout --foreground $((deadline - SECONDS)) "$@" >"$out/$name.txt" 2>&1; then
    echo "bench: $name: $((SECONDS - started)) s"
  else
    echo "bench: $name FAILED"
    tail -n 20 "$out/$name.txt"
    failed=1
  fi
}
measure() { # NAME ARGUMENT...
  run "$1" "$ckv" bench "${@:2}" --json "$out/$1.json"
}
measure_ranks() { # NAME RANKS ARGUMENT...
  run "$1" ci/ranks "$2" "$ckv" bench "${@:3}" --json "$out/$1.json"
}

few=() shape=()
[ "$machine" = host ] || few=(--runs 10) shape=(--runs 10 --graph)
measure attention attention
[ "$machine" = host ] || measure attention_fp8 attention --backend hopper --pages fp8_e4m3
measure chunk_cycle chunk-cycle
measure commit commit
measure write write
if [ "$machine" = host ]; then
  measure_ranks exchange 2 exchange
  measure exchange_threads exchange
elif [ "$gpus" -ge 2 ]; then
  measure_ranks exchange "$gpus" exchange
  measure_ranks roofline_ranks "$gpus" roofline "${few[@]}"
  measure_ranks chunk_cycle_ranks "$gpus" chunk-cycle
  for ranks in 2 4; do [ "$ranks" -ge "$gpus" ] || measure_ranks "chunk_cycle_$ranks" "$ranks" chunk-cycle; done
  if "${PYTHON:-python3}" -c 'import torch' 2>/dev/null; then
    run exchange_torch "${PYTHON:-python3}" bench/torch_exchange.py --json "$out/exchange_torch.json"
  fi
fi
measure roofline roofline "${few[@]}"
for sweep in window page blocks; do measure "attention_$sweep" attention --sweep "$sweep" "${shape[@]}"; done
measure blocks blocks --device host --runs 21

ci/bench_docs "$ckv" "$machine" "$out"
exit $failed
