# SPDX-License-Identifier: Apache-2.0
"""The settings table as documentation: Markdown for docs/, roff for the man page."""

from collections.abc import Iterator

from sparkd.core.schema import ENGINE, FREE_SECTIONS, HOST, SETTINGS, Setting


def markdown() -> str:
    """Return one table of keys for each configuration file."""
    return "\n".join([*_markdown_file(HOST), "", *_markdown_file(ENGINE)]) + "\n"


def _markdown_file(file: str) -> Iterator[str]:
    yield f"### Keys of `{file}`"
    yield ""
    yield "| key | type | default | rule | meaning |"
    yield "|---|---|---|---|---|"
    for setting in SETTINGS:
        if setting.file == file:
            cells = (f"`{setting.path}`", setting.type, _default(setting), setting.rule,
                     setting.help)  # fmt: skip
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    for section in FREE_SECTIONS:
        if section.file == file:
            yield f"| `[{section.name}]` | table | | | {section.help} |"


def _default(setting: Setting) -> str:
    if setting.required:
        return "(required)"
    return f"`{setting.default}`" if setting.default is not None else ""


def roff(file: str) -> str:
    """Return the keys of `file` as `.TP` paragraphs for man(7)."""
    paragraphs = []
    for setting in SETTINGS:
        if setting.file == file:
            default = f" Default: {setting.default}." if setting.default is not None else ""
            paragraphs.append(
                f".TP\n.B {_roff(setting.path)}\n"
                f"{_roff(setting.help)} The value {_roff(setting.rule)}.{_roff(default)}"
            )
    paragraphs += [
        f".TP\n.B [{section.name}]\n{_roff(section.help)}"
        for section in FREE_SECTIONS
        if section.file == file
    ]
    return "\n".join(paragraphs) + "\n"


def _roff(text: str) -> str:
    plain = text.replace("`", "").replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain
