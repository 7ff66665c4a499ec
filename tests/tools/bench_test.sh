#!/bin/sh
# The benchmark has the suites that its README names, runs those that take a second, and refuses other
# words before it measures anything: exit code 2.
#
#   bench_test.sh BENCH SOURCE_DIR

bench=$1
cd "$2" || exit 1

fail() {
  echo "$*"
  exit 1
}

documented=$(sed -n 's/^| \(`[^|]*\) |.*/\1/p' tools/bench/README.md | tr -d '`,' | tr ' ' '\n' | grep -v -e _ -e "\.py")
listed=$("$bench" --list | cut -d ' ' -f 1)
[ "$listed" = "$documented" ] || fail "suites of --list:
$listed
of the README:
$documented"

"$bench" --help | grep -q 'Usage: bench ' || fail "--help does not say how it is used"
for words in --bugdet "papers nosuch" "" "policies --memory 0" "scale --millions 1000"; do
  # shellcheck disable=SC2086  # several words
  text=$("$bench" $words 2>&1 >/dev/null)
  code=$?
  case "$code $text" in
    "2 bench: error: "*) ;;
    *) fail "bench $words: exit code $code, not 2: $text" ;;
  esac
done

run() {
  text=$("$bench" "$@" --budget 0.01) || fail "bench $*: exit code $?"
  [ "$(echo "$text" | wc -l)" -ge 2 ] || fail "bench $*: no figures: $text"
}
run scale --millions 0.1
for suite in linear v bidirectional noise; do run "$suite" --only U0 --ranks 8; done
run real --costs gpt3-175b-pp16 --only 1x
run offload --only "linear P=4 M=8 f=100 copy=f/1"
run partitions --lists 1 --ranks 8
run pairs --ranks 8
run papers
run measured --each
echo "$text" | while IFS= read -r line; do
  grep -Fqx -- "$line" tools/profile/MEASURED.md || { echo "not in MEASURED.md: $line"; exit 1; }
done || fail "tools/profile/MEASURED.md is not what bench measured prints"
