#!/usr/bin/env bash
# Makes a folder that runs on a machine without these libraries and without a package manager: the binary, and in lib/ every shared library
# it needs but the C library's own and the GPU driver's, which belong to the machine. The binary looks in its own lib/ first.
#
#   scripts/bundle.sh DIR
#
# The machine needs a C library at least as new as this one's (printed at the end).
set -euo pipefail

if [ $# -ne 1 ] || [[ $1 == -* ]]; then
  echo "bundle: usage: scripts/bundle.sh DIR" >&2
  exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
binary=$root/build/release/baleen
if [ ! -x "$binary" ]; then
  echo "bundle: no $binary; build it first: cmake --preset release && cmake --build --preset release --target baleen" >&2
  exit 2
fi
mkdir -p "$1/lib"
target=$(cd "$1" && pwd)

of_the_machine() {
  case "$1" in
    linux-vdso.so.* | ld-linux*.so.* | libc.so.* | libm.so.* | libmvec.so.* | libpthread.so.* | libdl.so.* | librt.so.* | libutil.so.* | \
      libresolv.so.* | libanl.so.* | libnsl.so.* | libnss_*.so.* | libBrokenLocale.so.* | libthread_db.so.* | libcuda.so.* | libnvidia-*) return 0 ;;
    *) return 1 ;;
  esac
}

copied=0
while read -r name _ path _; do
  name=$(basename "$name")
  if of_the_machine "$name"; then continue; fi
  if [ "$path" = not ]; then
    echo "bundle: $name, which the binary needs, is not on this machine" >&2
    exit 1
  fi
  install -m 644 "$(readlink -f "$path")" "$target/lib/$name"
  copied=$((copied + 1))
done <<<"$(ldd "$binary" | grep '=>')"
install -m 755 "$binary" "$target/baleen"
# A library with a search path of its own (Open MPI's) would look there and not where the binary says.
for library in "$target"/lib/*; do
  if ! readelf -d "$library" | grep -q RUNPATH; then continue; fi
  chrpath --delete "$library" >/dev/null || { echo "bundle: cannot take the search path out of $library; is chrpath installed?" >&2; exit 1; }
done
if [ -f "$root/LICENSE" ]; then install -m 644 "$root/LICENSE" "$root/NOTICE" "$target/"; fi
for licence in "$root"/build/{cudnn-frontend,cutlass}/LICENSE*; do  # of the headers that scripts/fetch-gpu-headers.sh fetched
  if [ -f "$licence" ]; then install -D -m 644 "$licence" "$target/licenses/$(basename "$(dirname "$licence")")-$(basename "$licence")"; fi
done

# The copy must find every one of them in its own folder, whatever this machine has.
while read -r name _ path _; do
  name=$(basename "$name")
  if of_the_machine "$name"; then continue; fi
  if [ "$path" != "$target/lib/$name" ]; then
    echo "bundle: the copy takes $name from $path and not from its own lib/ (is the binary linked with rpath \$ORIGIN/lib?)" >&2
    exit 1
  fi
done <<<"$(env -u LD_LIBRARY_PATH ldd "$target/baleen" | grep '=>')"
echo "bundle: ok, $target: baleen and $copied libraries, $(du -sh "$target" | cut -f1); needs glibc $(getconf GNU_LIBC_VERSION | cut -d' ' -f2) or newer"
