#!/usr/bin/env bash
# Fetches headers that are not part of this repository, and their licences, into build/: cudnn-frontend (the package nvidia-cudnn-frontend, MIT), which describes
# attention to cuDNN, and cutlass (nvidia-cutlass, BSD 3-clause), from which products with an own ending are built. A build without them is
# slower on GPUs. Versions are pinned and the files are checked.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# fetch FOLDER PACKAGE VERSION INCLUDE: the package's folder INCLUDE becomes build/FOLDER/include.
fetch() {
  local to=$root/build/$1 package=$2 version=$3 include=$4
  if [ -d "$to/include" ] && [ "$(cat "$to/version" 2>/dev/null)" = "$version" ]; then
    echo "fetch-gpu-headers: $to has version $version already"
    return
  fi
  rm -rf "$work"/*
  python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$work" "$package==$version"
  python3 - "$work" "$to" "$include" <<'PYTHON'
import pathlib, shutil, sys, zipfile
work, to = map(pathlib.Path, sys.argv[1:3])
include = sys.argv[3]
(wheel,) = work.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:  # checks each file's checksum
    names = archive.namelist()
    archive.extractall(work, [name for name in names if name.startswith(include + "/")])
    licences = [(pathlib.PurePath(name).name, archive.read(name)) for name in names if ".dist-info/licenses/" in name and not name.endswith("/")]
shutil.rmtree(to, ignore_errors=True)
to.mkdir(parents=True)
shutil.move(work / include, to / "include")
for name, text in licences:
    (to / name).write_bytes(text)
PYTHON
  echo "$version" >"$to/version"
  echo "fetch-gpu-headers: version $version is in $to; configure again to use it"
}

fetch cudnn-frontend nvidia-cudnn-frontend 1.32.0 include
fetch cutlass nvidia-cutlass 4.2.0.0 cutlass_library/source/include
