"""A holder gets a durable grant with its files, or gives it back; what its container receives.

Who the holder is was found before, in `kubelet_calls` or `claims`.
"""
