#!/usr/bin/env bash
# Installs what building, testing and the quickstart need, from Debian 12's own packages. Says nothing when all is there.
#
#   scripts/install-deps.sh [--quickstart] [--lint] [--hip]
#
# --quickstart is the default list. --lint adds the formatter and linter that scripts/lint.sh runs, --hip AMD's compiler for
# scripts/check-hip.sh --kernels.
# Needs root, or sudo. Nothing is downloaded but Debian packages.
set -euo pipefail

packages=(
  # toolchain
  g++ cmake ninja-build ccache pkg-config git ca-certificates
  # libraries; Debian's oneDNN is built with OpenCL, and its CMake files ask for it
  libdnnl-dev ocl-icd-opencl-dev libhwy-dev libfmt-dev libspdlog-dev libxxhash-dev zlib1g-dev libzstd-dev libpcre2-dev
  libutf8proc-dev libsentencepiece-dev
  libtomlplusplus-dev nlohmann-json3-dev libcli11-dev libsodium-dev libhwloc-dev
  # the MPI backend and its launcher; a machine with another MPI, or none, builds without
  libopenmpi-dev openmpi-bin
  # scripts/bundle.sh
  chrpath
  # tests
  libgtest-dev libgmock-dev
  # the quickstart's text, which end-to-end tests train on too
  bible-kjv
)
for argument in "$@"; do
  case "$argument" in
    --quickstart) ;;
    --lint) packages+=(clang-format-19 clang-tidy-19 libomp-19-dev) ;;
    --hip) packages+=(hipcc libamdhip64-dev) ;;
    *)
      echo "install-deps: unknown argument '$argument'; usage: scripts/install-deps.sh [--quickstart] [--lint] [--hip]" >&2
      exit 2
      ;;
  esac
done

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# Sets `wanted` to what is not there. (No process substitution in these scripts: a bare tree may have no /dev/fd.)
find_missing() {
  local package
  wanted=()
  for package in "${packages[@]}"; do
    installed "$package" || wanted+=("$package")
  done
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install-deps: no apt-get here. Install these packages of Debian 12, or what your system calls them: ${packages[*]}" >&2
  exit 2
fi

find_missing
[ ${#wanted[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install-deps: run as root, or install sudo. Missing: ${wanted[*]}" >&2
    exit 2
  fi
  as_root=(sudo)
fi
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)

echo "install-deps: installing ${wanted[*]}"
# One unreachable source among several is no reason to stop: what counts is whether the packages can be had.
"${apt[@]}" update >/dev/null || echo "install-deps: apt-get update failed for some source; going on" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! "${apt[@]}" install --no-install-recommends "${wanted[@]}" </dev/null >"$log" 2>&1; then
  tail -n 30 "$log" >&2
  echo "install-deps: apt-get could not install the packages; the reason stands above" >&2
  exit 1
fi
find_missing
if [ ${#wanted[@]} -ne 0 ]; then
  echo "install-deps: still missing: ${wanted[*]}" >&2
  exit 1
fi
