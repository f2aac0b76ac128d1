#!/usr/bin/env bash
# The other Pythons of this machine, from 3.11 on: what passes with one does not pass with each.
#
#   pythons.sh list               a word each, VERSION:PATH; not that of .venv
#   pythons.sh make VERSION PATH  an environment of its own, build/pythons/VERSION; 3: a dependency has no wheel for it
#   pythons.sh test VERSION INDEX OF   in it, a short set of the tests, of which part INDEX (from 0) of OF
set -euo pipefail
cd "$(dirname "$0")/.."

# Beside PATH, which may hold the system's alone, and pyenv's, whose shims start only what was chosen.
candidates() {
  local pyenv=${HOME:-$(getent passwd "$(id -u)" | cut -d : -f 6)}/.pyenv places=() place found
  IFS=: read -r -a places <<<"$PATH:/usr/bin:/usr/local/bin"
  for place in "${places[@]}" {"$pyenv","${PYENV_ROOT:-$pyenv}"}/versions/*/bin; do
    for found in "$place"/python3 "$place"/python3.[0-9]*; do
      if [ -x "$found" ]; then echo "$found"; fi
    done
  done
}

# No environment made of another, no release to come, and none without the lock that wheels are built for.
list() {
  local found
  candidates | grep -v -- '-config$' | while read -r found; do
    "$found" - "$found" 2>/dev/null <<'PY' || true
import sys, sysconfig
ours = sys.version_info >= (3, 11) and sys.version_info.releaselevel == "final"
if ours and sys.prefix == sys.base_prefix and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    print("%d.%d.%d" % sys.version_info[:3], sys.argv[1], sep=":")
PY
  done | { grep -v "^$(.venv/bin/python --version | cut -d ' ' -f 2):" || true; } | sort -V -u -t : -k 1,1
}

make_environment() {
  local directory=build/pythons/$1 found=$2 said
  if [ "$directory/.installed" -nt .ci/constraints.txt ]; then return; fi
  rm -rf "$directory"
  "$found" -m venv --without-pip "$directory"
  # By uv, which links the files of its cache: pip takes a minute to unpack them. It trusts whom the system trusts, as pip does.
  install=(.venv/bin/uv pip install --quiet --system-certs --python "$directory/bin/python")
  if ! said=$("${install[@]}" --no-build --require-hashes -r .ci/constraints.txt 2>&1); then
    echo "$said" >&2
    if grep -Eq "has no (usable wheels|wheels with a matching)" <<<"$said"; then exit 3; fi
    exit 1
  fi
  "${install[@]}" --no-deps --no-build-isolation --config-settings wheel.cmake=false --config-settings editable.mode=inplace -e .
  touch "$directory/.installed"
}

short_set() {
  local python=build/pythons/$1/bin/python
  "$python" -W error - <<'PY'
import importlib, pkgutil, gpu_device_plugin as package
for module in pkgutil.walk_packages(package.__path__, "gpu_device_plugin."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
PY
  # These tests start hundreds of agents: several versions share them.
  local files part=() n
  mapfile -t files < <(find tests/{settings,domain,kubelet,hostile,histories,agent} -name 'test_*.py' | sort)
  for ((n = $2; n < ${#files[@]}; n += $3)); do part+=("${files[n]}"); done
  PYTHON=$python tests/run.sh "${part[@]}"
}

case ${1:-} in
  list) list ;;
  make) make_environment "$2" "$3" ;;
  test) short_set "$2" "${3:-0}" "${4:-1}" ;;
  *) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
