#!/bin/sh
# tools/gpu_check.sh with stand-ins for the GPU and for what is built: every part is run and reported,
# one that fails or is skipped as such, and the exit code says so. Usage: gpu_check_test.sh SOURCES
set -eu
sources=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin" "$work/tools" "$work/tests/runtime/gpu" "$work/build/cuda/tools" "$work/build/cuda/tests"
cp "$sources/tools/gpu_check.sh" "$work/tools/"

stand_in() { # FILE LINE...: a program
  file=$work/$1
  shift
  printf '#!/bin/sh\n' >"$file"
  printf '%s\n' "$@" >>"$file"
  chmod +x "$file"
}
fail() {
  cat "$work/out"
  echo "FAILED: $1"
  exit 1
}
check() { # WANTED EXIT CODE
  code=0
  PATH="$work/bin:/usr/bin:/bin" "$work/tools/gpu_check.sh" >"$work/out" 2>&1 || code=$?
  [ "$code" = "$1" ] || fail "exit code $code, not $1"
}
shows() { grep -q "$1" "$work/out" || fail "does not say: $1"; }

stand_in bin/nvidia-smi 'exit 9'
check 77
shows '^SKIP: nvidia-smi finds no GPU here'

stand_in bin/nvidia-smi 'echo a GPU'
stand_in bin/cmake 'exit 0'
stand_in bin/compute-sanitizer 'exit 0'
stand_in build/cuda/tools/bench_gpu 'echo "figures of $*"'
stand_in build/cuda/tools/contraflow 'exit 0'
stand_in build/cuda/tools/contraflow-run 'echo "weights 1234"'
stand_in build/cuda/tests/contraflow_gpu_test 'exit 0'
stand_in tests/runtime/gpu/nccl_one_gpu_test.sh 'echo "SKIP: no sockets"' 'exit 77'
check 0
for part in configure build kernels schedules kernel-tests gradients sanitizer-memcheck \
  sanitizer-racecheck sanitizer-synccheck; do
  shows "^$part  *ok, "
done
shows '^nccl-one-gpu  *SKIP: no sockets'
shows '^figures of kernels host'
shows '^figures of schedules'

# Another digest every time.
stand_in build/cuda/tools/contraflow-run 'echo "weights $$"'
check 1
shows '^gradients  *FAILED with 1'
stand_in build/cuda/tools/contraflow-run 'echo "no such device"; exit 3'
check 1
shows '^gradients  *FAILED with 3'
shows '^sanitizer-memcheck  *ok, '
rm "$work/bin/compute-sanitizer"
check 1
shows '^sanitizer  *SKIP: no compute-sanitizer'
stand_in bin/cmake 'echo "no CUDA"; exit 1'
check 1
shows '^configure  *FAILED with 1'
