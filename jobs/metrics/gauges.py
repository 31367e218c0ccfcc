"""What is so now: live jobs, trouble, workers."""

from __future__ import annotations

from jobs import figures, version
from jobs.census import Census
from jobs.metrics.exposition import Family
from jobs.metrics.labels import addons, known, resources
from jobs.states import LIVE, Status

RESOURCE = ("resource",)


def live(counted: Census) -> list[Family]:
    return [_by_status(counted), *_ready(counted), _running(counted), _queued(counted)]


def trouble(tenant: str | None) -> list[Family]:
    expired = Family("jobs_expired_leases", "gauge", "Running jobs whose worker was not heard of in time.")
    expired.add(figures.expired_leases(tenant))
    meaning = f"Targets that a paused or failed job blocks; up to {figures.MANY} are counted."
    blocked = Family("jobs_blocked_targets", "gauge", meaning)
    blocked.add(figures.blocked_targets(tenant))
    return [expired, blocked]


def workers() -> list[Family]:
    force = figures.workforce()
    states = Family("jobs_workers", "gauge", "Workers; SILENT: not heard of for a lease.", ("state",))
    for state, count in force.states.items():
        states.add(count, state)
    slots = Family("jobs_worker_slots", "gauge", "Slots of the workers that were heard of.")
    slots.add(force.slots)
    busy = Family("jobs_worker_slots_busy", "gauge", "Slots that have a job.")
    busy.add(force.busy)
    stuck = Family("jobs_worker_slots_stuck", "gauge", "Slots whose handler cannot be stopped.")
    stuck.add(force.stuck)
    return [states, slots, busy, stuck]


def build_info() -> Family:
    info = Family("jobs_build_info", "gauge", "The version that answers.", ("version",))
    info.add(1, version.__version__)
    return info


def _by_status(counted: Census) -> Family:
    family = Family("jobs_live", "gauge", "Jobs that have not ended.", ("status",))
    for status in sorted(LIVE):
        family.add(0, str(status))
    for kind in counted.live:
        family.add(kind.jobs, kind.status)
    return family


def _ready(counted: Census) -> list[Family]:
    pools = resources()
    jobs = Family("jobs_ready", "gauge", "Jobs that could start now.", RESOURCE)
    oldest = Family("jobs_oldest_ready_age_seconds", "gauge", "For how long the first of them could have.", RESOURCE)
    for resource in pools:
        jobs.add(0, resource)
        oldest.add(0, resource)
    for kind in counted.live:
        if kind.is_ready:
            jobs.add(kind.jobs, known(kind.resource, pools))
            oldest.raise_to(counted.age_sec(kind.since), known(kind.resource, pools))
    return [jobs, oldest]


def _running(counted: Census) -> Family:
    pools = resources()
    family = Family("jobs_running", "gauge", "Jobs that run.", RESOURCE)
    for resource in pools:
        family.add(0, resource)
    for kind in counted.live:
        if kind.status == Status.RUNNING:
            family.add(kind.jobs, known(kind.resource, pools))
    return family


def _queued(counted: Census) -> Family:
    queued = [kind for kind in counted.live if kind.is_queued]
    named = {"", *addons(kind.addon_id for kind in queued if kind.addon_id)}
    family = Family("jobs_queued", "gauge", "Jobs that have not started.", ("addon",))
    for addon in named:
        family.add(0, addon)
    for kind in queued:
        family.add(kind.jobs, known(kind.addon_id, named))
    return family
