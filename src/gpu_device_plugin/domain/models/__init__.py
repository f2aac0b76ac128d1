"""Models, drivers and profiles by pod label, for the webhook.

Where the catalogue is read is in `settings`.
"""
