"""The promise: a directory of a larger file system is told from a file system of its own."""

import subprocess
from pathlib import Path

from tests.hostile.small_disk import small_tmpfs

from gpu_device_plugin.disk.mounts import has_own_file_system


def test_a_directory_has_a_file_system_of_its_own_only_where_one_is_mounted(tmp_path: Path) -> None:
    """A directory that is mounted at another place, as into a pod, has none."""
    bound = tmp_path / "bound"
    bound.mkdir()
    with small_tmpfs(tmp_path / "run", 64) as run:
        (run / "inner").mkdir()
        found = [has_own_file_system(each) for each in (tmp_path, run, run / "inner")]
        for source in (run / "inner", run):
            subprocess.run(["mount", "--bind", source, bound], check=True)
            found.append(has_own_file_system(bound))
            subprocess.run(["umount", bound], check=True)
    assert found == [False, True, False, False, True]
