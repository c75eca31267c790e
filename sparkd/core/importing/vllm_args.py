# SPDX-License-Identifier: Apache-2.0
"""From the arguments of `vllm serve` back to the `[serve]` table that yields them."""

import difflib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from sparkd.core.importing import codes, vllm_flags
from sparkd.core.importing.model import Notebook, Origin, RefusalError, Word
from sparkd.core.importing.yaml_errors import what_is_wrong

_INTEGER = re.compile(r"(?:0|-?[1-9][0-9]{0,17})\Z")
_DECIMAL = re.compile(r"-?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?\Z")
_SUFFIXED = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<suffix>[kKmMgGtT])\Z")
_POWERS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 1 << 10, "M": 1 << 20,
           "G": 1 << 30, "T": 1 << 40}  # fmt: skip
_PLACEHOLDER = re.compile(
    r"\{\{[^{}\"]*\}\}|\b__[A-Z][A-Z0-9_]*__\b|\A<[^<>{}]+>\Z|\A@@[A-Z0-9_]+@@\Z"
)

_UNEXPANDED = re.compile(r"\$\{[A-Za-z_][^}]*\}")
_FLAG_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*\Z")
_SECRET_FLAGS = frozenset({"--api-key", "--api_key", "--hf-token", "--hf_token"})


class Flag(NamedTuple):
    """One flag as it was given; `values` is empty for a switch, `joined` tells `--flag=value`."""

    name: str
    values: tuple[Word, ...]
    joined: bool
    origin: Origin


class ServeValue(NamedTuple):
    """A value for [serve] and where it came from."""

    value: object
    origin: Origin


@dataclass(slots=True)
class ServeTable:
    """The model and the flags by name, in the order in which they were given."""

    model: Word | None = None
    flags: dict[str, ServeValue] = field(default_factory=dict)
    secrets: dict[str, Origin] = field(default_factory=dict)


Reader = Callable[[str], str | None]


def placeholder(text: str) -> str | None:
    """Return the placeholder that nobody filled in, if `text` holds one."""
    match = _PLACEHOLDER.search(text)
    return match[0] if match else None


def read(
    arguments: Sequence[Word], origin: Origin, notebook: Notebook, read_file: Reader, *, exact: bool
) -> ServeTable:
    """Return what `arguments` (those after `vllm serve`) say.

    With `exact` the table yields the very same arguments again; without it, arguments that mean
    the same to vLLM.

    Raises:
        RefusalError: an argument cannot be known, or the line is not one that vLLM accepts.
    """
    # Unquoted, `{{ name }}` is three words.
    found = placeholder(" ".join(word.text for word in arguments))
    if found and not exact:
        raise RefusalError(origin, f"the placeholder {found} was never filled in")
    previous = ""
    for word in arguments:
        # A secret is not copied anyway, so nobody needs to know it.
        secret = previous in _SECRET_FLAGS or word.text.partition("=")[0] in _SECRET_FLAGS
        previous = word.text
        if secret:
            continue
        if word.problem:
            raise RefusalError(word.origin, f"an argument of vllm cannot be known: {word.problem}")
        if exact:
            continue
        if word.text and word.text.isspace():
            raise RefusalError(
                word.origin, "an argument is a single blank: a backslash that continues a line must"
                " be its last character"
            )  # fmt: skip
        if found := placeholder(word.text):
            raise RefusalError(word.origin, f"the placeholder {found} was never filled in")
        if _UNEXPANDED.search(word.text):
            reason = f"nothing expands {word.text}: vLLM gets it letter by letter"
            raise RefusalError(word.origin, reason)
    table = ServeTable()
    flags = _flags(arguments, table, exact=exact)
    flags = _with_config_file(flags, table, notebook, read_file)
    flags = _join_dotted(flags, notebook)
    for flag in flags:
        _take(flag, table, notebook, exact=exact)
    if table.model is None:
        raise RefusalError(origin, "no model is named on vllm's command line")
    return table


