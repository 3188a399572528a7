#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a merge must pass on this machine: build, check the lists, run one of them.
#   ci/premerge.sh LIST [PRESET] [OPTION...]     l0_cpu on any machine, l0_h200 on one GPU, l0_dgx_h200 on several
# PRESET is cpu for l0_cpu and cuda for the others, unless given; OPTIONs go to `ckv lists run`. STAGE is pre_merge (tsan
# for the preset tsan) unless set; OUT, the folder of junit.xml, events.jsonl and logs, is build/PRESET/results.
set -euo pipefail
cd "$(dirname "$0")/.."

list=${1:?usage: ci/premerge.sh LIST [PRESET] [OPTION...]}
preset=${2:-$([ "$list" = l0_cpu ] && echo cpu || echo cuda)}
shift $(($# < 2 ? $# : 2))
build=build/$preset
stage=pre_merge
ci/deps
ci/build "$preset"

# Lists and cases must match both ways. Sanitizer builds leave parts out (tsan: MPI), so the lists name more than they have.
case $preset in
  asan) set -- --partial "$@" ;;
  tsan) stage=tsan && set -- --partial "$@" ;;
  *) "$build/tools/ckv" lists check --dir test_lists --tests "$build/test_cases.txt" ;;
esac
exec "$build/tools/ckv" lists run --dir test_lists --context "$list" --set stage="${STAGE:-$stage}" \
  --build "$build" --out "${OUT:-$build/results}" --nonempty "$@"
