#!/bin/sh
# Twelve hosts start the nightly job, and it runs once. In the crontab of each host:
#
#   5 2 * * *  fencepost --on postgres://db/app once "billing/$(date +\%F)" -- /usr/local/bin/billing
#
# This example uses twelve processes on one host, with `fencepost` on the PATH:
#
#   sh examples/cron.sh
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export FENCEPOST_URL="sqlite:$dir/locks.db"

pids=
for host in 1 2 3 4 5 6 7 8 9 10 11 12; do
  fencepost once "billing/$(date +%F)" -- sh -c "echo 'host $host bills' >>$dir/runs" &
  pids="$pids $!"
done
# The others find that the job is done, and exit with 0.
for pid in $pids; do wait "$pid"; done

cat "$dir/runs"
test "$(wc -l <"$dir/runs")" -eq 1
fencepost once ls
