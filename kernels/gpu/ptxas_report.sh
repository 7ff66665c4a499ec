#!/bin/bash
# ptxas_report.sh COMMAND...: compiles, and writes the report of ptxas on each kernel (registers,
# stack, spills) next to the object, as OBJECT.ptxas, instead of on the screen. Everything else
# comes through, and so does a report of lost performance.
set -u

object=
previous=
for argument in "$@"; do
  if [ "$previous" = -o ]; then object=$argument; fi
  previous=$argument
done
if [ -z "$object" ]; then exec "$@"; fi

said=$(mktemp)
trap 'rm -f "$said"' EXIT
"$@" 2>"$said"
code=$?
report='^ptxas info|^ +[0-9]+ bytes stack frame'
grep -E -v "$report" "$said" >&2
if grep -E "$report" "$said" >"$object.ptxas"; then
  grep -F 'Potential Performance Loss' "$object.ptxas" >&2
else
  rm -f "$object.ptxas"  # host code
fi
exit "$code"
