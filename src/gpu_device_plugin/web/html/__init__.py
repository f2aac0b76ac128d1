"""The page's address, templates, script and stylesheet.

What stands on the page is decided in `page`.
"""
