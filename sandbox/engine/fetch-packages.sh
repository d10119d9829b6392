#!/bin/bash
# fetch-packages.sh PYTHON REQUIREMENTS DIRECTORY [ARGUMENT OF PIP]...
# Fill DIRECTORY/packages and DIRECTORY/torch with the engine's packages for CPython 3.11 on Linux, whatever Python
# runs pip. The bytecode is made in the image, by the Python that will read it.
set -euo pipefail
python=$1 requirements=$2 directory=$3
shift 3

# One at a time: a run that was cut off may have left this one's twin behind.
exec 9>"$directory.lock"
flock 9
[ -e "$directory/complete" ] && exit 0

rm -rf "$directory"
mkdir -p "$directory/torch"
"$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile \
  --only-binary=:all: --implementation cp --python-version 3.11 --target "$directory/packages" "$@" \
  --requirement "$requirements"

# What only a build, a test, a Java program or a browser reads.
cd "$directory/packages"
rm -rf bin share torch/include torch/test torch/share torch/bin/protoc* torch/bin/test_* torch/bin/*Test* \
  ray/jars ray/rllib ray/dashboard/client
# Symbols for a debugger: 450 MB that would be compressed and pushed. Without strip the image is only bigger.
if command -v strip >/dev/null; then
  strip --strip-unneeded vllm/*.so torch/lib/libtorch_cpu.so ray/_raylet.so
fi
mv torch ../torch/torch
touch "$directory/complete"
