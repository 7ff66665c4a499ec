#!/bin/sh
# Writes the reference pages of the commands from their --help: one page a command, and the list of all.
#
#   commands.sh BIN FOLDER     BIN holds contraflow and contraflow-run; pages go to FOLDER/commands/ and FOLDER/commands.md
# shellcheck disable=SC2016  # backticks of Markdown
set -eu
bin=$1 out=$2
unset COLUMNS NO_COLOR CONTRAFLOW_PROFILES
mkdir -p "$out/commands"
page() { # PROGRAM [COMMAND..]
  name="$*" program=$1
  shift
  {
    printf '# %s\n\nThis page is the output of `%s --help`.\n\n```text\n' "$name" "$name"
    "$bin/$program" "$@" --help
    printf '```\n'
  } >"$out/commands/$(echo "$name" | tr ' ' '-').md"
}
help=$("$bin/contraflow" --help)
names=$(echo "$help" | sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z-]*\)  .*/\1/p')
for command in $names; do page contraflow "$command"; done
page contraflow costs init
page contraflow-run
{
  printf '# Commands\n\n```text\n%s\n```\n\nEach command has a page:\n\n' "$help"
  for command in $names; do
    printf '* [contraflow %s](commands/contraflow-%s.md)\n' "$command" "$command"
    [ "$command" != costs ] || printf '* [contraflow costs init](commands/contraflow-costs-init.md)\n'
  done
  printf '* [contraflow-run](commands/contraflow-run.md)\n'
} >"$out/commands.md"
