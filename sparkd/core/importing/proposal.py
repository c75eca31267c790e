# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SIM905 - a table of words reads best as text
"""From a `Launch` to the text of one file of engines.d, checked by sparkd's own loader."""

import ipaddress
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sparkd.core import serve
from sparkd.core.config import Config, ConfigErrors, EngineConfig, Source, load
from sparkd.core.engine_environment import OWNED_VARIABLES, engine_environment
from sparkd.core.importing import codes, toml_text, vllm_args
from sparkd.core.importing.model import (
    Launch,
    Mount,
    Notebook,
    Origin,
    Published,
    RefusalError,
    Share,
    TenantError,
    Word,
    share,
)
from sparkd.core.importing.relative_paths import Matching, anchored
from sparkd.core.importing.vllm_args import ServeTable, ServeValue
from sparkd.core.schema import ENGINE_NAME
from sparkd.core.secrecy import contains_secret, is_secret_name
from sparkd.core.text import is_plain_path

SECRETS = "/etc/sparkd/secrets"

_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
# Names that say nothing about the engine.
_EMPTY_NAMES = frozenset(
    "vllm serve server start run launch main app api llm model inference openai engine vllm-server"
    " vllm-openai vllm-serve start-vllm run-vllm serve-vllm launch-vllm compose docker-compose"
    " llm-server vllm-service entrypoint stdin command-line".split()
)
_PARALLEL = (
    "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "nnodes",
    "decode-context-parallel-size", "prefill-context-parallel-size", "data-parallel-size-local",
)  # fmt: skip
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_HF_VARIABLES = frozenset(
    {"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HOME",
     "TRANSFORMERS_CACHE"}
)  # fmt: skip
_SYSTEM_PATH = frozenset(
    {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/snap/bin"}
)
_STAND_IN = "/opt/vllm"


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


@dataclass(slots=True)
class _Draft:
    """What goes into the file, section by section: key, value, comment."""

    top: list[tuple[str, object, str]] = field(default_factory=list)
    runtime: list[tuple[str, object, str]] = field(default_factory=list)
    serve: list[tuple[str, object, str]] = field(default_factory=list)
    env: list[tuple[str, object, str]] = field(default_factory=list)
    credentials: list[tuple[str, object, str]] = field(default_factory=list)
    ready: list[tuple[str, object, str]] = field(default_factory=list)
    memory: list[tuple[str, object, str]] = field(default_factory=list)

    def text(self, head: str) -> str:
        """Return the file."""
        lines = [head, *self._lines(self.top)]
        for name in ("runtime", "serve", "env", "credentials", "ready", "memory"):
            if entries := getattr(self, name):
                lines += ["", f"[{name}]", *self._lines(entries)]
        return "\n".join(lines) + "\n"

    @staticmethod
    def _lines(entries: Sequence[tuple[str, object, str]]) -> Iterator[str]:
        for key, value, comment in entries:
            yield toml_text.assignment(key, value, comment)


def choose_name(launch: Launch, table: ServeTable, taken: set[str], notebook: Notebook) -> str:
    """Return a free engine name, from what the source calls it or from what it serves."""
    served = table.flags.get("served-model-name")
    served_names = (
        [str(item) for item in served.value] if served and isinstance(served.value, list) else []
    )
    model = table.model.text.rstrip("/").rpartition("/")[2] if table.model else ""
    candidates = [_slug(name) for name in (*launch.names, *served_names, model)]
    usable = [name for name in candidates if name and name not in _EMPTY_NAMES]
    name = usable[0] if usable else "engine"
    if name not in taken:
        return name
    number = 2
    while f"{name[:45]}-{number}" in taken:
        number += 1
    free = f"{name[:45]}-{number}"
    notebook.add(launch.origin, codes.RENAMED, f"the name {name} is taken: it becomes {free}")
    return free


def _slug(text: str) -> str:
    text = re.sub(r"[^a-z0-9-]+", "-", text.lower())
    text = re.sub(r"\A(?:vllm-+)+|\A[^a-z]+", "", text)
    text = re.sub(r"(?:-+(?:vllm|container|service))+\Z", "", text)
    text = re.sub(r"-{2,}", "-", text).strip("-")[:48].strip("-")
    return text if ENGINE_NAME.match(text) else ""


def read_arguments(
    launch: Launch, notebook: Notebook, read_file: Callable[[str], str | None]
) -> ServeTable:
    """Return the flags of a launch.

    Raises:
        RefusalError: vLLM or sparkd would not take them, or they need more than one GPU.
    """

    def from_here(path: str) -> str | None:
        if not path.startswith("/") and launch.directory:
            path = posixpath.normpath(posixpath.join(launch.directory, path))
        if path in launch.written:
            reason = f"the script itself writes {path}: write its lines as flags"
            raise RefusalError(launch.origin, reason)
        return read_file(path)

    inside = launch.image is not None and not launch.mounts
    table = vllm_args.read(
        launch.arguments, launch.origin, notebook,
        (lambda _: None) if inside else (lambda path: from_here(_on_host(path, launch.mounts))),
        exact=launch.exact,
    )  # fmt: skip
    _refuse_parallel(launch, table)
    if table.model is not None and contains_secret(table.model.text):
        raise RefusalError(table.model.origin, "the model's name looks like a secret")
    for name, entry in table.flags.items():
        if name in {"host", "port"}:
            continue
        try:
            serve.check_flag_name(name)
            serve.flag_arguments(name, entry.value)
        except serve.ServeError as error:
            raise RefusalError(entry.origin, f"--{name}: {error}") from None
    return table


def _refuse_parallel(launch: Launch, table: ServeTable) -> None:
    for name in _PARALLEL:
        entry = table.flags.get(name)
        if entry is None or entry.value in {1, "1"}:
            continue
        if isinstance(entry.value, int) and entry.value < 1:
            continue
        raise TenantError(
            entry.origin,
            f"--{name} {entry.value} needs more than the one GPU of a Spark: multi-GPU and"
            " multi-host engines are not supported",
            _share(table),
        )
    for variable in _GPU_VARIABLES:
        word = launch.environment.get(variable)
        if word is not None and re.match(r"\s*\d+\s*,\s*\d+", word.text):
            reason = f"{variable}={word.text} names several GPUs"
            raise TenantError(word.origin, reason, _share(table))


def _share(table: ServeTable) -> Share | None:
    entry = table.flags.get("gpu-memory-utilization")
    if entry is None:
        return share(str(serve.DEFAULT_MEMORY_UTILIZATION), "vLLM's default share")
    return share(str(entry.value), f"--gpu-memory-utilization of {entry.origin}")


def propose(
    launch: Launch, table: ServeTable, name: str, notebook: Notebook, *,
    order: tuple[int, str] | None, venv: str | None, matching: Matching,
) -> Proposal:  # fmt: skip
    """Return the proposal for one launch.

    Args:
        launch: what is started today.
        table: its flags, from `read_arguments`.
        name: the engine's name.
        notebook: where notes go.
        order: the order of starting and why; None leaves sparkd's default.
        venv: the Python environment for an engine whose source does not name one on this host.
        matching: finds files by a pattern, to know a relative path from a name.

    Raises:
        RefusalError: something cannot be carried over without changing what is started.
    """
    builder = _Builder(launch, table, name, notebook, venv, matching)
    return builder.build(order)


class _Builder:
    """Fills the sections of one file."""

    def __init__(
        self, launch: Launch, table: ServeTable, name: str, notebook: Notebook, venv: str | None,
        matching: Matching,
    ) -> None:  # fmt: skip
        self.launch = launch
        self.table = table
        self.name = name
        self.notebook = notebook
        self.matching = matching
        self.draft = _Draft()
        self.uses_image = launch.image is not None and venv is None
        self.converts = launch.image is not None and venv is not None
        self.venv = self._venv(venv)
        self.inside: list[str] = []

    def build(self, order: tuple[int, str] | None) -> Proposal:
        """Return the finished proposal."""
        self._top(order)
        self._runtime()
        self._serve()
        self._env()
        self._rest()
        head = f"# Proposed by `sparkctl import` from {_printable(self.launch.origin.source)}."
        text = self.draft.text(head)
        return self._checked(text)

    def _venv(self, override: str | None) -> Word | None:
        venv = self.launch.venv
        if venv is not None and not venv.problem and self.launch.image is None:
            return venv
        return Word(override, Origin("--venv")) if override else None

    def _top(self, order: tuple[int, str] | None) -> None:
        top = self.draft.top
        model = self.table.model
        if model is None:
            raise AssertionError("read_arguments refuses a line without a model")
        text = self._anchored("model", self._path(model.text), model.origin)
        top.append(("model", text, str(model.origin)))
        self._address()
        if order is not None:
            top.append(("order", order[0], order[1]))
        elif (own := self.launch.settings.get("order")) is not None:
            top.append(("order", own[0], str(own[1])))
        if self.launch.user is not None and not self.launch.user.problem:
            top.append(("user", self.launch.user.text, str(self.launch.user.origin)))
        else:
            top.append(("user", "vllm", "sparkd's default; the source does not say"))
            self.notebook.add(
                self.launch.origin, codes.USER_UNKNOWN, "the source does not say who runs the"
                " engine: it will be `vllm`"
            )  # fmt: skip
        if self.launch.group is not None and not self.launch.group.problem:
            top.append(("group", self.launch.group.text, str(self.launch.group.origin)))

    def _address(self) -> None:
        host, port = self.table.flags.pop("host", None), self.table.flags.pop("port", None)
        number = self._port(port)
        self.inside = [
            *(["--host", str(host.value)] if host else []),
            *(["--port", str(port.value)] if port else []),
        ]
        address, why = self._host(host)
        why_port = str(port.origin) if port else "vLLM's default"
        mapping = self._published(number)
        if mapping is not None and mapping.port:
            if mapping.port != number or mapping.host:
                self.notebook.add(
                    mapping.origin, codes.PUBLISHED,
                    f"the container's port {number} is published as"
                    f" {mapping.host or '*'}:{mapping.port}, which is what clients use",
                )  # fmt: skip
            why_port = f"published; {number} inside the container"
            number = mapping.port
        elif mapping is not None:
            self.notebook.add(
                mapping.origin, codes.PUBLISHED,
                f"the container's port {number} is published under a number that is chosen at each"
                f" start: {number} is proposed",
            )  # fmt: skip
        if mapping is not None:
            address, why = mapping.host or address, "as published"
        if not port and not self.launch.published:
            self.notebook.add(
                self.launch.origin, codes.VLLM_DEFAULT, "no --port: vLLM's default, 8000"
            )
        self.draft.top += [("host", address, why), ("port", number, why_port)]

    def _published(self, number: int) -> Published | None:
        """Return how the container's port `number` is published; None where it is not."""
        for mapping in self.launch.published:
            if not mapping.problem and mapping.container_port == number:
                return mapping
        for mapping in self.launch.published:
            if mapping.problem:
                reason = f"the published port cannot be known: {mapping.problem}"
                raise RefusalError(mapping.origin, reason)
        if self.launch.published:
            self.notebook.add(
                self.launch.published[0].origin, codes.PUBLISHED,
                f"the container's port {number}, on which vLLM listens, is not published",
            )  # fmt: skip
        return None

    def _port(self, port: ServeValue | None) -> int:
        if port is None:
            return 8000
        if not isinstance(port.value, int) or isinstance(port.value, bool):
            raise RefusalError(port.origin, f"--port {port.value} is no number")
        return port.value

    def _host(self, host: ServeValue | None) -> tuple[str, str]:
        if host is None:
            if not self.uses_image:  # inside a container that is what it must do
                self.notebook.add(
                    self.launch.origin, codes.VLLM_DEFAULT,
                    "no --host: vLLM then listens on every address, so 0.0.0.0 is written out",
                )  # fmt: skip
            return "0.0.0.0", "vLLM's default: every address"  # noqa: S104 - it is what runs today
        text = str(host.value)
        if text == "localhost":
            return "127.0.0.1", f"{host.origin}: localhost"
        try:
            ipaddress.ip_address(text)
        except ValueError:
            raise RefusalError(
                host.origin, f"--host {text} is a name: sparkd needs the IP address to listen on"
            ) from None
        return text, str(host.origin)

    def _runtime(self) -> None:
        runtime, image = self.draft.runtime, self.launch.image
        if self.venv is not None:
            runtime.append(("venv", self.venv.text, str(self.venv.origin)))
            if image is not None:
                self.notebook.add(
                    image.origin, codes.DERIVED, f"it runs from {self.venv.text} instead of the"
                    f" image {image.text}: check that it is the same vLLM"
                )  # fmt: skip
        elif image is not None:
            runtime.append(("image", image.text, str(image.origin)))
            self._note_image(image)
        else:
            problem = self.launch.venv.problem if self.launch.venv else ""
            self.notebook.add(
                self.launch.program.origin, codes.NO_VENV,
                f"which environment `{self.launch.program.text}` is in cannot be told"
                f"{': ' + problem if problem else ''}: run the import again with --venv=DIRECTORY",
            )  # fmt: skip
        if (own := self.launch.settings.get("runtime.cache")) is not None:
            runtime.append(("cache", own[0], str(own[1])))

    def _note_image(self, image: Word) -> None:
        self.notebook.add(
            image.origin, codes.CONTAINER,
            "this version of sparkd does not run containers: the file is a proposal for later, or"
            " give --venv=DIRECTORY to run the same command from a Python environment",
        )  # fmt: skip
        if not _DIGEST.search(image.text):
            self.notebook.add(
                image.origin, codes.MOVING_TAG,
                f"{image.text} is a tag, which can move: `docker image inspect --format"
                f" '{{{{.RepoDigests}}}}' {image.text}` prints the digest to write instead",
            )  # fmt: skip

    def _serve(self) -> None:
        share = self.table.flags.get("gpu-memory-utilization")
        if share is not None and isinstance(share.value, (int, float)) and share.value >= 0.9:
            self.notebook.add(
                share.origin, codes.HIGH_SHARE,
                f"{share.value} of unified memory leaves the host too little: 0.85 at most",
            )  # fmt: skip
        for flag, entry in self.table.flags.items():
            value = self._mapped(entry.value, flag, entry.origin)
            self.draft.serve.append((flag, value, str(entry.origin)))

    def _mapped(self, value: object, flag: str, origin: Origin) -> object:
        if isinstance(value, str):
            return self._anchored(flag, self._path(value), origin)
        if isinstance(value, list):
            return [self._mapped(item, flag, origin) for item in value]
        return value

    def _anchored(self, name: str, text: str, origin: Origin) -> str:
        return anchored(name, text, origin, self.launch, self.notebook, self.matching)

    def _path(self, text: str) -> str:
        return _on_host(text, self.launch.mounts) if self.converts else text

    def _env(self) -> None:
        environment = dict(self.launch.environment)
        cuda = environment.pop("CUDA_HOME", None)
        if cuda is not None and not cuda.problem and cuda.text != "/usr/local/cuda":
            self.draft.runtime.append(("cuda_home", cuda.text.rstrip("/"), str(cuda.origin)))
        path = environment.pop("PATH", None)
        if path is not None and self.venv is not None:
            self._search_path(path, cuda.text.rstrip("/") if cuda else "/usr/local/cuda")
        defaults = self._defaults()
        for name, word in environment.items():
            if defaults.get(name) == word.text and not word.problem:
                continue
            self._variable(name, word)
        self._own_credentials()
        for name, origin in self.table.secrets.items():
            self._secret(name, origin, "it stood on the command line")
        if self.converts:
            self._mounted_cache()
        self._note_cache()

    def _defaults(self) -> Mapping[str, str]:
        """Return what sparkd's unit sets by itself, for a unit that sparkd wrote."""
        if not self.launch.exact:
            return {}
        engine = self._load(self._with_stand_in()).engines
        host = self._load("").host
        return engine_environment(engine[0], host.compile) if engine else {}

    def _with_stand_in(self) -> str:
        bare = _Draft(top=self.draft.top, runtime=self.draft.runtime)
        return bare.text("")

    def _load(self, text: str) -> Config:
        sources = [Source(f"{self.name}.toml", text, self.name)] if text else []
        return load(sources, None)

    def _search_path(self, path: Word, cuda_home: str) -> None:
        if path.problem:
            self.notebook.add(path.origin, codes.UNKNOWN_VALUE, f"PATH: {path.problem}")
            return
        venv = self.venv.text if self.venv else ""
        covered = _SYSTEM_PATH | {f"{venv}/bin", f"{cuda_home}/bin", ""}
        extra: list[str] = []
        for folder in path.text.split(":"):
            bare = folder.rstrip("/")
            if bare in covered or bare in extra:
                continue
            if is_plain_path(bare):
                extra.append(bare)
            else:
                self.notebook.add(
                    path.origin, codes.UNKNOWN_VALUE, f"PATH: {folder} is not carried over"
                )
        if extra:
            self.draft.runtime.append(("path-extra", extra, str(path.origin)))

    def _variable(self, name: str, word: Word) -> None:
        if not _VARIABLE.match(name):
            self.notebook.add(
                word.origin, codes.SETTING, "what is set here has no name of a variable"
            )
        elif is_secret_name(name) or contains_secret(word.text):
            why = word.problem or "it stood in the environment"
            self._secret(name, word.origin, why)
        elif name in OWNED_VARIABLES or name.startswith("SPARKD_"):
            reason = OWNED_VARIABLES.get(name, "sparkd's own variables begin with SPARKD_")
            self.notebook.add(
                word.origin, codes.HOST_OWNED, f"{name}={word.text} is not carried over: {reason}"
            )
        elif word.problem:
            self.notebook.add(
                word.origin, codes.UNKNOWN_VALUE, f"{name} is not carried over: {word.problem}"
            )
        elif (found := vllm_args.placeholder(word.text)) and not self.launch.exact:
            raise RefusalError(word.origin, f"the placeholder {found} was never filled in")
        else:
            if name == "VLLM_SKIP_INIT_MEMORY_CHECK" and word.text not in {"", "0"}:
                self.notebook.add(
                    word.origin, codes.SKIPS_CHECK, "it switches off vLLM's own memory check"
                )
            text = self._path(word.text)
            if text.startswith(("./", "../")):
                text = self._anchored(name, text, word.origin)
            self.draft.env.append((name, text, str(word.origin)))

    def _secret(self, name: str, origin: Origin, why: str) -> None:
        if any(key == name for key, _, _ in self.draft.credentials):
            return
        path = f"{SECRETS}/{self.name}.{name.lower()}"
        self.draft.credentials.append((name, path, str(origin)))
        self.notebook.add(
            origin, codes.SECRET,
            f"{name} is a secret and is not copied ({why}): write its value to {path}, owned by"
            " root with mode 0600",
        )  # fmt: skip

    def _own_credentials(self) -> None:
        for key, (value, origin) in self.launch.settings.items():
            if key.startswith("credentials."):
                name = key.removeprefix("credentials.")
                self.draft.credentials.append((name, value, str(origin)))

    def _mounted_cache(self) -> None:
        for mount in self.launch.mounts:
            is_cache = mount.container.rstrip("/") == "/root/.cache/huggingface"
            is_set = bool(_HF_VARIABLES & self.launch.environment.keys())
            if is_cache and mount.host.startswith("/") and not is_set:
                self.draft.env.append(("HF_HOME", mount.host, "the volume of the container"))

    def _note_cache(self) -> None:
        model = self.table.model
        if model is None or model.text.startswith("/") or self.uses_image or self.launch.exact:
            return
        names = {key for key, _, _ in self.draft.env}
        if names & _HF_VARIABLES or "download-dir" in self.table.flags:
            return
        self.notebook.add(
            model.origin, codes.CACHE_MOVES,
            f"HOME becomes /var/cache/vllm/{self.name}: set HF_HOME in [env] to the cache that"
            " holds the weights today, or they are downloaded again",
        )  # fmt: skip

    def _rest(self) -> None:
        for key, (value, origin) in self.launch.settings.items():
            section, _, name = key.partition(".")
            # What sparkd's unit always says is no wish of the operator's.
            default = {"ready.budget": "1080s", "ready.warmup": True, "memory.max": "92%"}
            if self.launch.exact and default.get(key) == value:
                continue
            if section in {"ready", "memory"}:
                getattr(self.draft, section).append((name, value, str(origin)))

    def _checked(self, text: str) -> Proposal:
        """Load the text as `apply` would, and say what it would refuse."""
        try:
            engine = self._load(text).engines[0]
            errors: list[str] = []
        except ConfigErrors as refused:
            engine = None
            known = self.uses_image or self.venv is None
            # Without a venv the loader stops at the runtime; the rest is checked with a stand-in.
            errors = [] if known else [str(error) for error in refused.errors]
        if engine is not None:
            argv = [engine.executable, *serve_arguments(engine)]
            caps = self._load("").host.compile
            environment = engine_environment(engine, caps)
            return self._proposal(text, argv, environment, engine, applicable=True)
        stand_in = None
        if not errors:
            kept = self.draft.runtime
            self.draft.runtime = [("venv", _STAND_IN, "")]
            try:
                stand_in = self._load(self.draft.text("")).engines[0]
            except ConfigErrors as refused:
                errors = [str(error) for error in refused.errors]
            self.draft.runtime = kept
        for error in errors:
            self.notebook.add(
                self.launch.origin,
                codes.REFUSED_BY_LOADER,
                f"sparkctl apply would refuse it: {error}",
            )
        environment = {key: str(value) for key, value, _ in self.draft.env}
        argv = self._argv_inside(stand_in)
        return self._proposal(text, argv, environment, stand_in, applicable=False)

    def _argv_inside(self, stand_in: EngineConfig | None) -> list[str]:
        """Return the command line inside the container, or with a program yet to be named."""
        model = self.draft.top[0][1]
        address = self.inside if self.uses_image else [
            part for key, value, _ in self.draft.top if key in {"host", "port"}
            for part in (f"--{key}", str(value))
        ]  # fmt: skip
        flags = stand_in.serve if stand_in is not None else tuple(self._flags())
        return ["vllm", "serve", str(model), *address, *flags]

    def _flags(self) -> Iterator[str]:
        for flag, value, _ in self.draft.serve:
            yield from serve.flag_arguments(flag, value)

    def _proposal(
        self, text: str, argv: list[str], environment: dict[str, str],
        engine: EngineConfig | None, *, applicable: bool,
    ) -> Proposal:  # fmt: skip
        return Proposal(self.name, text, argv, environment, self.launch.origin, engine, applicable)


def serve_arguments(engine: EngineConfig) -> list[str]:
    """Return what follows the program on the command line that sparkd's unit starts."""
    return [
        "serve", engine.model, "--host", engine.host, "--port", str(engine.port), *engine.serve,
    ]  # fmt: skip


def _on_host(text: str, mounts: Sequence[Mount]) -> str:
    """Return the host's path of a path in a container."""
    for mount in sorted(mounts, key=lambda item: len(item.container), reverse=True):
        inside = mount.container.rstrip("/")
        if mount.host.startswith("/") and (text == inside or text.startswith(inside + "/")):
            return mount.host.rstrip("/") + text[len(inside) :]
    return text


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
