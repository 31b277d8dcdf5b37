"""The playground and the site in a real browser. Needs chromium and its driver (Debian: chromium-driver)."""

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from labtools import nuclei_tree, small, tiny
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from quarterturn_lab.play.pair import organism
from quarterturn_lab.training import training_run

CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --hide-scrollbars"""
SITE = Path(__file__).parents[2] / "site"
PATIENCE = 60  # seconds for anything: this may run beside other work

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="needs chromium and chromium-driver"),
]
Start = Callable[..., str]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the command and gives the address that it prints; all are ended after the test."""
    processes = []

    def started(*arguments: str, seconds: float = 20 * PATIENCE) -> str:  # the first trains four networks
        command = [sys.executable, "-m", "quarterturn_lab", "play", "--port", "0", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        processes.append(process)
        assert process.stdout is not None
        end, lines = time.monotonic() + seconds, []
        while time.monotonic() < end and (line := process.stdout.readline()):
            lines.append(line)
            if found := re.match(r"open (http://127\.0\.0\.1:\d+)", line):
                _until(lambda: urllib.request.urlopen(found[1], timeout=5).status == 200)
                return found[1]
        raise AssertionError("".join(lines))

    yield started
    for process in processes:
        process.terminate()
        process.communicate(timeout=PATIENCE)  # closes the pipe, too


@pytest.fixture(params=[1280, 390])
def browser(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path / 'profile'}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    options.add_experimental_option("mobileEmulation", {"deviceMetrics": {"width": request.param, "height": 900}})
    driver = webdriver.Chrome(options, webdriver.ChromeService(str(DRIVER)))
    driver.set_page_load_timeout(PATIENCE)
    yield driver
    if folder := os.environ.get("SCREENSHOTS"):  # to look at them
        height = driver.execute_script("return document.documentElement.scrollHeight")
        metrics = {"width": request.param, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        time.sleep(2)
        driver.save_screenshot(str(Path(folder) / f"{request.node.name}.png"))
    driver.quit()


def _until(found: Callable[[], Any]) -> Any:
    """What it gives, as soon as that is true."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            if value := found():
                return value
        except Exception:
            if time.monotonic() > end:
                raise
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)


def _cards(browser: Any, key: str = "") -> list[tuple[str, str, str]]:
    """The title, the change and the text of both cards."""
    found = browser.find_elements(By.CSS_SELECTOR, f"#{key}answers section")
    return [(card.get_attribute("data-title"), card.get_attribute("data-change"), card.text) for card in found]


def _turn(browser: Any, degrees: int, key: str = "") -> None:
    """Type an angle into the slider's field."""
    field = browser.find_element(By.CSS_SELECTOR, f"#{key}angle input[type=number]")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(str(degrees), Keys.ENTER)


def _answers(browser: Any) -> list[str]:
    """The bars alone: classes and probabilities."""
    found = browser.find_elements(By.CSS_SELECTOR, "#answers section")
    return ["\n".join(bar.text for bar in card.find_elements(By.CLASS_NAME, "bar")) for card in found]


def _requests(browser: Any) -> set[str]:
    """The hosts that the page has asked for anything and got an answer from."""
    lines = [line["message"] for line in browser.get_log("performance")]
    answered = [line for line in lines if '"Network.responseReceived"' in line]
    return {found[1] for line in answered if (found := re.search(r'"url":"https?://([^/:"]+)', line))}


def test_the_pair(start: Start, browser: Any, tmp_path: Path) -> None:
    address = start()
    browser.get(address)
    cards = _until(lambda: len(found := _cards(browser)) == 2 and found)
    assert [title for title, _, _ in cards] == ["An ordinary network", "An equivariant network"]

    before = _answers(browser)
    file = tmp_path / "mine.png"
    Image.fromarray(organism(4, 90)[0][:, :70]).save(file)
    browser.find_element(By.CSS_SELECTOR, "input[type=file]").send_keys(str(file))
    upright = _until(lambda: (found := _answers(browser)) and found != before and found)

    moved = []
    for degrees in (90, 180, 270):
        _turn(browser, degrees)
        ordinary, same = _until(lambda: (found := _answers(browser))[0] != upright[0] and found)
        (_, change, _), (_, none, _) = _cards(browser)
        assert same == upright[1]
        assert float(none) < 1e-5
        moved.append(float(change))
        assert ordinary != upright[0]
        upright[0] = ordinary
    assert max(moved) > 0.001
    _turn(browser, 45)
    _until(lambda: float(_cards(browser)[1][1]) > 1e-5)  # between quarter turns it changes too
    assert "Change at exact turns" in browser.find_element(By.ID, "turns").text
    assert browser.find_element(By.CSS_SELECTOR, "#curve svg").size["width"] > 200
    wide = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert wide[0] <= wide[1]  # nothing to scroll sideways
    assert _requests(browser) == {"127.0.0.1"}


def _compared(cards: list[Any], before: list[str]) -> bool:
    """Whether both cards show another quarter turn: while the slider moves they are made anew, one after the other."""
    return cards[0][1] not in ("", *before) and all("pixels change" in text for _, _, text in cards)


def test_masks_of_the_pair_turn_along(start: Start, browser: Any) -> None:
    browser.get(start())
    _until(lambda: browser.find_element(By.XPATH, "//button[@role='tab'][contains(., 'Where is it')]")).click()
    _until(lambda: len(found := _cards(browser, "tab1-")) == 2 and found[0][2])
    moved = []
    for degrees in (90, 180, 270):
        _turn(browser, degrees, "tab1-")
        cards = _until(lambda: _compared(found := _cards(browser, "tab1-"), moved) and found)
        assert float(cards[1][1]) < 1e-5
        assert "0 of 4,096 pixels change their label" in cards[1][2]
        moved.append(cards[0][1])
    assert max(map(float, moved)) > 0.01
    wide = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert wide[0] <= wide[1]


@pytest.mark.parametrize("browser", [390], indirect=True)
def test_a_run_with_masks(start: Start, browser: Any, tmp_path: Path) -> None:
    training_run.run(small("nuclei", "roll-all-quarter", nuclei_tree(tmp_path / "data")), tmp_path / "run")
    browser.get(start(str(tmp_path / "run")))
    _until(lambda: len(_cards(browser)) == 2)
    _turn(browser, 90)
    cards = _until(lambda: (found := _cards(browser)) and found[1][0] == "Its mask, turned back" and found)
    assert float(cards[0][1]) < 1e-5


@pytest.mark.parametrize("browser", [1280], indirect=True)
def test_an_onnx_file_and_a_drawing(start: Start, browser: Any, tmp_path: Path) -> None:
    from quarterturn_lab.inference.export import export
    from quarterturn_lab.inference.source import About

    training_run.run(tiny("baseline"), tmp_path / "run")
    export(tmp_path / "run", "onnx", tmp_path / "net.onnx", About())
    browser.get(start(str(tmp_path / "net.onnx")))
    _until(lambda: len(_cards(browser)) == 2)
    before = _answers(browser)
    browser.find_element(By.XPATH, "//button[@role='tab'][contains(., 'Draw')]").click()
    canvas = _until(lambda: next(c for c in browser.find_elements(By.TAG_NAME, "canvas") if c.is_displayed()))
    time.sleep(1)
    webdriver.ActionChains(browser).move_to_element_with_offset(canvas, -40, -20).click_and_hold().move_by_offset(
        60, 10
    ).move_by_offset(10, 40).release().perform()
    time.sleep(1)
    browser.find_element(By.XPATH, "//button[contains(., 'Use the drawing')]").click()
    _until(lambda: (found := _answers(browser)) and found != before)


def test_other_hosts_are_refused(start: Start, tmp_path: Path) -> None:
    training_run.run(tiny("baseline"), tmp_path / "run")
    address = start(str(tmp_path / "run"))
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(urllib.request.Request(address, headers={"Host": "evil.example"}), timeout=20)


SCREENS = 2000  # pixels that a page has beside its tables: two screens of 1280 x 1000
HOW_TO = 1300  # of a how-to, with what is behind it folded: one screen, or a listing a little longer
HOW_TOS = ("how-to/", "export.", "large-images.", "pretrained.", "scale.", "volumes.")
LONG = ("api/", "results/", "speed/", "convert/coverage")  # lists and tables
SEEN = """
const article = document.querySelector("article"), sum = (all, value) => [...all].reduce((s, e) => s + value(e), 0);
return {
    prose: article.offsetHeight - sum(article.querySelectorAll("table"), table => table.offsetHeight),
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    missing: sum(article.querySelectorAll("img"), image => image.complete && !image.naturalWidth),
};
"""


def _faults(browser: Any, pages: list[Path], root: Path) -> list[str]:
    """What is wrong with these pages: too long, wider than the screen, without a picture."""
    found = []
    for page in pages:
        browser.get(page.as_uri())
        name, seen = page.relative_to(root).as_posix(), browser.execute_script(SEEN)
        if browser.execute_script("return window.innerWidth") > 1000 and not name.startswith(LONG):
            most = HOW_TO if name.startswith(HOW_TOS) else SCREENS
            found += [f"{name}: {seen['prose']} pixels long"] * (seen["prose"] > most)
        found += [f"{name}: {seen['wide']} pixels too wide"] * (seen["wide"] > 0)
        found += [f"{name}: a picture is missing"] * (seen["missing"] > 0)
    return found


@pytest.mark.skipif(not SITE.exists(), reason="needs the site: make docs")
def test_every_page_of_the_site(browser: Any) -> None:
    pages = [page for page in sorted(SITE.rglob("*.html")) if page.name != "404.html"]
    assert len(pages) > 100
    assert _faults(browser, pages, SITE) == []


@pytest.mark.parametrize("browser", [1280], indirect=True)
def test_bad_pages_are_found(browser: Any, tmp_path: Path) -> None:
    pages = {
        "good": "<p style='height: 900px'>text</p><table><tr><td style='height: 3000px'></td></tr></table>",
        "long": "<p style='height: 2100px'>text</p>",
        "scale": "<p style='height: 1500px'>text</p>",
        "wide": "<p style='width: 1400px'>text</p>",
        "torn": "<img src='nowhere.png'>",
    }
    for name, body in pages.items():
        (tmp_path / f"{name}.html").write_text(f"<!doctype html><article>{body}</article>")
    found = _faults(browser, sorted(tmp_path.glob("*.html")), tmp_path)
    assert [fault.split(":")[0] for fault in found] == ["long.html", "scale.html", "torn.html", "wide.html"]
