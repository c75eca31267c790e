# SPDX-License-Identifier: Apache-2.0
"""Signatures are data: what a line means, who may say it, and what to do about it.

The files in `sparkd/signatures/` hold three kinds of tables. `[class.NAME]` says what a class is
called in the corpus (label), what follows from it (answer) and what the operator should do (hint).
`[anchor.NAME]` says which lines may speak at all. `[signature.ID]` ties a pattern to both.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from sparkd.core.lines import Line, Source, process_kind
from sparkd.core.patterns import lint, literal_of


class Label(StrEnum):
    """What a whole log says about its engine."""

    FATAL_RUNTIME = "fatal-runtime"
    FATAL_INIT = "fatal-init"
    HANG = "hang"
    CLEAN_STOP = "clean-stop"
    BENIGN = "benign"


class Answer(StrEnum):
    """What follows from a class of death."""

    RETRY = "retry"
    RETRY_AFTER_MEMORY = "retry-after-memory"
    HOLD_WILL_FAIL_AGAIN = "hold-will-fail-again"
    HOLD_NEEDS_A_HUMAN = "hold-needs-a-human"
    NONE = "none"

    @property
    def holds(self) -> bool:
        """Whether another start would be in vain until something changes."""
        return self in {Answer.HOLD_WILL_FAIL_AGAIN, Answer.HOLD_NEEDS_A_HUMAN}


class Role(StrEnum):
    """What a matching line does to the verdict.

    FRAME declares a death and is never printed by a clean stop. WEAK declares one unless a stop
    explains it. CAUSE says why, and only together with a frame or an exit. CRASH is a process's
    last word (terminate, segfault): it refines the frames its class lists, and without any other
    word after it stands for a death. KERNEL is a cause that the kernel attests: it stands by
    itself when it concerns the engine. DETAIL is an exception line, for the reason only.
    STOP: the server was told to stop. SOFT_STOP: one of its processes was. LATE_STOP: a stop that
    also explains weak lines printed before it. INTERRUPT: a start that a signal ended. EXIT:
    systemd's account of the exit. LIFE: a new process starts. READY: it serves. BOOT and MOVING
    are progress, the latter ends a stall. IDLE: nothing to do. PROBE: an answered GET that no
    engine is needed for. STALL: no progress. WAITING: a stop that waits for its clients. DOWN:
    the HTTP server has ended. UNHEALTHY: a health probe was answered 503. ECHO, REQUEST and NOISE
    never count; ECHO is text of a client that quotes other signatures, and is looked for first.
    """

    FRAME = "frame"
    WEAK = "weak"
    CAUSE = "cause"
    CRASH = "crash"
    KERNEL = "kernel"
    DETAIL = "detail"
    STOP = "stop"
    SOFT_STOP = "soft-stop"
    LATE_STOP = "late-stop"
    INTERRUPT = "interrupt"
    EXIT = "exit"
    LIFE = "life"
    READY = "ready"
    BOOT = "boot"
    MOVING = "moving"
    IDLE = "idle"
    PROBE = "probe"
    STALL = "stall"
    WAITING = "waiting"
    DOWN = "down"
    UNHEALTHY = "unhealthy"
    ECHO = "echo"
    REQUEST = "request"
    NOISE = "noise"


class CatalogueError(ValueError):
    """The signature tables are wrong; the message lists every problem, one a line."""


class Class(NamedTuple):
    """One kind of death, hang, stop or harmless event.

    Attributes:
        name: as in the corpus index's `class` column.
        label: the label of a log of this class, unless its frame says otherwise.
        answer: what follows.
        hint: one sentence for the operator.
        refines: classes that this one explains further and so replaces.
        after_stall: the class instead, when the log shows stalls before.
    """

    name: str
    label: Label
    answer: Answer
    hint: str
    refines: frozenset[str]
    after_stall: str


class Anchor(NamedTuple):
    """Which lines may speak: records of these processes, levels and files, or bare lines too.

    `not_files` are source files whose records carry text of clients.
    """

    sources: frozenset[str]
    processes: frozenset[str]
    levels: frozenset[str]
    files: frozenset[str]
    not_files: frozenset[str]
    bare: bool

    def admits(self, line: Line) -> bool:
        """Tell whether `line` may match at all, whatever its text."""
        if line.source not in self.sources:
            return False
        if not line.level:
            return self.bare
        return (
            process_kind(line.process) in self.processes
            and line.level in self.levels
            and (line.file in self.files if self.files else line.file not in self.not_files)
        )


class Signature(NamedTuple):
    """One rule.

    Attributes:
        id: its name, unique.
        cls: the class's name.
        label: the class's label.
        role: what a match does.
        pattern: regular expression of the restricted form, searched in `Line.message`.
        literal: a text that every match contains, derived from the pattern.
        anchor: which lines may match.
        versions: first and last vLLM version known to print it, or who prints it.
        answer: the class's answer.
        hint: the class's hint.
        reference: where the text comes from.
    """

    id: str
    cls: str
    label: Label
    role: Role
    pattern: str
    literal: str
    anchor: Anchor
    versions: str
    answer: Answer
    hint: str
    reference: str


class Match(NamedTuple):
    """A signature that claims a line, with the pattern's named groups."""

    signature: Signature
    line: Line
    groups: Mapping[str, str]


