"""Many processes at once on one database, and a checker that knows every story that could have happened."""

NOOP = "race.noop"
