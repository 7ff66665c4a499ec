#!/bin/sh
# Sets everything up, builds with warnings as errors and passes every test.
set -eu
cd "$(dirname "$0")/.."

tools/install_packages.sh
cmake --workflow --preset dev
