# SPDX-License-Identifier: Apache-2.0
"""From a `Launch` to the text of one file of engines.d, checked by sparkd's own loader."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sparkd.core import serve
from sparkd.core.config import ConfigErrors, EngineConfig, load
from sparkd.core.engine_environment import engine_environment
from sparkd.core.importing import address, codes, variables
from sparkd.core.importing.draft import Draft, loaded
from sparkd.core.importing.model import Launch, Notebook, Origin, Word
from sparkd.core.importing.relative_paths import Matching
from sparkd.core.importing.subject import Subject
from sparkd.core.importing.vllm_args import ServeTable

_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}\Z")
_STAND_IN = "/opt/vllm"
# What sparkd's unit always says is no wish of the operator's.
_ALWAYS_SAID = {"ready.budget": "1080s", "ready.warmup": True, "memory.max": "92%"}


@dataclass(slots=True)
class Proposal:
    """One engine as proposed. `engine` is None while the loader refuses the text."""

    name: str
    config: str
    argv: list[str]
    environment: dict[str, str]
    origin: Origin
    engine: EngineConfig | None
    is_applicable: bool


def propose(
    launch: Launch, table: ServeTable, name: str, notebook: Notebook, *,
    order: tuple[int, str] | None, venv: str | None, matching: Matching,
) -> Proposal:  # fmt: skip
    """Return the proposal for one launch.

    Args:
        launch: what is started today.
        table: its flags, from `launch_arguments`.
        name: the engine's name.
        notebook: where notes go.
        order: the order of starting and why; None leaves sparkd's default.
        venv: the Python environment for an engine whose source does not name one on this host.
        matching: finds files by a pattern, to know a relative path from a name.

    Raises:
        RefusalError: something cannot be carried over without changing what is started.
    """
    subject = Subject(launch, table, name, notebook, _venv(launch, venv), matching)
    draft = Draft()
    _top(subject, draft, order)
    _runtime(subject, draft)
    _serve(subject, draft)
    variables.carry_over(subject, draft)
    _settings(subject, draft)
    return _checked(subject, draft)


def _venv(launch: Launch, override: str | None) -> Word | None:
    if launch.venv is not None and not launch.venv.problem and launch.image is None:
        return launch.venv
    return Word(override, Origin("--venv")) if override else None


def _top(subject: Subject, draft: Draft, order: tuple[int, str] | None) -> None:
    launch, top, model = subject.launch, draft.top, subject.table.model
    if model is None:
        raise AssertionError("launch_arguments refuses a line without a model")
    text = subject.anchored("model", subject.on_host(model.text), model.origin)
    top.append(("model", text, str(model.origin)))
    top += address.entries(subject)
    if order is not None:
        top.append(("order", order[0], order[1]))
    elif (own := launch.settings.get("order")) is not None:
        top.append(("order", own[0], str(own[1])))
    if launch.user is not None and not launch.user.problem:
        top.append(("user", launch.user.text, str(launch.user.origin)))
    else:
        top.append(("user", "vllm", "sparkd's default; the source does not say"))
        subject.notebook.add(
            launch.origin, codes.USER_UNKNOWN, "the source does not say who runs the"
            " engine: it will be `vllm`"
        )  # fmt: skip
    if launch.group is not None and not launch.group.problem:
        top.append(("group", launch.group.text, str(launch.group.origin)))


def _runtime(subject: Subject, draft: Draft) -> None:
    launch, runtime, image = subject.launch, draft.runtime, subject.launch.image
    if subject.venv is not None:
        runtime.append(("venv", subject.venv.text, str(subject.venv.origin)))
        if image is not None:
            subject.notebook.add(
                image.origin, codes.DERIVED, f"it runs from {subject.venv.text} instead of the"
                f" image {image.text}: check that it is the same vLLM"
            )  # fmt: skip
    elif image is not None:
        runtime.append(("image", image.text, str(image.origin)))
        _note_image(image, subject.notebook)
    else:
        problem = launch.venv.problem if launch.venv else ""
        subject.notebook.add(
            launch.program.origin, codes.NO_VENV,
            f"which environment `{launch.program.text}` is in cannot be told"
            f"{': ' + problem if problem else ''}: run the import again with --venv=DIRECTORY",
        )  # fmt: skip
    if (own := launch.settings.get("runtime.cache")) is not None:
        runtime.append(("cache", own[0], str(own[1])))


def _note_image(image: Word, notebook: Notebook) -> None:
    notebook.add(
        image.origin, codes.CONTAINER,
        "this version of sparkd does not run containers: the file is a proposal for later, or"
        " give --venv=DIRECTORY to run the same command from a Python environment",
    )  # fmt: skip
    if not _DIGEST.search(image.text):
        notebook.add(
            image.origin, codes.MOVING_TAG,
            f"{image.text} is a tag, which can move: `docker image inspect --format"
            f" '{{{{.RepoDigests}}}}' {image.text}` prints the digest to write instead",
        )  # fmt: skip


def _serve(subject: Subject, draft: Draft) -> None:
    share = subject.table.flags.get("gpu-memory-utilization")
    if share is not None and isinstance(share.value, (int, float)) and share.value >= 0.9:
        subject.notebook.add(
            share.origin, codes.HIGH_SHARE,
            f"{share.value} of unified memory leaves the host too little: 0.85 at most",
        )  # fmt: skip
    for flag, entry in subject.table.flags.items():
        if flag not in address.ADDRESS_FLAGS:
            value = _mapped(entry.value, flag, entry.origin, subject)
            draft.serve.append((flag, value, str(entry.origin)))


def _mapped(value: object, flag: str, origin: Origin, subject: Subject) -> object:
    if isinstance(value, str):
        return subject.anchored(flag, subject.on_host(value), origin)
    if isinstance(value, list):
        return [_mapped(item, flag, origin, subject) for item in value]
    return value


def _settings(subject: Subject, draft: Draft) -> None:
    for key, (value, origin) in subject.launch.settings.items():
        section, _, name = key.partition(".")
        if subject.launch.exact and _ALWAYS_SAID.get(key) == value:
            continue
        if section in {"ready", "memory"}:
            getattr(draft, section).append((name, value, str(origin)))


def _checked(subject: Subject, draft: Draft) -> Proposal:
    """Load the text as `apply` would."""
    launch, name = subject.launch, subject.name
    text = draft.text(f"# Proposed by `sparkctl import` from {_printable(launch.origin.source)}.")
    try:
        engine = loaded(text, name).engines[0]
    except ConfigErrors as refused:
        return _refused(subject, draft, text, refused)
    argv = [engine.executable, *serve_arguments(engine)]
    environment = engine_environment(engine, load([], None).host.compile)
    return Proposal(name, text, argv, environment, launch.origin, engine, is_applicable=True)


def _refused(subject: Subject, draft: Draft, text: str, refused: ConfigErrors) -> Proposal:
    """Return what `apply` would refuse, and say why."""
    launch, engine, errors = subject.launch, None, refused.errors
    if subject.venv is None:
        # Without a venv the loader stops at the runtime; the rest is checked with a stand-in.
        stand_in = replace(draft, runtime=[("venv", _STAND_IN, "")])
        try:
            engine, errors = loaded(stand_in.text(""), subject.name).engines[0], ()
        except ConfigErrors as others:
            errors = others.errors
    for error in errors:
        message = f"sparkctl apply would refuse it: {error}"
        subject.notebook.add(launch.origin, codes.REFUSED_BY_LOADER, message)
    argv = _argv(subject, draft, engine)
    environment = {key: str(value) for key, value, _ in draft.env}
    return Proposal(
        subject.name, text, argv, environment, launch.origin, engine, is_applicable=False
    )


def _argv(subject: Subject, draft: Draft, engine: EngineConfig | None) -> list[str]:
    """Return the command line inside the container, or with a program yet to be named."""
    model = draft.top[0][1]
    where = address.as_flags(subject.table) if subject.uses_image else [
        part for key, value, _ in draft.top if key in address.ADDRESS_FLAGS
        for part in (f"--{key}", str(value))
    ]  # fmt: skip
    flags = engine.serve if engine is not None else tuple(_flags(draft))
    return ["vllm", "serve", str(model), *where, *flags]


def _flags(draft: Draft) -> Iterator[str]:
    for flag, value, _ in draft.serve:
        yield from serve.flag_arguments(flag, value)


def serve_arguments(engine: EngineConfig) -> list[str]:
    """Return what follows the program on the command line that sparkd's unit starts."""
    return [
        "serve", engine.model, "--host", engine.host, "--port", str(engine.port), *engine.serve,
    ]  # fmt: skip


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
