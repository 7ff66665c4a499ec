#!/usr/bin/env bash
# Everything that needs a GPU, in one or two calls of less than 9 minutes each:
#
#   tools/gpu_check.sh [correctness|speed|all] [--only REGEX] [--seconds N] [--out DIR] [--pack FILE]
#
# correctness: partitions of SMs, NCCL with several ranks on the one GPU, each test case of the
# kernels, gradients of whole steps (bit for bit against one rank, closely against the CPU),
# compute-sanitizer. speed: each family of kernels, each schedule, what ncu sees of the largest
# kernels.
#
# It runs what tools/gpu_pack.sh has packed; the machine then needs a driver, cuBLASLt, cuDNN and
# NCCL, in CUDA's toolkit or in PyTorch's packages, and no compiler. If nothing is packed, it
# builds. This file and pack.tar.gz in one folder are all it takes; results are then in its folder
# gpu_check. It also runs where pack.tar.gz was unpacked. Libraries are looked for in
# LD_LIBRARY_PATH first. Without a GPU everything is run all the same, up to where it needs one.
#
# --only: the parts whose names the extended regular expression matches; --seconds: the most of each
# call (520). Each part is a process with a time limit of its own, and hides no other. DIR
# (build/gpu_check) gets results.jsonl, a JSON object a line as soon as it is known: of each part
# its status (ok, FAILED, SKIP), reason and seconds; of each figure its value, unit, target and
# ratio, at least 1 where the target is met. log.txt has what the parts have said. Results of an
# earlier call are kept as results-1.jsonl, log-1.txt, ..
#
# Exit code 0: nothing failed; 1: something did, or there was no time for it; 77: there is no GPU.
set -u
[ -n "${BASH_VERSION-}" ] || exec bash "$0" "$@"
unset CDPATH
export LC_ALL=C
folder=$(dirname "$(readlink -f "$0")")
root=${folder%/*}
script=$folder/${0##*/} # a text to train on, too
limit=520 # of each call, in seconds
case_limit=40
probe_limit=30
mode=
out=$root/build/gpu_check
pack=$root/build/gpu-pack/pack.tar.gz
if [ -e "$folder/pack.tar.gz" ]; then
  out=$folder/gpu_check pack=$folder/pack.tar.gz
elif [ -e "$root/lists/cases" ]; then
  out=$root/gpu_check # what was in the pack is here
fi

usage() {
  echo "gpu_check.sh: error: $1; see gpu_check.sh --help" >&2
  exit 2
}
given=
only=
while [ $# -gt 0 ]; do
  case $1 in
    correctness | speed | all)
      [ -z "$mode" ] || usage "$mode and $1 exclude each other; all is both calls"
      mode=$1
      ;;
    -h | --help)
      sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    --out | --pack)
      [ -n "${2-}" ] || usage "$1: a path must follow"
      if [ "$1" = --out ]; then out=$2; else pack=$2 given=$2; fi
      shift
      ;;
    --only)
      only=${2-}
      code=0
      grep -q -E -e "$only" <<<'' 2>/dev/null || code=$?
      if [ -z "$only" ] || [ $code -gt 1 ]; then usage "--only: an extended regular expression must follow"; fi
      shift
      ;;
    --seconds)
      [[ "${2-}" =~ ^[1-9][0-9]{1,3}$ ]] || usage "--seconds: a number from 10 to 9999 must follow"
      limit=$2
      shift
      ;;
    *) usage "unknown argument \"$1\"" ;;
  esac
  shift
