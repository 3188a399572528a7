#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Build and run one list on a machine with CUDA and no package registry:
#   ci/gpu_node.sh LIST PACKAGES OUT         for example: ci/gpu_node.sh l0_h200 packages results
#   ci/gpu_node.sh --gpus N PACKAGES OUT     the list of this machine's kind of GPU, as a machine with N of them runs it
# LIST is a context of test_lists/; PACKAGES a folder of Debian packages to unpack (CMocka, libyaml, jansson; libraries and
# headers), or - when they are installed; OUT receives build.log and what `ckv lists run` writes. Ends inside nine minutes.
# CUDNN_ROOT and NCCL_ROOT name other copies than the system's; STAGE is pre_merge unless set.
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
mkdir -p "$out" build
out=$(cd "$out" && pwd)

if [ "$packages" != - ]; then
  prefix=$PWD/build/packages
  mkdir -p "$prefix"
  for package in "$packages"/*.deb; do dpkg -x "$package" "$prefix"; done
  lib=$prefix/usr/lib/$(gcc -print-multiarch)
  # The .pc files say where Debian would have put them; say where they are.
  sed -i "s#^prefix=/usr\$#prefix=$prefix/usr#; s#=/usr/#=$prefix/usr/#" "$lib"/pkgconfig/*.pc
  export PKG_CONFIG_PATH=$lib/pkgconfig CMAKE_PREFIX_PATH=$prefix/usr
  export LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} LIBRARY_PATH=$lib C_INCLUDE_PATH=$prefix/usr/include
fi
for root in "${CUDNN_ROOT:-}" "${NCCL_ROOT:-}"; do
  [ -z "$root" ] || export LD_LIBRARY_PATH=$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export NCCL_NVLS_ENABLE=0

# One architecture is enough on a machine that has it.
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
if ! { cmake --preset cuda -DCMAKE_CUDA_ARCHITECTURES="${capability}a" && cmake --build --preset cuda; } >"$out/build.log" 2>&1; then
  tail -n 60 "$out/build.log"
  exit 3
fi
echo "built in $SECONDS s"

# cuDNN compiles on one CPU while the GPU idles, so cases share it. What has not ended by the deadline is ended and reported.
exec timeout --foreground $((deadline - SECONDS)) build/cuda/tools/ckv lists run --dir test_lists --context "$list" \
  --set stage="${STAGE:-pre_merge}" "${gpus[@]}" --build build/cuda --out "$out" --nonempty --gpu-slots 4
