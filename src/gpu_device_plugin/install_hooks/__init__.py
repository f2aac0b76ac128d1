"""What the chart's hooks run: upgrade check, uninstall, cleanup of a node.

The agent's own answer to the uninstall mark is in `agent/node_checks`.
"""
