"""The page's server: addresses, headers, templates, one script and one stylesheet."""
