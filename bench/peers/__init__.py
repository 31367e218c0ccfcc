"""Other job queues on the same database, each in its own environment: see `comparison`."""
