"""The live page, and Electric's own clients for web pages, in a real browser."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from pyspark.sql import SparkSession
from shop import TYPES, Shop, State
from test_serve import ELECTRIC, PATIENCE, Served, Shopping, serving

from changeglot.model import Op

HOSTILE = (
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "\"'&amp;</td></table>`${window.hacked = 3}`",
    "\u202egnp.exe\u0007",
)
#: Marks that the page ever gave to rows and cells: a test may come too late to see them.
WATCH = """
window.marks = [];
new MutationObserver((seen) => {
  for (const { target, addedNodes } of seen)
    for (const node of [target, ...addedNodes])
      for (const mark of ["come", "changed", "gone"])
        if (node.classList?.contains(mark) && node.closest("#rows"))
          window.marks.push([mark, node.closest("tr").cells[0].textContent, node.dataset.column ?? ""].join(" "));
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["class"] });
"""


@dataclass
class Noted(Shopping):
    """A shop with tables whose rows are known one by one: `notes`, and `kept` where rows are only marked as deleted."""

    rows_of: dict[str, dict[int, State]] = field(default_factory=lambda: {"notes": {}, "kept": {}})

    @property
    def content(self) -> dict[str, Any]:
        """Any: words of the pipeline's file."""
        told = super().content
        kept = {"match": f"{self.name}.kept", "delete": "soft", "keys": ["id"]}
        return {**told, "tables": [kept, *told["tables"]]}

    def put(self, key: int, name: str | None, table: str = "notes", **more: str) -> None:
        """Any: values of a row."""
        before = self.rows_of[table].get(key)
        after: State = {"id": key, "name": name, "amount": None, **more}
        types = {**TYPES, **dict.fromkeys(more, "varchar(9)")}
        self.shop.say(Op.UPDATE if before else Op.INSERT, table, key, before, after, types=types)
        self.rows_of[table][key] = after

    def drop(self, key: int, table: str = "notes") -> None:
        self.shop.say(Op.DELETE, table, key, self.rows_of[table].pop(key), None)

    @property
    def names(self) -> dict[str, str | None]:
        """What `notes` should show: names by id."""
        return {str(key): row["name"] for key, row in self.rows_of["notes"].items()}


@pytest.fixture(scope="module")
def noted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Noted:
    made = Noted(spark, tmp_path_factory.mktemp("page"), "shop", Shop(5, "shop", keys=12, moves=False))
    for key, text in enumerate((*HOSTILE, None, "")):
        made.put(key, text)
    for key in range(3):
        made.put(key, "x", "kept")
    made.go_on(12)
    made.drop(0, "kept")
    made.go_on(10)
    return made


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.fail("no Chromium was found on the PATH: apt-get install -y --no-install-recommends chromium")
    with sync_playwright() as playwright:
        # As root, Chromium does not start in its sandbox.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"] if os.getuid() == 0 else [])
        yield browser
        browser.close()


@dataclass
class Tab:
    """A page, all that it asked for, and what went wrong in it."""

    page: Page
    asked: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def listed(self) -> dict[str, str]:
        """Rows by table, as the page lists them."""
        rows = self.page.locator("#tables tbody tr").evaluate_all(
            "all => all.map(row => [...row.cells].map(c => c.innerText))"
        )
        return {cells[0]: cells[1] for cells in rows}

    @property
    def names(self) -> dict[str, str | None]:
        """Names by id of the rows that are shown and not about to go."""
        script = """all => all.map(({cells}) => [cells[0].textContent,
            cells[1].classList.contains("null") ? null : cells[1].textContent])"""
        return dict(self.page.locator("#rows tbody tr:not(.gone)").evaluate_all(script))

    @property
    def marks(self) -> set[str]:
        return set(self.page.evaluate("window.marks"))

    def text(self, of: str) -> str:
        return self.page.locator(of).inner_text()


@contextmanager
def tab(chromium: Browser, url: str, **options: Any) -> Iterator[Tab]:
    """Any: options of a page."""
    page = chromium.new_page(**options)
    made = Tab(page)
    page.on("request", lambda request: made.asked.append(request.url))
    page.on("pageerror", lambda error: made.errors.append(str(error)))
    page.on("console", lambda said: made.errors.append(said.text) if said.type == "error" else None)
    page.set_default_timeout(PATIENCE * 1000)
    page.add_init_script(WATCH)
    page.goto(url)
    try:
        yield made
    finally:
        page.close()


