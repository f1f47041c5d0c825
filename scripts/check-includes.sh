#!/usr/bin/env bash
# Holds src/ to the rules of the design that a compiler does not check:
#   - a folder includes only from itself and from the folders before it in `order` (and always as "folder/file.h"),
#   - no file outside device/gpu* names a GPU vendor's runtime,
#   - no source, test or script is longer than 500 lines.
# Prints each breach as file:line: text and exits 1, or one line and 0. An argument is the tree to check instead of this one.
set -euo pipefail

root=${1:-$(cd "$(dirname "$0")/.." && pwd)}
order="base device tensor ops launch comm sharding layers model pipeline optim data plan checkpoint train cli"
max_lines=500

cd "$root"
list() { find "$@" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.sh' -o -name '*.py' \) | LC_ALL=C sort; }

folders=()
for folder in src tests bench scripts; do
  [ -d "$folder" ] && folders+=("$folder")
done
mapfile -t all <<<"$(list "${folders[@]}")"
mapfile -t sources <<<"$(list src)"
if [ -z "${sources[0]}" ]; then
  echo "check-includes: no sources under $root/src" >&2
  exit 2
fi

breaches=$(
  awk -v order="$order" '
    BEGIN { count = split(order, folders, " "); for (i = 1; i <= count; ++i) place[folders[i]] = i }
    FNR == 1 {
      split(FILENAME, path, "/"); own = path[2]
      if (!(own in place)) print FILENAME ":1: the folder " own " has no place in the order"
    }
    /^[ \t]*#[ \t]*include[ \t]*"/ {
      name = $0; sub(/^[^"]*"/, "", name); sub(/".*/, "", name)
      folder = name; sub(/\/.*/, "", folder)
      if (name !~ /\// || !(folder in place))
        print FILENAME ":" FNR ": \"" name "\" does not begin with a folder of src/"
      else if ((own in place) && place[folder] > place[own])
        print FILENAME ":" FNR ": " own " may not include " name ": " folder " comes after it"
    }' "${sources[@]}"
  for file in "${sources[@]}"; do
    case "$file" in src/device/gpu*) continue ;; esac
    grep -nHE '(^|[^[:alnum:]_])(cuda|Cuda|CUDA|hip|Hip|HIP)([^a-z]|$)' "$file" |
      sed 's/$/   <- only device\/gpu_api.h knows the vendor/' || true
  done
  wc -l "${all[@]}" | awk -v limit=$max_lines '$2 != "total" && $1 > limit { print $2 ":" $1 ": longer than " limit " lines" }'
)
if [ -n "$breaches" ]; then
  echo "$breaches"
  echo "check-includes: $(wc -l <<<"$breaches") breaches"
  exit 1
fi
echo "check-includes: ok, ${#all[@]} files"
