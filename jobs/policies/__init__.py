"""Decisions: facts in, decision out. Pure and injectable by a dotted path in the settings."""
