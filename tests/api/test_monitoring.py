"""The alert rules and the dashboard ask for nothing that `/metrics` does not say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client import Metric

from jobs import metrics
from jobs.metrics import JobsCollector

pytestmark = pytest.mark.django_db

PLACE = Path(__file__).parents[2] / "docs" / "monitoring"
ADDED_BY_PROMETHEUS = {"instance", "job"}
# What Grafana puts in before it asks.
VARIABLES = {"$__rate_interval": "5m", "$job_type": ".*", "$resource": ".*"}
DURATION = re.compile(r"\d+[smhd]")


def families() -> Iterator[tuple[str, Metric]]:
    """Every metric with the name that it has in the text format."""
    for family in JobsCollector().collect():
        yield f"{family.name}_total" if family.type == "counter" else family.name, family


def labels_of(family: Metric) -> set[str]:
    return set(family._labelnames)  # type: ignore[attr-defined]


def series() -> dict[str, set[str]]:
    """Every series name with the labels that it has."""
    found: dict[str, set[str]] = {}
    for name, family in families():
        own = labels_of(family)
        if family.type == "histogram":
            found |= {f"{name}_bucket": {*own, "le"}, f"{name}_sum": own, f"{name}_count": own}
        else:
            found[name] = own
    return found


def rules() -> list[dict[str, Any]]:
    written = yaml.safe_load((PLACE / "alerts.yml").read_text())
    return [rule for group in written["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    written: dict[str, Any] = json.loads((PLACE / "dashboard.json").read_text())
    return written


def expressions() -> list[tuple[str, str]]:
    asked = [(f"alert {rule['alert']}", rule["expr"]) for rule in rules()]
    page = dashboard()
    asked += [(f"panel {panel['title']}", item["expr"]) for panel in page["panels"] for item in panel["targets"]]
    asked += [(f"annotation {item['name']}", item["expr"]) for item in page["annotations"]["list"]]
    return asked


def plain(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def selectors(node: Any) -> Iterator[Any]:
    """Every `name{…}` in an expression."""
    if isinstance(node, promql.VectorSelector):
        yield node
    if isinstance(node, promql.MatrixSelector):
        yield node.vector_selector
    for part in _parts(node):
        yield from selectors(part)


def grouped_by(node: Any) -> set[str]:
    """The labels by which an expression adds up."""
    own = set(node.modifier.labels) if isinstance(node, promql.AggregateExpr) and node.modifier else set()
    return own.union(*(grouped_by(part) for part in _parts(node)))


def _parts(node: Any) -> list[Any]:
    single = [getattr(node, name) for name in ("lhs", "rhs", "expr") if getattr(node, name, None) is not None]
    return [*single, *getattr(node, "args", ())]


@pytest.mark.parametrize(("place", "expression"), expressions(), ids=lambda value: str(value)[:60])
def test_an_expression_is_promql_over_metrics_and_labels_that_exist(place: str, expression: str) -> None:
    known = series()
    asked = promql.parse(plain(expression))
    found = list(selectors(asked))

    assert found, place
    for selector in found:
        assert selector.name in known, f"{place}: there is no {selector.name}"
        matched = {matcher.name for matcher in selector.matchers.matchers}
        assert matched <= known[selector.name], f"{place}: {selector.name} has no {matched - known[selector.name]}"
    labels = set().union(*(known[selector.name] for selector in found))
    assert grouped_by(asked) <= labels | ADDED_BY_PROMETHEUS, place


@pytest.mark.parametrize(("place", "expression"), expressions(), ids=lambda value: str(value)[:60])
def test_a_matched_value_can_occur(place: str, expression: str) -> None:
    text = metrics.render().body.decode()
    for selector in selectors(promql.parse(plain(expression))):
        for matcher in selector.matchers.matchers:
            if matcher.value != ".*":
                assert f'{matcher.name}="{matcher.value}"' in text, place


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_a_rule_says_all_that_prometheus_and_a_person_need(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert DURATION.fullmatch(rule.get("for", "0s"))
    asked = promql.parse(rule["expr"])
    for used in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
        assert used in grouped_by(asked), f"{rule['alert']} speaks of {used}"


def test_alerts_have_names_of_their_own() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))


def test_the_dashboard_is_whole() -> None:
    page = dashboard()
    panels = page["panels"]
    places = {(x, y) for panel in panels for x, y in _area(panel["gridPos"])}

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(places) == sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in panels), "panels overlap"
    variables = {item["name"] for item in page["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z_]+)\}?", json.dumps([panel["targets"] for panel in panels])))
    assert {name for name in used if not name.startswith("__")} <= variables
    for item in page["templating"]["list"]:
        if item["type"] == "query":
            name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", item["definition"]).groups()  # type: ignore[union-attr]
            assert label in series()[name]


def _area(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            yield x, y


def test_every_metric_is_told_about_in_the_guide() -> None:
    guide = (PLACE / "README.md").read_text()
    for name, family in families():
        assert f"`{name}`" in guide, name
        row = next(line for line in guide.splitlines() if line.startswith("|") and f"`{name}`" in line)
        fields = {label.strip() for label in row.split("|")[2].split(",")} - {""}
        assert fields == labels_of(family), name
    documented_names = set(re.findall(r"`(jobs_\w+)`", guide))
    assert documented_names == {name for name, _ in families()}
