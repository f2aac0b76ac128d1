#!/usr/bin/env bash
# The tests of `make test`: all that are not marked `long`. `tests/run.sh all`: every test. `tests/run.sh FOLDER ...`:
# those of these folders that are not `long`.
# Those of the docs are `make lint`'s.
# Two workers a core, because most tests wait; at most eight, each of which imports every test.
# PYTHON names the environment.
set -euo pipefail
cd "$(dirname "$0")/.."
# Hundreds of agents start: without bytecode each compiles every module, which is half of the time of a start.
export PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX="$PWD/build/bytecode"
workers=$((2 * $(nproc)))
chosen=(-m "not long" "$@")
if [ "${1:-}" = all ]; then chosen=(); fi
exec "${PYTHON:-.venv/bin/python}" -m pytest -n "$((workers < 8 ? workers : 8))" --dist worksteal \
  --ignore=tests/test_docs.py --ignore=tests/test_prose.py "${chosen[@]}"
