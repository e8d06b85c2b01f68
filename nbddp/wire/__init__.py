"""What every process shares: messages, sockets, rank sets, value transport."""
