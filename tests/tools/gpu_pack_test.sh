#!/bin/bash
# The pack of tools/gpu_pack.sh is small enough, and tools/gpu_check.sh runs all of it from there
# where there is no GPU, no compiler and no source: every part gets as far as to need a GPU, and says
# so. Usage: gpu_pack_test.sh SOURCES BUILD
set -eu
sources=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  cat "$work/out"
  echo "FAILED: $1"
  exit 1
}
"$sources/tools/gpu_pack.sh" "$build" "$work/pack.tar.gz" >"$work/out"
bytes=$(stat -c %s "$work/pack.tar.gz")
[ "$bytes" -lt $((60 << 20)) ] || fail "the pack has $bytes bytes"

# Substitutes for cuDNN, NCCL and cublasLt are enough to start with.
tar -xzf "$work/pack.tar.gz" -C "$work"
for program in 'contraflow_gpu_test --list-test-cases' 'bench_gpu --list' 'contraflow-run-cuda --version' 'probe_nccl --help'; do
  read -r name option <<<"$program"
  LD_LIBRARY_PATH=$work/lib:$work/lib/no-cudnn:$work/lib/no-nccl:$work/lib/no-cublasLt "$work/bin/$name" "$option" \
    >"$work/out" 2>&1 || fail "$name does not start without libraries"
done

mkdir "$work/path"
for program in awk bash cat cp cut date dirname env grep head ldd ls mkdir mktemp mv nproc paste python3 readlink rm sed \
  sleep sort stat tail tar gzip tee timeout tr uname; do
  [ ! -e "/usr/bin/$program" ] || ln -s "/usr/bin/$program" "$work/path"
done
mkdir "$work/alone"
mv "$work/tools/gpu_check.sh" "$work/pack.tar.gz" "$work/alone"
code=0
env -i PATH="$work/path" CUDA_VISIBLE_DEVICES= "$work/alone/gpu_check.sh" >"$work/out" 2>&1 || code=$?
[ $code = 77 ] || fail "exit code $code, not 77"
parts() { grep -c "$1" "$work/alone/gpu_check/results.jsonl" || true; }
[ "$(parts '{"part":"libraries","status":"ok"')" = 1 ] || fail "a library is missing"
[ "$(parts '"status":"SKIP","reason":"[^"]')" = $(($(parts .) - 1)) ] || fail "not all is skipped"
[ "$(parts '"part":"case-')" -gt 70 ] || fail "cases are missing"
[ "$(parts '"part":"nccl-one-gpu ')" = 9 ] || fail "forms of NCCL are missing"
[ "$(parts '"part":"gradients-')" = 10 ] || fail "gradients are missing"
[ "$(parts '"part":"[a-z0-9-]*-[48]-\(8\|16\)"')" = 9 ] || fail "schedules are missing"
tail -n 1 "$work/out"
