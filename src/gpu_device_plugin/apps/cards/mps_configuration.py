"""The configuration that the MPS daemon serves: the agent's choice, made again beside it."""

from gpu_device_plugin.apps.cards.node_label import NodeLabel
from gpu_device_plugin.config.nvidia_configuration import Configuration, Found, read_if_changed
from gpu_device_plugin.config.nvidia_settings import NvidiaSettings
from gpu_device_plugin.errors import ConfigError, EdgeError


class ChosenConfiguration:
    """NVIDIA's configuration as it is now.

    Args:
        settings: The file, or the directory of files.
        label: The node's label that chooses among them; None for the one file.
    """

    def __init__(self, settings: NvidiaSettings, label: NodeLabel | None) -> None:
        self._settings = settings
        self._label = label
        self._found = Found()

    def __call__(self) -> Configuration:
        """Read it again where it has changed.

        Raises:
            ConfigError: None is chosen, or it is malformed.
            EdgeError: The label was not read yet.
        """
        name = None if self._label is None else self._label.value
        if self._label is not None and name is None:
            raise EdgeError(f"the node's label {self._settings.node_label} has not been read yet")
        self._found = read_if_changed(self._settings, name, self._found)
        if isinstance(self._found.result, Configuration):
            return self._found.result
        raise self._found.result or ConfigError("no configuration was read")
