# SPDX-License-Identifier: Apache-2.0
"""On which ports of the host a text would start a server: a unit, a crontab, a command line."""

import re
import shlex
from collections.abc import Iterator, Sequence

from sparkd.core import launch

_VLLM = re.compile(r"(?<![\w-])vllm(?![\w-])|vllm/vllm-openai|api_server")
_ENGINES = frozenset({"docker", "podman", "nerdctl"})
_LONGEST_RANGE = 1000


def ports_of(text: str) -> set[int]:
    """The ports on which a text would start vLLM.

    Joined lines count as one. A vLLM without a port has its default one. What is no vLLM has none.
    Of a container with a network of its own only published ports are the host's.
    """
    found: set[int] = set()
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        if line.lstrip().startswith(("#", ";")) or not _VLLM.search(line):
            continue
        words = words_of(line)
        container = _after_engine(words, "run", "create")
        if container is not None and "host" not in _values(container, "--network", "--net"):
            for value in _values(container, "--publish", "-p"):
                found.update(published(value))
            continue
        ports = {
            int(value)
            for value in _values(words, "--port")
            if value.isascii() and value.isdigit() and len(value) <= 5
        }
        if ports:
            found |= ports
        elif "serve" in words or "api_server" in line:
            found.add(launch.DEFAULT_PORT)
    return found


def published(value: str) -> Iterator[int]:
    """Ports of the host in a container's [ADDRESS:]HOST:CONTAINER[/PROTOCOL], ranges included.

    Importing has a reader of its own, which must be sure: it refuses what only a start decides.
    Here every port counts that might be taken.
    """
    host = value.strip().partition("/")[0].rpartition(":")[0].rpartition(":")[2]
    first, _, last = host.partition("-")
    if re.fullmatch("[0-9]{1,5}", first) and re.fullmatch("[0-9]{1,5}", last or first):
        stop = min(int(last or first), int(first) + _LONGEST_RANGE)
        yield from range(int(first), stop + 1)


def containers_started(text: str) -> Iterator[str]:
    """Names of existing containers that a unit starts, as units made by Podman do."""
    for line in text.splitlines():
        if line.lstrip().startswith("ExecStart="):
            rest = _after_engine(words_of(line), "start") or ()
            yield from (word for word in rest if not word.startswith("-"))


def words_of(line: str) -> list[str]:
    """A line's words as a shell has them, or as they stand when a quotation mark is unbalanced."""
    try:
        return shlex.split(line, comments=False)
    except ValueError:
        return line.split()


def _after_engine(words: Sequence[str], *verbs: str) -> Sequence[str] | None:
    """What follows `docker VERB`; None when no container's engine is called with such a verb."""
    for index, word in enumerate(words):
        if word.rpartition("/")[2].rpartition("=")[2] in _ENGINES:
            rest = words[index + 1 :]
            at = next((i for i, other in enumerate(rest) if other in verbs), None)
            return None if at is None else rest[at + 1 :]
    return None


def _values(words: Sequence[str], *names: str) -> Iterator[str]:
    """The values of an option, given as the next word, after `=`, or behind a single letter."""
    for index, word in enumerate(words):
        if word in names:
            yield from words[index + 1 : index + 2]
        for name in names:
            if name.startswith("--") and word.startswith(f"{name}="):
                yield word[len(name) + 1 :]
            elif not name.startswith("--") and word.startswith(name) and word != name:
                yield word[len(name) :]
