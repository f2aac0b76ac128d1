"""Composition roots: the only places that know every part."""
