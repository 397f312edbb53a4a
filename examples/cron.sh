#!/bin/sh
# Twelve machines start the nightly job, and it runs once. In a crontab on each of them:
#
#   5 2 * * *  fencepost --on postgres://db/app once "billing/$(date +\%F)" -- /usr/local/bin/billing
#
# Here twelve processes of one machine, with `fencepost` on the PATH:
#
#   sh examples/cron.sh
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export FENCEPOST_URL="sqlite:$dir/locks.db"

pids=
for machine in 1 2 3 4 5 6 7 8 9 10 11 12; do
  fencepost once "billing/$(date +%F)" -- sh -c "echo 'machine $machine bills' >>$dir/runs" &
  pids="$pids $!"
done
# Those who came late are told that it is done, and end well.
for pid in $pids; do wait "$pid"; done

cat "$dir/runs"
test "$(wc -l <"$dir/runs")" -eq 1
fencepost once ls
