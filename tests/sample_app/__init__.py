"""A small app of a site that uses the scheduler: its handlers do what the tests of real workers need."""
