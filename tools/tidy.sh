#!/bin/sh
# clang-tidy on the sources of the product that differ from a commit, or on all of them; findings are
# errors.
# Usage: tools/tidy.sh [COMMIT]
set -eu
cd "$(dirname "$0")/.."

build=build/tidy
rooms="compiler schedules kernels runtime tools"
cmake --preset tidy >/dev/null
if [ $# -gt 0 ]; then
  # shellcheck disable=SC2086  # one word a room
  git diff --name-only --diff-filter=d "$1" -- $rooms
else
  # shellcheck disable=SC2086
  git ls-files -- $rooms
fi | sort >"$build/changed"
# Sources that this build compiles.
sed -n 's/^ *"file": "\(.*\)".*/\1/p' "$build/compile_commands.json" | sed "s|^$PWD/||" |
  sort -u >"$build/compiled"
comm -12 "$build/changed" "$build/compiled" >"$build/files"
echo "clang-tidy: $(wc -l <"$build/files") files"
xargs -r -P "$(nproc)" -n 4 clang-tidy -p "$build" --quiet <"$build/files"
