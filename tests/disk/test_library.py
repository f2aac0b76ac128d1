"""The promise: what a container mounts as the isolation library is whole, and nobody else's build.

Versions are told apart by content, repaired where a crash, a wipe or a container runtime spoilt
them, and removed only when nothing uses them.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_device_plugin.disk.failpoints import VARIABLE
from gpu_device_plugin.disk.library_versions import LibraryVersions, Package, package
from gpu_device_plugin.errors import StorageError

TARGET = "/usr/local/lib/gpu-device-plugin/libgpuslice.so"
OLD = "0.0.9-0123456789ab"


def built(place: Path, content: bytes = b"library", selftest: bytes | None = b"test") -> Package:
    """The version that a build of this content makes."""
    place.mkdir(exist_ok=True)
    (place / "libgpuslice.so").write_bytes(content)
    if selftest is not None:
        (place / "gpu-selftest").write_bytes(selftest)
    programs = [place / "gpu-selftest"] if selftest is not None else []
    return package("0.1.0", place / "libgpuslice.so", programs, TARGET)


@pytest.fixture
def ours(tmp_path: Path) -> Package:
    """What this agent brings."""
    return built(tmp_path / "native")


@pytest.fixture
def versions(tmp_path: Path, ours: Package) -> LibraryVersions:
    """The node's directory, not made yet."""
    return LibraryVersions(tmp_path / "lib", ours)


def put(place: Path, version: str) -> None:
    """A whole version, as another agent left it."""
    (place / version).mkdir(parents=True)
    (place / version / "libgpuslice.so").write_bytes(b"other")
    (place / version / "ld.so.preload").write_text(f"{TARGET}\n")


def test_a_version_is_installed_with_all_that_is_mounted(
    tmp_path: Path, versions: LibraryVersions, ours: Package
) -> None:
    """Readable by every user; the preload file names the library as the container sees it."""
    assert versions.current() == ""
    assert versions.install()

    place = tmp_path / "lib" / ours.version
    assert versions.current() == ours.version
    assert (place / "libgpuslice.so").read_bytes() == b"library"
    assert (place / "ld.so.preload").read_text() == f"{TARGET}\n"
    assert [oct(path.stat().st_mode & 0o777) for path in (place, *sorted(place.iterdir()))] == [
        "0o755",  # the directory
        "0o755",  # gpu-selftest
        "0o644",  # ld.so.preload
        "0o755",  # libgpuslice.so
    ]
    assert [path.name for path in (tmp_path / "lib").iterdir()] == [ours.version]


def test_two_builds_of_one_release_are_two_versions(tmp_path: Path) -> None:
    """What running containers have mapped is never overwritten by another build."""
    one = built(tmp_path / "one", b"first build")
    two = built(tmp_path / "two", b"other build")
    tested = built(tmp_path / "three", b"first build", selftest=b"newer")

    assert len({one.version, two.version, tested.version}) == 3
    assert all(version.startswith("0.1.0-") for version in (one.version, two.version))


def test_a_library_that_cannot_be_read_says_nothing_of_itself(
    versions: LibraryVersions, ours: Package
) -> None:
    """It may be read a moment later."""
    with pytest.raises(StorageError, match="cannot be read"):
        versions.has_text(ours.version, b"rar")
    versions.install()

    assert versions.has_text(ours.version, b"rar")
    assert not versions.has_text(ours.version, b"revision")


def test_an_identical_version_is_left_alone(versions: LibraryVersions, tmp_path: Path) -> None:
    """An agent that starts again writes nothing."""
    versions.install()
    before = {path: path.stat().st_ino for path in (tmp_path / "lib").rglob("*")}

    assert not versions.install()
    assert {path: path.stat().st_ino for path in (tmp_path / "lib").rglob("*")} == before


def spoil_nothing_left(place: Path) -> None:
    for file in place.iterdir():
        file.unlink()
    place.rmdir()


def spoil_cut_short(place: Path) -> None:
    os.truncate(place / "libgpuslice.so", 3)


def spoil_other_bytes(place: Path) -> None:
    (place / "libgpuslice.so").write_bytes(b"LIBRARY")


def spoil_directories(place: Path) -> None:
    """What a container runtime makes of mount sources that are not there."""
    for file in place.iterdir():
        file.unlink()
        (place / file.name).mkdir()


def spoil_a_file_in_its_place(place: Path) -> None:
    spoil_nothing_left(place)
    place.write_text("")


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_nothing_left,
        spoil_cut_short,
        spoil_other_bytes,
        spoil_directories,
        spoil_a_file_in_its_place,
    ],
)
def test_a_spoilt_version_is_made_whole_again(
    versions: LibraryVersions, ours: Package, tmp_path: Path, spoil: object
) -> None:
    """Whatever stands in its place."""
    versions.install()
    place = tmp_path / "lib" / ours.version
    assert callable(spoil)
    spoil(place)

    assert versions.install()
    assert {file.name: file.read_bytes() for file in place.iterdir()} == dict(ours.files)


