"""A driver library that is not our simulator's, and the files by which it is controlled."""

import shutil
from pathlib import Path

import pytest
from tools.harness.compiling import compile_kept

from gpu_device_plugin.nvml.nvml_source import KernelModule

SOURCE = Path(__file__).parent / "programs" / "other_driver.c"
FIRST, SECOND = "GPU-0", "GPU-1"


class OtherDriver:
    """The library in `directory`, with two cards (`programs/other_driver.c`)."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler here")
        self._directory = directory
        self.library = directory / "libnvidia-ml.so.1"
        compile_kept((compiler, "-shared", "-fPIC", str(SOURCE), "-ldl"), self.library)
        self._loads = 0
        self.kernel = KernelModule(directory / "version", directory / "module")
        self.load_module()
        self._path("xids").touch()

    @property
    def opened(self) -> int:
        """How often it was opened."""
        return self._path("inits").stat().st_size

    def put(self, name: str, text: str = "") -> None:
        """Make one of the files that it looks at."""
        self._path(name).write_text(text, encoding="utf-8")

    def remove(self, name: str) -> None:
        """Remove such a file."""
        self._path(name).unlink()

    def xid(self, card: int, code: int) -> None:
        """A card reports an XID."""
        with self._path("xids").open("a", encoding="utf-8") as file:
            file.write(f"{card} {code}\n")

    def load_module(self) -> None:
        """The kernel module is loaded, again if it was before: its directory is another one."""
        self._loads += 1
        self._path(f"module{self._loads}").mkdir()
        self._path("link").symlink_to(f"module{self._loads}")
        self._path("link").rename(self.kernel.module)

    def _path(self, name: str) -> Path:
        return self._directory / name
