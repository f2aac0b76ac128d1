#!/usr/bin/env bash
# All tests, in two runs side by side: tests/apps waits for agents most of its time, the others compute.
# What tests/apps says is printed at the end. PYTHON names the environment.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
log=$(mktemp)
"$python" -m pytest tests/apps >"$log" 2>&1 &
apps=$!
trap 'kill "$apps" 2>/dev/null || true; rm -f "$log"' EXIT
failed=0
"$python" -m pytest --ignore=tests/apps || failed=$?
echo "==> tests/apps"
wait "$apps" || failed=$?
cat "$log"
exit "$failed"
