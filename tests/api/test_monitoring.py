"""The alert rules, the dashboard and the scaler of workers use only series and labels that `/metrics` exports."""

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

pytestmark = [pytest.mark.django_db, pytest.mark.once]

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
ADDED_BY_PROMETHEUS = {"instance", "job"}
# Values that Grafana substitutes before a query.
VARIABLES = {"$__rate_interval": "5m", "$job_type": ".*", "$resource": ".*"}
DURATION = re.compile(r"\d+[smhd]")


def iterate_families() -> Iterator[tuple[str, Metric]]:
    """Yield every metric with its name in the text format."""
    for family in JobsCollector().collect():
        yield f"{family.name}_total" if family.type == "counter" else family.name, family


def get_labels(family: Metric) -> set[str]:
    return set(family._labelnames)  # type: ignore[attr-defined]


def collect_series() -> dict[str, set[str]]:
    """Return the labels of every series by its name."""
    labels_by_series: dict[str, set[str]] = {}
    for name, family in iterate_families():
        labels = get_labels(family)
        if family.type == "histogram":
            labels_by_series |= {f"{name}_bucket": {*labels, "le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            labels_by_series[name] = labels
    return labels_by_series


def load_rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def load_dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
    return document


def list_expressions() -> list[tuple[str, str]]:
    expressions = [(f"alert {rule['alert']}", rule["expr"]) for rule in load_rules()]
    dashboard = load_dashboard()
    expressions += [
        (f"panel {panel['title']}", target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]
    ]
    expressions += [
        (f"annotation {annotation['name']}", annotation["expr"]) for annotation in dashboard["annotations"]["list"]
    ]
    scaler = yaml.safe_load((FOLDER.parent / "deploy" / "keda.yaml").read_text())
    expressions += [("scaler", trigger["metadata"]["query"]) for trigger in scaler["spec"]["triggers"]]
    return expressions


def substitute_variables(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def find_selectors(node: Any) -> Iterator[Any]:
    """Yield every `name{…}` of an expression."""
    if isinstance(node, promql.VectorSelector):
        yield node
    if isinstance(node, promql.MatrixSelector):
        yield node.vector_selector
    for child in _list_children(node):
        yield from find_selectors(child)


def find_grouping_labels(node: Any) -> set[str]:
    """Return the labels by which an expression aggregates."""
    labels = set(node.modifier.labels) if isinstance(node, promql.AggregateExpr) and node.modifier else set()
    return labels.union(*(find_grouping_labels(child) for child in _list_children(node)))


def _list_children(node: Any) -> list[Any]:
    children = [getattr(node, name) for name in ("lhs", "rhs", "expr") if getattr(node, name, None) is not None]
    return [*children, *getattr(node, "args", ())]


@pytest.mark.parametrize(("source", "expression"), list_expressions(), ids=lambda value: str(value)[:60])
def test_an_expression_is_promql_over_metrics_and_labels_that_exist(source: str, expression: str) -> None:
    known = collect_series()
    tree = promql.parse(substitute_variables(expression))
    selectors = list(find_selectors(tree))

    assert selectors, source
    for selector in selectors:
        assert selector.name in known, f"{source}: there is no {selector.name}"
        matched = {matcher.name for matcher in selector.matchers.matchers}
        assert matched <= known[selector.name], f"{source}: {selector.name} has no {matched - known[selector.name]}"
    labels = set().union(*(known[selector.name] for selector in selectors))
    assert find_grouping_labels(tree) <= labels | ADDED_BY_PROMETHEUS, source


@pytest.mark.parametrize(("source", "expression"), list_expressions(), ids=lambda value: str(value)[:60])
def test_a_matched_value_can_occur(source: str, expression: str) -> None:
    text = metrics.render().body.decode()
    for selector in find_selectors(promql.parse(substitute_variables(expression))):
        for matcher in selector.matchers.matchers:
            if matcher.value != ".*":
                assert f'{matcher.name}="{matcher.value}"' in text, source


@pytest.mark.parametrize("rule", load_rules(), ids=lambda rule: rule["alert"])
def test_a_rule_is_complete(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert DURATION.fullmatch(rule.get("for", "0s"))
    tree = promql.parse(rule["expr"])
    for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
        assert label in find_grouping_labels(tree), f"{rule['alert']} mentions {label}"


def test_alerts_have_names_of_their_own() -> None:
    names = [rule["alert"] for rule in load_rules()]
    assert len(names) == len(set(names))


def test_the_dashboard_is_consistent() -> None:
    dashboard = load_dashboard()
    panels = dashboard["panels"]
    cells = {(x, y) for panel in panels for x, y in _list_cells(panel["gridPos"])}

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(cells) == sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in panels), "panels overlap"
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z_]+)\}?", json.dumps([panel["targets"] for panel in panels])))
    assert {name for name in used if not name.startswith("__")} <= variables
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
            assert label in collect_series()[name]


def _list_cells(grid_position: dict[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(grid_position["x"], grid_position["x"] + grid_position["w"]):
        for y in range(grid_position["y"], grid_position["y"] + grid_position["h"]):
            yield x, y


def test_every_metric_is_documented_in_the_guide() -> None:
    guide = (FOLDER / "README.md").read_text()
    for name, family in iterate_families():
        assert f"`{name}`" in guide, name
        row = next(line for line in guide.splitlines() if line.startswith("|") and f"`{name}`" in line)
        labels = {label.strip() for label in row.split("|")[2].split(",")} - {""}
        assert labels == get_labels(family), name
    documented_names = set(re.findall(r"`(jobs_\w+)`", guide))
    assert documented_names == {name for name, _ in iterate_families()}