def _flags(arguments: Sequence[Word], table: ServeTable, *, exact: bool) -> list[Flag]:
    flags: list[Flag] = []
    index = 0
    if arguments and not arguments[0].text.startswith("-"):
        table.model, index = arguments[0], 1
    while index < len(arguments):
        word = arguments[index]
        if not word.text.startswith("-"):
            reason = f"vLLM refuses {word.text!a} after {arguments[index - 1].text!a}"
            raise RefusalError(word.origin, reason)
        name, value = _name(word)
        index += 1
        first = index
        if value is None:
            while index < len(arguments) and not _is_option(arguments[index].text):
                index += 1
        values = list(arguments[first:index]) if value is None else [value]
        if exact:
            # The configuration said so; whether vLLM takes it is not asked again.
            flags.append(Flag(name, tuple(values), value is not None, word.origin))
            continue
        values, stray = _claim(name, values, is_joined=value is not None)
        if value is not None:
            while index < len(arguments) and not _is_option(arguments[index].text):
                stray.append(arguments[index])
                index += 1
        _place_stray(stray, name, table)
        flags.append(Flag(name, tuple(values), value is not None, word.origin))
    return flags


def _is_option(text: str) -> bool:
    # argparse takes a negative number for a value, as no option of vLLM looks like one.
    return text.startswith("-") and len(text) > 1 and not re.match(r"-\d", text)


def _name(word: Word) -> tuple[str, Word | None]:
    """Return a flag's long name with dashes, and the value after `=`."""
    text, equals, rest = word.text.partition("=")
    value = word._replace(text=rest) if equals else None
    if text.startswith("--"):
        head, dot, tail = text[2:].partition(".")
        return head.replace("_", "-") + dot + tail, value
    if text.startswith("-O") and text != "-O" and not text.startswith("-O."):
        # -O3, or -O=3
        return "optimization-level", value or word._replace(text=text[2:])
    head, dot, tail = text.partition(".")
    if head in vllm_flags.SHORT:
        name = vllm_flags.SHORT[head]
        if head == "-O" and dot:
            name = "compilation-config"
        return name + dot + tail, value
    raise RefusalError(word.origin, f"vLLM has no option {text}")


def _claim(name: str, values: list[Word], *, is_joined: bool) -> tuple[list[Word], list[Word]]:
    """Return the values that are the flag's own, and the words that merely follow it."""
    plain = name.removeprefix("no-")
    if plain in vllm_flags.NO_VALUE and name not in vllm_flags.SINGLE:
        if is_joined:
            raise RefusalError(
                values[0].origin, f"--{name} takes no value, and vLLM refuses --{name}=…"
            )
        return [], values
    if is_joined or name in vllm_flags.LISTS:
        return values, []
    if name in vllm_flags.SINGLE | vllm_flags.OLDER_SINGLE or "." in name:
        return values[:1], values[1:]
    return values, []


def _place_stray(stray: list[Word], name: str, table: ServeTable) -> None:
    if not stray:
        return
    if len(stray) == 1 and table.model is None and stray[0].text.lower() not in {"true", "false"}:
        table.model = stray[0]
        return
    shown = " ".join(word.text for word in stray)
    raise RefusalError(stray[0].origin, f"vLLM refuses {shown!r} after --{name}")


def _with_config_file(
    flags: list[Flag], table: ServeTable, notebook: Notebook, read_file: Reader
) -> list[Flag]:
    """Replace `--config FILE` by what the file says; flags of the command line come after it."""
    configs = [flag for flag in flags if flag.name == "config"]
    if not configs:
        return flags
    flag = configs[-1]
    if len(configs) > 1 or len(flag.values) != 1:
        raise RefusalError(flag.origin, "vLLM accepts one --config with one file")
    path = flag.values[0].text
    text = read_file(path)
    if text is None:
        raise RefusalError(flag.origin, f"--config names {path}, which cannot be read")
    from_file = _config_flags(text, path, flag.origin, notebook)
    notebook.add(flag.origin, codes.DERIVED, f"the flags in {path} are written out in [serve]")
    rest: list[Flag] = []
    given = {other.name for other in flags}
    for entry in from_file:
        if entry.name == "model" and table.model is not None:
            continue
        if entry.name in given:
            notebook.add(
                entry.origin, codes.REPEATED, f"{entry.name}: the command line's value wins"
            )
            continue
        rest.append(entry)
    return rest + [other for other in flags if other.name != "config"]


