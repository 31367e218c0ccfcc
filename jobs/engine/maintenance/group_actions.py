"""Go on with actions on groups that the transaction or the process that began them has left unfinished."""

from __future__ import annotations

import logging
import time

from django.db import DatabaseError

from jobs.engine import groups
from jobs.models import GroupAction
from jobs.outages import OUTAGE_ERRORS

logger = logging.getLogger("jobs.engine.maintenance.group_actions")
LOOK_SEC = 10.0  # how often to look for actions of processes that died
ROUND_SEC = 5.0


class GroupActionCheck:
    """The maintenance task. Actions that this process has left run in its next round, those of others when it looks."""

    def __init__(self) -> None:
        self._look_at = 0.0

    def run_round(self) -> int:
        """Run unfinished actions; return the number of their groups."""
        now = time.monotonic()
        if not groups.action_left.is_set() and now < self._look_at:
            return 0
        groups.action_left.clear()
        self._look_at = now  # if the database goes away meanwhile, look again at once
        count = run_unfinished_actions()
        self._look_at = now + (0.0 if count else LOOK_SEC)
        return count


def run_unfinished_actions(batches: int = groups.BATCHES_PER_CALL) -> int:
    """Run actions for about ROUND_SEC, so many batches of each group, if no other process does. Count the groups."""
    deadline = time.monotonic() + ROUND_SEC
    group_ids = dict.fromkeys(GroupAction.objects.order_by("pk").values_list("group_id", flat=True))
    for group_id in group_ids:
        try:
            groups.run_actions(group_id, batches=batches, skip_locked=True)
        except OUTAGE_ERRORS:
            raise
        except DatabaseError:
            logger.exception("actions of group %s failed; the next round tries again", group_id)
        if time.monotonic() > deadline:
            break
    return len(group_ids)
