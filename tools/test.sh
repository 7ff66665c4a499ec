#!/bin/sh
# Sets everything up, builds all of it and passes every test; what quickstart.sh has built is used.
set -eu
cd "$(dirname "$0")/.."

tools/install_packages.sh
cmake --workflow --preset release
