#!/usr/bin/env bash
# Puts all that a release consists of into build/release: images of both architectures with their bills
# of materials, the chart, the wheel of the kubectl plugins with krew's manifest, checksums, provenance, and a signature by RELEASE_KEY.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
out=build/release
rm -rf "$out" && mkdir -p "$out"

.ci/image.sh amd64 arm64
cp build/image/gpu-device-plugin-{amd64,arm64}.{tar,spdx.json} "$out"
echo "==> the chart"
helm=$(command -v helm || "$python" -c 'from tools.harness.cluster.binaries import provide_helm; print(provide_helm())')
packed=$(mktemp -d)
trap 'rm -rf "$packed"' EXIT
cp -r charts/gpu-device-plugin "$packed"
# Where this tree can be read; links to runbooks begin with it.
[ -z "${RELEASE_HOME:-}" ] || printf 'home: %s\nsources: [%s]\n' "$RELEASE_HOME" "$RELEASE_HOME" >>"$packed/gpu-device-plugin/Chart.yaml"
"$helm" package "$packed/gpu-device-plugin" --destination "$out"
echo "==> the kubectl plugins"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$out" src/kubectl-gpu
"$python" .ci/krew.py "$out"
[ -n "${RELEASE_URL:-}" ] || echo "gpu.yaml, krew's manifest, names no place to fetch from: set RELEASE_URL to where you publish"
echo "==> checksums, provenance, signature"
"$python" .ci/sign.py "$out" ${RELEASE_KEY:+"$RELEASE_KEY"}
ls -l "$out"
