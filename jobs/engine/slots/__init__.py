"""Leases that count against limits and admission without a job: of direct calls and of work that has no job here."""
