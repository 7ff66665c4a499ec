#!/bin/sh
# Sets everything up and does the main job on the CPU: compile a DualPipe schedule from real cost
# figures, prove it, look at it, simulate it, and train a small MoE language model with it.
set -eu
cd "$(dirname "$0")/.."

tools/install_packages.sh
cmake --preset release -DCF_CUDA=OFF
cmake --build --preset release --target quickstart
PATH="$PWD/build/release/tools:$PATH"
plan=build/dualpipe.json

run() {
  printf '\n$ %s\n' "$*"
  "$@"
}
run contraflow compile --schedule dualpipe --ranks 4 --microbatches 10 \
  --f 98.7ms --b 113ms --w 29.9ms --fb 127.6ms -o "$plan"
run contraflow verify "$plan"
run contraflow show "$plan" --format grid
run contraflow simulate "$plan"
run contraflow-run "$plan" --steps 12
