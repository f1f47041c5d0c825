#!/usr/bin/env bash
# Fetches the headers that describe attention to cuDNN (the package nvidia-cudnn-frontend, MIT) into build/cudnn-frontend. They are not part
# of this repository; a build without them has slower attention on GPUs. The version is pinned and its files are checked.
set -euo pipefail

version=1.32.0
root=$(cd "$(dirname "$0")/.." && pwd)
to=$root/build/cudnn-frontend
if [ -f "$to/include/cudnn_frontend.h" ] && [ "$(cat "$to/version" 2>/dev/null)" = "$version" ]; then
  echo "fetch-attention-headers: $to has version $version already"
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$work" "nvidia-cudnn-frontend==$version"
python3 - "$work" "$to" <<'PYTHON'
import pathlib, shutil, sys, zipfile
work, to = map(pathlib.Path, sys.argv[1:])
(wheel,) = work.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:  # checks each file's checksum
    archive.extractall(work, [name for name in archive.namelist() if name.startswith("include/")])
shutil.rmtree(to, ignore_errors=True)
to.mkdir(parents=True)
shutil.move(work / "include", to / "include")
PYTHON
echo "$version" >"$to/version"
echo "fetch-attention-headers: version $version is in $to; configure again to use it"
