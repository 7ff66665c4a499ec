#!/bin/sh
# Builds the .deb of a build folder, holds it against lintian, installs it in a fresh Debian and uses it
# there: tools, manual pages, completions in bash, and libraries by CMake and pkg-config.
# Run as root, on a Debian with lintian and, unless a root is given, mmdebstrap; takes minutes.
#
#   tools/deb_check.sh [--root FILE.tar] [BUILD]   the file system to start from; the build (build/release)
set -eu
cd "$(dirname "$0")/.."
base=""
if [ "${1:-}" = --root ]; then
  base=$2
  shift 2
fi
build=${1:-build/release}
out=$build/deb
root=$(mktemp -d)
trap 'umount "$root/proc" 2>/dev/null; rm -rf --one-file-system "$root"' EXIT

chmod 755 "$root"
rm -rf "$out"
cpack -G DEB --config "$build/CPackConfig.cmake" -B "$out"
deb=$(echo "$out"/contraflow_*.deb)
lintian --fail-on error,warning --allow-root "$deb"
echo "deb: lintian has nothing to say but what tools/debian/lintian-overrides gives reasons for"

if [ -n "$base" ]; then
  tar -x -C "$root" -f "$base"
else
  mmdebstrap --quiet --variant=minbase bookworm "$root"
fi
cp /etc/resolv.conf "$root/etc/"
mount -t proc proc "$root/proc"
mkdir "$root/check"
cp "$deb" "$root/check/contraflow.deb"
cp -r tests/consumer "$root/check/"
in_root() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"; }
# A container leaves parts out of packages: manual pages, too.
rm -f "$root"/etc/dpkg/dpkg.cfg.d/docker
in_root apt-get update -qq
in_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  /check/contraflow.deb bash-completion cmake g++ libopenblas-dev \
  libssl-dev make man-db pkg-config >"$out/install.log" 2>&1 ||
  { cat "$out/install.log"; exit 1; }
echo "deb: installed"
in_root sh -eux >"$out/use.log" 2>&1 <<'USE' || { cat "$out/use.log"; exit 1; }
cd /check
# The tools, with their profiles.
contraflow compile --schedule dualpipe --ranks 4 --microbatches 8 --costs moe-unit -o plan.json
contraflow verify plan.json
contraflow-run plan.json --model tiny --steps 1 --data /usr/share/common-licenses/GPL-3
# Manual pages: found, and nothing in them that man cannot set.
for page in contraflow contraflow-run; do
  man --warnings "$page" >page.txt 2>complaints.txt
  grep -q '^NAME' page.txt
  test ! -s complaints.txt
done
# bash, as it loads what it completes for the first time.
bash -c '. /usr/share/bash-completion/bash_completion
  for words in "contraflow compile --sched" "contraflow-run --checkpoint-ev"; do
    COMP_WORDS=($words) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _completion_loader "${COMP_WORDS[0]}" || true
    function=$(complete -p "${COMP_WORDS[0]}" | sed "s/.*-F \([^ ]*\).*/\1/")
    "$function"
    echo "${COMPREPLY[@]}"
  done' >bash.txt
test "$(cat bash.txt)" = "--schedule
--checkpoint-every"
# Libraries.
cmake -S consumer -B by_cmake
cmake --build by_cmake
by_cmake/consumer
cmake -S consumer/runtime -B runtime_by_cmake
cmake --build runtime_by_cmake
runtime_by_cmake/trainer
g++ -std=c++20 consumer/main.cc -o by_pkg_config $(pkg-config --cflags --libs contraflow)
./by_pkg_config
# All of it goes again.
dpkg --purge contraflow
test ! -e /usr/share/contraflow
USE
echo "deb: tools, manual pages, bash, CMake and pkg-config use it"
echo "deb: ok, $(du -h "$deb" | cut -f1)"
