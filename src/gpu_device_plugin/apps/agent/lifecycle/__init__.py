"""Readiness, regular node checks, the uninstall mark, the admin socket."""
