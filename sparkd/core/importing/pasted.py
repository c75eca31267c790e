# SPDX-License-Identifier: Apache-2.0
"""Commands out of prose: the shell blocks of a Markdown file, and what follows a `$ ` prompt."""

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([A-Za-z0-9_+-]*)")
_SHELL = frozenset({"", "bash", "sh", "shell", "zsh", "console", "shell-session", "shellsession"})
_PROMPT = re.compile(r"[ \t]*\$ ")


def is_session(text: str) -> bool:
    """Return whether a text was copied from a terminal: its first command follows a prompt."""
    lines = (line for line in text.split("\n") if line.strip() and not line.startswith("#"))
    return bool(_PROMPT.match(next(lines, "")))


def session(text: str) -> str:
    """Return the commands of a terminal session; every other line is empty, so that lines count."""
    return "\n".join(_commands(text.split("\n")))


def markdown(text: str) -> str:
    """Return what the fenced shell blocks hold; every other line is empty, so that lines count."""
    kept: list[str] = []
    block: list[str] = []
    fence, is_shell = "", False
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if not fence:
            kept.append("")
            if match:
                fence, is_shell = match[1], match[2].lower() in _SHELL
        elif match and match[1].startswith(fence) and not line[match.end() :].strip():
            kept += _commands(block) if is_shell else [""] * len(block)
            kept.append("")
            block, fence = [], ""
        else:
            block.append(line)
    return "\n".join([*kept, *(_commands(block) if is_shell else [])])


def _commands(lines: list[str]) -> list[str]:
    """Return the lines without prompts; where there are prompts, what has none is output."""
    if not any(_PROMPT.match(line) for line in lines):
        return lines
    commands: list[str] = []
    continues = False
    for line in lines:
        match = _PROMPT.match(line)
        command = line[match.end() :] if match else line if continues else ""
        commands.append(command)
        continues = command.rstrip("\r").endswith("\\")
    return commands
