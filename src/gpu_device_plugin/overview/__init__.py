"""Answers for a person about the whole cluster (`kubectl gpu`); writes nothing.

How they are drawn is in `cli` and `page`.
"""