done
[ -z "$given" ] || [ -e "$given" ] || usage "--pack: $given is not there"
mkdir -p -- "$out" 2>/dev/null || usage "--out: $out cannot be made"
results=$(cd -- "${out/#-/.\/-}" && pwd)/results.jsonl
log=${results%/*}/log.txt
# Results of an earlier call are kept.
if [ -s "$results" ]; then
  number=1
  while [ -e "${results%.jsonl}-$number.jsonl" ]; do number=$((number + 1)); done
  mv "$results" "${results%.jsonl}-$number.jsonl" || usage "--out: $results cannot be renamed"
  [ ! -e "$log" ] || mv "$log" "${log%.txt}-$number.txt" || usage "--out: $log cannot be renamed"
fi
# GPU time is not spent on what cannot be kept.
for file in "$results" "$log"; do
  { : >"$file" && head -c 65536 /dev/zero >"$file" && : >"$file"; } 2>/dev/null ||
    usage "--out: $file cannot be written"
done
if ! work=$(mktemp -d 2>/dev/null) || ! cp /bin/sh "$work/try" || ! "$work/try" -c : 2>/dev/null; then
  rm -rf "${work:-/nowhere}"
  usage "programs cannot be put into ${TMPDIR:-/tmp} and run from there; set TMPDIR"
fi
rm "$work/try"
work=$(cd "$work" && pwd)
bin=$work/bin
failed=0
export part_name= # of the part that runs

# --- Parts ---------------------------------------------------------------------------------------

escape() { # TEXT: as a text of JSON, in $escaped
  local LC_ALL=C
  escaped=${1//$'\t'/ }
  escaped=${escaped//[! -~]/?}
  escaped=${escaped//\\/\\\\}
  escaped=${escaped//\"/\\\"}
}
report() { # NAME STATUS REASON SECONDS
  local line name escaped
  printf -v line '%-34s %-6s %3s s  %s' "$1" "$2" "$4" "$3"
  printf '%s\n' "${line%"${line##*[! ]}"}"
  escape "$1"
  name=$escaped
  escape "$3"
  printf '{"part":"%s","status":"%s","reason":"%s","seconds":%s}\n' "$name" "$2" "$escaped" "$4" \
    >>"$results"
  if [ "$2" = FAILED ]; then failed=1; fi
}
# A figure that a part prints: WHAT VALUE UNIT TARGET RATIO
figure() {
  local number='^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$' value target=$4 ratio=$5
  value=$2
  [[ $value =~ $number ]] || value=null ratio=null
  [[ $target =~ $number ]] || target=null
  [[ $ratio =~ $number ]] || ratio=null
  printf '{"part":"%s","figure":"%s","value":%s,"unit":"%s","target":%s,"ratio":%s}\n' \
    "$part_name" "$1" "$value" "$3" "$target" "$ratio" >>"$results"
}

running=()
width=1 # parts at a time
declare -A pid began most_of
finish() { # NAME CODE
  local name=$1 code=$2 status=FAILED reason
  # A part that says very much does not hold up the others.
  if [ "$(stat -c %s "$work/$name.log")" -gt 1000000 ]; then
    { head -c 500000 "$work/$name.log" && echo ' ..' && tail -c 500000 "$work/$name.log"; } \
      >"$work/short" && mv "$work/short" "$work/$name.log"
  fi
  if [ "$code" = 0 ]; then
    reason=$(sed -n 's/^note: //p' "$work/$name.log" | tail -n 1)
  else
    reason=$(grep -a -m 1 -E 'SKIP|[Ee]rror|ERROR|FAILED|cannot|not found' "$work/$name.log" ||
      tail -n 1 "$work/$name.log")
  fi
  case $code in
    0) status=ok ;;
    77) status=SKIP reason=${reason#*SKIP: } ;;
    124 | 137 | stuck) reason="took more than ${most_of[$name]} s" ;;
    stopped) reason="was stopped with the whole check" ;;
    129 | 13? | 14? | 15?) reason="ended by SIG$(kill -l "$code"): $reason" ;;
    *) reason="exit code $code: $reason" ;;
  esac
  if [ -n "$no_gpu" ] && [ $status = FAILED ] && grep -a -q -e 'no CUDA device' -e 'loading shared libraries' -e '=> not found' "$work/$name.log"; then
    status=SKIP reason=$no_gpu
  fi
  report "$name" $status "${reason:0:200}" $((SECONDS - began[$name]))
  { echo "== $name: $status" && tail -c 100000 "$work/$name.log" && echo; } >>"$log"
}
# Reports the parts that have ended. A process that the driver holds may survive its end;
# it is left alone.
reap() {
  local name still=()
  for name in "${running[@]}"; do
    if ! kill -0 "${pid[$name]}" 2>/dev/null; then
      wait "${pid[$name]}"
      finish "$name" $?
    elif [ $((SECONDS - began[$name])) -gt $((most_of[$name] + 10)) ]; then
      finish "$name" stuck
    else
      still+=("$name")
    fi
  done
  running=("${still[@]}")
}
leave() {
  local name
  for name in "${running[@]}"; do
    kill "${pid[$name]}" 2>/dev/null
    finish "$name" stopped
  done
  rm -rf "$work"
}
trap leave EXIT
trap 'exit 1' INT TERM
at_once() { width=$((${#no_gpu} > 0 ? 4 : $1)); } # without a GPU none disturbs another
await() { # MOST: until no more are running; looks often at first, for short parts
  local nap=1
  while [ ${#running[@]} -gt "$1" ]; do
    reap
    [ ${#running[@]} -le "$1" ] || sleep 0.0$nap
    nap=$((nap < 5 ? nap + 2 : 5))
  done
}
part() { # NAME SECONDS COMMAND...: in the background, at most so long and no longer than what is left
  local name=$1 most=$2 left
  shift 2
  [ -z "$only" ] || grep -q -E -e "$only" <<<"$name" || return 0
  await $((width - 1))
  left=$((deadline - SECONDS))
  if [ $left -lt 5 ]; then
    report "$name" SKIP "no time left of $limit s" 0
    failed=1
    return
  fi
  most_of[$name]=$((most < left ? most : left))
  began[$name]=$SECONDS
  running+=("$name")
  part_name=$name timeout -k 5 "${most_of[$name]}" bash -o pipefail -c '"$@"' part "$@" \
    >"$work/$name.log" 2>&1 </dev/null &
  pid[$name]=$!
}

# --- What runs, and its libraries ----------------------------------------------------------------

programs=(contraflow contraflow-run contraflow-run-cuda contraflow_gpu_test bench_gpu probe_nccl)
prepare() {
  local build=$root/build/cuda program
  if [ -e "$pack" ]; then
    tar -xzf - -C "$work" <"$pack" 2>>"$log" && [ -x "$bin/bench_gpu" ] && return
    if gzip -t <"$pack" 2>>"$log"; then
      report programs FAILED "$pack cannot be unpacked into ${TMPDIR:-/tmp}, see $log; set TMPDIR" $SECONDS
    else
      report programs FAILED "$pack is damaged: run tools/gpu_pack.sh again" $SECONDS
    fi
  elif [ -e "$root/lists/cases" ]; then
    (cd "$root" && cp -r bin lib lists share tests tools version "$work") 2>>"$log" && return
    report programs FAILED "what was unpacked in $root cannot be copied to ${TMPDIR:-/tmp}, see $log" $SECONDS
  elif command -v cmake >/dev/null && command -v nvcc >/dev/null; then
    if (cd "$root" && cmake --preset cuda && cmake --build "$build" -j "$(nproc)" \
      --target "${programs[@]}" contraflow_mlp_stages contraflow_failing_stages) >>"$log" 2>&1; then
      mkdir "$bin"
      for program in "${programs[@]}"; do ln -s "$build"/t*/"$program" "$bin"; done
      ln -s "$build/runtime/mlp_stages.so" "$build/tests/failing_stages.so" "$bin"
      ln -s "$root"/{tests,tools} "$work"
      return
    fi
    report programs FAILED "cannot be built, see $log" $SECONDS
  else
    report programs FAILED "$pack is not there, nor cmake and nvcc: run tools/gpu_pack.sh first" 0
  fi
  exit 1
}
# Folders of CUDA's libraries: what the user says, the toolkit's, those of Python packages, the driver's
# where it is mounted into a container.
library_folders() {
  local base
  tr : '\n' <<<"${LD_LIBRARY_PATH-}"
  ls -d /usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib
  {
    timeout -k 1 10 python3 -c 'import sys; print(*filter(None, sys.path), sep="\n")'
    ls -d "${VIRTUAL_ENV:-/nowhere}"/lib/python3*/site-packages \
      /opt/*/lib/python3*/site-packages /opt/*/.venv/lib/python3*/site-packages \
      /usr/local/lib/python3*/dist-packages /usr/lib/python3/dist-packages \
      "${HOME:-/root}"/.local/lib/python3*/site-packages
  } | while read -r base; do ls -d "$base"/nvidia/*/lib; done
  ls -d "${CONDA_PREFIX:-/nowhere}"/{lib,targets/x86_64-linux/lib} /usr/local/nvidia/lib64 \
    /usr/local/nvidia/lib /usr/lib/wsl/lib
}
libraries() {
  cat "$work/version" 2>/dev/null
  uname -a && nproc && ldd --version | head -n 1
  ! command -v nvidia-smi >/dev/null || nvidia-smi
  echo "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
  local said code=0 gpu='no nvidia-smi'
  said=$(ldd "$bin"/* 2>&1) || code=$?
  printf '%s\n' "$said"
  [ $code = 0 ] || { echo "error: ldd cannot read each program" && return 1; }
  [[ $said != *'not found'* ]] || return 1
  ! command -v nvidia-smi >/dev/null ||
    gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)
  echo "note: $gpu; $(sed -n 's/.*lib\(cublasLt\|cudnn\|nccl\)\.[^ ]* => \(.*\) (0x.*/\2/p' <<<"$said" | sort -u | paste -s -d ' ')"
}

