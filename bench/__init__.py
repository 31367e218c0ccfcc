"""How fast it is, as ratios to what the same machine can do at that moment: `python -m bench`, or one part alone."""
