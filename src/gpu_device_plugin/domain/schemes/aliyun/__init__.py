"""Fractions of cards under the names of Alibaba Cloud's shared GPU scheduling."""