def test_an_open_file_of_a_version_is_never_written_to(
    versions: LibraryVersions, ours: Package, tmp_path: Path
) -> None:
    """A process that has the damaged file mapped keeps it; a repair is another file."""
    versions.install()
    path = tmp_path / "lib" / ours.version / "libgpuslice.so"
    path.write_bytes(b"damaged")
    with path.open("rb") as mapped:
        versions.install()
        assert mapped.read() == b"damaged"
    assert path.read_bytes() == b"library"


def test_without_a_package_the_newest_whole_version_counts(tmp_path: Path) -> None:
    """By number, not by letter; half a version does not count."""
    for version in ("0.9.1", "0.10.0", "0.2.0-0123456789ab"):
        put(tmp_path, version)
    (tmp_path / "1.0.0").mkdir()
    (tmp_path / "1.0.0" / "libgpuslice.so").write_bytes(b"")

    versions = LibraryVersions(tmp_path, None)

    assert not versions.install()
    assert versions.current() == "0.10.0"


def test_a_missing_version_of_another_agent_gets_our_content(
    versions: LibraryVersions, ours: Package, tmp_path: Path
) -> None:
    """A container that starts again mounts it under the old name: better ours than none."""
    assert versions.provide(OLD)
    assert not versions.provide(OLD)

    place = tmp_path / "lib" / OLD
    assert {file.name: file.read_bytes() for file in place.iterdir()} == dict(ours.files)


def test_a_whole_version_of_another_agent_is_left_as_it_is(
    versions: LibraryVersions, tmp_path: Path
) -> None:
    """Its content is its own."""
    put(tmp_path / "lib", OLD)

    assert not versions.provide(OLD)
    assert (tmp_path / "lib" / OLD / "libgpuslice.so").read_bytes() == b"other"
    assert versions.whole() == {OLD: False}


def test_a_missing_version_is_an_error_where_we_bring_none(tmp_path: Path) -> None:
    """Named, with the directory."""
    with pytest.raises(
        StorageError, match=rf"{tmp_path}/0\.0\.1: version 0\.0\.1 .* missing or incomplete"
    ):
        LibraryVersions(tmp_path, None).provide("0.0.1")


def test_only_unused_versions_of_agents_are_removed(
    versions: LibraryVersions, ours: Package, tmp_path: Path
) -> None:
    """Ours and those in use stay, and whatever an operator has put there himself."""
    versions.install()
    used, foreign = "0.0.8-ba9876543210", "0.0.1"
    for version in (OLD, used, foreign):
        put(tmp_path / "lib", version)
    crowded = "0.0.7-00000000000f"
    put(tmp_path / "lib", crowded)
    (tmp_path / "lib" / crowded / "notes.txt").write_text("mine")

    assert versions.remove_unused({used}) == (OLD,)
    left = {path.name for path in (tmp_path / "lib").iterdir()}
    assert left == {ours.version, used, foreign, crowded}
    assert (tmp_path / "lib" / crowded / "notes.txt").read_text() == "mine"


def test_without_a_package_the_version_in_service_is_never_removed(tmp_path: Path) -> None:
    """It may be one that an earlier agent has put there."""
    put(tmp_path, OLD)
    put(tmp_path, "0.0.8-ba9876543210")

    assert LibraryVersions(tmp_path, None).remove_unused(()) == ("0.0.8-ba9876543210",)


def test_a_file_system_that_refuses_is_an_error_that_names_the_place(
    tmp_path: Path, ours: Package
) -> None:
    """Here a file stands where the directory should be."""
    (tmp_path / "lib").write_text("")

    with pytest.raises(StorageError, match=f"{tmp_path}/lib.*cannot be installed"):
        LibraryVersions(tmp_path / "lib", ours).install()


KILLED = """
import sys
from pathlib import Path
from tests.disk.test_library import OLD, built
from gpu_device_plugin.disk.library_versions import LibraryVersions
versions = LibraryVersions(Path(sys.argv[1]) / "lib", built(Path(sys.argv[1]) / "native"))
versions.install()
versions.remove_unused(())
"""


@pytest.mark.parametrize("point", ["library.before-rename", "library.before-remove"])
def test_killed_in_the_middle_the_next_agent_sees_a_whole_version_or_none(
    versions: LibraryVersions, ours: Package, tmp_path: Path, point: str
) -> None:
    """And it clears away what was left half done."""
    put(tmp_path / "lib", OLD)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={**os.environ, VARIABLE: point},
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert killed.returncode == -9

    assert versions.current() in ("", ours.version)
    versions.install()
    versions.remove_unused(())
    assert versions.current() == ours.version
    whole = [path.name for path in (tmp_path / "lib").iterdir()]
    assert whole == [ours.version]
