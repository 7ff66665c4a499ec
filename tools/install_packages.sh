#!/bin/sh
# Installs the Debian packages that the build needs, where they are missing. Debian 12 or newer.
set -eu

packages="g++ cmake ninja-build git
doctest-dev nlohmann-json3-dev libcli11-dev libboost-dev libopenblas-dev libssl-dev
pybind11-dev python3-dev python3-numpy openmpi-bin zlib1g-dev"

missing=""
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
  command -v sudo >/dev/null || {
    echo "install_packages.sh: error: not root and no sudo; install$missing by hand" >&2
    exit 1
  }
fi
$as_root apt-get update -qq
# shellcheck disable=SC2086  # one word a package
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing
