"""The controller: scheduler extender, ledger of the whole cluster, bindings, webhook.

The rule where a pod fits is in `domain/fractions/node_fit`.
"""
