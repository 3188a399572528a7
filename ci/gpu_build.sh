#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# To be sourced by what builds and runs on a machine without a package registry:
#   gpu_environment PACKAGES           a folder of Debian packages to unpack (CMocka, libyaml, jansson; libraries and headers),
#                                      or - when they are installed; leaves the environment in which programs are built and run
#   gpu_build PRESET OUT [TARGET...]   OUT receives build.log; no TARGET means all. Preset cuda: for this machine's kind of
#                                      GPU only. Exits 3 when it does not build
# CUDNN_ROOT and NCCL_ROOT name other copies than the system's.

unpack_packages() { # FOLDER
  local prefix=$PWD/build/packages lib package
  mkdir -p "$prefix"
  for package in "$1"/*.deb; do dpkg -x "$package" "$prefix"; done
  lib=$prefix/usr/lib/$(gcc -print-multiarch)
  # The .pc files say where Debian would have put them; say where they are.
  sed -i "s#^prefix=/usr\$#prefix=$prefix/usr#; s#=/usr/#=$prefix/usr/#" "$lib"/pkgconfig/*.pc
  export PKG_CONFIG_PATH=$lib/pkgconfig CMAKE_PREFIX_PATH=$prefix/usr
  export LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} LIBRARY_PATH=$lib C_INCLUDE_PATH=$prefix/usr/include
}

gpu_environment() {
  local root
  [ "$1" = - ] || unpack_packages "$1"
  for root in "${CUDNN_ROOT:-}" "${NCCL_ROOT:-}"; do
    [ -z "$root" ] || export LD_LIBRARY_PATH=$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  done
  export NCCL_NVLS_ENABLE=0
}

gpu_build() {
  local preset=$1 out=$2 capability options=()
  shift 2
  if [ "$preset" = cuda ]; then
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
    options=(-DCMAKE_CUDA_ARCHITECTURES="$capability$([ "$capability" -lt 90 ] || echo a)")
  fi
  if ! { cmake --preset "$preset" "${options[@]}" && cmake --build --preset "$preset" ${1:+--target "$@"}; } >"$out/build.log" 2>&1; then
    tail -n 60 "$out/build.log"
    exit 3
  fi
  echo "built in $SECONDS s"
}
