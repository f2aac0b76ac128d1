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

# Runs a step of the build; what it says is kept in a file, and shown where it fails.
quiet() {
	log="$build/$1.log"
	shift
	"$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
}

mkdir -p "$build"
quiet configure cmake -S "$root/src" -B "$build" -G Ninja -DPython_EXECUTABLE="$python" "$@"
# shellcheck disable=SC2086  # a list of names
quiet build nice -n 10 cmake --build "$build" ${TARGETS:+--target $TARGETS}
