"""The node and its grants as values: one writer, many readers, durable where it has to be."""
