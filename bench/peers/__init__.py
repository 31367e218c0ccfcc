"""Other job queues on the same database, each in an environment of its own: see `comparison`."""
