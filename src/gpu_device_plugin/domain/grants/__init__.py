"""What is held: grants, ledger, lifetime, callers, claims, and what schemes have in common.

How much a container gets of which card is in `fractions` and `nvidia`.
"""
