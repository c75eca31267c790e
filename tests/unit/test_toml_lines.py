# SPDX-License-Identifier: Apache-2.0
"""The line of every key, in every way that TOML lets a key stand."""

import tomllib

import pytest

from sparkd.core.toml_lines import key_lines

DOCUMENT = '''\
# comment with = and [brackets]
top = 1

"quoted key" = "a # not a comment"
'literal' = 'x'
a.b.c = [1,
  2, # ]
  "three ]",
]
text = """
fake = 1
[not.a.table]
\\"""
"""
more = """ends with quotes"""""
raw = \'\'\'
fake = 2
\'\'\'
[section]
key = { x = 1, "y z" = { deep = true } }
date = 1979-05-27 07:32:00
[ section . "sub%" ]
k="v"
[[list]]
n = 1
[[list]]
n = 2
[last]
"\\u0061\\t\\"" = -1
'''

LINES = {
    ("top",): 2,
    ("quoted key",): 4,
    ("literal",): 5,
    ("a", "b", "c"): 6,
    ("text",): 10,
    ("more",): 15,
    ("raw",): 16,
    ("section",): 19,
    ("section", "key"): 20,
    ("section", "key", "x"): 20,
    ("section", "key", "y z", "deep"): 20,
    ("section", "date"): 21,
    ("section", "sub%"): 22,
    ("section", "sub%", "k"): 23,
    ("list",): 24,
    ("list", "n"): 25,
    ("last", 'a\t"'): 29,
}


def test_the_sample_is_toml() -> None:
    assert tomllib.loads(DOCUMENT)["text"].startswith("fake")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_key(newline: str) -> None:
    found = key_lines(DOCUMENT.replace("\n", newline))
    assert {path: found.get(path) for path in LINES} == LINES


def test_text_inside_strings_is_no_key() -> None:
    found = key_lines(DOCUMENT)
    assert ("fake",) not in found
    assert ("not",) not in found


@pytest.mark.parametrize("text", ["", "=", "[", "a", "a =", '"', "a = [", "\0", "a = '''"])
def test_nonsense_ends_quietly(text: str) -> None:
    key_lines(text)
