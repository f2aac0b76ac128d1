"""What a person types: flags in, texts and exit codes out.

What is answered is made in `agent`, `overview` and the other rooms that run.
"""
