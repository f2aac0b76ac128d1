"""Commands that change cards: cutting them, and the MPS daemon."""
