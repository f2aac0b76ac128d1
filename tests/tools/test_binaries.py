"""What the end-to-end tests build by Go: a module proxy that fails costs time or a test, and says why.

Go itself is a script here that answers as Go does, and fails as Go does.
"""

import os
from pathlib import Path

import pytest
from tools.harness.cluster import binaries

REASON = "proxy.example: 503 Service Unavailable"
GO = """#!/bin/sh
echo "$*" >>"$0.calls"
case "$*" in $FAILS)
    if [ -s "$0.failures" ]; then
        sed -i 1d "$0.failures"
        case "$*" in
        *-json*) echo '{"Path": "module", "Error": "REASON"}' ;;
        *) echo 'go: REASON' >&2 ;;
        esac
        exit 1
    fi ;;
esac
case "$1 $2" in
"mod download") echo "{\\"GoMod\\": \\"$0.mod\\", \\"Dir\\": \\"$0.dir\\"}" ;;
"mod edit") echo '{"Go": "1.26", "Require": []}' ;;
build*) while [ "$1" != -o ]; do shift; done; touch "$2" ;;
esac
"""


class FakeGo:
    """A program called go that fails for some commands, so many times."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.program = place / "programs" / "go"
        self.program.parent.mkdir()
        for name, text in (("go", GO.replace("REASON", REASON)), ("etcd", "#!/bin/sh\n")):
            path = self.program.with_name(name)
            path.write_text(text)
            path.chmod(0o755)
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("PATH", f"{self.program.parent}:{os.environ['PATH']}")
        monkeypatch.setenv("GPU_DEVICE_PLUGIN_CACHE", str(place / "cache"))
        monkeypatch.setattr(binaries, "FETCH_PAUSES", (0, 0, 0))

    def fail(self, commands: str, times: int) -> None:
        """Fail for commands that match this pattern of a shell."""
        self._monkeypatch.setenv("FAILS", commands)
        Path(f"{self.program}.failures").write_text("once\n" * times)

    def calls(self, verb: str) -> int:
        """How often it was called with this verb."""
        lines = Path(f"{self.program}.calls").read_text().splitlines()
        return sum(line.startswith(verb) for line in lines)


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGo:
    return FakeGo(tmp_path, monkeypatch)


def test_a_module_that_cannot_be_fetched_is_asked_for_again(go: FakeGo) -> None:
    go.fail("mod download *cert-manager*", times=3)

    assert str(binaries.provide_cert_manager()) == f"{go.program}.dir"
    assert go.calls("mod download") == 4


def test_a_module_that_stays_away_is_an_error_with_gos_reason(go: FakeGo) -> None:
    """With -json Go prints the reason on stdout."""
    go.fail("mod download *cert-manager*", times=4)

    with pytest.raises(binaries.BinaryError, match=REASON):
        binaries.provide_cert_manager()


def test_what_a_program_is_made_of_is_fetched_again_too_but_built_once(go: FakeGo) -> None:
    go.fail("list */cmd/helm", times=2)

    assert binaries.provide_helm().is_file()
    assert (go.calls("list"), go.calls("build")) == (3, 1)


def test_a_build_that_fails_is_not_tried_again(go: FakeGo) -> None:
    """It is fetched by then, so the same error would come."""
    go.fail("build *", times=1)

    with pytest.raises(binaries.BinaryError, match=f"go build .*{REASON}"):
        binaries.provide_helm()
    assert go.calls("build") == 1


def test_everything_is_built_before_the_tests_and_what_only_some_need_is_left_out_with_the_reason(
    go: FakeGo, capsys: pytest.CaptureFixture[str]
) -> None:
    go.fail("*NVIDIA*", times=100)
    binaries.main()
    said = capsys.readouterr()

    assert binaries.helm_path().is_file()
    assert str(binaries.helm_path()) in said.out.splitlines()
    assert not binaries.cdi_hook_path().exists()
    left_out = [text for text in said.err.split("left out: ")[1:] if REASON in text]
    assert [text.split(",")[0] for text in left_out] == [
        "NVIDIA's device plugin",
        "NVIDIA's container toolkit",
    ]

    go.fail("*NVIDIA*", times=0)
    binaries.main()
    assert str(binaries.cdi_hook_path()) in capsys.readouterr().out.splitlines()
    assert binaries.cdi_hook_path().is_file()
