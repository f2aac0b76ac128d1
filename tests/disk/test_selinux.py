"""Where SELinux enforces, our directories are what containers may read, or it is said why not."""

import errno
from pathlib import Path

import pytest

from gpu_device_plugin.disk.selinux import SecurityLabels, SelinuxKernel
from gpu_device_plugin.errors import StorageError

VAR_RUN = "system_u:object_r:var_run_t:s0"
READABLE = "system_u:object_r:container_file_t:s0"


class Labels:
    """Labels of files, as the kernel keeps them; new files would take their directory's."""

    def __init__(self, root: Path, *, is_refusing: bool = False) -> None:
        self.root = root
        self.by_path: dict[Path, str] = {}
        self.is_refusing = is_refusing
        self.writes = 0

    def read(self, path: Path) -> str:
        return self.by_path.get(path, VAR_RUN)

    def write(self, path: Path, label: str) -> None:
        if self.is_refusing:
            raise OSError(errno.EACCES, "Permission denied")
        self.writes += 1
        self.by_path[path] = label

    def kernel(self, enforce: str | None, context: str = "") -> SelinuxKernel:
        """A kernel that tells so much; None is a container that does not see it."""
        told = self.root / "enforce"
        if enforce is not None:
            told.write_text(enforce)
        own = self.root / "current"
        own.write_text(f"{context}\0")
        return SelinuxKernel(told, own, self.read, self.write)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "run"
    (place / "slices" / "s1" / "config").mkdir(parents=True)
    (place / "slices" / "s1" / "config" / "limits").write_text("x")
    return place


def test_all_that_lies_there_gets_the_type_and_keeps_the_rest(
    tmp_path: Path, directory: Path
) -> None:
    labels = Labels(tmp_path)
    SecurityLabels([directory], labels.kernel("1")).ensure()

    assert set(labels.by_path) == {directory, *directory.rglob("*")}
    assert set(labels.by_path.values()) == {READABLE}


def test_a_directory_that_has_the_label_is_left_alone(tmp_path: Path, directory: Path) -> None:
    labels = Labels(tmp_path)
    labels.by_path[directory] = READABLE
    watch = SecurityLabels([directory, tmp_path / "absent"], labels.kernel("1"))
    watch.ensure()
    watch.ensure()

    assert labels.writes == 0


def test_categories_are_taken_away_because_other_containers_have_others(
    tmp_path: Path, directory: Path
) -> None:
    labels = Labels(tmp_path)
    labels.by_path = dict.fromkeys([directory, *directory.rglob("*")], f"{READABLE}:c1,c2")
    SecurityLabels([directory], labels.kernel("1")).ensure()

    assert set(labels.by_path.values()) == {READABLE}


def test_an_agent_whose_files_nobody_else_could_read_says_so(
    tmp_path: Path, directory: Path
) -> None:
    labels = Labels(tmp_path)
    kernel = labels.kernel("1", "system_u:system_r:container_device_plugin_t:s0:c1,c2")
    with pytest.raises(StorageError, match=r"categories c1,c2: .*seLinuxOptions\.level=s0"):
        SecurityLabels([directory], kernel).ensure()


def test_what_policy_refuses_is_told_with_label_and_cure(tmp_path: Path, directory: Path) -> None:
    labels = Labels(tmp_path, is_refusing=True)
    with pytest.raises(StorageError) as refusal:
        SecurityLabels([directory], labels.kernel("1")).ensure()

    text = str(refusal.value)
    assert VAR_RUN in text
    assert f"chcon -R -t container_file_t -l s0 {directory}" in text


@pytest.mark.parametrize(
    ("enforce", "context", "is_needed"),
    [
        ("1", "", True),
        ("0", "system_u:system_r:container_t:s0:c1,c2", False),
        (None, "system_u:system_r:container_device_plugin_t:s0", True),
        (None, "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023", True),
        (None, "cri-containerd.apparmor.d (enforce)", False),
        (None, "", False),
    ],
    ids=[
        "enforcing",
        "permissive",
        "hidden-but-labelled",
        "hidden-on-the-host",
        "apparmor",
        "none",
    ],
)
def test_labels_are_written_only_where_they_decide(
    tmp_path: Path, directory: Path, enforce: str | None, context: str, *, is_needed: bool
) -> None:
    labels = Labels(tmp_path)
    SecurityLabels([directory], labels.kernel(enforce, context)).ensure()
    assert bool(labels.writes) is is_needed
