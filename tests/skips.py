"""What tests were skipped for: one line for each thing that this machine lacks, with the command that brings it."""

import re
from collections import Counter
from collections.abc import Iterable

KINDS = (
    (r"C compiler|\bno cc\b", "a C compiler: apt install gcc libc6-dev"),
    (r"simulated driver|make native|\.so\b|gpu-selftest", "the C libraries: make native"),
    (r"REBUILD", "the image, built anew: GPU_DEVICE_PLUGIN_REBUILD=1, as root on Debian"),
    (r"make image", "the image: make image, as root on Debian"),
    (r"sanitizer|not preloaded here", "programs without a sanitizer: make check runs these"),
    (r"tests/e2e/install\.sh", "helm and others: tests/e2e/install.sh, as root on Debian"),
    (
        r"clients cannot be installed",
        "other projects' clients of the GPU: tests/clients/install.sh",
    ),
    (r"Prometheus", "Prometheus: tests/monitoring/install.sh, on Debian"),
    (r"axe-core", "axe-core: apt install npm, then tests/page/install.sh"),
    (r"chromium|firefox", "a browser: apt install chromium-headless-shell firefox-esr"),
    (r"BiDi", "a colour scheme of Firefox: Chromium runs the same"),
    (r"readelf|\bnm\b|binutils", "readelf, nm and objdump: apt install binutils cmake"),
    (r"strace", "strace: apt install strace"),
    (r"musl", "musl's loader: apt install musl"),
    (r"openssl", "openssl: apt install openssl"),
    (r"cuda\.h|Typedefs|nvidia-.*-cu12|ziglang", "build packages: rm -r .venv, then make test"),
    (
        r"root|unshare|namespace|setpriv|cgroup",
        "root's rights: run as root (apt install util-linux)",
    ),
    (r"glibc", "glibc with ld.so --preload: another machine"),
    (r"has a card", "a machine without a card: make gpu runs this on the card"),
    (r"downloaded|Debian|mirror", "packages of Debian: a network, on Debian for x86_64"),
    (r"git fetch", "the release before this one: git fetch --unshallow"),
)
"""What the reason says -> what is missing, and the command that brings it; the first that fits counts."""


def kind_of(reason: str) -> str:
    """What is missing, and the command that brings it; the reason itself where it is of no kind."""
    found = (kind for pattern, kind in KINDS if re.search(pattern, reason))
    return next(found, reason.partition("\n")[0])


def lines(reasons: Iterable[str]) -> list[str]:
    """A line for each kind, the most frequent first."""
    counted = Counter(kind_of(reason.removeprefix("Skipped: ")) for reason in reasons)
    return [f"{count:5} for {kind}" for kind, count in counted.most_common()]
