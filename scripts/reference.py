# SPDX-License-Identifier: Apache-2.0
"""Texts that follow from tables in the code: the default sparkd.toml, and parts of the man pages.

The tables that check the configuration and parse the command line are the only place where a key
or an option is described, so what an operator reads cannot disagree with what the program does.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from sparkd.cli.exits import MEANINGS
from sparkd.cli.verbs import VERBS, Option, Verb
from sparkd.core.schema import ENGINE, FREE_SECTIONS, HOST, NAME, SETTINGS, Setting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEADER = """\
# The host's settings of sparkd: see sparkd.toml(5). What is commented out shows the default.
# Engines have a file each in /etc/sparkd/engines.d; examples in /usr/share/doc/sparkd/examples.
# Nothing changes before `sparkctl apply`; `sparkctl check` tells whether it would be accepted.
"""


def default_host_config() -> str:
    """sparkd.toml with every key at its default, all commented out."""
    text = _HEADER
    section = None
    for setting in SETTINGS:
        if setting.file != HOST:
            continue
        if setting.section != section:
            section = setting.section
            # Without a name of the operator's there is no such section: this one is an example.
            is_named = NAME in section
            text += f"\n{'#' * is_named}[{section.replace(NAME, 'comfyui')}]\n"
        plain = setting.help.replace("`", "")
        text += textwrap.fill(plain, 96, initial_indent="# ", subsequent_indent="# ") + "\n"
        text += f"#{setting.key} = {_default(setting)}\n"
    return text


def _default(setting: Setting) -> str:
    # Without a default the key is unset: the example then only shows the form.
    return setting.default if setting.default is not None else setting.example or '"105G"'


def man_page(template: Path, version: str, date: str) -> str:
    """Fill in a man page's template.

    Raises:
        KeyError: the template asks for a part that does not exist.
    """
    parts = {
        "VERSION": version,
        "DATE": date,
        "HOST_KEYS": "".join(_settings(HOST)),
        "ENGINE_KEYS": "".join(_settings(ENGINE)),
        "VERBS": "".join(_verb(verb) for verb in VERBS),
        "EXIT_STATUSES": "".join(
            f".TP\n\\fB{int(code)}\\fR\n{roff(meaning)}\n" for code, meaning in MEANINGS.items()
        ),
    }
    return re.sub(r"@([A-Z_]+)@", lambda found: parts[found[1]], template.read_text())


def roff(text: str) -> str:
    """Plain text with `code` in backquotes, as roff."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text)
    return re.sub(r"(?m)^([.'])", r"\\&\1", text)


def _settings(file: str) -> Iterator[str]:
    section = ""
    for setting in SETTINGS:
        if setting.file != file:
            continue
        if setting.section != section:
            section = setting.section
            yield f".SS [{section}]\n"
        given = "required" if setting.required else f"default `{setting.default}`"
        if setting.default is None and not setting.required:
            given = "no default"
        yield f".TP\n\\fB{roff(setting.key)}\\fR ({roff(setting.type)}; {roff(given)})\n"
        yield f"{roff(setting.help)}\nThe value {roff(setting.rule)}.\n"
    for free in FREE_SECTIONS:
        if free.file == file:
            yield f".SS [{free.name}]\n{roff(free.help)}\n"


def _verb(verb: Verb) -> str:
    usage = f"\\fB{verb.name}\\fR"
    if verb.argument:
        name = f"\\fI{verb.argument.metavar}\\fR"
        usage += {"": f" {name}", "?": f" [{name}]", "*": f" [{name}...]", "+": f" {name}..."}[
            verb.argument.nargs
        ]
    text = f".SS {usage}\n{roff(_sentence(verb.summary))}\n"
    if verb.argument:
        text += f".TP\n\\fI{verb.argument.metavar}\\fR\n{roff(_sentence(verb.argument.help))}\n"
    return text + "".join(_option(option) for option in verb.options)


def _option(option: Option) -> str:
    flags = ", ".join(f"\\fB{roff(flag)}\\fR" for flag in option.flags)
    value = f" \\fI{option.metavar}\\fR" if option.metavar else ""
    return f".TP\n{flags}{value}\n{roff(_sentence(option.help))}\n"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