def tier(signature: Signature) -> int:
    """Order of precedence: a client's quotation, then everything, then mere exception lines.

    Within a tier no two signatures may claim one line; a test holds the corpus to that.
    """
    return {Role.ECHO: 0, Role.DETAIL: 2}.get(signature.role, 1)


class Catalogue:
    """All signatures, indexed so that a line is only compared with those that may match it."""

    _BUCKETS_CAP = 4096

    def __init__(self, signatures: Sequence[Signature], classes: Mapping[str, Class]) -> None:
        self.signatures = tuple(signatures)
        self.classes = dict(classes)
        self._compiled: dict[str, re.Pattern[str]] = {}
        self._buckets: dict[tuple[str, str, str, str], tuple[tuple[str, Signature], ...]] = {}

    def match(self, line: Line) -> Match | None:
        """Return the first signature that claims `line`; details only when nothing else does."""
        # The hot loop of every log: not `next(self.claims(line))`, which takes a third longer.
        message = line.message
        for literal, signature in self._candidates(line):
            if literal in message:
                found = self._claim(signature, line)
                if found:
                    return found
        return None

    def claims(self, line: Line) -> Iterator[Match]:
        """Yield every signature that claims `line`, in the order of `tier`."""
        for literal, signature in self._candidates(line):
            if literal in line.message:
                found = self._claim(signature, line)
                if found:
                    yield found

    def _claim(self, signature: Signature, line: Line) -> Match | None:
        found = self._regex(signature).search(line.message)
        if found is None:
            return None
        groups = {name: text for name, text in found.groupdict().items() if text is not None}
        return Match(signature, line, groups)

    def _candidates(self, line: Line) -> tuple[tuple[str, Signature], ...]:
        """The signatures that may claim the line, each behind the literal to look for first."""
        if line.level:
            key = (line.source, process_kind(line.process), line.level, line.file)
        else:
            key = (line.source, "", "", "")  # an anchor asks no more of a bare line
        bucket = self._buckets.get(key)
        if bucket is None:
            admitted = (one for one in self.signatures if one.anchor.admits(line))
            bucket = tuple((one.literal, one) for one in sorted(admitted, key=tier))
            if len(self._buckets) < self._BUCKETS_CAP:
                self._buckets[key] = bucket
        return bucket

    def _regex(self, signature: Signature) -> re.Pattern[str]:
        regex = self._compiled.get(signature.id)
        if regex is None:
            regex = self._compiled[signature.id] = re.compile(signature.pattern)
        return regex


