#!/bin/sh
# Benchmarks that read a name refuse what is no option of theirs, as any command does: exit code 2, and
# what they take on stderr.
#
#   bench_usage_test.sh BENCH...

for bench in "$@"; do
  for option in --help --bugdet; do
    text=$("$bench" $option 2>&1 >/dev/null)
    code=$?
    case "$code $text" in
      "2 "*"usage: $(basename "$bench") "*) ;;
      *)
        echo "$bench $option: exit code $code, not 2 with the usage: $text"
        exit 1
        ;;
    esac
  done
done
