#!/bin/sh
# kubectl's plugin as krew installs it: uv or pipx run the wheel that lies beside it, and keep its packages.
# A link of the name kubectl-inspect-cgpu runs that one.
set -eu
wheel=$(ls "$(dirname "$(readlink -f "$0")")"/kubectl_gpu-*.whl)
case "$0" in */kubectl-inspect-cgpu) program=kubectl-inspect-cgpu ;; *) program=kubectl-gpu ;; esac
if command -v uvx >/dev/null; then exec uvx --quiet --from "$wheel" "$program" "$@"; fi
if command -v pipx >/dev/null; then exec pipx run --spec "$wheel" "$program" "$@"; fi
echo "kubectl gpu: krew installs no Python packages: install uv or pipx too" >&2
exit 1