_CLASS_KEYS = frozenset({"label", "answer", "hint", "refines", "after-stall"})
_ANCHOR_KEYS = frozenset({"source", "process", "level", "file", "not-file", "bare"})
_SIGNATURE_KEYS = frozenset({"class", "role", "pattern", "anchor", "versions", "reference", "file"})
_TABLES = frozenset({"class", "anchor", "signature"})
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class _Reader:
    """Reads tables and collects problems instead of stopping at the first."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.classes: dict[str, Class] = {}
        self.anchors: dict[str, Anchor] = {}
        self.signatures: dict[str, Signature] = {}

    def problem(self, where: str, what: str) -> None:
        self.problems.append(f"{where}: {what}")

    def text(self, table: Mapping[str, object], key: str, where: str, default: str = "") -> str:
        value = table.get(key, default)
        if isinstance(value, str):
            return value
        self.problem(where, f"{key} must be a string")
        return default

    def names(self, table: Mapping[str, object], key: str, where: str) -> frozenset[str]:
        value = table.get(key, [])
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return frozenset(value)
        self.problem(where, f"{key} must be an array of strings")
        return frozenset()

    def keys(self, table: Mapping[str, object], allowed: frozenset[str], where: str) -> None:
        for key in sorted(table.keys() - allowed):
            self.problem(where, f"unknown key {key!r}; known: {', '.join(sorted(allowed))}")

    def read_class(self, name: str, table: Mapping[str, object], where: str) -> None:
        self.keys(table, _CLASS_KEYS, where)
        label, answer = self.text(table, "label", where), self.text(table, "answer", where)
        if label not in {one.value for one in Label}:
            self.problem(where, f"label {label!r} must be one of {', '.join(Label)}")
            label = Label.BENIGN
        if answer not in {one.value for one in Answer}:
            self.problem(where, f"answer {answer!r} must be one of {', '.join(Answer)}")
            answer = Answer.NONE
        hint = self.text(table, "hint", where)
        if not hint:
            self.problem(where, "hint is missing: one sentence that tells the operator what to do")
        self.classes[name] = Class(
            name,
            Label(label),
            Answer(answer),
            hint,
            self.names(table, "refines", where),
            self.text(table, "after-stall", where),
        )

    def read_anchor(self, name: str, table: Mapping[str, object], where: str) -> None:
        self.keys(table, _ANCHOR_KEYS, where)
        source = self.text(table, "source", where, Source.ENGINE)
        if source not in {one.value for one in Source}:
            self.problem(where, f"source {source!r} must be one of {', '.join(Source)}")
        bare = table.get("bare", source != Source.ENGINE)
        if not isinstance(bare, bool):
            self.problem(where, "bare must be true or false")
            bare = False
        anchor = Anchor(
            frozenset({source}),
            self.names(table, "process", where),
            self.names(table, "level", where),
            self.names(table, "file", where),
            self.names(table, "not-file", where),
            bare,
        )
        if not bare and not (anchor.processes and anchor.levels):
            self.problem(where, "an anchor without bare lines needs process and level")
        self.anchors[name] = anchor

    def read_signature(self, name: str, table: Mapping[str, object], where: str) -> None:
        self.keys(table, _SIGNATURE_KEYS, where)
        cls = self.classes.get(self.text(table, "class", where))
        anchor = self.anchors.get(self.text(table, "anchor", where))
        role, pattern = self.text(table, "role", where), self.text(table, "pattern", where)
        if role not in {one.value for one in Role}:
            self.problem(where, f"role {role!r} must be one of {', '.join(Role)}")
            return
        if cls is None or anchor is None:
            missing = "class" if cls is None else "anchor"
            self.problem(where, f"{missing} {table.get(missing)!r} is not defined")
            return
        files = self.names(table, "file", where)
        reference = self.text(table, "reference", where)
        if not reference:
            self.problem(where, "reference is missing: where does this text come from?")
        versions = self.text(table, "versions", where)
        if not versions:
            self.problem(where, "versions is missing: first and last vLLM version that print it")
        self.signatures[name] = Signature(
            name,
            cls.name,
            cls.label,
            Role(role),
            pattern,
            literal_of(pattern),
            anchor._replace(files=files) if files else anchor,
            versions,
            cls.answer,
            cls.hint,
            reference,
        )


def parse_catalogue(
    tables: Mapping[str, Mapping[str, object]], *, check_patterns: bool = True
) -> Catalogue:
    """Build the catalogue from parsed TOML files.

    Args:
        tables: file name to the file's contents.
        check_patterns: refuse patterns that may be slow. The shipped files are checked by a test,
            so that the helpers on the restart path need not spend the time.

    Raises:
        CatalogueError: listing every problem found, in all files.
    """
    reader = _Reader()
    for kind, read in (
        ("anchor", reader.read_anchor),
        ("class", reader.read_class),
        ("signature", reader.read_signature),
    ):
        seen: dict[str, str] = {}
        for file, content in tables.items():
            for name, table in _named(reader, file, content, kind):
                where = f"{file}: [{kind}.{name}]"
                if name in seen:
                    reader.problem(where, f"defined in {seen[name]} as well")
                elif not _NAME.fullmatch(name):
                    reader.problem(where, "names are lower-case words joined by '-'")
                else:
                    seen[name] = file
                    read(name, table, where)
    for file, content in tables.items():
        reader.keys(content, _TABLES, file)
    _check_references(reader)
    if check_patterns:
        for signature in reader.signatures.values():
            for what in lint(signature.pattern):
                reader.problem(f"[signature.{signature.id}]", f"pattern: {what}")
    if reader.problems:
        raise CatalogueError("\n".join(reader.problems))
    return Catalogue(tuple(reader.signatures.values()), reader.classes)


def _named(
    reader: _Reader, file: str, content: Mapping[str, object], kind: str
) -> Iterator[tuple[str, Mapping[str, object]]]:
    section = content.get(kind, {})
    if not isinstance(section, Mapping):
        reader.problem(file, f"{kind} must hold tables: [{kind}.NAME]")
        return
    for name, table in section.items():
        if isinstance(table, Mapping):
            yield str(name), table
        else:
            reader.problem(file, f"{kind}.{name} must be a table")


def _check_references(reader: _Reader) -> None:
    for cls in reader.classes.values():
        for other in sorted(cls.refines | ({cls.after_stall} if cls.after_stall else set())):
            if other not in reader.classes:
                reader.problem(f"[class.{cls.name}]", f"class {other!r} is not defined")
