"""Our pages in a real browser: drawn, clicked, on a phone, in the dark, on paper.

Each page is opened from its file, as a reader does who was sent it.
"""

import io
import re

import pyarrow as pa
import pytest
from PIL import Image
from typer.testing import CliRunner

from backtest_lab import agent_for, panel, plain
from ledger_lab import rounds, write_ledger
from search_lab import write_search
from stormsail.cli.main import app
from stormsail.core.generators import Generators
from stormsail.evaluation.engine.files import write_backtest
from stormsail.evaluation.engine.run import backtest
from stormsail.evaluation.robustness.baselines import run_baselines
from stormsail.evaluation.robustness.costs import break_even, cost_sweep
from stormsail.evaluation.robustness.significance import significance
from stormsail.evaluation.robustness.stress import figures_document
from stormsail.evaluation.stats.figures import bars_per_year
from stormsail.evaluation.walk_forward.files import write_validation
from stormsail.evaluation.walk_forward.run import validate
from training_lab import run_all, small
from validation_lab import fitter, settings, world

DESKTOP, PHONE = 1280, 390
SHEETS = 12
"""Most sheets of paper that a page takes."""

COLOURS = 64
"""A page that shows anything has more: edges of letters alone are shades of grey."""

EVIL = "<b>bold<img src=x onerror=alert(1)>"
"""Name of a folder that must stay a name."""


def written(folder, agent, bars):
    """Write a backtest with what the command can add to it."""
    config = plain()
    result = backtest(agent, bars, config)
    baselines = run_baselines(bars, config, like=result)
    curves = {name.replace(" ", "_"): each.equity for name, each in baselines.items()}
    swept = cost_sweep(result, bars, costs_bp=(0.0, 5.0, 20.0))
    costs = {
        "sweep_bp": figures_document({f"{cost:g}": each for cost, each in swept.items()}),
        "break_even": break_even(result, bars).document(),
    }
    late = {"usual": result, "orders late": backtest(agent, bars, plain(delay_bars=1))}
    tested = significance(
        result.returns,
        result.ts,
        per_year=bars_per_year(bars.interval.milliseconds),
        trial_sharpes=[0.01, 0.02],
        benchmark=baselines["buy and hold"].returns,
        generator=Generators(0).numpy("luck"),
        repetitions=200,
    )
    documents = {
        "baselines": figures_document(baselines),
        "costs": {"replay": costs},
        "stress": figures_document(late),
        "significance": tested.document(),
    }
    tables = {"baselines.parquet": pa.table({"ts": result.ts, **curves})}
    write_backtest(folder, result, documents=documents, tables=tables)


