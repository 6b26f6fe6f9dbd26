"""The look of our pages: they load nothing, run nothing of others, and pack what they draw."""

import base64
import hashlib
import json

import numpy as np
import pytest

from page_reader import PageReader
from stormsail.core.errors import ArgumentError
from stormsail.evaluation.report.html import (
    badge,
    chart,
    data_table,
    escape,
    folded,
    header,
    missing,
    note,
    packed,
    page,
    prose,
    section,
    table,
)

EVIL = '<script>alert("1")</script>\'<img src=x onerror=alert(2)>'


def whole(body=""):
    return page("title", body)


def test_a_page_asks_nothing_of_a_network():
    body = header("a", "b", [("one", "One")]) + section("one", "One", note("x"))
    read = PageReader(whole(body))
    assert read.loads == [("a", "href", "#one")]
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(read.tags)
    assert "url(" not in read.styles[0]
    assert "@import" not in read.styles[0]
    assert "default-src 'none'" in read.policy
    assert "http" not in read.policy


def test_only_the_scripts_of_the_page_may_run():
    read = PageReader(whole(chart("c", {"data": []}, height=9)))
    assert len(read.scripts) == 2
    assert "const Charts" in read.scripts[0]
    for source in read.scripts:
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in read.policy
    assert read.policy.count("sha256-") == 2
    allowed = next(part for part in read.policy.split(";") if "script-src" in part)
    assert "unsafe" not in allowed


def test_a_chart_is_named_for_those_who_cannot_see_it():
    drawn = chart("equity-chart", {"data": []}, height=9, caption='what "is" seen')
    assert 'role="group" aria-label="equity chart: what &quot;is&quot; seen"' in drawn
    assert 'aria-label="bare"' in chart("bare", {"data": []}, height=9)


def test_what_is_left_out_on_paper_is_marked():
    assert folded("a", "b").startswith("<details><summary>")
    assert folded("a", "b", opened=True, paper=False).startswith('<details open class="screen">')


@pytest.mark.parametrize(
    "piece",
    [
        lambda: note(EVIL),
        lambda: missing(EVIL),
        lambda: badge(EVIL),
        lambda: folded(EVIL, ""),
        lambda: section("one", EVIL, "", lead=EVIL),
        lambda: header(EVIL, EVIL, [("one", EVIL)]),
        lambda: table([EVIL], [[EVIL, EVIL]], kinds=[EVIL], classes=EVIL),
        lambda: prose(f"`{EVIL}`"),
    ],
)
def test_texts_of_others_are_shown_and_do_nothing(piece):
    read = PageReader(piece())
    assert read.scripts == []
    assert read.handlers == []
    assert "img" not in read.tags
    assert EVIL in "".join(read.texts)


def test_data_of_others_cannot_leave_its_element():
    drawn = chart("c", {"data": [{"name": EVIL}]}, height=9, caption=EVIL)
    rows = data_table("d", [(EVIL, "text")], [[EVIL]])
    read = PageReader(drawn + rows)
    assert read.scripts == []
    assert len(read.data) == 2
    assert "<" not in read.data[0] + read.data[1]
    assert json.loads(read.data[1])["rows"] == [[EVIL]]
    assert json.loads(read.data[0])["data"][0]["name"] == EVIL  # it is shown as text


def test_arrays_are_packed_as_little_endian_numbers():
    data = packed({"x": np.array([1.5, -2.0]), "y": np.array([0.1], np.float32), "n": [1, None]})
    assert data["x"]["dtype"] == "f8"
    assert np.frombuffer(base64.b64decode(data["x"]["bdata"]), "<f8").tolist() == [1.5, -2.0]
    assert data["y"]["dtype"] == "f4"
    assert base64.b64decode(data["y"]["bdata"]) == bytes.fromhex("cdcccc3d")  # 0.1 in float32
    assert data["n"] == [1, None]
    assert packed(np.array([3, 4]))["dtype"] == "f8"
    assert packed(np.float64(2.5)) == 2.5


def test_words_between_backticks_are_shown_as_code():
    assert prose("run `a<b` now") == "run <code>a&lt;b</code> now"
    assert escape("a & 'b'") == "a &amp; &#x27;b&#x27;"


def test_a_table_shows_a_dash_where_there_is_nothing_and_needs_no_head():
    assert table(["", "b"], [["x", None]]).count("<thead>") == 1
    bare = table(["", ""], [["x", None]], kinds=["bad"])
    assert "<thead>" not in bare
    assert '<tr class="bad"><th scope="row">x</th><td>\u2013</td></tr>' in bare


@pytest.mark.refusal
def test_the_name_of_a_part_is_not_taken_from_data():
    with pytest.raises(ArgumentError) as caught:
        section('a" onclick="x', "t", "")
    assert str(caught.value) == (
        "the name of a part of a page must be lower-case letters, digits and dashes; "
        'found `a" onclick="x`. Name it in code, not after data. [name-form]'
    )
