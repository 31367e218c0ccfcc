"""Run handlers: in threads, on an event loop, or each in a process of its own."""
