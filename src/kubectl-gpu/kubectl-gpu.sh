#!/bin/sh
# kubectl's plugin as krew installs it: uv or pipx run the wheel that lies beside it, and keep its packages.
set -eu
wheel=$(ls "$(dirname "$(readlink -f "$0")")"/kubectl_gpu-*.whl)
if command -v uvx >/dev/null; then exec uvx --quiet --from "$wheel" kubectl-gpu "$@"; fi
if command -v pipx >/dev/null; then exec pipx run --spec "$wheel" kubectl-gpu "$@"; fi
echo "kubectl gpu: krew installs no Python packages: install uv or pipx too" >&2
exit 1
