"""Benchmarks: speed as a ratio to a calibration on the same machine. `python -m bench`, or one part alone."""