def called(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def pages(browser, tmp_path_factory):
    """Return a report and a comparison of the same two backtests and of a run.

    The report also shows an attack on the run's agent, a population and a search.

    It asks for the browser first: where there is none, nothing need be computed.
    """
    folder = tmp_path_factory.mktemp("pages")
    bars = panel(320, symbols=2)
    written(folder / "first", agent_for(bars, seed=0), bars)
    write_backtest(folder / EVIL, backtest(agent_for(bars, seed=4), bars, plain()))
    run_all(small("market", validation__every_updates=2), folder / "run")
    attacks = ("--attacks", "random,mad", "--epsilons", "0.1,0.4", "--episodes", "8")
    called("attack", folder / "run", *attacks, "--out", folder / "forged")
    write_ledger(folder / "bred", rounds())
    write_search(folder / "sought")
    both = (folder / "first", folder / EVIL)
    more = (folder / "forged", folder / "bred", folder / "sought")
    called("report", *both, *more, "--run", folder / "run", "--out", folder / "report.html")
    called("compare", *both, folder / "run", "--out", folder / "compare.html")
    return {name: folder / f"{name}.html" for name in ("report", "compare")}


@pytest.fixture(params=["report", "compare"])
def file(request, pages):
    return pages[request.param]


# ------------------------------------------------------------------ the watch itself


def test_the_watch_sees_errors_requests_and_what_is_too_wide(page, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><link rel=icon href='data:,'><p style='width:700px'>wide</p>"
        "<script>console.error('noticed'); fetch('http://127.0.0.1:9/x').catch(() => 0);"
        "new WebSocket('ws://127.0.0.1:9/y');</script>"
    )
    page.show(width=PHONE)
    page.open(bad, ready=False)
    requests = []
    page.wait(lambda: requests.extend(page.requests()) or len(set(requests)) > 2, "all requests")
    assert {"http://127.0.0.1:9/x", "ws://127.0.0.1:9/y"} <= set(requests)
    assert any("noticed" in line for line in page.complaints())
    assert overflow(page)[0] == 708


# ------------------------------------------------------------------ opening


def test_a_page_opens_without_a_complaint_and_asks_for_nothing(page, file):
    page.open(file)
    assert page.complaints() == []
    outside = [url for url in page.requests() if not url.startswith(("data:", "blob:"))]
    assert outside == [file.as_uri()]


def test_every_chart_is_drawn(page, file):
    page.open(file)
    page.ask("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.until(
        "return [...document.querySelectorAll('.chart')].every("
        "(one) => one.querySelector(':scope > svg'))"
    )
    empty = page.ask(
        "return [...document.querySelectorAll('.chart')].filter((one) => !one.querySelector("
        "'.trace path, .trace rect, .trace circle')).map((one) => one.id)"
    )
    assert empty == []
    broken = page.ask(
        "return [...document.querySelectorAll('.chart path, .chart rect, .chart line')].filter("
        "(one) => /NaN|Infinity|undefined/.test(one.outerHTML)).map((one) => one.outerHTML)"
    )
    assert broken == []
    assert page.ask("return document.querySelectorAll('.chart').length") >= 2
    assert page.complaints() == []


def test_attacks_and_populations_have_sections_with_their_figures(page, pages):
    page.open(pages["report"])
    ids = page.ask("return [...document.querySelectorAll('section')].map((one) => one.id)")
    assert {"robustness", "population"} <= set(ids)
    assert page.ask("return document.querySelectorAll('#robustness .chart').length") >= 1
    lines = "return document.querySelectorAll('#population svg.lineage circle').length"
    assert page.ask(lines) > 0
    assert page.ask("return document.querySelectorAll('#population table tbody tr').length") >= 3
    words = page.ask("return document.querySelector('#population').textContent")
    assert "a<b" in words  # a value from a file stays text


def test_a_search_has_a_section_with_a_line_for_each_trial(page, pages):
    page.open(pages["report"])
    lines = "return document.querySelectorAll('#search svg.parallel polyline').length"
    assert page.ask(lines) == 5
    assert page.ask("return document.querySelectorAll('#search .chart').length") == 4
    assert page.ask("return document.querySelectorAll('#search .data-table tbody tr').length") == 7
    assert "a<b" in page.ask("return document.querySelector('#search').textContent")


def test_the_report_of_a_validation_opens_on_a_phone_with_its_verdict_first(page, tmp_path):
    bars = world(200)
    config = settings(folds=2, costs=False, seeds=(3, 7))
    validation = validate(bars, config, fit=fitter(bars))
    write_validation(tmp_path / "validation", validation)
    called("report", tmp_path / "validation", "--out", tmp_path / "page.html")
    page.show(width=PHONE)
    page.open(tmp_path / "page.html")
    assert page.ask("return document.querySelector('section').id") == "verdict"
    assert page.ask("return document.querySelectorAll('#verdict .tile').length") == 4
    shown = page.ask("return document.querySelector('#verdict .badge').textContent")
    assert shown == validation.verdict.decision
    assert overflow(page) == [PHONE, []]
    assert page.complaints() == []


def test_names_from_outside_stay_text(page, file):
    page.open(file)
    assert page.ask("return document.querySelectorAll('img, b').length") == 0
    assert page.ask("return document.body.innerText.includes(arguments[0])", EVIL)
    legends = page.ask(
        "return [...document.querySelectorAll('.legend-text')].map((one) => one.textContent)"
    )
    assert EVIL in legends


# ------------------------------------------------------------------ clicks


INK = "return getComputedStyle(document.querySelector('.chart text')).fill"
"""Colour of the words of a chart."""


def test_the_switch_of_colours_goes_round_and_charts_follow(page, file):
    page.open(file)
    button = page.driver.find_element("id", "theme")
    seen = []
    for _ in range(3):
        ink = page.ask(INK)
        paper = page.ask("return getComputedStyle(document.body).backgroundColor")
        seen.append((button.text, paper, ink))
        button.click()
    assert [state[0] for state in seen] == ["colours: auto", "colours: light", "colours: dark"]
    assert seen[0][1:] == seen[1][1:]  # this reader's own choice is light
    assert seen[1][1] != seen[2][1]
    assert seen[1][2] != seen[2][2]
    assert button.text == "colours: auto"
    assert page.complaints() == []


def test_a_click_on_the_legend_hides_a_line_and_another_shows_it(page, file):
    page.open(file)
    chart = page.ask(
        "return [...document.querySelectorAll('.chart')]"
        ".find((one) => one.querySelectorAll('.key').length > 1).id"
    )
    state = "return document.getElementById(arguments[0]).drawn.shown"
    pressed = "return document.querySelector(`#${arguments[0]} .key`).ariaPressed"
    before = page.ask(state, chart)
    # the legend of a chart is redrawn after each click, so it is looked up again
    for fewer, wanted in ((True, "false"), (False, "true")):
        place = page.driver.find_element("css selector", f"#{chart} .key")
        page.ask("arguments[0].scrollIntoView({block: 'center'})", place)
        press(page, place)
        page.wait(lambda f=fewer: (page.ask(state, chart) < before) == f, "the legend to act")
        assert page.ask(pressed, chart) == wanted
    assert page.complaints() == []


def test_a_chart_is_read_by_mouse_and_keyboard_and_zoomed_by_dragging(page, pages):
    page.open(pages["report"])
    chart = page.driver.find_element("css selector", "#verdict-chart")
    page.ask("arguments[0].scrollIntoView({block: 'center'})", chart)
    box = page.ask("return arguments[0].querySelector(':scope > svg')"
                   ".getBoundingClientRect().toJSON()", chart)  # fmt: skip
    at = {"x": box["x"] + 0.5 * box["width"], "y": box["y"] + 0.3 * box["height"]}
    page.command("Input.dispatchMouseEvent", type="mouseMoved", **at)
    words = page.until("return document.querySelector('#verdict-chart .tip').textContent")
    assert re.match(r"\d+ \w{3} \d{4} \d\d:\d\d UTC", words)
    assert "%" in words
    page.command("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    page.until("return document.querySelector('#verdict-chart .tip').hidden")
    page.ask("arguments[0].focus()", chart)
    chart.send_keys("\ue014")  # the right arrow
    first = page.until("return document.querySelector('#verdict-chart .tip').textContent")
    for _ in range(9):
        chart.send_keys("\ue014")
    page.until("return document.querySelector('#verdict-chart .tip').textContent !== arguments[0]",
               first)  # fmt: skip
    ticks = "return [...document.querySelectorAll('#verdict-chart text.middle')]"
    ticks += ".map((one) => one.textContent).join()"
    whole = page.ask(ticks)
    page.command("Input.dispatchMouseEvent", type="mousePressed", button="left", **at)
    end = {**at, "x": at["x"] + 0.2 * box["width"]}
    page.command("Input.dispatchMouseEvent", type="mouseMoved", button="left", buttons=1, **end)
    page.command("Input.dispatchMouseEvent", type="mouseReleased", button="left", **end)
    page.until(f"{ticks} !== arguments[0]", whole)
    for count in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            page.command(
                "Input.dispatchMouseEvent", type=kind, button="left", clickCount=count, **at
            )
    page.until(f"{ticks} === arguments[0]", whole)
    assert page.complaints() == []


def press(page, element):
    """Press the mouse on the middle of an element, as a hand does."""
    box = page.ask("return arguments[0].getBoundingClientRect().toJSON()", element)
    spot = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    for kind in ("mousePressed", "mouseReleased"):
        page.command("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **spot)


def test_every_link_of_the_menu_leads_to_its_section(page, file):
    page.show(height=700)
    page.open(file)
    names = page.ask(
        "return [...document.querySelectorAll('nav a')].map((one) => one.getAttribute('href'))"
    )
    assert len(names) >= 5
    for name in names:
        page.driver.find_element("css selector", f'nav a[href="{name}"]').click()
        page.until("return location.hash === arguments[0]", name)
        page.until(
            "const top = document.querySelector(arguments[0]).getBoundingClientRect().top;"
            "const end = innerHeight + scrollY >= document.documentElement.scrollHeight - 2;"
            "return (top > 20 && top < 90) || (end && top < innerHeight)",
            name,
        )
    assert page.complaints() == []


def numbers(page, table, column):
    texts = page.ask(
        "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)]"
        ".map((one) => one.children[arguments[1]].textContent)",
        table,
        column,
    )
    return [float(text.replace(",", "").replace("−", "-")) for text in texts]


def test_trades_are_sorted_filtered_and_leafed_through(page, pages):
    page.open(pages["report"])
    table = page.ask("return document.querySelector('#trades .data-table').id")
    heads = page.ask(
        "return [...document.querySelectorAll(`#${arguments[0]} th button`)]"
        ".map((one) => one.textContent)",
        table,
    )
    place = heads.index("price")
    head = page.driver.find_elements("css selector", f"#{table} th button")[place]
    first = numbers(page, table, place)
    head.click()
    rising = numbers(page, table, place)
    assert rising == sorted(rising)
    assert rising[0] <= min(first)
    sort = "return document.querySelectorAll(`#${arguments[0]} th`)[arguments[1]].ariaSort"
    assert page.ask(sort, table, place) == "ascending"
    head.click()
    falling = numbers(page, table, place)
    assert falling == sorted(falling, reverse=True)
    assert falling[0] >= max(first)
    assert page.ask(sort, table, place) == "descending"
    back, following = page.driver.find_elements("css selector", f"#{table} .controls > button")
    assert not back.is_enabled()
    following.click()
    assert numbers(page, table, place)[0] <= falling[-1]
    assert back.is_enabled()
    field = page.driver.find_element("css selector", f"#{table} input")
    field.send_keys("sell")
    page.until(
        "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)]"
        ".every((one) => one.textContent.toLowerCase().includes('sell'))",
        table,
    )
    field.send_keys(" nowhere")
    page.until(
        "return document.querySelector(`#${arguments[0]} .count`).textContent.startsWith('no row')",
        table,
    )
    assert page.complaints() == []


# ------------------------------------------------------------------ looks


def overflow(page):
    """Return the width of the page and what sticks out of it on the right."""
    return page.ask(
        """
        const inside = (one) => {
          for (let up = one.parentElement; up; up = up.parentElement) {
            if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(up).overflowX)) return true;
          }
          return false;
        };
        const wide = [...document.body.querySelectorAll('*')].filter((one) =>
          one.getBoundingClientRect().right > innerWidth + 0.5 && !inside(one));
        return [document.documentElement.scrollWidth,
          wide.map((one) => `${one.tagName} ${one.id} ${one.className}`)];
        """
    )


@pytest.mark.parametrize("width", [PHONE, 768, DESKTOP])
def test_nothing_is_wider_than_the_screen(page, file, width):
    page.show(width=width)
    page.open(file)
    page.ask("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert overflow(page) == [width, []]


def test_charts_fit_again_when_the_phone_is_turned(page, file):
    page.show(width=PHONE)
    page.open(file)
    page.show(width=844, height=PHONE)
    page.until(
        "const one = document.querySelector('.chart');"
        "return one.clientWidth > 600 && one.drawn.width === one.clientWidth"
    )
    page.show(width=PHONE)
    page.until("return document.querySelector('.chart').drawn.width < 390")
    assert overflow(page) == [PHONE, []]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_a_picture_of_the_page_shows_something(page, file, tmp_path, width, dark):
    page.show(width=width, dark=dark)
    page.open(file)
    shot = page.picture(tmp_path / f"{file.stem}.png", height=2400)
    with Image.open(io.BytesIO(shot.read_bytes())) as opened:
        picture = opened.convert("RGB")
    assert picture.size == (width, 2400)
    assert len(picture.getcolors(1 << 24)) > COLOURS
    # the commonest colour is the paper's
    count, common = max(picture.getcolors(1 << 24))
    assert count < 0.95 * width * 2400
    assert (max(common) < 64) == dark
    assert (min(common) > 192) == (not dark)


def test_every_text_can_be_read_on_its_background(page, file):
    """WCAG asks for a contrast of 4.5 for small text; muted words are held to it too."""
    page.open(file)
    for dark in (False, True):
        page.show(dark=dark)
        assert page.ask(CONTRAST) == []


CONTRAST = """
const parse = (text) => text.match(/[0-9.]+/g).map(Number);
const light = (rgb) => rgb.slice(0, 3).map((one) => one / 255)
  .map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
  .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
const background = (one) => {
  for (let up = one; up; up = up.parentElement) {
    const found = parse(getComputedStyle(up).backgroundColor);
    if (found.length < 4 || found[3] > 0) return found;
  }
  return [255, 255, 255];
};
const bad = new Set();
const texts = 'h1, h2, h3, p, td, th, li, a, span, summary, button';
for (const one of document.querySelectorAll(texts)) {
  if (one.closest('.chart') || !one.innerText || one.disabled) continue;
  const a = light(parse(getComputedStyle(one).color)), b = light(background(one));
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) bad.add(`${one.tagName}.${one.className} ${ratio.toFixed(2)}`);
}
return [...bad];
"""


@pytest.mark.parametrize(
    ("width", "dark"), [(1440, False), (DESKTOP, True), (PHONE, False)], ids=str
)
def test_axe_has_no_serious_complaint(page, file, width, dark):
    axe = pytest.importorskip("axe_core_python.base", reason="needs the extra `dev`")
    page.show(width=width, dark=dark)
    page.open(file)
    page.ask("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.ask("dispatchEvent(new Event('resize'))")
    page.ask(axe.AXE_SCRIPT)
    broken = page.driver.execute_async_script(AXE)
    assert broken == []


AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, { resultTypes: ['violations'] }).then((result) => done(result.violations
  .filter((rule) => ['serious', 'critical'].includes(rule.impact))
  .map((rule) => [rule.id, ...rule.nodes.map((node) => node.html.slice(0, 120))])));
"""


# ------------------------------------------------------------------ paper


def test_the_page_is_printed_on_several_sheets_and_looks_as_before_afterwards(page, file):
    page.show(dark=True)
    page.open(file)
    looks = (
        "const one = document.querySelector('.chart');"
        "return [getComputedStyle(document.body).backgroundColor, one.drawn.width,"
        "getComputedStyle(one).color, document.documentElement.dataset.theme || 'none',"
        "document.querySelectorAll('details[open]').length]"
    )
    before = page.ask(looks)
    page.ask(
        "addEventListener('beforeprint', () => { window.seen ="
        "[document.documentElement.dataset.theme,"
        "document.querySelectorAll('details:not([open]):not(.screen)').length]; })"
    )
    data = page.paper()
    assert data.startswith(b"%PDF-")
    sheets = len(re.findall(rb"/Type\s*/Page\b(?!s)", data))
    assert 2 <= sheets <= SHEETS
    assert len(data) > 40_000
    assert page.ask("return window.seen") == ["light", 0]  # dark ink on paper, nothing folded away
    page.wait(lambda: page.ask(looks) == before, "the page to look as before")
    assert page.driver.find_element("id", "theme").text == "colours: auto"
    assert page.complaints() == []
