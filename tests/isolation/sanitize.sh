#!/bin/sh
# The isolation tests with the library built for AddressSanitizer and UndefinedBehaviorSanitizer,
# then for ThreadSanitizer. PYTHON names the environment; extra arguments go to pytest.
# The drivers must be built (make native); the sanitized library lands beside copies of them.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
cc=${CC:-cc}

run() {
	name=$1 sanitizers=$2 runtime=$3
	shift 3
	libraries="$root/build/$name"
	PYTHON="$python" BUILD="$root/build/cmake-$name" sh "$root/src/native.sh" \
		-DSANITIZE="$sanitizers" -DNATIVE_DIRECTORY="$libraries"
	# Only the library under test is sanitized: its neighbours are the ordinary ones.
	cp "$root"/build/native/*.so.1 "$root/build/native/gpu-selftest" "$libraries/"
	echo "==> $sanitizers"
	GPUSLICE_SANITIZER=$("$cc" -print-file-name="$runtime") GPUSLICE_NATIVE="$libraries" \
		"$python" -m pytest "$root/tests/isolation" -q \
		--ignore "$root/tests/isolation/test_build.py" \
		-k "not three_hundred and not share_is_kept" "$@"
}

run asan address,undefined libasan.so "$@"
run tsan thread libtsan.so "$@"
