"""One container's way in: who asks, which card, which units, a durable grant, the start check."""