# --- Parts that are more than one command --------------------------------------------------------

plan() { # FILE SCHEDULE RANKS EP MICROBATCHES MODEL
  "$bin/contraflow" compile --schedule "$2" --ranks "$3" --expert-parallel "$4" --microbatches "$5" \
    --costs moe-unit --level buffer --model "$6" --device cuda -o "$1"
}
train() { "$bin/contraflow-run" "$@" --device cuda --data "$script"; }
gradients() { # SCHEDULE RANKS EP MICROBATCHES MODEL [OPTION...]
  local file=$work/$part_name.json
  plan "$file" "$1" "$2" "$3" "$4" "$5" || return
  train "$file" --model "$5" --check "${@:6}" | tee "$work/$part_name.said" || return
  sed -n 's/.*within \([0-9.e+-]*\) of the host.*/\1/p' "$work/$part_name.said" | tail -n 1 |
    while read -r error; do
      figure "$1: largest difference from the CPU" "$error" "" 0.01 \
        "$(awk "BEGIN { print ($error > 0 ? 0.01 / $error : \"null\") }")"
    done
}
repeats() { # the same bits every time, in streams and as a graph
  plan "$work/repeats.json" dualpipe 4 1 8 default || return
  local first again
  first=$(train "$work/repeats.json" --steps 3 | grep SHA-256) || return
  for option in --graph --no-graph --stamps=1; do
    again=$(train "$work/repeats.json" --steps 3 "$option" | grep SHA-256) || return
    [ "$first" = "$again" ] || { echo "error: $option: $again, not $first" && return 1; }
  done
  echo "note: $first"
}
fastest() { # FILE of --jsonl: milliseconds of its fastest step
  awk 'match($0, /"ms": [0-9.e+-]+/) {
      ms = substr($0, RSTART + 6, RLENGTH - 6) + 0
      if (!best || ms < best) best = ms }
    END { if (!best) exit 1; print best }' "$1"
}
matmul_choices() { # steps by cublasLt's estimate, then by what was timed, then by the file: the same bits
  local chosen=$work/matmuls.json first again estimated timed
  plan "$work/matmuls-plan.json" 1f1b 2 1 4 "$work/real.json" || return
  train "$work/matmuls-plan.json" --model "$work/real.json" --steps 5 --jsonl "$work/estimated.jsonl" || return
  first=$(train "$work/matmuls-plan.json" --model "$work/real.json" --steps 5 --matmul-choices "$chosen" \
    --jsonl "$work/timed.jsonl" | tee /dev/stderr | grep SHA-256) || return
  estimated=$(fastest "$work/estimated.jsonl") || return
  timed=$(fastest "$work/timed.jsonl") || return
  figure "fastest step with timed products, against cublasLt's estimate" "$timed" ms "$estimated" \
    "$(awk "BEGIN { print $estimated / $timed }")"
  again=$(train "$work/matmuls-plan.json" --model "$work/real.json" --steps 5 --matmul-choices "$chosen" |
    grep SHA-256) || return
  [ "$first" = "$again" ] || { echo "error: again: $again, not $first" && return 1; }
}
resumed() { # from a checkpoint that was written beside the steps: the same bits, and the CPU goes on from it too
  local kept=$work/kept whole again
  plan "$work/resumed.json" dualpipe 4 1 8 default || return
  whole=$(train "$work/resumed.json" --steps 6 | grep SHA-256) || return
  train "$work/resumed.json" --steps 4 --checkpoint "$kept" --checkpoint-every 1 || return
  again=$(train "$work/resumed.json" --steps 6 --checkpoint "$kept" --resume | grep SHA-256) || return
  [ "$whole" = "$again" ] || { echo "error: resumed: $again, not $whole" && return 1; }
  "$bin/contraflow" compile --schedule 1f1b --ranks 4 --microbatches 8 --costs moe-unit \
    -o "$work/resumed-cpu.json" || return
  "$bin/contraflow-run" "$work/resumed-cpu.json" --steps 7 --checkpoint "$kept" --resume \
    --data "$script" || return
  echo "note: $whole"
}
custom_stages() { # stages of a library: as on one rank, and the same bits under every schedule of one route
  local schedule option first='' again
  for schedule in 1f1b zb-1p; do
    "$bin/contraflow" compile --schedule $schedule --ranks 4 --microbatches 8 \
      -o "$work/custom-$schedule.json" || return
    for option in --graph --no-graph; do
      again=$("$bin/contraflow-run" "$work/custom-$schedule.json" --stages "$bin/mlp_stages.so" \
        --device cuda --steps 3 --check $option | grep SHA-256) || return
      [ "${first:=$again}" = "$again" ] ||
        { echo "error: $schedule $option: $again, not $first" && return 1; }
    done
  done
  echo "note: $first"
}
torch() { # contraflow.torch, where python3 has torch for this GPU
  command -v python3 >/dev/null || { echo "SKIP: no python3 on the PATH" && return 77; }
  python3 "$work/tests/python/torch_gpu.py" "$bin/contraflow" --json "$results"
}
# For the kernels that are ours; small shapes, as each access is looked at. cuDNN asks partitions for what they
# cannot say, and does without: its calls are not looked at.
sanitize() { # TOOL COMMAND...
  command -v compute-sanitizer >/dev/null ||
    { echo "SKIP: no compute-sanitizer on the PATH" && return 77; }
  local code=0
  local calls=()
  [ "$1" != memcheck ] || calls=(--report-api-errors no)
  CONTRAFLOW_SMALL_SHAPES=1 compute-sanitizer --tool "$1" "${calls[@]}" --kernel-name kns=contraflow \
    --error-exitcode 9 "${@:2}" 2>&1 |
    tee "$work/$part_name.said" || code=$?
  allowed $code 'Device not supported|Internal Sanitizer Error'
}
# A tool that may not look at this GPU says nothing of ours.
allowed() { # EXIT CODE of a tool, WORDS by which it says so
  local said
  if [ "$1" = 0 ] || ! said=$(grep -a -m 1 -E "$2" "$work/$part_name.said"); then return "$1"; fi
  echo "SKIP: $said"
  return 77
}
sanitize_step() { # TOOL
  plan "$work/$part_name.json" dualpipe 2 1 4 tiny || return
  sanitize "$1" "$bin/contraflow-run-cuda" "$work/$part_name.json" --model tiny --device cuda --steps 1 \
    --no-graph --data "$script"
}
profile() { # FAMILY KERNELS UNIT TARGET: what ncu says of three launches, as figures too, in % of the peak
  command -v ncu >/dev/null || { echo "SKIP: no ncu on the PATH" && return 77; }
  local code=0
  ncu --clock-control none -k "regex:$2" -c 3 --section SpeedOfLight --section Occupancy \
    --section ComputeWorkloadAnalysis --section WarpStateStats --print-details all "$bin/bench_gpu" "$1" 2>&1 |
    tee "$work/$part_name.said" || code=$?
  allowed $code 'LibraryNotLoaded|ERR_NVGPUCTRPERM|rofiling is not supported' || return
  awk '/Context [0-9]+, Stream/ { match($0, /[A-Za-z]+Kernel/); kernel = substr($0, RSTART, RLENGTH)
      ++launch }
    /(Compute \(SM\)|DRAM) Throughput +%/ { print launch, kernel, $1, $NF }' \
    "$work/$part_name.said" | while read -r launch kernel unit value; do
    local target=
    [ "$unit" != "$3" ] || target=$4
    figure "$kernel, launch $launch: $unit throughput" "$value" % "${target:-null}" \
      "$(awk "BEGIN { print ${target:-0} ? $value / ${target:-1} : \"null\" }")"
  done
}
export -f plan train gradients repeats fastest matmul_choices resumed custom_stages torch sanitize sanitize_step allowed profile figure libraries
export bin work script results

