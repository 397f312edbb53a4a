#!/bin/sh
# Two candidates: the leader is killed, and the other one leads. On several hosts, all candidates name the same store:
#
#   fencepost elect --on etcd://a,b,c scheduler --value "$HOSTNAME:80" -- ./scheduler
#
# This example uses two processes on one host, with `fencepost` on the PATH:
#
#   sh examples/failover.sh
set -eu
dir=$(mktemp -d)
export FENCEPOST_URL="sqlite:$dir/locks.db"

# The command of a leader: it logs its process id and its term, which is the token, and runs until it is ended.
duty="echo \$\$ \$FENCEPOST_TOKEN >>$dir/terms; exec sleep 3600"
fencepost elect scheduler --value 10.0.0.1:80 --ttl 2s -- sh -c "$duty" &
first=$!
until test "$(fencepost leader scheduler 2>&1)" = 10.0.0.1:80 && test -s "$dir/terms"; do sleep 0.1; done
fencepost elect scheduler --value 10.0.0.2:80 --ttl 2s -- sh -c "$duty" &
second=$!
trap 'kill "$second" 2>&-; wait "$second" || true; rm -rf "$dir"' EXIT

kill -9 "$first"
until test "$(fencepost leader scheduler 2>&1)" = 10.0.0.2:80; do sleep 0.1; done
until test "$(wc -l <"$dir/terms")" -eq 2; do sleep 0.1; done
echo "10.0.0.2:80 leads; its term is higher:"
cut -d' ' -f2 "$dir/terms" | tee "$dir/numbers"
sort -n -u "$dir/numbers" | cmp - "$dir/numbers"
