#!/bin/sh
# The workflow of the guide's page on CI: every command that it runs, in the order of its steps, with plans of a
# project; cmake and dpkg, which would build all anew, are stand-ins. Usage: workflow_test.sh SOURCES BUILD
# shellcheck disable=SC2016  # patterns with backticks
set -eu
sources=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $1"
  exit 1
}
sed -n '/^```yaml/,/^```$/p' "$sources/tools/guide/how-to/guard-in-ci.md" | sed '/^```/d' >"$work/workflow.yml"
# If PyYAML is there, the steps are those that it reads.
sed -n 's/^ *- run: //p' "$work/workflow.yml" >"$work/commands"
[ "$(wc -l <"$work/commands")" -ge 4 ] || fail "the page has no workflow with commands"
if python3 -c 'import yaml' 2>/dev/null; then
  python3 - "$work/workflow.yml" >"$work/read" <<'Y' || fail "is no workflow"
import sys, yaml
workflow = yaml.safe_load(open(sys.argv[1]))
assert workflow["name"] and workflow[True] == ["pull_request"]  # YAML 1.1 takes "on" for a boolean
for job in workflow["jobs"].values():
    assert job["runs-on"] and all(("run" in step) != ("uses" in step) for step in job["steps"])
    print("\n".join(step["run"] for step in job["steps"] if "run" in step))
Y
  cmp "$work/commands" "$work/read" || fail "YAML reads other commands"
fi

mkdir -p "$work/path" "$work/space/plans" "$work/space/contraflow/build/release"
ln -s "$sources/tools" "$work/space/contraflow/tools"
ln -s "$build/tools" "$work/space/contraflow/build/release/tools"
printf '#!/bin/sh\necho "cmake $*" >>"%s"\n' "$work/calls" >"$work/path/cmake"
printf '#!/bin/sh\nprintf installed\n' >"$work/path/dpkg-query"
chmod +x "$work/path/cmake" "$work/path/dpkg-query"
cd "$work/space"
"$build/tools/contraflow" compile --schedule zb-1p --ranks 4 --microbatches 8 -o plans/one.json
"$build/tools/contraflow" compile --schedule 1f1b --ranks 2 --microbatches 4 -o plans/two.json
echo '{"max_bubble_ratio": 0.5}' >limits.json

export GITHUB_PATH="$work/github_path" PATH="$work/path:$PATH"
: >"$GITHUB_PATH"
while read -r command; do
  ran=0
  (PATH="$(tr '\n' : <"$GITHUB_PATH")$PATH" sh -e -c "$command" </dev/null) || ran=$?
  [ "$ran" -eq 0 ] || fail "exit code $ran of: $command"
done <"$work/commands"
grep -q '<testsuite name="plans/one.json" tests="2" failures="0"' junit.xml || fail "no JUnit report"
# The targets that it builds are there to be built.
sed -n 's/^cmake.*--preset \([a-z]*\).*/\1/p' "$work/calls" >"$work/presets"
[ -s "$work/presets" ] || fail "cmake was not called with a preset"
while read -r preset; do
  grep -q "\"name\": \"$preset\"" "$sources/CMakePresets.json" || fail "no preset $preset"
done <"$work/presets"
