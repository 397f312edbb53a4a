#!/bin/sh
# Two candidates; the leader is killed, and the other one leads. On several hosts each names the same store:
#
#   fencepost elect --on etcd://a,b,c scheduler --value "$HOSTNAME:80" -- ./scheduler
#
# Here two processes of one machine, with `fencepost` on the PATH:
#
#   sh examples/failover.sh
set -eu
dir=$(mktemp -d)
export FENCEPOST_URL="sqlite:$dir/locks.db"

# What runs while leading: it says who it is, and would go on for ever. The token is the term.
duty="echo \$\$ \$FENCEPOST_TOKEN >>$dir/terms; exec sleep 3600"
fencepost elect scheduler --value 10.0.0.1:80 --ttl 2s -- sh -c "$duty" &
first=$!
until test "$(fencepost leader scheduler 2>&1)" = 10.0.0.1:80; do sleep 0.1; done
fencepost elect scheduler --value 10.0.0.2:80 --ttl 2s -- sh -c "$duty" &
second=$!
trap 'kill "$second" 2>&-; wait "$second" || true; rm -rf "$dir"' EXIT

kill -9 "$first"
until test "$(fencepost leader scheduler 2>&1)" = 10.0.0.2:80; do sleep 0.1; done
until test "$(wc -l <"$dir/terms")" -eq 2; do sleep 0.1; done
echo "10.0.0.2:80 leads; its term is higher:"
cut -d' ' -f2 "$dir/terms" | tee "$dir/numbers"
sort -n -u "$dir/numbers" | cmp - "$dir/numbers"
