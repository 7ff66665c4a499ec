#!/bin/bash
# Four processes on one GPU, which claim to be of four machines so that NCCL joins them, train to the
# same weights as four virtual ranks there, and end together where one of them fails.
#
# usage: nccl_one_gpu_test.sh CONTRAFLOW CONTRAFLOW_RUN [FORM...]      77: no GPU
#
# FORM: graph, streams, clipped, capacity, dropless, one-sided (the same weights), and
#   fault-capture  a stage of one's own returns an error while the first step is captured
#   fault-kill     SIGKILL of rank 2 in the middle of the training
#   fault-stop     SIGSTOP of rank 2, with --timeout 20
# (all of them). A fault prints the seconds from it to the end of the job and the first line of the report.
# From a build folder, with failing_stages.so of the target contraflow_failing_stages:
#   tests/runtime/nccl/nccl_one_gpu_test.sh build/release/tools/contraflow build/release/tools/contraflow-run fault-capture
# With a pack: tools/gpu_check.sh correctness --only 'nccl-one-gpu fault'
set -u
contraflow=$1 run=$2
shift 2
[ $# -gt 0 ] || set -- graph streams clipped capacity dropless one-sided fault-capture fault-kill fault-stop
folder=$(mktemp -d)
pids=()
# The processes of a fault that have not ended; one that was stopped ends by nothing else.
end() {
  [ ${#pids[@]} -eq 0 ] || kill -9 "${pids[@]}" 2>/dev/null
  pids=()
}
trap 'end; rm -rf "$folder"' EXIT

fail() {
  echo "$1"
  for log in "$folder"/*.log; do sed "s|^|${log##*/}: |" "$log"; done
  exit 1
}

plan() {  # name, schedule, ranks, members of an expert group, more options
  "$contraflow" compile --schedule "$2" --ranks "$3" --expert-parallel "$4" --microbatches 8 \
    --costs moe-unit --level buffer --model default --device cuda -o "$folder/$1.json" "${@:5}" \
    >"$folder/compile.log" 2>&1 || fail "the plan $1 cannot be compiled"
}

digest() { grep -o 'SHA-256 [0-9a-f]*' "$1" | tail -1; }

virtual() {  # name, options of the run
  local name=$1
  shift
  "$run" "$folder/$name.json" --device cuda --transport threads \
    --partition-sms 32 --steps 3 "$@" >"$folder/virtual.log" 2>&1
}

start() {  # name, options of the run: four processes, $pids
  local name=$1 port=$((20000 + RANDOM % 20000)) rank
  shift
  pids=()
  for rank in 0 1 2 3; do
    RANK=$rank WORLD_SIZE=4 LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      NCCL_HOSTID=machine$rank NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MAX_CTAS=2 \
      "$run" "$folder/$name.json" --device cuda --partition-sms 32 "$@" >"$folder/rank$rank.log" 2>&1 &
    pids+=($!)
  done
}

launched() {  # name, options of the run
  local name=$1 bad=0 rank watchdog
  shift
  start "$name" --steps 3 "$@"
  (sleep 120 && kill "${pids[@]}") 2>/dev/null &
  watchdog=$!
  for rank in 0 1 2 3; do wait "${pids[rank]}" || bad=1; done
  kill $watchdog 2>/dev/null
  pids=()
  return $bad
}

now() { date +%s%3N; }
running() {  # ranks: those of whose processes are there
  local rank
  for rank in "$@"; do
    # One that has ended and was not waited for is a zombie.
    [[ $(ps -o stat= -p "${pids[rank]}") == [!Z]* ]] && echo "$rank"
  done
}
await() {  # text, of which file: until a line begins so, within 100 s
  local turn
  for ((turn = 0; turn < 2000; ++turn)); do
    grep -q "^$1" "$2" && return
    [ "$(running 0 1 2 3 | wc -l)" = 4 ] || return
    sleep 0.05
  done
}
ended() {  # form, since when in ms, most ms, what the report says, ranks that must end
  local form=$1 since=$2 most=$3 said=$4 rank reports
  shift 4
  while [ -n "$(running "$@")" ]; do
    [ $(($(now) - since)) -lt $((most + 10000)) ] || break
    sleep 0.02
  done
  local took=$(($(now) - since)) left
  left=$(running "$@" | paste -s -d ' ')
  end
  [ -z "$left" ] || fail "$form: after $took ms there are still ranks $left"
  [ $took -le "$most" ] || fail "$form: took $took ms, and may take $most"
  reports=$(cat "$folder"/rank*.log | grep -c '^contraflow-run: error: ')
  [ "$reports" = 1 ] || fail "$form: $reports reports"
  grep -h '^contraflow-run: error: ' "$folder"/rank*.log >"$folder/report.txt"
  grep -q -e "$said" "$folder/report.txt" || fail "$form: the report is not of \"$said\""
  printf 'note: %s: %d.%03d s; %s\n' "$form" $((took / 1000)) $((took % 1000)) "$(cat "$folder/report.txt")"
}

compare() {
  virtual "$@" || fail "$1: the virtual ranks failed"
  launched "$@" || fail "$1: the processes failed"
  local alone together
  alone=$(digest "$folder/virtual.log") together=$(digest "$folder/rank0.log")
  [ "${alone:-none}" = "$together" ] ||
    fail "$1: virtual ranks have the weights \"$alone\", processes \"$together\""
  echo "$1: $together"
}

plan two-ways dualpipe 4 1
plan capacity 1f1b 2 2 --capacity 1.25
plan dropless 1f1b 2 2

# If there is no GPU contraflow-run says so before all else.
virtual two-ways
if grep -q -e "no CUDA device" -e "this build has no CUDA" "$folder/virtual.log"; then
  echo "skipped: $(cat "$folder/virtual.log")"
  exit 77
fi
for form in "$@"; do
  case $form in
    graph) compare two-ways ;;
    streams) compare two-ways --no-graph ;;
    clipped) compare two-ways --clip 0.1 ;;
    capacity) compare capacity --capacity 1.25 ;;
    dropless) compare dropless ;;
    one-sided)
      # Compute has more SMs than on virtual ranks, and so other bits.
      if launched two-ways --one-sided --check; then
        grep '^check: .* equal those' "$folder/rank0.log" || fail "one-sided: no check"
      elif grep -h -m 1 -e 'one-sided messages need' -e 'nothing can be put' -e 'cannot be reached' \
        "$folder"/rank*.log >"$folder/reason.txt"; then
        echo "SKIP: $(head -n 1 "$folder/reason.txt")"
        [ $# -gt 1 ] || exit 77
      else
        fail "one-sided: the processes failed"
      fi
      ;;
    fault-capture)
      stages=${run%/*}/failing_stages.so
      [ -e "$stages" ] || stages=${run%/*}/../tests/failing_stages.so
      "$contraflow" compile --schedule 1f1b --ranks 4 --microbatches 8 -o "$folder/custom.json" || fail "no plan"
      start custom --stages "$stages" --steps 3
      await "the third backward" "$folder/rank1.log"
      ended "$form" "$(now)" 6000 'rank 1.* (BW s1 m2[ )].*stage 1, backward_input: the third backward fails' 0 1 2 3
      ;;
    fault-kill)
      start two-ways --steps 1000000
      await step "$folder/rank0.log"
      kill -9 "${pids[2]}"
      ended "$form" "$(now)" 3000 'rank 2 was lost' 0 1 2 3
      ;;
    fault-stop)
      start two-ways --steps 1000000 --timeout 20
      await step "$folder/rank0.log"
      kill -STOP "${pids[2]}"
      ended "$form" "$(now)" 23000 'rank 2 was lost' 0 1 3
      ;;
    *) fail "there is no form $form" ;;
  esac
done
