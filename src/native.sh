#!/bin/sh
# Builds the C libraries into build/native/. PYTHON names the environment with cmake, ninja and
# the headers (the build group of pyproject.toml); extra arguments go to cmake, for instance
# -DSANITIZE=address,undefined -DNATIVE_DIRECTORY=build/asan with BUILD=build/cmake-asan. TARGETS
# names what to build, else everything is.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=$(command -v "${PYTHON:-python3}") || { echo "native.sh: no ${PYTHON:-python3}" >&2; exit 1; }
# Not resolved further: the interpreter of an environment is a link out of it.
tools=$(cd "$(dirname "$python")" && pwd)
PATH="$tools:$PATH"
python="$tools/$(basename "$python")"
build=${BUILD:-"$root/build/cmake"}

# Configuring is quiet unless it fails; ninja says what it does.
mkdir -p "$build"
if ! cmake -S "$root/src" -B "$build" -G Ninja -DPython_EXECUTABLE="$python" "$@" >"$build/configure.log" 2>&1; then
	cat "$build/configure.log" >&2
	exit 1
fi
# shellcheck disable=SC2086  # a list of names
nice -n 10 cmake --build "$build" ${TARGETS:+--target $TARGETS}
