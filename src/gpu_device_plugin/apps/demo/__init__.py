"""The demo: two nodes without a GPU, from what they offer to a card that breaks."""
