"""Counts of jobs, workers and targets, for the API, the console, the commands and the metrics."""
