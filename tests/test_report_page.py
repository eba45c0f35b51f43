"""The report's page in a browser: what it draws, what selectors and keys do, and that hostile text stays text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

import lambdamax
from lambdamax.report.charts import rows_of
from lambdamax.report.packed import Packed
from lambdamax.report.views import answer, latency_title, options, selection, table_row
from lambdamax.units import number
from reports import HOSTILE_MODEL, HOSTILE_TEXT, SPEC, hostile, numbers, swept

ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--window-size=1240,900")
BROWSERS = ("chromium", "google-chrome", "chrome")
CHARTS = ("pareto-cost", "pareto-tokens", "winners", "limits", "curve-ttft", "curve-tpot", "sensitivity", "robustness")
DRAWN = "return [...document.querySelectorAll('.chart')].map(box => box.querySelector('svg')?.outerHTML ?? '')"
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
INK = "return getComputedStyle(document.querySelector('#chart-winners svg text')).fill"
SELECTORS_SHOWN = "return getComputedStyle(document.querySelector('main > .selectors')).display"

Open = Callable[[Path], Chrome]


def browser(home: Path) -> Chrome:
    driver = shutil.which("chromedriver")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if driver is None or found is None:
        pytest.fail("the tests of the report's page need Chromium and chromedriver: `make browser` installs them")
    asked = ChromeOptions()
    asked.binary_location = found
    asked.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for argument in (*ARGUMENTS, f"--user-data-dir={home}"):
        asked.add_argument(argument)
    return Chrome(options=asked, service=Service(driver))


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    driver = browser(tmp_path_factory.mktemp("chrome"))
    yield driver
    driver.quit()


@pytest.fixture
def opened(chrome: Chrome) -> Iterator[Open]:
    """Opens a page once it is drawn; afterwards nothing stands in the console, and nothing was asked of a network."""
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chrome.get("about:blank")
    chrome.get_log("performance")
    pages = []

    def open_page(path: Path) -> Chrome:
        chrome.get(path.as_uri())
        pages.append(path.as_uri())
        settle(chrome)
        return chrome

    yield open_page
    assert chrome.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")]
    asked = {each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"}
    assert {url for url in asked if not url.startswith("data:")} == set(pages)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Packed]:
    directory = tmp_path_factory.mktemp("small")
    sweep = swept(directory)
    return lambdamax.report(sweep, directory / "r.html").path, numbers(sweep)[1]


def settle(driver: Chrome) -> None:
    driver.execute_async_script("const done = arguments[0]; window.lambdamaxReport.ready().then(() => done(1));")


def choose(driver: Chrome, name: str, value: int | str) -> None:
    """Select in a selector of the page, as a user does."""
    code = (
        "const s = document.getElementById(arguments[0]); s.value = arguments[1]; s.dispatchEvent(new Event('change'));"
    )
    driver.execute_script(code, name, str(value))
    settle(driver)


def text_of(driver: Chrome, name: str) -> str:
    return str(driver.find_element("id", name).get_attribute("textContent"))


@pytest.mark.parametrize("at", [[0, 1, 1, 1, 1, 0], [1, 0, 2, 0, 0, 1], [1, 2, 0, 1, 0, 0]])
def test_the_page_says_and_draws_what_python_says(opened: Open, small: tuple[Path, Packed], at: list[int]) -> None:
    page, data = small
    driver = opened(page)
    for axis, place in zip(data["axes"], at, strict=True):
        choose(driver, f"axis-{axis['name']}", place)
    assert [text_of(driver, f"answer-{place}") for place in range(3)] == answer(data, at)
    assert driver.find_element("css selector", ".selection").text == selection(data, at)
    cells = "return [...document.querySelectorAll('#options tr')].map(r => [...r.cells].map(c => c.textContent))"
    assert driver.execute_script(cells) == [table_row(row) for row in options(data, at)]
    expected = rows_of(data, at)
    for name in CHARTS:
        rows = driver.execute_script("return window.lambdamaxReport.rowsOf(arguments[0], arguments[1])", name, at)
        assert len(rows) == len(expected[name]) > 0
        assert rows == [pytest.approx(row) for row in expected[name]]
    assert all(driver.execute_script(DRAWN))


def test_the_page_writes_numbers_as_python_does(opened: Open, small: tuple[Path, Packed]) -> None:
    driver = opened(small[0])
    random = Random(7)
    values = [random.choice((1, -1)) * 10 ** random.uniform(-4, 9) for _ in range(500)]
    told = [(value, digits) for value in (0, 100, 99.96, 999.96, 12345.6, 0.05, *values) for digits in (2, 3, 4)]
    code = "return arguments[0].map(([value, digits]) => window.lambdamaxReport.number(value, digits))"
    assert driver.execute_script(code, told) == [number(value, digits) for value, digits in told]


def test_every_selector_changes_what_is_drawn(opened: Open, small: tuple[Path, Packed]) -> None:
    page, data = small
    driver = opened(page)
    changed: set[str] = set()
    before = driver.execute_script(DRAWN)
    for axis, start in zip(data["axes"], data["start"], strict=True):
        last = len(axis["values"]) - 1
        choose(driver, f"axis-{axis['name']}", 0 if start == last else last)
        after = driver.execute_script(DRAWN)
        differs = {name for name, old, new in zip(drawn_ids(driver), before, after, strict=True) if old != new}
        assert differs, axis["name"]
        changed |= differs
        before = after
    assert changed == set(CHARTS)
    limits = driver.find_element("id", "chart-limits").get_attribute("innerHTML")
    choose(driver, "limits-of", data["options"].index("h100-sxm"))
    choose(driver, "map-across", 4)
    assert driver.find_element("id", "chart-limits").get_attribute("innerHTML") != limits
    assert "TPOT SLO" in text_of(driver, "chart-winners")


def drawn_ids(driver: Chrome) -> list[str]:
    ids = driver.execute_script("return [...document.querySelectorAll('.chart')].map(box => box.id)")
    return [name.removeprefix("chart-") for name in ids]


def test_keys_and_clicks_reach_every_choice(opened: Open, small: tuple[Path, Packed]) -> None:
    page, data = small
    driver = opened(page)
    reached = []
    for _ in range(14):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(driver.switch_to.active_element.get_attribute("id"))
    selectors = [f"axis-{axis['name']}" for axis in data["axes"]]
    assert [name for name in reached if name] == [*selectors, "map-across", "map-down", "limits-of"]
    first = driver.find_element("id", "axis-isl_tokens")
    first.send_keys(Keys.ARROW_DOWN)
    settle(driver)
    assert text_of(driver, "answer-0") == answer(data, [0, 2, 1, 1, 1, 0])[0]
    cell = driver.find_elements("css selector", "#chart-winners .mark-rect path")[0]
    driver.execute_script("arguments[0].scrollIntoView({ block: 'center' })", cell)
    ActionChains(driver).move_to_element_with_offset(cell, -60, -10).click().perform()
    settle(driver)
    assert driver.execute_script("return [...window.lambdamaxReport.at]") == [0, 2, 0, 1, 1, 0]
    assert driver.find_element("id", "axis-osl_tokens").get_attribute("value") == "0"


def test_hostile_names_are_shown_as_text(opened: Open, tmp_path: Path) -> None:
    sweep = hostile(tmp_path / "in")
    driver = opened(lambdamax.report(sweep, tmp_path / "r.html").path)
    choose(driver, "map-across", 0)
    assert driver.execute_script("return window.pwned") is None
    assert driver.find_elements("css selector", "img, b b, [onerror]") == []
    assert driver.find_element("tag name", "h1").get_attribute("textContent") == HOSTILE_TEXT
    labels = [
        each.get_attribute("textContent").strip() for each in driver.find_elements("css selector", "#axis-model option")
    ]
    assert labels == [HOSTILE_MODEL, "qwen3-8b"]
    assert HOSTILE_MODEL[:6] in text_of(driver, "chart-winners")
    assert HOSTILE_MODEL in text_of(driver, "none-curve-ttft")


def test_it_fits_a_phone_turns_dark_and_prints(opened: Open, small: tuple[Path, Packed]) -> None:
    driver = opened(small[0])

    def emulate(**media: Any) -> None:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    light = driver.execute_script(INK)
    phone = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    settle(driver)
    assert driver.execute_script(OVERFLOW) <= 0
    emulate(media="", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert driver.execute_script(INK) != light
    emulate(media="print", features=[])
    assert driver.execute_script(SELECTORS_SHOWN) == "none"
    assert driver.execute_script(INK) == "rgb(0, 0, 0)"


def test_the_page_tells_ttft_at_the_percentile_of_its_slo(opened: Open, tmp_path: Path) -> None:
    text = SPEC.replace("tpot_s = [0.03, 0.05]", "percentile = [0, 95]\ne2e_s = 30").replace(
        'plan = ["on-demand", "reserved"]', ""
    )
    sweep = swept(tmp_path, text)
    data = numbers(sweep)[1]
    driver = opened(lambdamax.report(sweep, tmp_path / "r.html").path)
    place, titles = [axis["name"] for axis in data["axes"]].index("slo_percentile"), []
    for percent in range(2):
        at = [percent if axis == place else start for axis, start in enumerate(data["start"])]
        choose(driver, "axis-slo_percentile", percent)
        assert [text_of(driver, f"answer-{part}") for part in range(3)] == answer(data, at)
        for chart in ("curve-ttft", "curve-e2e"):
            rows = driver.execute_script("return window.lambdamaxReport.rowsOf(arguments[0], arguments[1])", chart, at)
            assert rows == [pytest.approx(row) for row in rows_of(data, at)[chart]]
        assert latency_title(data, at, "e2e") in text_of(driver, "chart-curve-e2e")
        titles.append(latency_title(data, at, "ttft"))
        assert titles[-1] in text_of(driver, "chart-curve-ttft")
    assert titles == ["mean TTFT, ms", "p99 TTFT, ms, for an SLO on p95"]
