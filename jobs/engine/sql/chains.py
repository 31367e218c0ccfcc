"""Retry chains; the statement is the same on both databases."""

from __future__ import annotations

# UNION, not UNION ALL: a circle that raw SQL has made ends, too.
LATEST_ATTEMPTS = """
    WITH RECURSIVE chain (first_id, id) AS (
        SELECT retry_of_id, id FROM jobscheduler_job WHERE retry_of_id IN ({ids})
        UNION
        SELECT chain.first_id, newer.id FROM chain JOIN jobscheduler_job newer ON newer.retry_of_id = chain.id
    )
    SELECT chain.first_id, job.id, job.status, job.gate, job.not_before
    FROM chain JOIN jobscheduler_job job ON job.id = chain.id
    WHERE NOT EXISTS (SELECT 1 FROM jobscheduler_job newer WHERE newer.retry_of_id = chain.id)
"""
