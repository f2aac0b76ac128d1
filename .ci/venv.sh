#!/usr/bin/env bash
# Makes .venv: pinned packages with hashes, the generated protobuf modules, and this project itself.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}

fail() { printf 'make: %s\n' "$*" >&2; exit 1; }

command -v "$PYTHON" >/dev/null || fail "$PYTHON is not there; install Python 3.11 or later (apt install python3)"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$("$PYTHON" --version) is too old; Python 3.11 or later is needed (PYTHON=/path/to/python make ...)"

if [ ! -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  echo "==> making .venv with $("$PYTHON" --version)"
  rm -rf .venv
  if "$PYTHON" -c 'import ensurepip' 2>/dev/null; then
    "$PYTHON" -m venv .venv
  elif "$PYTHON" -m pip --version >/dev/null 2>&1; then
    # Debian keeps ensurepip in python3-venv; an installed pip can put itself in.
    "$PYTHON" -m venv --without-pip .venv
    "$PYTHON" -m pip --python .venv/bin/python install --quiet --disable-pip-version-check pip
  else
    fail "this Python has neither ensurepip nor pip; on Debian and Ubuntu: apt install python3-venv"
  fi
fi

echo "==> installing the pinned packages (.ci/constraints.txt); the first time takes a minute or two"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .ci/constraints.txt
echo "==> generating the protobuf modules from proto/"
.venv/bin/python proto/generate.py
echo "==> installing gpu-device-plugin itself (editable; the C parts come from make native)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
  --config-settings wheel.cmake=false --config-settings editable.mode=inplace -e .
