#!/bin/sh
# Builds the playground with the Emscripten of a fresh Debian 13, and tests it against a native build.
# Run as root, with mmdebstrap, python3 and chromium.
#
#   tools/playground/check.sh [--page] [--root FOLDER] [CONTRAFLOW]
#
# --page builds without a test. --root names a Debian 13 to make or to take, and CONTRAFLOW the native program.
set -eu
cd "$(dirname "$0")/../.."
page="" root=""
if [ "${1:-}" = --page ]; then
  page=only
  shift
fi
if [ "${1:-}" = --root ]; then
  root=$2
  shift 2
fi
tool=${1:-build/release/tools/contraflow}
source=$PWD
began=$(date +%s)
say() { echo "playground: $1, $(($(date +%s) - began)) s"; }

if [ -z "$root" ]; then
  root=$(mktemp -d)
  trap 'rm -rf --one-file-system "$root"' EXIT
  trap 'exit 1' INT TERM
  chmod 755 "$root"
fi
if [ ! -x "$root/usr/bin/emcc" ]; then
  mmdebstrap --quiet --variant=apt \
    --include=emscripten,cmake,ninja-build,nlohmann-json3-dev,libcli11-dev,libboost-dev trixie "$root"
  say "Debian 13 is there"
fi
# Within a space of mounts of its own, the sources have the same place there as here.
mkdir -p "$root$source" "$root/proc"
# shellcheck disable=SC2016  # the inner shell expands them
unshare -m sh -euc 'mount --bind "$1" "$0$1" && mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev"
  exec chroot "$0" env -i PATH=/usr/bin:/bin HOME=/root LC_ALL=C.UTF-8 sh -euc "
    cd \"$1\"
    [ -f build/playground/build.ninja ] || emcmake cmake --preset playground >build/playground.log 2>&1 ||
      { cat build/playground.log; exit 1; }
    cmake --build --preset playground"' "$root" "$source"
say "built"
[ -z "$page" ] || exit 0
CONTRAFLOW_PROFILES=$source/tools/profiles PYTHONDONTWRITEBYTECODE=1 \
  python3 tests/tools/playground/playground_test.py "$tool" build/playground/playground.html build/playground/pictures
say "tested"
