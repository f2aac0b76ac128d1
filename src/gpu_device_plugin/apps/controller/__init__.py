"""The controller: one ledger of the whole cluster, for kube-scheduler."""
