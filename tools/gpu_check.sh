#!/usr/bin/env bash
# Everything that needs a GPU, in one call of less than 9 minutes: builds, tests every kernel against
# its reference, checks gradients of whole steps, looks for races and bad accesses with
# compute-sanitizer, runs NCCL with several processes on the one GPU, times every kernel and the
# schedules. Prints what each part came to, and one table of figure, target and ratio; what could not
# be done is a SKIP with its reason. Logs stay in build/gpu_check (or the folder given).
#
#   tools/gpu_check.sh [folder for the logs]
#
# Libraries in unusual places: set CMAKE_PREFIX_PATH. Exit code 0: nothing failed; 1: something
# did, or there was no time for it; 77: there is no GPU.
set -u
cd "$(dirname "$0")/.." || exit 1
logs=${1:-build/gpu_check}
build=build/cuda
limit=540
mkdir -p "$logs"
results=$logs/results.txt
: >"$results"
failed=0

left() { echo $((limit - SECONDS)); }
note() { printf '%-34s %s\n' "$1" "$2" | tee -a "$results"; }

# part NAME SECONDS COMMAND...: at most so long, and no longer than what is left.
part() {
  local name=$1 most=$2 began=$SECONDS code
  shift 2
  [ "$(left)" -lt "$most" ] && most=$(left)
  if [ "$most" -lt 10 ]; then
    note "$name" "SKIP: no time left of $limit s"
    failed=1
    return 1
  fi
  timeout -k 5 "$most" bash -c '"$@"' part "$@" >"$logs/$name.log" 2>&1
  code=$?
  case $code in
    0) note "$name" "ok, $((SECONDS - began)) s" ;;
    77) note "$name" "$(grep -m 1 SKIP "$logs/$name.log" | cut -c 1-100)" ;;
    124 | 137) note "$name" "FAILED: took more than $most s, see $logs/$name.log" ;;
    *) note "$name" "FAILED with $code, see $logs/$name.log" ;;
  esac
  if [ $code -ne 0 ] && [ $code -ne 77 ]; then
    failed=1
    tail -n 5 "$logs/$name.log"
  fi
  return $code
}

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
  echo "SKIP: nvidia-smi finds no GPU here"
  exit 77
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

part configure 60 cmake --preset cuda || exit 1
part build 300 cmake --build "$build" -j "$(nproc)" \
  --target contraflow contraflow-run contraflow-run-cuda contraflow_gpu_test bench_gpu || exit 1
tool=$build/tools
kernel_tests=$build/tests/contraflow_gpu_test

# A figure of a kernel that is wrong means nothing.
part kernel-tests 60 "$kernel_tests"

# Gradients of whole steps: virtual ranks against the one-rank run on the GPU, bit for bit, and
# against the CPU. `part` starts them in a shell of their own.
# shellcheck disable=SC2317
plan() { # SCHEDULE RANKS EP NAME
  "$tool/contraflow" compile --schedule "$1" --ranks "$2" --microbatches 8 --costs moe-unit \
    --expert-parallel "$3" --level buffer --model default --device cuda -o "$logs/$4.json"
}
# shellcheck disable=SC2317
gradients() {
  local schedule digest="" other
  for schedule in 1f1b zb-1p dualpipe; do
    plan "$schedule" 4 1 "$schedule" || return
    "$tool/contraflow-run" "$logs/$schedule.json" --device cuda --steps 3 --check || return
    "$tool/contraflow-run" "$logs/$schedule.json" --device cuda --steps 3 --no-graph --check ||
      return
  done
  plan dualpipe 4 2 groups || return
  "$tool/contraflow-run" "$logs/groups.json" --device cuda --steps 2 --check || return
  # Again: the same bits.
  digest=$("$tool/contraflow-run" "$logs/dualpipe.json" --device cuda --steps 3 | grep weights)
  other=$("$tool/contraflow-run" "$logs/dualpipe.json" --device cuda --steps 3 | grep weights)
  echo "$digest"
  [ -n "$digest" ] && [ "$digest" = "$other" ]
}
export tool logs
export -f plan gradients
part gradients 60 gradients

part kernels 90 "$tool/bench_gpu" kernels host
part schedules 120 "$tool/bench_gpu" schedules
part nccl-one-gpu 60 tests/runtime/gpu/nccl_one_gpu_test.sh "$tool/contraflow" "$tool/contraflow-run"

if command -v compute-sanitizer >/dev/null; then
  # shellcheck disable=SC2317
  sanitize() { # TOOL
    plan dualpipe 2 1 small || return
    compute-sanitizer --tool "$1" --error-exitcode 9 "$tool/contraflow-run-cuda" \
      "$logs/small.json" --device cuda --steps 1 --no-graph
  }
  export -f sanitize
  for check in memcheck racecheck synccheck; do
    part "sanitizer-$check" 60 sanitize $check
  done
else
  note sanitizer "SKIP: no compute-sanitizer on the PATH"
fi

printf '\n'
cat "$results"
for log in kernels schedules; do
  [ -s "$logs/$log.log" ] && printf '\n' && cat "$logs/$log.log"
done
printf '\n%s s in all\n' "$SECONDS"
exit $failed