list_cases() { "$bin/contraflow_gpu_test" --list-test-cases --no-version 2>>"$log"; }
list_families() { cat "$work/lists/families" 2>/dev/null || "$bin/bench_gpu" --list 2>>"$log"; }

# --- The two calls -------------------------------------------------------------------------------

correctness() {
  local name number=0 tool order
  at_once 1
  part partitions 60 "$bin/bench_gpu" partitions --json "$results"
  part probe-nccl 60 "$bin/probe_nccl" --json "$results"
  at_once 4
  # The kernels that decide come first.
  if [ ! -s "$work/lists/cases" ]; then
    mkdir -p "$work/lists"
    list_cases >"$work/lists/cases"
  fi
  grep '^[^=[].*: ' "$work/lists/cases" >"$work/cases"
  [ -s "$work/cases" ] || report cases FAILED "contraflow_gpu_test lists none, see $log" 0
  order='^(experts|padded experts|CUDA)(:| in )'
  while read -r name; do
    number=$((number + 1))
    part "case-$number ${name//\//-}" $case_limit "$bin/contraflow_gpu_test" "--test-case=$name"
  done < <(grep -E "$order" "$work/cases"; grep -v -E "$order" "$work/cases")
  await 0
  at_once 2
  for name in dualpipe zb-1p 1f1b; do
    part "gradients-$name" 60 gradients $name 4 1 8 default --steps 3
  done
  part gradients-real-size 120 gradients zb-1p 2 1 2 "$work/real.json" --steps 1
  part gradients-groups 60 gradients dualpipe 4 2 8 default --steps 2
  for name in dualpipe zb-1p 1f1b; do
    part "gradients-$name-streams" 60 gradients $name 4 1 8 default --steps 3 --no-graph
  done
  part gradients-chosen 60 gradients zb-1p 4 1 8 default --steps 3 --matmul-choices "$work/chosen.json"
  part gradients-clipped 60 gradients zb-1p 4 1 8 default --steps 3 --clip 0.1
  part repeats 60 repeats
  part resumed 60 resumed
  part custom-stages 60 custom_stages
  await 0
  at_once 1
  for name in graph streams clipped capacity dropless one-sided fault-capture fault-kill fault-stop; do
    part "nccl-one-gpu $name" 60 "$work/tests/runtime/nccl/nccl_one_gpu_test.sh" "$bin/contraflow" \
      "$bin/contraflow-run" $name
  done
  part torch 300 torch
  await 0
  at_once 3
  for tool in memcheck racecheck synccheck; do
    for name in 'experts:*' 'attention:*' 'permutation:*,combine:*,router:*' \
      'exchange:*,parcels:*,link:*,sum:*,parts:*' 'rmsnorm:*,rope:*,swiglu:*,adamw:*,clip:*,embedding:*,cross*'; do
      part "$tool ${name%%:*}" 60 sanitize $tool "$bin/contraflow_gpu_test" "--test-case=$name"
    done
    part "$tool step" 60 sanitize_step $tool
  done
  await 0
}
speed() {
  local name first="ceilings experts layers dualpipe-4-16 overlap projections attention"
  at_once 1
  measure() { part "$1" 90 "$bin/bench_gpu" "$1" --json "$results"; }
  for name in $first; do measure "$name"; done
  part ncu-experts 60 profile experts GroupedKernel Compute 80
  for name in $(list_families); do
    [[ " $first partitions " == *" $name "* ]] || measure "$name"
  done
  part matmul-choices 90 matmul_choices
  part ncu-routing 60 profile routing 'Spread|Gather|Combine' DRAM 76 # 85 % of a copy
  await 0
}

