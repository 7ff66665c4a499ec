#!/bin/sh
# Installs the Debian packages that the build needs, where they are missing: Debian 12 or newer, or what
# is made of it. Elsewhere looks for the programs and libraries themselves, and says what is missing.
set -eu

packages="g++ cmake ninja-build git
doctest-dev nlohmann-json3-dev libcli11-dev libboost-dev libopenblas-dev libssl-dev
pybind11-dev python3-dev python3-numpy openmpi-bin zlib1g-dev"

fail() {
  echo "install_packages.sh: error: $*" >&2
  exit 1
}

missing=""
# need FOUND NAME: NAME is missing unless FOUND is true.
need() {
  "$1" || missing="$missing${missing:+, }$2"
}
compiler=${CXX:-c++}
# Words are options of the compiler too.
# shellcheck disable=SC2086
works() { printf '%s\nint main() {}\n' "$1" | $compiler -std=c++20 -x c++ - $2 -o "$probe" 2>/dev/null; }
# shellcheck disable=SC2086
has() { printf '#include <%s>\n' "$1" | $compiler -std=c++20 -E -x c++ - >/dev/null 2>&1; }
has_cmake() {
  version=$(cmake --version 2>/dev/null | sed -n 's/^cmake version \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
  # shellcheck disable=SC2086
  set -- $version
  [ $# -eq 2 ] && { [ "$1" -gt 3 ] || { [ "$1" -eq 3 ] && [ "$2" -ge 25 ]; }; }
}
has_compiler() { works '#include <compare>' ''; }
has_ninja() { command -v ninja >/dev/null; }
has_doctest() { has doctest/doctest.h; }
has_json() { has nlohmann/json.hpp; }
has_cli11() { has CLI/CLI.hpp; }
has_boost() { has boost/version.hpp; }
has_openblas() { { has cblas.h || has openblas/cblas.h; } && works '' -lopenblas; }
has_openssl() { has openssl/evp.h && works '' -lcrypto; }

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  probe=$(mktemp)
  trap 'rm -f "$probe"' EXIT
  need has_compiler "a compiler of C++20 ($compiler does not work; CXX may name another)"
  need has_cmake "CMake 3.25 or newer"
  need has_ninja Ninja
  if [ -z "$missing" ]; then
    need has_doctest "doctest (doctest/doctest.h)"
    need has_json "nlohmann/json 3.11 or newer (nlohmann/json.hpp)"
    need has_cli11 "CLI11 2.1 or newer (CLI/CLI.hpp)"
    need has_boost "the headers of Boost (boost/version.hpp)"
    need has_openblas "OpenBLAS (cblas.h, libopenblas)"
    need has_openssl "OpenSSL 3 (openssl/evp.h, libcrypto)"
  fi
  [ -z "$missing" ] ||
    fail "this is no Debian, so install by hand, then start again: $missing; the packages of Debian are" \
      "$(echo "$packages" | tr '\n' ' ')"
  echo "this is no Debian, but all that the build needs is there"
  exit 0
fi

for package in $packages; do
  if [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
    missing="$missing $package"
  fi
done
[ -z "$missing" ] && exit 0

echo "installing:$missing"
as_root=""
if [ "$(id -u)" -ne 0 ]; then
  as_root=sudo
  command -v sudo >/dev/null || fail "not root and no sudo; install$missing by hand"
fi
$as_root apt-get update -qq
# shellcheck disable=SC2086  # one word a package
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing
