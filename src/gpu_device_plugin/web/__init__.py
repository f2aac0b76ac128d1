"""The only TCP listener: metrics, extender, webhook, page; certificates.

What is answered is decided in `controller`, `page` and `agent/publish`.
"""
