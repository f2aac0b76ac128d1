#!/usr/bin/env bash
# Prints the Python that has the clients of pyproject.toml's group "clients", pinned in .ci/clients.txt:
# an environment of its own in the cache outside the tree, made when its list has changed.
# `install.sh built` adds those of .ci/clients-built.txt, which are compiled: a minute or two, the first time.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-.venv/bin/python}

list=$(cat .ci/clients.txt .ci/clients-built.txt | sha256sum | cut -c1-16)
version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
cache=${GPU_DEVICE_PLUGIN_CACHE:-$HOME/.cache/gpu-device-plugin}/clients-$version-$list
mkdir -p "$(dirname "$cache")"
exec 9>"$cache.lock"
flock 9

install() { # install LIST
  "$PYTHON" -m pip --python "$cache/bin/python" install --quiet --disable-pip-version-check \
    --require-hashes -r "$1" >&2
}

if [ ! -e "$cache/.installed" ]; then
  rm -rf "$cache"
  "$PYTHON" -m venv --without-pip "$cache"
  install .ci/clients.txt
  touch "$cache/.installed"
fi
if [ "${1:-}" = built ] && [ ! -e "$cache/.built" ]; then
  command -v g++ >/dev/null || { echo "pycuda is built with g++, which is not installed" >&2; exit 1; }
  # What it is built against: NVIDIA's headers from PyPI, and the simulated driver.
  CUDA_ROOT=$(echo "$cache"/lib/python*/site-packages/nvidia/cu13)
  mkdir -p "$cache/build"
  ln -sf "$PWD/build/native/libcuda.so.1" "$cache/build/libcuda.so"
  echo "CUDA_ENABLE_CURAND = False" >"$cache/build/.aksetup-defaults.py"
  HOME=$cache/build CUDA_ROOT=$CUDA_ROOT CPATH=$CUDA_ROOT/include LIBRARY_PATH=$cache/build \
    install .ci/clients-built.txt
  touch "$cache/.built"
fi
echo "$cache/bin/python"
