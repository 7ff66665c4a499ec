#!/bin/bash
# tools/gpu_check.sh with stand-ins for all that it runs: every part is reported, one that fails, hangs or
# is skipped as such, and none changes what is reported of the others. Usage: gpu_check_test.sh SOURCES
# shellcheck disable=SC2016  # lines of stand-ins
set -eu
sources=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/path" "$work/bin" "$work/tools" "$work/tests/runtime/nccl"
cp "$sources/tools/gpu_check.sh" "$work/tools"

stand_in() { # FILE LINE...: a program
  local file=$work/$1
  shift
  printf '#!/bin/bash\n' >"$file"
  printf '%s\n' "$@" >>"$file"
  chmod +x "$file"
}
fail() {
  cat "$work/out" "$work/dir/results.jsonl"
  echo "FAILED: $1"
  exit 1
}
check() { # WANTED EXIT CODE, ARGUMENT...
  local code=0 wanted=$1
  shift
  tar -czf "$work/pack.tar.gz" -C "$work" bin tests
  env -i PATH="$work/path:/usr/bin:/bin" HOME="$work" "$work/tools/gpu_check.sh" "$@" \
    --out "$work/dir" --pack "$work/pack.tar.gz" >"$work/out" 2>&1 </dev/null || code=$?
  [ "$code" = "$wanted" ] || fail "exit code $code, not $wanted"
  # Complete JSON, a line each.
  text='"([^"\\]|\\["\\])*"' number='(-?[0-9][0-9.e+-]*|null)'
  ! grep -n -v -E -e "^\{\"part\":$text,\"status\":\"(ok|FAILED|SKIP)\",\"reason\":$text,\"seconds\":[0-9]+\}\$" \
    -e "^\{\"part\":$text,\"figure\":$text,\"value\":$number,\"unit\":$text,\"target\":$number,\"ratio\":$number\}\$" \
    "$work/dir/results.jsonl" || fail "not JSON"
}
# Results of a part: its status and reason, without the time.
results() { sed -n 's/,"seconds":[0-9]*}$//p' "$work/dir/results.jsonl" | sort; }
shows() { results | grep -q -F -e "$1" || fail "does not say: $1"; }
same_but() { # PATTERN CALL: nothing else is reported otherwise than where all is well
  [ "$(results | grep -v -e "$1")" = "$(grep -v -e "$1" "$work/well-$2")" ] ||
    fail "another part than $1 is reported otherwise"
}

cases=(experts:\ rows 'experts: "odd" \ names' attention:\ rows norms:\ one)
stand_in bin/contraflow_gpu_test 'case $1 in' \
  '  --list-test-cases)' \
  "    printf '%s\n' '[doctest] listing: all' ===== $(printf '%q ' "${cases[@]}") ;;" \
  '  *) echo "$@" ;;' 'esac'
# A plan is trained with the model for which it was compiled.
stand_in bin/contraflow 'echo " $* " >"${@: -1}"'
stand_in bin/contraflow-run 'model=$(sed -n "s/.* --model \([^ ]*\) .*/\1/p" "$1")' \
  '[ "${model:-default}" = default ] || [[ "$*" == *"--model $model "* ]] || { echo "error: not $model"; exit 1; }' \
  'echo "weights: SHA-256 1234; gradients are within 2.5e-03 of the host'"'"'s"' \
  'for word; do case $before in --jsonl) rows=$word ;; --matmul-choices) ms=2.5 ;; esac; before=$word; done' \
  '[ -z "${rows-}" ] || printf "{\"step\": %s, \"ms\": %s, \"x\": 0}\n" 1 9 2 "${ms:-3}" 3 4 >"$rows"'
stand_in bin/contraflow-run-cuda 'exit 0'
stand_in bin/bench_gpu \
  'if [ $1 = --gpu ]; then echo "a GPU, 132 SMs"; exit; fi' \
  'if [ $1 = --list ]; then printf "%s\n" partitions experts norms dualpipe-4-16; exit; fi' \
  'echo "{\"part\":\"$1\",\"figure\":\"of $1\",\"value\":1,\"unit\":\"\",\"target\":2.5,\"ratio\":0.4}" >>"$3"'
