"""Policies: pure functions of facts, without the database. The settings name them by dotted path."""
