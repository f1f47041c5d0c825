#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests: the release build's, then those that sanitizers see most in.
#
#   scripts/test.sh [--full]
#
# Default: under 20 minutes on two cores with a cold compiler cache, AMD's compiler (half a gigabyte, if it is not there) included. --full adds the tests with the ctest label `full`, both sanitizers over
# all `unit` and `parallel` tests, and scripts/lint.sh.
# The last line is the verdict; exits 0 when everything passed, 1 when a test failed, 2 when it could not be built or run.
set -euo pipefail
cd "$(dirname "$0")/.."

full=false
for argument in "$@"; do
  case "$argument" in
    --full) full=true ;;
    *)
      echo "test: unknown argument '$argument'; usage: scripts/test.sh [--full]" >&2
      exit 2
      ;;
  esac
done

# Folders of tests/ that the sanitizers run by default. AddressSanitizer (with UndefinedBehaviorSanitizer): what handles foreign bytes, raw
# memory and arithmetic. ThreadSanitizer: where threads meet. A file costs 8 s of CPU under a sanitizer, so neither builds everything.
asan_folders=(checkpoint)
tsan_folders=(comm)
if $full; then
  asan_folders+=(data base device tensor sharding ops launch comm layers model pipeline optim train parallel gpu)
  tsan_folders+=(launch pipeline base device ops sharding layers data checkpoint train parallel)
fi

# One cache for all working trees and CI's fresh clones.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=true
jobs=$(nproc)
passed=0 skipped=0 failed=0
broken=()

quietly() {  # runs a command; shows its output only when it fails
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 || status=$?
  [ $status -eq 0 ] || tail -n 60 "$log"
  rm -f "$log"
  return $status
}

stop() {
  echo "test: FAILED, $1"
  exit 2
}

# count_in REPORT ATTRIBUTE: of the one <testsuite …> element, whose attributes stand on lines of their own.
count_in() { tr '\n\t' '  ' <"$1" | sed "s/.*<testsuite [^>]* $2=\"\([0-9]*\)\".*/\1/"; }

# suite PRESET CTEST_ARGUMENT…: runs ctest in a built tree and adds to the counts.
suite() {
  local preset=$1 report="$PWD/build/$1/tests.xml" all off bad
  shift
  rm -f "$report"
  ctest --preset "$preset" --parallel "$jobs" --no-tests=error --output-junit "$report" "$@" || broken+=("$preset")
  [ -s "$report" ] || stop "ctest ran nothing in build/$preset"
  all=$(count_in "$report" tests) off=$(count_in "$report" skipped) bad=$(count_in "$report" failures)
  passed=$((passed + all - off - bad)) skipped=$((skipped + off)) failed=$((failed + bad))
}

# sanitized PRESET FOLDER…: builds and runs the tests of these folders, as far as there are any.
sanitized() {
  local preset=$1 folder targets=()
  shift
  for folder in "$@"; do
    if [ -n "$(find "tests/$folder" -name '*.cpp' -print -quit 2>/dev/null)" ]; then targets+=("test_$folder"); fi
  done
  [ ${#targets[@]} -gt 0 ] || return 0
  echo "test: building $preset (${targets[*]})"
  quietly cmake --preset "$preset" || stop "cannot configure $preset"
  quietly cmake --build --preset "$preset" --parallel "$jobs" --target "${targets[@]}" || stop "cannot build $preset"
  # A folder whose tests were not built here stands in ctest's list as …_NOT_BUILT; scripts have no sanitizer, and the fuzzers are programs
  # that are built by themselves.
  local others='_NOT_BUILT$|^check_includes$|^(rendezvous|parsers)_fuzz$'
  local left_out=(-E "$others")
  # Many ranks as threads take a sanitizer minutes, on the paths that fewer take too; so do all collectives over TCP.
  $full || left_out=(-E "$others|/(8|16)\$|OverTcp.*Collectives" -LE full)
  suite "$preset" "${left_out[@]}"
}

bash scripts/install-deps.sh || stop "cannot install the packages"
# What the GPU code has beyond the packages, so that it is compiled here, too.
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
  quietly bash scripts/fetch-gpu-headers.sh || echo "test: no headers of cuDNN's frontend and CUTLASS; the GPU code is built without what needs them"
fi

echo "test: building release"
quietly cmake --preset release || stop "cannot configure release"
quietly cmake --build --preset release --parallel "$jobs" || stop "cannot build release"
if $full; then
  suite release
else
  # The collectives over MPI with 2 and 3 ranks and without its failures, over shared memory with up to 8.
  suite release -LE full -E '^Suite/OverMpi[.]EveryRankPasses/([4-8] |. (MpiRank|Failure))|^Ranks/Collectives[.].*/16$'
fi
# The kernels for AMD, where that compiler is or can be had.
if bash scripts/install-deps.sh --hip && command -v hipcc >/dev/null; then
  echo "test: compiling the kernels for AMD"
  quietly bash scripts/check-hip.sh --kernels || broken+=(hip)
else
  echo "test: no hipcc here; the kernels are not compiled for AMD"
fi
sanitized asan "${asan_folders[@]}"
sanitized tsan "${tsan_folders[@]}"
if $full; then
  bash scripts/lint.sh || broken+=(lint)
fi

if [ ${#broken[@]} -gt 0 ]; then
  echo "test: FAILED in ${broken[*]}; $failed tests failed, $passed passed, $skipped skipped in $SECONDS s"
  exit 1
fi
echo "test: ok, $passed tests passed, $skipped skipped in $SECONDS s"
