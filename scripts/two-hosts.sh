#!/usr/bin/env bash
# Two hosts for trying multi-machine jobs on one: network namespaces with a link between them and host names of their own.
#
#   scripts/two-hosts.sh mpirun N ARGUMENT…     N ranks of `baleen ARGUMENT…` on each, started by mpirun
#   scripts/two-hosts.sh torchrun N ARGUMENT…   the same with the variables that torchrun sets, no torchrun needed
#
# Needs root, iproute2 and, for mpirun, openmpi-bin. BALEEN names the binary (build/release/baleen). With torchrun BALEEN_SECRET_FILE is set to
# a new secret, as a user would. Exits with the first rank's non-zero code, 3 where namespaces cannot be made. Leaves nothing behind.
set -euo pipefail
baleen=${BALEEN:-$(cd "$(dirname "$0")/.." && pwd)/build/release/baleen}
[ $# -ge 3 ] || { sed -n '2,9p' "$0" >&2; exit 2; }
launcher=$1 per_host=$2
shift 2

a=baleen-$$-a b=baleen-$$-b
work=$(mktemp -d)
clean_up() {
  local job
  for job in $(jobs -p); do kill -KILL "$job" 2>/dev/null || true; done
  ip netns del $a 2>/dev/null || true
  ip netns del $b 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT
{ ip netns add $a && ip netns add $b && ip -n $a link add eth0 type veth peer name eth0 netns $b; } 2>"$work/why" ||
  { echo "two-hosts: cannot make network namespaces: $(cat "$work/why")" >&2; exit 3; }
for end in "$a 10.77.0.1" "$b 10.77.0.2"; do
  # shellcheck disable=SC2086
  set -- $end "$@"
  ip -n "$1" addr add "$2/24" dev eth0
  ip -n "$1" link set lo up
  ip -n "$1" link set eth0 up
  shift 2
done

# on HOST COMMAND…: runs it there, under that host's name.
on() {
  local host=$1
  shift
  ip netns exec "$host" unshare --uts sh -c 'hostname "$0"; exec "$@"' "$host" "$@"
}

case $launcher in
  mpirun)
    # What mpirun uses in place of ssh: it is called with the host and a command line.
    cat >"$work/agent" <<AGENT
#!/bin/sh
while [ "\$1" != 10.77.0.2 ]; do shift; done
shift
exec ip netns exec $b unshare --uts sh -c 'hostname "\$0"; exec sh -c "\$1"' $b "\$*"
AGENT
    chmod +x "$work/agent"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    on $a mpirun --mca plm_rsh_agent "$work/agent" --mca oob_tcp_if_include 10.77.0.0/24 --mca btl_tcp_if_include 10.77.0.0/24 --mca btl self,vader,tcp \
      --host "10.77.0.1:$per_host,10.77.0.2:$per_host" --oversubscribe -n $((2 * per_host)) "$baleen" "$@"
    ;;
  torchrun)
    head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$work/secret"
    chmod 600 "$work/secret"
    export BALEEN_SECRET_FILE=$work/secret MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 WORLD_SIZE=$((2 * per_host)) LOCAL_WORLD_SIZE=$per_host
    pids=() status=0
    for ((rank = WORLD_SIZE - 1; rank >= 0; --rank)); do
      host=$a
      [ $rank -lt "$per_host" ] || host=$b
      RANK=$rank LOCAL_RANK=$((rank % per_host)) on $host "$baleen" "$@" &
      pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
    exit $status
    ;;
  *)
    echo "two-hosts: unknown launcher '$launcher': mpirun or torchrun" >&2
    exit 2
    ;;
esac
