#!/bin/sh
# Runs all that needs a recent PyTorch: files that PyTorch writes and what import says of them,
# exports in PyTorch's own runtime, and contraflow.torch, also with models of Hugging Face. Not part
# of the test suite: PyTorch from PyPI is 4 GB.
#
#   tools/python/torch_check.sh                    in an environment of its own, build/torch-check/venv
#   tools/python/torch_check.sh --python PYTHON    in the environment of that interpreter, as it is
#
# Needs what the build needs. Prints the result and the time of each part; the output of a part is
# in build/torch-check/NAME.log. Exits with 1 where any failed.
set -eu
cd "$(dirname "$0")/../.."

release=2.15
python=""
case "${1-}" in
  "") ;;
  --python)
    [ $# -eq 2 ] || { echo "torch_check.sh: error: --python: needs an interpreter" >&2; exit 2; }
    python=$2 ;;
  *) echo "usage: torch_check.sh [--python PYTHON]" >&2; exit 2 ;;
esac

out=$PWD/build/torch-check
mkdir -p "$out"
if [ -z "$python" ]; then
  python=$out/venv/bin/python
  [ -x "$python" ] || python3 -m venv "$out/venv"
  "$python" -m pip install -q numpy "torch==$release.*" "transformers==5.*"
fi
version=$("$python" -c 'import torch; print(torch.__version__)') || {
  echo "torch_check.sh: error: $python has no torch; leave --python out for an environment with it" >&2
  exit 1
}

cmake --preset release >/dev/null
cmake --build build/release --target contraflow
tool=$PWD/build/release/tools/contraflow
# The package of the build tree where that is for this Python, else one made for it.
if cmake --build build/release --target contraflow_python &&
  PYTHONPATH=$PWD/build/release/tools/python "$python" -c 'import contraflow' 2>/dev/null; then
  packages=$PWD/build/release/tools/python
else
  packages=$out/packages
  rm -rf "$packages"
  "$python" -m pip install -q --no-deps --target "$packages" .
fi
echo "torch $version, $("$python" --version), contraflow of $packages"

failed=0
part() { # NAME COMMAND...
  name=$1 began=$(date +%s)
  shift
  code=0
  PYTHONPATH=$packages CONTRAFLOW=$tool PYTHONDONTWRITEBYTECODE=1 "$@" >"$out/$name.log" 2>&1 || code=$?
  case $code in
    0) result=ok ;;
    77) result=skipped ;;
    *) result="FAILED ($code)" failed=1 ;;
  esac
  echo "$name: $result, $(($(date +%s) - began)) s: $(tail -n 1 "$out/$name.log")"
}
for program in torch_orders torch_exports; do
  part $program "$python" "tests/python/$program.py" "$tool"
done
for test in simulation values; do # with the NumPy of that environment
  part $test "$python" "tests/python/${test}_test.py"
done
part torch_sharded "$python" tests/python/torch_sharded.py
part torch_moe_blocks "$python" tests/python/torch_moe_blocks.py
part torch_hf "$python" tests/python/torch_hf.py
part torch_gpu "$python" tests/python/torch_gpu.py "$tool" --backend gloo --megabytes 1
for test in tests/python/torch_*_test.py; do
  part "$(basename "$test" _test.py)" "$python" "$test"
done
part torch_plans_full "$python" tests/python/torch_plans_test.py --full
part torch_overhead "$python" tests/python/torch_overhead.py
exit $failed
