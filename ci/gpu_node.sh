#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Build and run one list on a machine with CUDA and no package registry:
#   ci/gpu_node.sh LIST PACKAGES OUT         for example: ci/gpu_node.sh l0_h200 packages results
#   ci/gpu_node.sh --gpus N PACKAGES OUT     the list of this machine's kind of GPU, as a machine with N of them runs it
# LIST is a context of test_lists/; PACKAGES, CUDNN_ROOT and NCCL_ROOT are what ci/gpu_build.sh says; OUT receives build.log
# and what `ckv lists run` writes. Ends inside nine minutes. STAGE is pre_merge unless set.
set -euo pipefail
cd "$(dirname "$0")/.."

usage="usage: ci/gpu_node.sh LIST|--gpus N PACKAGES OUT"
gpus=()
list=${1:?$usage}
if [ "$list" = --gpus ]; then
  count=${2:?$usage}
  gpus=(--set "system_gpu_count=$count")
  name=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
  list=l0_$([ "$count" -eq 1 ] || echo dgx_)$(grep -oiE 'h100|h200|b200' <<<"$name" | tr '[:upper:]' '[:lower:]')
  shift
fi
packages=${2:?$usage}
out=${3:?$usage}
deadline=$((SECONDS + 530))
mkdir -p "$out"
out=$(cd "$out" && pwd)

# shellcheck source=ci/gpu_build.sh
source ci/gpu_build.sh
gpu_environment "$packages"
gpu_build cuda "$out"

# cuDNN compiles on one CPU while the GPU idles, so cases share it. What has not ended by the deadline is ended and reported.
exec timeout --foreground $((deadline - SECONDS)) build/cuda/tools/ckv lists run --dir test_lists --context "$list" \
  --set stage="${STAGE:-pre_merge}" "${gpus[@]}" --build build/cuda --out "$out" --nonempty --gpu-slots 4
