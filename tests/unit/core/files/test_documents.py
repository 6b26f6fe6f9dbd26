import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.core.files import documents
from stormsail.core.files.documents import DocumentError

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=20,
)


@given(value=plain)
def test_what_is_written_is_read_back_exactly(value):
    for encode in (documents.encode, documents.encode_readable):
        back = documents.decode(encode(value))
        assert back == value
        assert repr(documents.plain(back)) == repr(documents.decode(documents.encode(back)))


@given(value=st.dictionaries(st.text(max_size=4), plain))
def test_equal_values_have_one_text_whatever_their_order(value):
    turned = dict(reversed(list(value.items())))
    assert documents.encode(turned) == documents.encode(value)


def test_the_text_is_fixed():
    value = {"b": [1, 2.5, True, None], "a": "é"}
    assert documents.encode(value) == b'{"a":"\\u00e9","b":[1,2.5,true,null]}'
    assert documents.encode_readable({"a": (1,)}) == b'{\n  "a": [\n    1\n  ]\n}\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"a": 1, "a": 1}', "it repeats the key 'a'"),
        (b'{"x": {"a": 1, "b": 2, "a": 3}}', "it repeats the key 'a'"),
        (b"NaN", "it holds the number NaN"),
        (b"[Infinity]", "it holds the number Infinity"),
        (b"[-Infinity]", "it holds the number -Infinity"),
        (b"1e400", "it holds the number 1e400, which is not finite"),
        (b"[" * 65 + b"]" * 65, "it is nested more than 64 levels deep"),
        (b"[" * 10**6, "it is nested more than 64 levels deep"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (
            b"{'a': 1}",
            "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"1 2", "Extra data: line 1 column 3 (char 2)"),
    ],
)
def test_loose_text_is_refused(text, words):
    with pytest.raises(DocumentError) as caught:
        documents.decode(text)
    assert str(caught.value) == words


def test_sixty_four_levels_are_read():
    value = documents.decode(b"[" * 64 + b"]" * 64)
    assert json.dumps(value) == "[" * 64 + "]" * 64


def test_a_number_of_thousands_of_digits_is_refused():
    with pytest.raises(DocumentError, match="Exceeds the limit"):
        documents.decode(b"9" * 5000)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "it holds the number nan"),
        ([float("inf")], "it holds the number inf"),
        ({1: 2}, "it holds the key 1, which is not a string"),
        ({"a": b"x"}, "it holds a value of the type bytes"),
        ({"a": {1}}, "it holds a value of the type set"),
        (object(), "it holds a value of the type object"),
        ([10**5000], "it holds a whole number of thousands of digits"),
        ({"a": [-(10**5000)]}, "it holds a whole number of thousands of digits"),
    ],
)
def test_what_json_cannot_give_back_is_not_written(value, words):
    for encode in (documents.encode, documents.encode_readable):
        with pytest.raises(DocumentError) as caught:
            encode(value)
        assert str(caught.value) == words