def until(found: Callable[[], object], expected: object) -> None:
    """Waits until what is found is as expected."""
    ends = time.monotonic() + PATIENCE
    while (last := found()) != expected:
        assert time.monotonic() < ends, f"{last} is not {expected}"
        time.sleep(0.05)


def root(server: Served) -> str:
    return server.url.removesuffix("v1/shape")


def test_the_page_shows_tables_and_a_shape_as_it_changes(noted: Noted, chromium: Browser) -> None:
    with serving(noted) as server, tab(chromium, root(server)) as seen:
        orders = str(len(noted.shop.model.rows))
        until(lambda: seen.listed, {"shop.kept": "2", "shop.notes": "6", "shop.orders": orders})
        seen.page.get_by_role("link", name="shop.notes").press("Enter")
        until(lambda: seen.names, noted.names)
        assert seen.page.locator("#rows td.empty").count() == 1
        assert seen.text("#rows thead").split() == ["id", "int8", "name", "text", "amount", "numeric"]
        until(lambda: seen.text("#live-state"), "Live")
        noted.put(9, "<b>new</b>")
        noted.put(1, "</script><script>window.hacked = 4</script>")
        noted.drop(0)
        noted.apply()
        until(lambda: seen.names, noted.names)
        assert seen.marks == {"come 9 ", "changed 1 name", "gone 0 "}
        until(lambda: seen.listed["shop.notes"], "6")
        assert seen.text("#tally") == "1 inserted, 1 updated, 1 deleted since it was opened"
        noted.put(10, "y")
        noted.apply()
        until(lambda: seen.names, noted.names)
        until(lambda: seen.listed["shop.notes"], "7")
        assert seen.page.locator(".come, .changed").locator("visible=true").count() >= 1

        # Only what meets the condition; what comes to meet it is inserted.
        seen.page.get_by_label("Where").fill("name LIKE '<%'")
        seen.page.keyboard.press("Enter")
        until(lambda: seen.names, {"9": "<b>new</b>", "1": noted.names["1"]} | _beginning(noted.names, "<"))
        noted.put(10, "<y")
        noted.put(9, "z")
        noted.apply()
        until(lambda: seen.names, _beginning(noted.names, "<"))
        assert urlsplit(seen.page.url).fragment == urlencode({"table": "shop.notes", "where": "name LIKE '<%'"})

        seen.page.get_by_label("Where").fill("nothing = 1")
        seen.page.get_by_role("button", name="Show").click()
        until(lambda: "nothing" in seen.text("#problem"), True)
        assert seen.text("#live-state") == "Stopped"
        assert seen.page.evaluate("window.hacked") is None
        assert all(url.startswith((root(server), "data:")) for url in seen.asked)
        # The browser tells of the condition that was refused.
        assert all("400" in each for each in seen.errors), seen.errors


def _beginning(names: dict[str, str | None], start: str) -> dict[str, str | None]:
    return {key: name for key, name in names.items() if name and name.startswith(start)}


def test_the_page_follows_a_large_table_and_one_that_gets_a_column_and_fits_a_phone(
    noted: Noted, chromium: Browser
) -> None:
    for key in range(1000, 1450):
        noted.put(key, "many")
    noted.apply()
    phone = {"viewport": {"width": 360, "height": 640}, "color_scheme": "dark", "reduced_motion": "reduce"}
    with serving(noted) as server, tab(chromium, f"{root(server)}#table=shop.notes", **phone) as seen:
        first = dict(sorted(noted.names.items(), key=lambda each: int(each[0]))[:200])
        until(lambda: seen.names, first)
        total = len(noted.names)
        until(lambda: seen.text("#note").startswith(f"200 of {total} rows are shown"), True)
        for key in range(2000, 2300):
            noted.put(key, "more")
        noted.apply()
        until(lambda: set(seen.names.values()), {"more"})
        assert len(seen.names) == 200
        # A row that is not shown is when it changes.
        noted.put(1449, "one")
        noted.apply()
        until(lambda: next(iter(seen.names.items())), ("1449", "one"))
        assert len(seen.names) == 200
        noted.put(1448, "wide", more="w")
        noted.apply()
        until(lambda: "more" in seen.text("#rows thead").split(), True)
        # It began anew with the first rows; the changed one may have come behind them.
        until(lambda: {"1", "2", "3"} <= seen.names.keys() and len(seen.names) <= 200, True)
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360
        # What must begin anew was answered with 409, of which the browser tells.
        assert all("409" in each for each in seen.errors), seen.errors


