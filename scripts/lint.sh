#!/usr/bin/env bash
# Formatting (clang-format-19) of all C++ and clang-tidy-19 over src/. Exits 1 when either has something to say.
#
#   scripts/lint.sh [--fix] [FILE…]
#
# --fix formats in place. FILEs limit clang-tidy to these: it takes about 20 s a file, which is why scripts/test.sh runs it under --full only.
# Needs a configured build/release for the compile commands (and configures it when there is none).
set -euo pipefail
cd "$(dirname "$0")/.."

fix=false
files=()
for argument in "$@"; do
  case "$argument" in
    --fix) fix=true ;;
    -*)
      echo "lint: unknown argument '$argument'; usage: scripts/lint.sh [--fix] [FILE…]" >&2
      exit 2
      ;;
    *) files+=("$argument") ;;
  esac
done
bash scripts/install-deps.sh --lint || { command -v clang-format-19 && command -v clang-tidy-19; } >/dev/null
[ -f build/release/compile_commands.json ] || cmake --preset release >/dev/null

folders=()
for folder in src tests bench; do
  [ -d "$folder" ] && folders+=("$folder")
done
mapfile -t formatted <<<"$(find "${folders[@]}" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) | LC_ALL=C sort)"
if $fix; then
  clang-format-19 -i "${formatted[@]}"
fi

status=0
unformatted=$(for file in "${formatted[@]}"; do clang-format-19 "$file" | cmp -s - "$file" || echo "  $file"; done)
if [ -n "$unformatted" ]; then
  echo "lint: not formatted (scripts/lint.sh --fix):"
  echo "$unformatted"
  status=1
fi

# Those that this configuration compiles: of the others (another vendor's, or builds without a library) nobody knows the flags.
if [ ${#files[@]} -eq 0 ]; then
  mapfile -t files <<<"$(sed -n "s|^ *\"file\": \"$PWD/\(src/.*\.cpp\)\",\{0,1\}\$|\1|p" build/release/compile_commands.json | LC_ALL=C sort -u)"
fi
# What clang-tidy counts ("12345 warnings generated, suppressed …") is of no interest; findings go to standard output.
if ! printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy-19 --quiet -p build/release 2>/dev/null; then
  echo "lint: clang-tidy has findings, above"
  status=1
fi
[ $status -eq 0 ] && echo "lint: ok, ${#formatted[@]} files formatted, ${#files[@]} checked"
exit $status
