#!/usr/bin/env bash
# Prints the Python that has the clients of pyproject.toml's group "clients", pinned in .ci/clients.txt:
# an environment of its own in the cache outside the tree, made when its list has changed.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-.venv/bin/python}

list=$(sha256sum .ci/clients.txt | cut -c1-16)
version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
cache=${GPU_DEVICE_PLUGIN_CACHE:-$HOME/.cache/gpu-device-plugin}/clients-$version-$list
if [ ! -e "$cache/.installed" ]; then
  mkdir -p "$(dirname "$cache")"
  exec 9>"$cache.lock"
  flock 9
fi
if [ ! -e "$cache/.installed" ]; then
  rm -rf "$cache"
  "$PYTHON" -m venv --without-pip "$cache"
  "$PYTHON" -m pip --python "$cache/bin/python" install --quiet --disable-pip-version-check \
    --require-hashes -r .ci/clients.txt >&2
  touch "$cache/.installed"
fi
echo "$cache/bin/python"
