"""axe-core, which npm installs once, on every page of the console in light and in dark."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import Model
from django.urls import reverse
from playwright.sync_api import Page, expect

from jobs import demo
from jobs.actors import Actor, ActorKind
from jobs.models import Job, JobTemplate
from tests.browser.conftest import Opener
from tests.browser.paths import get_screen_path, list_paths
from tests.packaging.processes import run
from tests.support.admin_pages import get_list_url, get_page_url
from tests.support.admin_rows import create_all_rows

pytestmark = [pytest.mark.browser, pytest.mark.once, pytest.mark.django_db(transaction=True)]
AXE = "axe-core@4.12.1"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RULES = {  # by theme; in dark, only colours differ
    "light": {"type": "tag", "values": TAGS},
    "dark": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]},
}
# Django's own: links in the breadcrumbs, a search field without a label, and a date in two fields.
STOCK = ["div.breadcrumbs a", "#searchbar[aria-describedby]", "p.datetime input"]
FIND_VIOLATIONS = """async ([runOnly, stock]) => {
  await Promise.all(document.getAnimations().map((animation) => animation.finished));  // colours change slowly
  const { violations } = await axe.run({ exclude: stock }, { runOnly, resultTypes: ["violations"] });
  return violations.flatMap(({ id, impact, nodes }) => nodes.map(({ html }) => ({ id, impact, html })));
}"""


@pytest.fixture(scope="module")
def axe(pytestconfig: pytest.Config) -> Path:
    """Return the path of axe-core's script."""
    assert pytestconfig.cache is not None
    home = pytestconfig.cache.mkdir(AXE.replace("@", "-"))
    script = home / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        if shutil.which("npm") is None and os.environ.get("CI_BROWSER") != "1":
            pytest.skip("there is no npm on this machine, which installs axe-core: apt-get install npm")
        run(["npm", "install", "--prefix", home, "--no-audit", "--no-fund", "--ignore-scripts", AXE])
    return script


def open_page(open_as: Opener, axe: Path, user: User) -> Page:
    options = {"viewport": {"width": 1440, "height": 900}, "bypass_csp": True}  # axe sets styles
    page = open_as(user, get_screen_path("overview"), **options)
    page.add_init_script(path=axe)
    return page


def list_violations(page: Page) -> list[str]:
    """Return the serious and critical findings of ours on the page, in both themes."""
    found: list[str] = []
    for scheme, rules in RULES.items():
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        findings: list[dict[str, Any]] = page.evaluate(FIND_VIOLATIONS, [rules, STOCK])
        serious = [finding for finding in findings if finding["impact"] in ("serious", "critical")]
        found += [f"{page.url} in {scheme}: {finding['id']} {finding['html'][:200]}" for finding in serious]
    return found


@pytest.mark.timeout(900)  # every page
def test_no_page_has_a_serious_finding_in_light_or_dark(open_as: Opener, axe: Path, transactional_db: None) -> None:
    boss = User.objects.create_superuser("boss")
    demo.fill(actor=Actor(ActorKind.CLI, "ada"))
    rows = create_all_rows()
    page = open_page(open_as, axe, boss)
    found = []
    for path in (*list_paths(rows), *list_further_paths(rows)):
        page.goto(path)
        found += list_violations(page)
    confirm_many(page)
    found += list_violations(page)
    page.route("**/nowhere/", lambda route: route.fulfill(response=route.fetch(), status=200))  # or the browser logs it
    page.goto("/nowhere/")
    found += list_violations(page)
    page.context.clear_cookies()
    page.goto(reverse("admin:login"))
    found += list_violations(page)
    assert found == [], "\n".join(found)


def list_further_paths(rows: list[Model]) -> list[str]:
    """Return pages that are no list and no row: other views of a screen, searches, and forms of one row."""
    jobs = {str(row.status): row for row in rows if isinstance(row, Job)}
    template = next(row for row in rows if isinstance(row, JobTemplate))
    return [
        reverse("admin:index"),
        f"{get_screen_path('overview')}?window=7d",
        f"{get_screen_path('queue')}?tenant=demo&priority=25",
        f"{reverse('admin:jobscheduler_jobs_resource', args=['pause'])}?key=demo-cpu",
        f"{get_list_url(Job)}?status=FAILED&q=type:demo.mail&submitted_from=2020-01-01T00:00",
        f"{get_list_url(Job)}?q=nothing",
        get_page_url(jobs["QUEUED"]).replace("/change/", "/edit/"),
        get_page_url(template).replace("/change/", "/delete/"),
    ]


def confirm_many(page: Page) -> None:
    """Open the page that says what an action on many jobs would do."""
    page.goto(f"{get_list_url(Job)}?status=FAILED")
    page.locator("#action-toggle").check()
    page.get_by_label("Action:").select_option("retry")
    page.get_by_role("button", name="Go").click()
    expect(page.get_by_text("Nothing has changed yet.")).to_be_visible()
