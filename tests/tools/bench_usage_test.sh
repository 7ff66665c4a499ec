#!/bin/sh
# Benchmarks say how they are used, and refuse what is no option or argument of theirs, as any command
# does, before they measure anything: exit code 2, and where to read more on stderr.
#
#   bench_usage_test.sh BENCH...

for bench in "$@"; do
  name=$(basename "$bench")
  text=$("$bench" --help 2>/dev/null)
  code=$?
  case "$code $text" in
    "0 "*"Usage: $name "*) ;;
    *)
      echo "$name --help: exit code $code, not 0 with the usage: $text"
      exit 1
      ;;
  esac
  for words in --bugdet "one two three"; do
    # shellcheck disable=SC2086  # several words
    text=$("$bench" $words 2>&1 >/dev/null)
    code=$?
    case "$code $text" in
      "2 $name: error: "*"; see $name --help") ;;
      *)
        echo "$name $words: exit code $code, not 2 with where to read more: $text"
        exit 1
        ;;
    esac
  done
done