def _config_flags(text: str, path: str, origin: Origin, notebook: Notebook) -> list[Flag]:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise RefusalError(origin, f"{path} is not valid YAML: {what_is_wrong(error)}") from None
    if not isinstance(content, dict) or not isinstance(node, yaml.MappingNode):
        raise RefusalError(origin, f"{path} is no table of flags")
    lines: dict[str, int] = {}
    for key, _ in node.value:
        place = Origin(path, key.start_mark.line + 1)
        if not _FLAG_NAME.match(str(key.value)):
            raise RefusalError(origin, f"line {place.line} of {path} is no flag of vLLM")
        if key.value in lines:
            notebook.add(place, codes.REPEATED, f"{key.value} stands twice: the last one counts")
        lines[key.value] = place.line
    flags: list[Flag] = []
    for key, value in content.items():
        place = Origin(path, lines.get(str(key), 0))
        name = str(key).replace("_", "-")
        if value is False:
            # vLLM passes --no-… on where it has such a flag, and drops the key otherwise.
            if name in vllm_flags.BOOLEAN:
                flags.append(Flag(f"no-{name}", (), False, place))
        elif value is True:
            flags.append(Flag(name, (), False, place))
        elif isinstance(value, list):
            words = tuple(Word(str(item), place) for item in value)
            flags += [Flag(name, words, False, place)] if words else []
        else:
            item = json.dumps(value) if isinstance(value, dict) else str(value)
            flags.append(Flag(name, (Word(item, place),), False, place))
    return flags


def _join_dotted(flags: list[Flag], notebook: Notebook) -> list[Flag]:
    """Merge `--name.key value` into one JSON value, as vLLM itself does before it parses."""
    merged: dict[str, dict[str, Any]] = {}
    first: dict[str, Origin] = {}
    plain = [flag for flag in flags if "." not in flag.name]
    for flag in flags:
        if "." not in flag.name:
            continue
        if len(flag.values) != 1:
            raise RefusalError(flag.origin, f"--{flag.name} needs one value")
        head, *keys = flag.name.removesuffix("+").split(".")
        text = flag.values[0].text
        value = text.split(",") if flag.name.endswith("+") else _json_or_number(text)
        first.setdefault(head, flag.origin)
        _insert(merged.setdefault(head, {}), keys, value)
    for name, value in merged.items():
        if any(flag.name == name for flag in plain):
            raise RefusalError(
                first[name], f"--{name} is given as JSON and as --{name}.…: vLLM keeps only one"
            )
        notebook.add(first[name], codes.REWRITTEN, f"--{name}.… is written as one table")
        word = Word(json.dumps(value, ensure_ascii=False), first[name])
        plain.append(Flag(name, (word,), False, first[name]))
    return plain