deadline=$limit
no_gpu=
prepare
cat >"$work/real.json" <<<'{"width": 1024, "heads": 8, "experts": 8, "expert_width": 1024,
  "sequence": 1024, "batch": 1, "layers": 4}'
# The machine's own runtime of C++ comes first, unless it is missing or too old for the programs: its tools
# and libraries may need a newer one than the packed.
mkdir "$work/cxx"
mv "$work"/lib/lib{stdc++,gcc_s}.so.* "$work/cxx" 2>/dev/null
LD_LIBRARY_PATH=$work/lib:$(library_folders 2>/dev/null | awk 'NF && !seen[$0]++' | paste -s -d :)
for folder in /usr/local/cuda*/bin /opt/nvidia/nsight-compute/* /usr/local/nvidia/bin /usr/lib/wsl/lib; do
  PATH=$PATH:$folder
done
export LD_LIBRARY_PATH PATH
if ldd "$bin"/* 2>&1 | grep -q -E '(GLIBCXX|CXXABI|GCC_)[^ ]* not found|lib(stdc\+\+|gcc_s)[^ ]* => not found'; then
  LD_LIBRARY_PATH=$work/cxx:$LD_LIBRARY_PATH
fi
# A substitute for a library that is missing refuses every call, so that all that does without it
# runs.
declare -A lost=([cudnn]='libcudnn.so.9: attention is computed by our own kernels'
  [nccl]='libnccl.so.2: nothing runs as several processes'
  [cublasLt]='libcublasLt.so.13: no whole step runs')
needs=$(ldd "$bin"/* 2>/dev/null)
missing=()
for library in cudnn nccl cublasLt; do
  if grep -q "lib${library}[^ ]* => not found" <<<"$needs"; then
    missing+=("$library")
    LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$work/lib/no-$library
  fi
done
# Run like a part: given up even where the driver holds it, and a signal ends the wait.
timeout -k 5 $probe_limit "$bin/bench_gpu" --gpu >"$work/probe" 2>&1 </dev/null &
probe=$!
while kill -0 $probe 2>/dev/null && [ $SECONDS -lt $((probe_limit + 10)) ]; do sleep 0.02; done
if kill -0 $probe 2>/dev/null; then code=stuck; else wait $probe && code=0 || code=$?; fi
no_gpu=$(<"$work/probe")
case $code in
  0)
    report gpu ok "$no_gpu; targets are an H200's, those of bandwidths scaled to the copy measured here" $SECONDS
    no_gpu=
    ;;
  77) no_gpu=${no_gpu#SKIP: } ;;
  # Without CUDA's libraries nothing starts that could tell.
  127) if [ -e /dev/nvidiactl ]; then no_gpu=; else no_gpu="no GPU: no driver, nor CUDA's libraries"; fi ;;
  124 | 137 | stuck) no_gpu='' && report gpu FAILED "took more than $probe_limit s" $SECONDS ;;
  *) report gpu FAILED "exit code $code: $no_gpu" $SECONDS && no_gpu= ;;
esac
[ -z "$no_gpu" ] || report gpu SKIP "$no_gpu" $SECONDS
for library in "${missing[@]}"; do
  report "$library" "$([ -n "$no_gpu" ] && echo SKIP || echo FAILED)" \
    "${no_gpu:-there is no ${lost[$library]}}" 0
done
part libraries 30 libraries
await 0
began_at=0 # the first call has unpacked and looked at the libraries in its time
for call in correctness speed; do
  [ "${mode:-all}" = all ] || [ "$mode" = $call ] || continue
  deadline=$((began_at + limit))
  $call
  began_at=$SECONDS
done
printf '%s s; %s\n' $SECONDS "$results"
[ $failed -ne 0 ] && exit 1
[ -z "$no_gpu" ] || exit 77
