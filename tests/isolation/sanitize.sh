#!/bin/sh
# The isolation tests with the library built for AddressSanitizer and UndefinedBehaviorSanitizer,
# then those with threads and races for ThreadSanitizer. PYTHON names the environment; extra
# arguments go to pytest. The drivers must be built (make native): the sanitized library lands
# beside copies of them, because only the library under test is sanitized.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
case "$python" in */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; esac
cc=${CC:-cc}
if [ "$("$cc" -print-file-name=libasan.so 2>/dev/null || true)" = "libasan.so" ] ||
	! command -v "$cc" >/dev/null; then
	echo "left out: no C compiler with sanitizers (apt install gcc)"
	exit 0
fi
# Compilers before GCC 14 know fewer places for a program than kernels with vm.mmap_rnd_bits=32 take:
# now and then a process ends with "unexpected memory mapping". Without randomisation none does.
# Where the kernel refuses that (a container's seccomp profile), 28 bits or fewer do as well.
fixed="setarch $(uname -m) -R"
bits=$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 28)
if ! $fixed true 2>/dev/null; then
	fixed=""
	if [ "$bits" -gt 28 ]; then
		echo "left out: addresses are random in $bits bits, and it is not allowed to fix them (setarch -R)"
		exit 0
	fi
fi
# Left out: what is `long`, thousands of processes and long runs, which are slow here and show the
# same code; what looks at the plain build, or at a process without us, which a sanitizer's library
# does not suit.
left_out="three_hundred or share or race_for_the_last_bytes or runtime"

run() {
	name=$1 sanitizers=$2 runtime=$3 tests=$4
	shift 4
	libraries="$root/build/$name"
	PYTHON="$python" BUILD="$root/build/cmake-$name" TARGETS="gpuslice gpuslice-testing gpu-limit-hook" \
		sh "$root/src/native.sh" -DSANITIZE="$sanitizers" -DNATIVE_DIRECTORY="$libraries"
	rm -rf "$libraries/drivers"
	cp -r "$root"/build/native/*.so.1 "$root/build/native/gpu-selftest" \
		"$root/build/native/drivers" "$libraries/"
	echo "==> $sanitizers"
	# shellcheck disable=SC2086  # a list of files, and a command with its words
	(cd "$root/tests/isolation" && \
		GPUSLICE_SANITIZER=$("$cc" -print-file-name="$runtime") GPUSLICE_NATIVE="$libraries" \
		$fixed "$python" -m pytest -q -n "$(nproc)" --dist worksteal $tests --ignore test_build.py \
			-m "not long" -k "not ($left_out)" "$@")
}

run asan address,undefined libasan.so "." "$@"
run tsan thread libtsan.so \
	"test_processes.py test_memory.py test_every_moment.py test_overhead.py test_measuring.py \
	test_pages.py test_compute.py test_ahead.py" "$@"
