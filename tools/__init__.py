"""Programs of the developers: measurements, checks of a real card, the demo, what writes the dashboards.

`harness` has the stand-ins of the kubelet and the API server, which tests run too.
"""
