"""axe-core finds no serious barrier on the page: from a phone to a wall, light and dark, 8 nodes and 500.

Skipped where axe-core is not in the cache (`tests/page/install.sh` brings it) or there is no browser.
"""

import subprocess
from pathlib import Path

import pytest
from tools.harness.api_server import running
from tools.harness.page.browser import Browser, browser
from tools.harness.page.clusters import fill, served, small
from tools.harness.waiting import until

pytestmark = pytest.mark.long

INSTALL = Path(__file__).with_name("install.sh")
WIDTHS = (390, 800, 1440, 2560)
# Nodes are drawn by one template: of 4000 cards axe-core would take minutes.
FEW = "document.querySelectorAll('#all .node:nth-of-type(n+21)').forEach(node => node.remove())"
FITS = "document.documentElement.scrollWidth <= innerWidth"
FOUND = """axe.run(document, {resultTypes: ['violations']}).then(found => found.violations
    .filter(each => ['serious', 'critical'].includes(each.impact))
    .map(each => `${each.id}: ${each.nodes[0].target} (${each.nodes.length})`))"""


@pytest.fixture(scope="session")
def axe() -> str:
    """Its source."""
    done = subprocess.run([str(INSTALL)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no axe-core: {done.stderr.strip()[-300:]}")
    return Path(done.stdout.strip()).read_text()


async def barriers(tab: Browser, axe: str) -> list[str]:
    """What axe-core calls serious or critical."""
    await tab.value(f"(() => {{ {axe}\nreturn 1 }})()")
    return list(await tab.value(FOUND))


@pytest.mark.parametrize("kind", ["chromium", "firefox"])
async def test_nobody_meets_a_serious_barrier(axe: str, kind: str) -> None:
    """With totals and a pod opened too."""
    async with running() as (server, api), browser(kind) as tab:
        small(server)
        async with served(api, {"team_label": "team"}) as url:
            await tab.open(url + "/")
            for scheme in ("light", "dark") if kind == "chromium" else ("light",):
                for width in WIDTHS:
                    await tab.looks(width, 900, scheme)
                    assert await barriers(tab, axe) == [], (width, scheme)
                    await until(lambda: tab.value(FITS))
            await tab.value("document.querySelector('.totals').open = true")
            await tab.value("document.querySelector('.slice').focus()")
            await tab.press("Enter")
            await until(lambda: tab.value("!!document.querySelector('#detail article')"))
            await tab.drawn()
            assert await barriers(tab, axe) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["bars", "compact", "heat"])
async def test_nor_on_the_page_of_five_hundred_nodes(axe: str, scheme: str, view: str) -> None:
    """Of which all but the first twenty are taken out once they were drawn."""
    async with running() as (server, api), browser() as tab:
        fill(server, 500, 8)
        async with served(api) as url:
            await tab.open(f"{url}/?view={view}")
            await until(lambda: tab.value("document.querySelectorAll('.card').length === 4000"))
            await tab.value(FEW)
            for width in (390, 1440):
                await tab.looks(width, 900, scheme)
                assert await barriers(tab, axe) == [], width
