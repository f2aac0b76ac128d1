"""`python -m gpu_device_plugin`."""

from gpu_device_plugin.cli.main import main

main()
