"""Go on with actions on groups that the transaction or the process that began them has left unfinished."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from uuid import UUID

from jobs.engine import groups
from jobs.models import GroupAction
from jobs.outages import OUTAGE_ERRORS

logger = logging.getLogger("jobs.engine.maintenance.group_actions")
LOOK_SEC = 20.0  # how often to look for actions of processes that died
ROUND_SEC = 5.0
LONGEST_PAUSE_SEC = 3600.0  # of a group whose actions fail


@dataclass
class Failure:
    """The actions of a group failed in this process; both values in seconds, the second on the monotonic clock."""

    pause: float
    retry_at: float


class GroupActionCheck:
    """The maintenance task. Actions that this process has left run in its next round, those of others when it looks.

    Keep one per process: it remembers the groups whose actions fail, and tries those ever less often.
    """

    def __init__(self) -> None:
        self._look_at = 0.0
        self._failures: dict[UUID, Failure] = {}

    def run_round(self) -> int:
        """Run unfinished actions; return the number of groups with progress."""
        now = time.monotonic()
        if not groups.action_left.is_set() and now < self._look_at:
            return 0
        groups.action_left.clear()
        self._look_at = now  # if the database goes away meanwhile, look again at once
        count = self.run_actions()
        self._look_at = now + (0.0 if count else LOOK_SEC)
        return count

    def run_actions(self, batches: int = groups.BATCHES_PER_CALL) -> int:
        """Run actions for about ROUND_SEC, so many batches of each group, if no other process does.

        Return the number of groups with progress.
        """
        until = time.monotonic() + ROUND_SEC
        group_ids = dict.fromkeys(GroupAction.objects.order_by("pk").values_list("group_id", flat=True))
        self._failures = {group_id: self._failures[group_id] for group_id in group_ids if group_id in self._failures}
        count = 0
        for group_id in group_ids:
            failure = self._failures.get(group_id)
            if time.monotonic() > until:
                break
            if failure is None or time.monotonic() >= failure.retry_at:
                count += self._try_run_actions(group_id, batches)
        return count

    def _try_run_actions(self, group_id: UUID, batches: int) -> bool:
        try:
            groups.run_actions(group_id, batches=batches, skip_locked=True)
        except OUTAGE_ERRORS:
            raise
        except Exception:
            failure = self._failures.setdefault(group_id, Failure(LOOK_SEC / 2, 0.0))
            failure.pause = min(2 * failure.pause, LONGEST_PAUSE_SEC)
            failure.retry_at = time.monotonic() + failure.pause
            logger.exception("actions of group %s failed; the next attempt is in %.0f s", group_id, failure.pause)
            return False
        self._failures.pop(group_id, None)
        return True
