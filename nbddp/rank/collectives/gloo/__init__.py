"""How Gloo fails to wake its waiters, and its sockets; see `futures` and `waits`."""
