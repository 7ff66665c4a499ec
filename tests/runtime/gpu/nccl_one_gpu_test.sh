#!/bin/bash
# Four processes on one GPU, which claim to be of four machines so that NCCL joins them, train to the
# same weights as four virtual ranks there.
#
# usage: nccl_one_gpu_test.sh CONTRAFLOW CONTRAFLOW_RUN [FORM...]      77: no GPU
#
# FORM: graph, streams, clipped, capacity, dropless, one-sided (all of them)
set -u
contraflow=$1 run=$2
shift 2
[ $# -gt 0 ] || set -- graph streams clipped capacity dropless one-sided
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

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

launched() {  # name, options of the run
  local name=$1 port=$((20000 + RANDOM % 20000)) pids=() rank
  shift
  for rank in 0 1 2 3; do
    RANK=$rank WORLD_SIZE=4 LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      NCCL_HOSTID=machine$rank NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MAX_CTAS=2 \
      timeout --foreground 120 "$run" "$folder/$name.json" --device cuda --partition-sms 32 \
      --steps 3 "$@" >"$folder/rank$rank.log" 2>&1 &
    pids+=($!)
  done
  local bad=0
  for rank in 0 1 2 3; do wait "${pids[rank]}" || bad=1; done
  return $bad
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

# Where there is no GPU contraflow-run says so before all else.
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
    *) fail "there is no form $form" ;;
  esac
done
