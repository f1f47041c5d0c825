#!/usr/bin/env bash
# Compiles the GPU code for AMD. No AMD GPU is needed, and nothing is run on one.
#
#   scripts/check-hip.sh --kernels     the kernels alone, with this machine's hipcc (scripts/install-deps.sh --hip): a minute
#   scripts/check-hip.sh [TREE]        the whole program, in a Debian 13 tree with AMD's compiler, hipBLAS and RCCL: compiled, linked, and
#                                      started there, so that it finds every function of RCCL that it uses
#
# TREE (build/hip-tree by default) is made with debootstrap when it is not there, which needs root, the network, 6 GB and some minutes; the
# build in it, which is not optimised, takes ten minutes of two cores the first time. The last line is the verdict.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
architecture=gfx90a

fail() {
  echo "check-hip: FAILED, $1" >&2
  exit 1
}

kernels() {
  command -v hipcc >/dev/null || { echo "check-hip: no hipcc here; scripts/install-deps.sh --hip installs Debian 12's" >&2; exit 2; }
  local begin=$SECONDS
  work=$(mktemp -d)  # not local: the trap runs when the function has ended
  trap 'rm -rf "$work"' EXIT
  find "$root/src" -name '*.cu' | sort | xargs -P "$(nproc)" -I{} sh -c '
    name=$(basename "$2")
    case "$name" in
      *norm.cu) level=-O0 ;;  # rows in registers, unrolled for every length: a minute and a half each
      *) level=-O1 ;;         # without, there are functions that the compiler has no instruction for
    esac
    # hipcc leaves an empty folder a file where it keeps its temporary ones.
    TMPDIR="$4" HIP_PLATFORM=amd hipcc -c -D__HIP_PLATFORM_AMD__=1 "$level" -x hip --offload-arch="$1" -std=c++20 -Wno-unused-command-line-argument -Wno-unused-result -I "$3" "$2" -o "$4/$name.o" >"$4/$name.log" 2>&1 ||
      { cat "$4/$name.log" >&2; exit 255; }' sh "$architecture" {} "$root/src" "$work" || fail "a kernel does not compile for $architecture"
  echo "check-hip: ok, $(find "$work" -name '*.o' | wc -l) files of kernels compile for $architecture in $((SECONDS - begin)) s"
}

packages=(
  g++ cmake ninja-build ccache pkg-config hipcc libamdhip64-dev librccl-dev libhipblas-dev
  ocl-icd-opencl-dev libhwy-dev libfmt-dev libspdlog-dev libxxhash-dev zlib1g-dev libzstd-dev libpcre2-dev libutf8proc-dev
  libsentencepiece-dev libtomlplusplus-dev nlohmann-json3-dev libcli11-dev libsodium-dev libhwloc-dev
)
# In the tree, with a /proc of its own that goes when the command does.
inside() { unshare --mount --pid --fork --mount-proc="$tree/proc" chroot "$tree" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"; }

whole_program() {
  if [ ! -e "$tree/etc/debian_version" ]; then
    command -v debootstrap >/dev/null || { echo "check-hip: no debootstrap here; apt-get install debootstrap" >&2; exit 2; }
    echo "check-hip: making a Debian 13 tree in $tree"
    mkdir -p "$tree"
    debootstrap --variant=minbase trixie "$tree" >"$tree.log" 2>&1 || { tail "$tree.log" >&2; fail "debootstrap; see $tree.log"; }
  fi
  # oneDNN 2, which this project is written for, is Debian 12's.
  sed -n 's/^\(deb .*\) trixie main.*/\1 bookworm main/p' "$tree/etc/apt/sources.list" >"$tree/etc/apt/sources.list.d/bookworm.list"
  printf 'Package: *\nPin: release n=bookworm\nPin-Priority: 100\n' >"$tree/etc/apt/preferences.d/bookworm"
  inside apt-get -qq update >/dev/null || true
  inside env DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends --allow-downgrades "${packages[@]}" libdnnl-dev/bookworm libdnnl2/bookworm >"$tree.log" 2>&1 ||
    { tail "$tree.log" >&2; fail "packages; see $tree.log"; }
  mkdir -p "$tree/baleen"
  # What git would take along, so that files of other builds do not come between.
  (cd "$root" && git ls-files -z --cached --others --exclude-standard -- CMakeLists.txt CMakePresets.json cmake src bench | tar -c --null -T - --ignore-failed-read) |
    (cd "$tree/baleen" && rm -rf src cmake bench && tar -x)
  inside env CCACHE_SLOPPINESS=pch_defines,time_macros sh -ec "cd /baleen
    CXX=g++ cmake --preset hip -DBALEEN_TESTS=OFF -DCMAKE_HIP_COMPILER=/usr/bin/clang++-17 -DCMAKE_CXX_FLAGS_RELEASE=-O0 -DCMAKE_HIP_FLAGS_RELEASE=-O1 >configure.log 2>&1 || { tail -n 30 configure.log; exit 1; }
    cmake --build --preset hip --parallel $(nproc) --target baleen" || fail "the build"
  local needs doctor
  needs=$(inside sh -c 'ldd /baleen/build/hip/baleen')
  for library in libamdhip64 libhipblas; do
    grep -q "$library.*=> /" <<<"$needs" || fail "the program is not linked with $library"
  done
  doctor=$(inside /baleen/build/hip/baleen doctor) || fail "baleen doctor"
  echo "$doctor" | grep -E '^(GPU|NCCL)'
  grep -qE '^NCCL +[0-9].*librccl' <<<"$doctor" || fail "the program does not find RCCL"
  echo "check-hip: ok, the program compiles for $architecture and links: $(inside dpkg-query -W -f '${Package} ${Version}, ' libamdhip64-5 libhipblas0 librccl1 | sed 's/, $//'); not run on a GPU"
}

case "${1:-}" in
  --kernels) kernels ;;
  -*)
    echo "check-hip: unknown argument '$1'; usage: scripts/check-hip.sh [--kernels | TREE]" >&2
    exit 2
    ;;
  *)
    tree=$(realpath -m "${1:-$root/build/hip-tree}")
    whole_program
    ;;
esac
