#!/usr/bin/env bash
# The built-in collectives beside Open MPI's (or another MPI's) on this machine, taking turns, so that a busy machine slows both alike.
#
#   bench/compare/comm.sh [--rounds N] [--ranks "2 4"] [--ops "all_reduce …"] [--sizes "4096 1048576 …"]
#
# Floats, one thread a rank; all_reduce, all_gather and reduce_scatter in place (MPI_IN_PLACE there), all_to_all not. For each operation, number
# of ranks and size: the median microseconds of both (MPI's blocking or nonblocking call, whichever is faster that time), baleen's bus
# bandwidth and its share of what the processors copy, and the median over rounds of MPI's time divided by baleen's. Needs the targets baleen
# and mpi_plain; without mpirun or mpi_plain, baleen alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=5 ranks="2 4" ops="all_reduce reduce_scatter all_gather all_to_all" sizes="4096 1048576 16777216 268435456"
while (($# > 0)); do
  case $1 in
    --rounds) rounds=$2 ;;
    --ranks) ranks=$2 ;;
    --ops) ops=$2 ;;
    --sizes) sizes=$2 ;;
    *) echo "comm.sh: no option '$1'" >&2 && exit 2 ;;
  esac
  shift 2
done
baleen=${BALEEN:-build/release/baleen} plain=${MPI_PLAIN:-build/release/mpi_plain}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpi=yes
command -v mpirun >/dev/null && [[ -x $plain ]] || { mpi=""; echo "skipped: MPI (mpirun, or the target mpi_plain, is not there)"; }
grep -m1 "model name" /proc/cpuinfo | sed 's/.*: /processor: /'
[[ -z $mpi ]] || mpirun --version | head -1

median() { sort -g | awk '{ v[NR] = $1 } END { if (NR) print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printf '%-15s %5s %10s %12s %12s %12s %10s %10s\n' operation ranks bytes "baleen us" "MPI us" "busbw GB/s" "of memory" "MPI/baleen"
for op in $ops; do
  place=--in-place
  [[ $op == all_to_all || $op == broadcast ]] && place=""
  for n in $ranks; do
    for size in $sizes; do
      rm -f "$folder"/*
      for ((round = 0; round < rounds; ++round)); do
        "$baleen" bench comm --ranks "$n" --op "$op" --sizes "$size" $place 2>/dev/null | tail -1 | awk '{ print $4, $6, $8, $7 }' >"$folder/row"
        read -r time bus share wrong <"$folder/row"
        [[ $wrong == 0 ]] || { echo "comm.sh: $wrong wrong elements in $op of $size bytes" >&2 && exit 1; }
        echo "$time" >>"$folder/time" && echo "$bus" >>"$folder/bus" && echo "$share" >>"$folder/share"
        [[ -n $mpi ]] || continue
        theirs=$(mpirun --oversubscribe -n "$n" "$plain" "$op" $place "$size" 2>/dev/null | awk '{ print $3 < $6 ? $3 : $6 }')
        echo "$theirs" >>"$folder/mpi"
        awk "BEGIN { print $theirs / $time }" >>"$folder/ratio"
      done
      touch "$folder/mpi" "$folder/ratio"
      printf '%-15s %5d %10d %12.2f %12.2f %12.3f %10.2f %10.2f\n' "$op" "$n" "$size" "$(median <"$folder/time")" "$(median <"$folder/mpi")" \
        "$(median <"$folder/bus")" "$(median <"$folder/share")" "$(median <"$folder/ratio")"
    done
  done
done