def _json_or_number(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        match = _SUFFIXED.match(text)
        if match and ("." not in match["number"] or match["suffix"].islower()):
            return int(float(match["number"]) * _POWERS[match["suffix"]])
        return text


def _insert(table: dict[str, Any], keys: Sequence[str], value: object) -> None:
    for key in keys[:-1]:
        inner = table.get(key)
        if not isinstance(inner, dict):
            inner = table[key] = {}
        table = inner
    old = table.get(keys[-1])
    table[keys[-1]] = [*old, *value] if isinstance(old, list) and isinstance(value, list) else value


def _take(flag: Flag, table: ServeTable, notebook: Notebook, *, exact: bool) -> None:
    name = flag.name
    if name == "device-memory-utilization":
        name = "gpu-memory-utilization"
        notebook.add(flag.origin, codes.REWRITTEN, f"--{flag.name} is an alias of --{name}")
    _point_out(name, flag, notebook)
    if name == "model":
        if len(flag.values) == 1:
            table.model = flag.values[0]
        return
    if name in {"api-key", "hf-token"}:
        table.secrets["VLLM_API_KEY" if name == "api-key" else "HF_TOKEN"] = flag.origin
        if len(flag.values) > 1:
            text = f"a credential holds one key, and several are given with --{name}"
            notebook.add(flag.origin, codes.SETTING, text)
        return
    value = _value(name, flag, exact=exact)
    if name.startswith("no-") and not flag.values and name[3:] in vllm_flags.BOOLEAN:
        name, value = name[3:], False
    old = table.flags.pop(name, None)
    if old is not None:
        if name in vllm_flags.REPEATABLE:
            value = [*_as_list(old.value), *_as_list(value)]
        else:
            notebook.add(old.origin, codes.REPEATED, f"--{name} is given again later, which wins")
    table.flags[name] = ServeValue(value, flag.origin)


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _value(name: str, flag: Flag, *, exact: bool) -> object:
    if not flag.values:
        if not exact and name in vllm_flags.SINGLE | vllm_flags.LISTS:
            raise RefusalError(flag.origin, f"--{name} needs a value")
        return True
    texts = [word.text for word in flag.values]
    if name in vllm_flags.JSON_LISTS and len(texts) == 1:
        return _json_list(texts[0], exact=exact)
    if name in vllm_flags.COMMA_JOINED and len(texts) == 1 and flag.joined:
        return texts[0].split(",")
    if name in vllm_flags.REPEATABLE and (flag.joined or not exact):
        return texts
    if name == "served-model-name":
        return texts
    if (name in vllm_flags.LISTS and not flag.joined) or len(texts) > 1:
        return [_scalar(name, text, exact=exact) for text in texts]
    return _scalar(name, texts[0], exact=exact)


def _scalar(name: str, text: str, *, exact: bool) -> object:
    if _INTEGER.match(text):
        return int(text)
    if _DECIMAL.match(text):
        number = float(text)
        # "0.90" may be a version or a name; only where vLLM reads a number is it the same as 0.9.
        same = repr(number) == text or (name in vllm_flags.FLOATS and not exact)
        return number if same else text
    if text.startswith("{"):
        return _table(text, exact=exact)
    return text


def _table(text: str, *, exact: bool) -> object:
    try:
        value = json.loads(text, object_pairs_hook=_unique)
        canonical = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text
    fits = isinstance(value, dict) and value and _fits_toml(value)
    return value if fits and (canonical == text or not exact) else text


def _json_list(text: str, *, exact: bool) -> object:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    canonical = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    fits = isinstance(value, list) and _fits_toml(value)
    return value if fits and (canonical == text or not exact) else text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key stands twice")
    return table


def _fits_toml(value: object) -> bool:
    """Return whether TOML can hold `value`: it has no null and no integers beyond 64 bits."""
    if isinstance(value, dict):
        return all(_fits_toml(item) for item in value.values())
    if isinstance(value, list):
        return all(_fits_toml(item) for item in value)
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    return value is not None


def _point_out(name: str, flag: Flag, notebook: Notebook) -> None:
    plain = name.removeprefix("no-") if name not in vllm_flags.CURRENT else name
    if any(word.text == "" for word in flag.values):
        notebook.add(flag.origin, codes.EMPTY_ARGUMENT, f"--{name} is given an empty value")
    if plain in vllm_flags.CURRENT or "." in name:
        return
    if plain in vllm_flags.KNOWN:
        text = f"--{name} is a flag of older vLLM; 0.32 no longer has it"
    else:
        longer = [known for known in vllm_flags.CURRENT if known.startswith(plain)]
        close = difflib.get_close_matches(plain, sorted(vllm_flags.CURRENT), n=1, cutoff=0.8)
        if len(longer) == 1:
            text = f"--{name} abbreviates --{longer[0]}: write it out"
        elif close:
            text = f"vLLM 0.32 has no --{name}; did you mean --{close[0]}?"
        else:
            text = f"vLLM 0.32 has no --{name}; it is kept as it stands"
    notebook.add(flag.origin, codes.UNKNOWN_FLAG, text)
