"""The state of admission: the capacity of the machine, and how much of it is in use."""

from __future__ import annotations

from dataclasses import dataclass

from jobs import db
from jobs.engine import selection
from jobs.engine.selection import admission
from jobs.engine.sql.limits import read_costs
from jobs.models import SystemSnapshot
from jobs.policies.admission import available_capacity

has_open_policy = admission.has_open_policy  # whether every job is admitted
is_plain = selection.is_plain  # whether only limits and the queue's order decide which jobs start


@dataclass(frozen=True)
class AdmissionState:
    """The last measurement of the machine, and the cost units of all that is active or reserved."""

    state: str
    capacity: int  # cost units that may run at this load
    cost_in_use: int


def get_state() -> AdmissionState | None:
    """Return the state that the next decision starts from; None if every job is admitted and nothing is measured."""
    if has_open_policy():
        return None
    row = SystemSnapshot.objects.filter(pk=SystemSnapshot.SINGLETON_ID).first() or SystemSnapshot()
    load = admission.build_snapshot(row, row.state, 0.0)
    cost_in_use = sum(int(cost.cost_units) for cost in read_costs(db.connection()) if not cost.expired)
    return AdmissionState(row.state, available_capacity(load), cost_in_use)
