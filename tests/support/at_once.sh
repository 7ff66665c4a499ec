#!/bin/sh
# Runs the cases of a file of tests at once, for those that wait more than they compute; fails if one
# does. Usage: at_once.sh MOST PROGRAM OPTION...
set -eu
most=$1
shift
count=$("$@" --count | sed -n 's/.*the current filters: //p')
[ "$count" -gt 0 ]
seq "$count" | xargs -P "$most" -I{} "$@" --first={} --last={}