def test_the_page_asks_for_the_secret_and_keeps_it_in_its_tab(noted: Noted, chromium: Browser) -> None:
    word = "öffne dich <&> %41"
    with serving(noted, secret=word, tables=["shop.n*"]) as server:
        assert server.ask(path="/v1/tables").status == 401
        with tab(chromium, f"{root(server)}#table=shop.notes") as seen:
            field = seen.page.get_by_label("Secret")
            field.fill("guess")
            field.press("Enter")
            until(lambda: seen.text("#unlock-problem"), "That is not the secret of this server.")
            field.fill(word)
            seen.page.get_by_role("button", name="Open").click()
            until(lambda: seen.listed, {"shop.notes": f"{len(noted.names)}"})
            until(lambda: len(seen.names), min(200, len(noted.names)))
            seen.page.reload()
            until(lambda: len(seen.names), min(200, len(noted.names)))
            assert all(word not in url and "secret" not in url for url in seen.asked)
            seen.page.get_by_role("button", name="Forget the secret").click()
            field.wait_for()
            assert not seen.page.locator("#content").is_visible()
            assert seen.page.evaluate("sessionStorage.length") == 0
            assert all("401" in each for each in seen.errors), seen.errors
        with tab(chromium, root(server)) as other:
            other.page.get_by_label("Secret").wait_for()


def test_tables_are_told_of_with_their_rows_and_the_page_can_be_off(noted: Noted) -> None:
    with serving(noted, tables=["shop.k*", "shop.o*"]) as server:
        got = server.ask(path="/v1/tables")
        told = {each.pop("table"): each for each in got.json["tables"]}
        assert {name: each["rows"] for name, each in told.items()} == {
            "shop.kept": len(noted.rows_of["kept"]),
            "shop.orders": len(noted.shop.model.rows),
        }
        assert all(each["changed_at"] < got.json["now"] and each["batch"] >= 0 for each in told.values())
        # The shop's messages tell no times.
        assert all(each["lag_seconds"] is None for each in told.values())
        page = server.ask(path="/")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert server.ask(path="/", headers={"if-none-match": page.headers["etag"]}).status == 304
        assert server.ask(path="/page.js").headers["content-type"].startswith("text/javascript")
    with serving(noted, page=False, secret="s") as server:
        assert server.ask(path="/").status == 401
        assert server.ask("secret=s", path="/").body == b""
        assert server.ask("secret=s", path="/page.js").status == 404


@pytest.fixture(scope="module")
def app(electric: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a page is that uses Electric's clients: another origin than that of the tables."""
    folder = tmp_path_factory.mktemp("app")
    modules = electric / "node_modules"
    subprocess.run(
        [
            modules / ".bin" / "esbuild", ELECTRIC / "app.jsx", "--bundle", "--format=esm", "--jsx=automatic",
            '--define:process.env.NODE_ENV="production"', "--log-level=warning", f"--outfile={folder / 'app.js'}",
        ],
        check=True, env={**os.environ, "NODE_PATH": str(modules)},
    )  # fmt: skip
    (folder / "index.html").write_text(
        '<link rel="icon" href="data:,"><div id="root"></div><script type="module" src="app.js"></script>'
    )

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_electrics_react_hook_and_tanstacks_collection_show_the_rows_of_a_table(
    spark: SparkSession, tmp_path: Path, chromium: Browser, app: str
) -> None:
    made = Shopping(spark, tmp_path, "hooked", Shop(11, "hooked", keys=9, moves=False))
    made.go_on(14)
    where = "amount IS NULL OR name = 'x'"

    def expected() -> dict[str, list[str]]:
        every = made.rows()
        some = made.rows(where=lambda row: row["amount"] is None or row["name"] == "x")
        lists = {"hook": every, "some": some, "collection": every}
        return {name: sorted(map(said, rows.values())) for name, rows in lists.items()}

    def said(row: object) -> str:
        return json.dumps(row, sort_keys=True)

    with serving(made) as server:
        query = urlencode({"url": server.url, "table": "hooked.orders", "where": where})
        with tab(chromium, f"{app}?{query}") as seen:

            def found() -> dict[str, list[str]]:
                lists = seen.page.locator("ul").evaluate_all(
                    "all => all.map(l => [l.id, [...l.children].map(i => i.textContent)])"
                )
                return {name: sorted(said(json.loads(row)) for row in rows) for name, rows in lists}

            until(found, expected())
            deleted = False
            for _ in range(4):
                before = set(made.shop.model.rows)
                made.go_on(8)
                deleted = deleted or bool(before - set(made.shop.model.rows))
                until(found, expected())
            assert deleted
            assert not seen.errors, seen.errors
