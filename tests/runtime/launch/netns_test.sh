#!/bin/sh
# Processes meet across two network namespaces, as across two machines: netns_test.sh <meeting_main>
# Exit code 77: cannot be tried here (needs root, iproute2, and a kernel that lets it).
set -u

program=$1
one=contraflow-$$-a two=contraflow-$$-b
folder=$(mktemp -d)
failed=0

# shellcheck disable=SC2317  # a trap calls it
clean_up() {
  # Whoever still runs in them ends with its timeout; the names and devices go now.
  ip netns del "$one" 2>/dev/null
  ip netns del "$two" 2>/dev/null
  rm -rf "$folder"
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP

skip() {
  echo "skipped: $1"
  exit 77
}

[ "$(id -u)" = 0 ] || skip "needs root"
command -v ip >/dev/null || skip "needs iproute2 (ip)"
ip netns add "$one" 2>/dev/null || skip "this system allows no network namespaces"
ip netns add "$two" || exit 1
ip -n "$one" link add out type veth peer name out netns "$two" 2>/dev/null ||
  skip "this system has no veth devices"
for name in $one $two; do
  last=1 && [ "$name" = "$two" ] && last=2
  ip -n "$name" link set lo up
  ip -n "$name" addr add 10.79.0.$last/24 dev out
  ip -n "$name" -6 addr add fd79::$last/64 dev out nodad 2>/dev/null
  ip -n "$name" link set out up
done

# run <namespace> <name of its output> <rank> <size> <host> <port> <secret> <timeout>: in the background.
run() {
  namespace=$1 output=$2
  shift 2
  ( ip netns exec "$namespace" timeout 120 "$program" "$@" >"$folder/$output" 2>&1
    echo $? >"$folder/$output.code" ) &
}

# expect <name of output> <exit code> <text>
expect() {
  if [ "$(cat "$folder/$1.code")" = "$2" ] && grep -qF -e "$3" "$folder/$1"; then return; fi
  echo "FAILED: $step: $1 ended with $(cat "$folder/$1.code"), not $2, and not with \"$3\":"
  cat "$folder/$1"
  failed=1
}

meet() {
  for rank in 0 1 2 3; do
    name=$one && [ $rank -ge 2 ] && name=$two
    run $name rank$rank $rank 4 "$1" "$2" secret 30000
  done
  wait
  # Rank 0 sees the others at these addresses, and they see rank 0.
  expect rank0 0 "met $3 $4 $4"
  for rank in 1 2 3; do expect rank$rank 0 "met $3"; done
}

step="two machines"
meet 10.79.0.1 29500 10.79.0.1 10.79.0.2

step="two machines over IPv6"
if ip -n "$one" -6 addr show dev out | grep -q fd79::1; then
  meet fd79::1 29500 fd79::1 fd79::2
fi

step="a host name that its own machine knows as a loopback address"
if ip netns exec $one unshare --mount true 2>/dev/null; then
  echo "127.0.1.1 the-master" >"$folder/hosts-here"
  echo "10.79.0.1 the-master" >"$folder/hosts-there"
  # run, with a file of hosts in front.
  run_with_hosts() {
    namespace=$1 hosts=$2 output=$3
    shift 3
    # shellcheck disable=SC2016  # the inner shell expands them
    ( ip netns exec "$namespace" unshare --mount sh -c \
        'mount --bind "$0" /etc/hosts && exec timeout 120 "$@"' "$hosts" "$program" "$@" \
        >"$folder/$output" 2>&1
      echo $? >"$folder/$output.code" ) &
  }
  run_with_hosts $one "$folder/hosts-here" rank0 0 3 the-master 29500 secret 30000
  run_with_hosts $one "$folder/hosts-here" rank1 1 3 the-master 29500 secret 30000
  run_with_hosts $two "$folder/hosts-there" rank2 2 3 the-master 29500 secret 30000
  wait
  expect rank0 0 " 10.79.0.2"
  expect rank1 0 "met 127.0."
  expect rank2 0 "met 10.79.0.1"
fi

# These runs wait at once. The guest must have come before rank 0 gives up.
run $one host 0 2 10.79.0.1 29501 secret 4000
run $two guest 1 2 10.79.0.1 29501 guess 30000
run $one loopback-host 0 2 127.0.0.1 29502 secret 700
run $two loopback-guest 1 2 127.0.0.1 29502 secret 700
run $two wrong-machine 0 2 10.79.0.1 29503 secret 700
wait
step="a wrong secret from the other machine"
expect guest 1 "what answers as rank 0 at 10.79.0.1:29501 does not know the secret of this job"
expect host 1 "rank 1 of 2 did not reach rank 0 at 10.79.0.1:29501"
expect host 1 "refused meanwhile: 10.79.0.2 (does not know the secret of this job"
step="a loopback address names another machine on every machine"
expect loopback-host 1 "rank 1 of 2 did not reach"
expect loopback-guest 1 "cannot connect to 127.0.0.1:29502: Connection refused"
step="rank 0 on the wrong machine"
expect wrong-machine 1 "no address of this machine; rank 0 must be started on the machine that MASTER_ADDR names"

step="a connection is not taken for one to itself"
# The system has one port to give, and it is the one where nobody listens.
ip netns exec $two sh -c 'echo 40000 40001 >/proc/sys/net/ipv4/ip_local_port_range'
run $two guest 1 2 127.0.0.1 40000 secret 1500
wait
expect guest 1 "cannot connect to 127.0.0.1:40000: "

step="a machine that is cut off"
ip -n "$two" link set out down
run $two guest 1 2 10.79.0.1 29504 secret 700
wait
expect guest 1 "cannot connect to 10.79.0.1:29504: "
ip -n "$two" link set out up
# No answer comes back from there, not even a refusal.
ip -n "$one" addr del 10.79.0.1/24 dev out
ip -n "$two" neigh replace 10.79.0.1 lladdr 02:00:00:00:00:01 dev out
run $two guest 1 2 10.79.0.1 29504 secret 700
wait
expect guest 1 "cannot connect to 10.79.0.1:29504: Connection timed out"

exit $failed
