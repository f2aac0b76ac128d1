"""Finds our built C libraries and programs, in the installed package or in a checkout."""

import os
from pathlib import Path

import gpu_device_plugin
from gpu_device_plugin.errors import ConfigError

DIRECTORY_VARIABLE = "GPU_DEVICE_PLUGIN_NATIVE"


def native_library(name: str) -> Path:
    """One of our libraries, from the installed package or else from the checkout's build.

    GPU_DEVICE_PLUGIN_NATIVE names another directory, for instance of a build with sanitizers; a
    library that is missing there is not looked for elsewhere.
    """
    chosen = os.environ.get(DIRECTORY_VARIABLE)
    package = Path(gpu_device_plugin.__file__).parent
    own = [package / "native", *(parent / "build" / "native" for parent in package.parents[:2])]
    for directory in [Path(chosen)] if chosen else own:
        if (directory / name).is_file():
            return directory / name
    where = f"in {chosen}" if chosen else "here"
    raise ConfigError(f"{name} is not built {where}: run `make native`, or install the package")
