"""The overview in a browser: follows the cluster, draws what has changed.

The address that serves it, with templates and script, is in `web/html`.
"""