stand_in bin/probe_nccl 'exit 0'
stand_in path/compute-sanitizer 'exit 0'
stand_in path/ncu 'cat <<END
  void contraflow::GroupedKernel<1>(int) (132, 1, 1)x(384, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    DRAM Throughput           %        45.10
    Compute (SM) Throughput   %        83.20
END'
stand_in path/nvidia-smi 'echo a GPU'
stand_in path/python3 '[[ $1 != */tests/python/torch_gpu.py ]] || { [ "$3" = --json ] && exit; }' 'exec /usr/bin/python3 "$@"'
stand_in path/ldd 'exit 0'
stand_in tests/runtime/nccl/nccl_one_gpu_test.sh 'echo "SKIP: no sockets"' 'exit 77'

check 0
results >"$work/well"
part_of_both='"part":"\(gpu\|libraries\)"'
for part in libraries partitions probe-nccl gradients-{dualpipe,zb-1p,1f1b,real-size,groups,clipped} repeats resumed custom-stages \
  gradients-dualpipe-streams torch 'memcheck experts' 'racecheck step' experts norms dualpipe-4-16 ncu-experts; do
  shows "{\"part\":\"$part\",\"status\":\"ok\""
done
shows '{"part":"gpu","status":"ok","reason":"a GPU, 132 SMs; targets are '
shows '{"part":"case-1 experts: rows","status":"ok"'
shows '{"part":"case-2 experts: \"odd\" \\ names","status":"ok"'
shows '{"part":"repeats","status":"ok","reason":"weights: SHA-256 1234; '
shows '{"part":"matmul-choices","status":"ok"'
shows '{"part":"nccl-one-gpu graph","status":"SKIP","reason":"no sockets"'
grep -q '"figure":"of experts"' "$work/dir/results.jsonl" || fail "no figure of the benchmark"
grep -q '"figure":"dualpipe: largest difference from the CPU","value":2.5e-03,"unit":"","target":0.01,"ratio":4}' \
  "$work/dir/results.jsonl" || fail "no figure of the gradients"
grep -q '"figure":"GroupedKernel, launch 1: Compute throughput","value":83.20,"unit":"%","target":80,"ratio":1.04}' \
  "$work/dir/results.jsonl" || fail "no figure of ncu"
grep -q "\"figure\":\"fastest step with timed products, against cublasLt's estimate\",\"value\":2.5,\"unit\":\"ms\",\"target\":3,\"ratio\":1.2}" \
  "$work/dir/results.jsonl" || fail "no figure of chosen products"
grep -q '^== norms: ok' "$work/dir/log.txt" || fail "no log of a part"
# Probes first, and what is slow or of value before the rest.
order() { grep -o '"part":"[^"]*","status"' "$work/dir/results.jsonl" | cut -d '"' -f 4 | tr '\n' ' '; }
[[ $(order) == 'gpu libraries partitions '*'probe-nccl '*' experts '*' dualpipe-4-16 '*' ncu-experts norms '* ]] ||
  fail "the order is $(order)"

# The pack unpacked in odd places, by another shell: the same.
mkdir -p "$work/an other/"{tools,lib,lists,share} "$work/an other/my tmp" "$work/linked"
cp -r "$work/bin" "$work/tests" "$work/an other"
cp "$work/tools/gpu_check.sh" "$work/an other/tools"
touch "$work/an other/version"
"$work/bin/contraflow_gpu_test" --list-test-cases >"$work/an other/lists/cases"
"$work/bin/bench_gpu" --list >"$work/an other/lists/families"
ln -s "../an other/tools/gpu_check.sh" "$work/linked/a link"
# The folder of the driver, which only the environment knows.
stand_in path/ldd '[[ $LD_LIBRARY_PATH == *:/the/driver:* ]] || echo "libcuda.so.1 => not found"'
code=0
(cd "$work" && env -i PATH="$work/path:/usr/bin:/bin" LD_LIBRARY_PATH=/the/driver TMPDIR="an other/my tmp" CDPATH="$work" \
  LC_ALL=C.UTF-8 sh "linked/a link" --out "an other/out put") >"$work/out" 2>&1 </dev/null || code=$?
[ $code = 0 ] || fail "exit code $code in odd places"
cp "$work/an other/out put/"* "$work/dir"
results | cmp -s - "$work/well" || fail "in odd places something else is reported"
[ -z "$(ls "$work/an other/my tmp")" ] || fail "something is left in TMPDIR"
stand_in path/ldd 'exit 0'

# One call at a time.
check 0 speed
! results | grep -q gradients || fail "gradients in a check of speed"
results >"$work/well-speed"
{ grep "$part_of_both" "$work/well" && grep -v -x -F -f "$work/well-speed" "$work/well"; } |
  sort >"$work/well-correctness"

# Some parts only.
check 0 correctness --only '^(repeats|case-1 )'
[ "$(results | grep -c '"part":"\(case-1 experts: rows\|repeats\)"')" = 2 ] || fail "--only leaves out what it names"
! results | grep -q '"part":"\(gradients\|case-2\)' || fail "--only has more than it names"
# A case that crashes, and one that hangs, with a child that outlives it.
cp "$work/bin/contraflow_gpu_test" "$work/good_test"
stand_in bin/contraflow_gpu_test 'case $1 in' \
  '  --test-case=experts:\ rows) echo "what it said"; kill -SEGV $$ ;;' \
  '  --test-case=norms:\ one) sleep 1000 & sleep 1000 ;;' \
  "  *) exec $work/good_test \"\$@\" ;;" 'esac'
sed -i 's/^case_limit=.*/case_limit=4/' "$work/tools/gpu_check.sh"
check 1 correctness
sed -i 's/^case_limit=.*/case_limit=40/' "$work/tools/gpu_check.sh"
! results | grep -q '"norms"' || fail "kernels are timed in a check of correctness"
shows '{"part":"case-1 experts: rows","status":"FAILED","reason":"ended by SIGSEGV: what it said'
shows '{"part":"case-4 norms: one","status":"FAILED","reason":"took more than 4 s"'
same_but '"case-[14] ' correctness
cp "$work/good_test" "$work/bin/contraflow_gpu_test"

# No cuDNN and no NCCL: something stands for them, and only that is reported.
stand_in path/ldd '[[ $LD_LIBRARY_PATH == */no-cudnn:*/no-nccl ]] ||' \
  '  printf "%s => not found\n" libcudnn.so.9 libnccl.so.2'
check 1 speed
shows '{"part":"cudnn","status":"FAILED","reason":"there is no libcudnn.so.9'
shows '{"part":"nccl","status":"FAILED","reason":"there is no libnccl.so.2'
same_but '"part":"\(cudnn\|nccl\)"' speed
stand_in path/ldd 'exit 0'

# A library that is missing, also where ldd fails on another program.
for code in 0 1; do
  stand_in path/ldd 'echo "libodd.so.1 => not found"' "exit $code"
  check 1 speed
  shows '{"part":"libraries","status":"FAILED","reason":"exit code 1: libodd.so.1 => not found"'
  same_but "$part_of_both" speed
done
stand_in path/ldd 'exit 1'
check 1 speed
shows '{"part":"libraries","status":"FAILED","reason":"exit code 1: error: ldd cannot read each program"'
stand_in path/ldd 'exit 0'

# A GPU that cannot be asked, and a program that no signal but KILL ends.
cp "$work/bin/bench_gpu" "$work/good_bench"
stand_in bin/bench_gpu 'case $1 in' \
  '  --gpu) trap "" TERM; while :; do sleep 0.1; done ;;' \
  "  *) exec $work/good_bench \"\$@\" ;;" 'esac'
sed -i -e 's/^probe_limit=.*/probe_limit=1/' -e 's/timeout -k 5 $probe/timeout -k 1 $probe/' "$work/tools/gpu_check.sh"
check 1 speed
sed -i 's/^probe_limit=.*/probe_limit=30/' "$work/tools/gpu_check.sh"
shows '{"part":"gpu","status":"FAILED","reason":"took more than 1 s"'
same_but '"part":"gpu"' speed
stand_in bin/bench_gpu '[ $1 != --gpu ] || { echo "CUDA: error"; exit 1; }' "exec $work/good_bench \"\$@\""
check 1 speed
shows '{"part":"gpu","status":"FAILED","reason":"exit code 1: CUDA: error"'
same_but '"part":"gpu"' speed
cp "$work/good_bench" "$work/bin/bench_gpu"

# A figure that ncu does not know is none, and an earlier call's results are kept.
cp "$work/path/ncu" "$work/good_ncu"
sed -i 's/83.20/n\/a/; s/45.10/nan/' "$work/path/ncu"
rm -f "$work/dir"/results-*.jsonl
cp "$work/dir/results.jsonl" "$work/before"
check 0 speed
cmp -s "$work/before" "$work/dir/results-1.jsonl" || fail "what was known before is not kept"
[ -e "$work/dir/log-1.txt" ] || fail "the log of the call before is not kept"
grep -q '"figure":"GroupedKernel, launch 1: Compute throughput","value":null,' "$work/dir/results.jsonl" ||
  fail "n/a is a figure"
cp "$work/good_ncu" "$work/path/ncu"

# A tool that may not look at this GPU.
stand_in path/ncu 'echo "==ERROR== Failed to initialize the profiler: LibraryNotLoaded" >&2; exit 9'
check 0 speed
shows '{"part":"ncu-experts","status":"SKIP","reason":"==ERROR== Failed to initialize the profiler: LibraryNotLoaded"'
same_but '"ncu-' speed
stand_in path/ncu 'echo "==ERROR== something else" >&2; exit 9'
check 1 speed
shows '{"part":"ncu-experts","status":"FAILED","reason":"exit code 9: ==ERROR== something else"'
cp "$work/good_ncu" "$work/path/ncu"

# Other bits every time; a training that fails; no tools.
stand_in bin/contraflow-run 'echo "SHA-256 $$"'
stand_in path/compute-sanitizer 'case $* in *memcheck*) echo "Error: Device not supported" ;; *) echo a race ;; esac' 'exit 9'
check 1 correctness
shows '{"part":"memcheck experts","status":"SKIP","reason":"Error: Device not supported"'
shows '{"part":"racecheck experts","status":"FAILED","reason":"exit code 9: a race"'
shows '{"part":"repeats","status":"FAILED","reason":"exit code 1: error: --graph: SHA-256'
shows '{"part":"custom-stages","status":"FAILED","reason":"exit code 1: error: 1f1b --no-graph: SHA-256'
shows '{"part":"resumed","status":"FAILED","reason":"exit code 1: error: resumed: SHA-256'
stand_in bin/contraflow-run 'echo "contraflow-run: error: no such device"; exit 3'
rm "$work/path/compute-sanitizer"
check 1 correctness
shows '{"part":"gradients-1f1b","status":"FAILED","reason":"exit code 3: contraflow-run: error: no such device'
shows '{"part":"memcheck experts","status":"SKIP","reason":"no compute-sanitizer on the PATH"'

# No time.
sed -i 's/^limit=.*/limit=1/' "$work/tools/gpu_check.sh"
check 1 speed
shows '{"part":"norms","status":"SKIP","reason":"no time left of 1 s"'
sed -i 's/^limit=.*/limit=530/' "$work/tools/gpu_check.sh"

# No GPU: everything is run up to where it needs one, and what fails before that has failed.
for program in contraflow_gpu_test bench_gpu probe_nccl; do
  [ $program = bench_gpu ] && list='if [ $1 = --list ]; then echo norms; exit; fi' || list=
  stand_in bin/$program "$list" \
    "[ \"\$1\" != --list-test-cases ] || exec $work/good_test \$1" 'echo "SKIP: no GPU: no driver"; exit 77'
done
stand_in bin/contraflow-run 'echo "contraflow-run: error: no CUDA device: no driver" >&2; exit 1'
stand_in path/compute-sanitizer 'while [ "$1" != 9 ]; do shift; done; shift; exec "$@"'
stand_in bin/contraflow-run-cuda 'echo "error: no CUDA device: no driver" >&2; exit 1'
stand_in path/ncu 'exec "${@: -2}"'
stand_in path/python3 '[[ $1 != */torch_gpu.py ]] || { echo "SKIP: there is no GPU" && exit 77; }' 'exec /usr/bin/python3 "$@"'
check 77
shows '{"part":"gradients-1f1b","status":"SKIP","reason":"no GPU: no driver"'
shows '{"part":"gpu","status":"SKIP","reason":"no GPU: no driver"'
[ "$(results | grep -v -c '"status":"SKIP"')" = 1 ] || fail "more than the libraries is reported"
stand_in bin/contraflow 'echo "contraflow: error: no such schedule"; exit 1'
check 1 correctness
shows '{"part":"gradients-1f1b","status":"FAILED","reason":"exit code 1: contraflow: error: no such schedule"'

# No room for what is packed, nor for results.
stand_in path/tar 'echo "tar: no space left"; exit 2'
code=0
env -i PATH="$work/path:/usr/bin:/bin" "$work/tools/gpu_check.sh" --out "$work/dir" --pack "$work/pack.tar.gz" >"$work/out" 2>&1 || code=$?
[ $code = 1 ] || fail "exit code $code without room"
shows "$work/pack.tar.gz cannot be unpacked into /tmp, see $work/dir/log.txt; set TMPDIR"
rm "$work/path/tar"
code=0
(ulimit -f 8 && "$work/tools/gpu_check.sh" --out "$work/no room" --pack "$work/pack.tar.gz") >"$work/out" 2>&1 || code=$?
[ $code = 2 ] || fail "exit code $code without room for results"
grep -q "no room/results.jsonl cannot be written" "$work/out" || fail "it is not said that there is no room"

# Ctrl-C: what runs is ended and reported, and nothing stays.
cp "$work/good_bench" "$work/bin/bench_gpu"
stand_in bin/probe_nccl 'echo $$ >'"$work/pid"'; sleep 1000'
tar -czf "$work/pack.tar.gz" -C "$work" bin tests
mkdir "$work/tmp"
env --default-signal=INT -i PATH="$work/path:/usr/bin:/bin" TMPDIR="$work/tmp" "$work/tools/gpu_check.sh" correctness \
  --out "$work/dir" --pack "$work/pack.tar.gz" >"$work/out" 2>&1 </dev/null &
checks=$!
until [ -s "$work/pid" ]; do sleep 0.05; done
kill -INT $checks
code=0
wait $checks || code=$?
[ $code = 1 ] || fail "exit code $code after Ctrl-C"
shows '{"part":"partitions","status":"ok"'
shows '{"part":"probe-nccl","status":"FAILED","reason":"was stopped with the whole check"'
[ -z "$(ls "$work/tmp")" ] || fail "something is left in TMPDIR after Ctrl-C"
for _ in $(seq 100); do kill -0 "$(cat "$work/pid")" 2>/dev/null || break; sleep 0.05; done
! kill -0 "$(cat "$work/pid")" 2>/dev/null || fail "a part goes on after Ctrl-C"

# One call, or both.
check_usage() { # MESSAGE ARGUMENT...
  code=0
  "$work/tools/gpu_check.sh" "${@:2}" >"$work/out" 2>&1 || code=$?
  [ $code = 2 ] || fail "exit code $code for ${*:2}"
  [ "$(cat "$work/out")" = "gpu_check.sh: error: $1; see gpu_check.sh --help" ] || fail "no usage"
}
check_usage '--only: an extended regular expression must follow' --only '('
check_usage '--seconds: a number from 10 to 9999 must follow' --seconds 5
check_usage 'speed and correctness exclude each other; all is both calls' speed correctness

# No part to run.
echo nothing >"$work/bad"
code=0
env -i PATH=/usr/bin:/bin "$work/tools/gpu_check.sh" --out "$work/dir" --pack "$work/bad" >"$work/out" 2>&1 || code=$?
[ $code = 1 ] || fail "exit code $code where the pack is bad"
shows "$work/bad is damaged: run tools/gpu_pack.sh again"
