#!/bin/sh
# Sets everything up, builds all of it and passes every test. Uses the build of quickstart.sh.
set -eu
cd "$(dirname "$0")/.."

tools/install_packages.sh
cmake --workflow --preset release
