"""Code that all processes share: messages, sockets, rank sets, transport of values."""
