# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SIM905 - a table of words reads best as text
"""systemd service units, with their drop-ins, as instances of templates, and of user managers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from sparkd.core.importing import codes, unit_words
from sparkd.core.importing.command import follow
from sparkd.core.importing.model import (
    Context,
    Findings,
    Launch,
    NotAServerError,
    Origin,
    RefusalError,
    Surroundings,
    Word,
)
from sparkd.core.importing.unit_text import Fragment, Setting, Unit, merge
from sparkd.core.marker import LAUNCH_HASH_VARIABLE, marker_of

# Where systemd looks for a program without a slash.
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"

# Settings whose work sparkd's own unit does, or that only describe.
_COVERED = frozenset(
    """Description Documentation After Wants Before Type ExecStart Environment EnvironmentFile User
    Group WorkingDirectory Restart RestartSec WantedBy MemoryMax LimitNOFILE LimitMEMLOCK
    NoNewPrivileges SyslogIdentifier NotifyAccess DefaultDependencies ExecSearchPath DefaultInstance
    UnsetEnvironment KillMode OOMPolicy StandardOutput StandardError StandardInput""".split()
)  # fmt: skip
_NETWORK = frozenset({"network.target", "network-online.target", "nss-lookup.target"})
_BREAKS_CUDA = frozenset({"MemoryDenyWriteExecute", "PrivateDevices", "ProtectClock"})


class Source(NamedTuple):
    """A unit as it was found: `owner` is the user of a user unit, empty for a system unit."""

    name: str
    fragment: Fragment
    drop_ins: tuple[Fragment, ...] = ()
    owner: str = ""


def read(source: Source, surroundings: Surroundings, findings: Findings) -> None:
    """Add what the unit starts to `findings`."""
    origin = Origin(source.fragment.path)
    unit = merge(source.name, source.fragment, source.drop_ins)
    try:
        findings.launches += _Reader(unit, source, surroundings, findings).launches()
    except RefusalError as error:
        stem = source.name.rpartition(".")[0]
        findings.refuse(error, names=(stem,), unit="" if source.owner else source.name)
        if error.origin.source != origin.source:
            findings.refused[-1] = findings.refused[-1]._replace(
                source=f"{origin.source} ({error.origin})"
            )


class _Reader:
    """Reads one unit; every step can add notes."""

    def __init__(
        self, unit: Unit, source: Source, surroundings: Surroundings, findings: Findings
    ) -> None:
        self.unit = unit
        self.source = source
        self.surroundings = surroundings
        self.notebook = findings.notebook
        self.owns = marker_of(source.fragment.text) is not None
        home = surroundings.home(source.owner) if source.owner else "/root"
        self.known = unit_words.specifiers(
            unit.name, home, source.owner or "root", is_user_unit=bool(source.owner)
        )
        self.unread: list[str] = []

    def launches(self) -> list[Launch]:
        """Return the servers that the unit starts.

        Raises:
            RefusalError: it starts none, or one that cannot be told.
        """
        place = Origin(self.source.fragment.path)
        starts = self.unit.all("Service", "ExecStart")
        if not starts:
            raise self._without_start(place)
        self._refuse_several(starts)
        if not self.owns:
            self._note_settings()
        user, home = self._user()
        environment = self._environment()
        context = Context(
            origin=starts[0].origin, notebook=self.notebook, surroundings=self.surroundings,
            names=self._names(), environment=environment, user=user, home=home,
            group=self._single("Group"), directory=self._directory(home),
            search_path=self._search_path(),
        )  # fmt: skip
        found: list[Launch] = []
        refusal: RefusalError | None = None
        for setting in starts:
            for command in unit_words.commands(setting, self.known):
                try:
                    found += self._follow(command, replace(context, origin=setting.origin))
                except NotAServerError as error:
                    refusal = refusal or error
        if not found:
            raise refusal or NotAServerError(place, "it starts no vLLM server")
        self._check_template(starts)
        return [self._complete(launch) for launch in found]

    def _without_start(self, place: Origin) -> NotAServerError:
        for setting in self.unit.settings:
            if setting.key.lower() == "execstart" and setting.value:
                reason = f"{setting.key}= in [{setting.section}] is not ExecStart= in [Service]"
                return NotAServerError(setting.origin, f"{reason}: systemd ignores it")
        return NotAServerError(place, "it has no ExecStart=, so it starts nothing")

    def _refuse_several(self, starts: Sequence[Setting]) -> None:
        kind = self.unit.last("Service", "Type")
        places = [s.origin for s in starts for _ in unit_words.commands(s, self.known)]
        if len(places) > 1 and (kind is None or kind.value != "oneshot"):
            lines = ", ".join(str(place.line) for place in places)
            raise RefusalError(
                places[1], f"it has several commands in ExecStart= (lines {lines}), which systemd"
                " allows only with Type=oneshot: write an empty ExecStart= before the one that"
                " replaces the others"
            )  # fmt: skip

    def _follow(self, command: unit_words.Command, context: Context) -> list[Launch]:
        if ":" in command.prefix:
            words: Sequence[Word] = command.words
        else:
            variables = self._process_variables(context)
            words = unit_words.expand_variables(
                command.words, lambda name, origin: self._variable(name, origin, variables)
            )
        if self.owns and words[0].text.endswith("/with-credentials"):
            texts = [word.text for word in words]
            words = words[texts.index("--") + 1 :] if "--" in texts else words
        if "@" in command.prefix:  # the second word is only what the process calls itself
            words = [*words[:1], *words[2:]]
        if "-" in command.prefix:
            self.notebook.add(
                words[0].origin, codes.SETTING, "the `-` of ExecStart=- (ignore failure) is dropped"
            )
        return follow(words, context)

    def _process_variables(self, context: Context) -> Mapping[str, Word]:
        """Return the variables that systemd knows as `$NAME`: the unit's and a few of its own."""
        own: dict[str, Word] = {}
        if context.user is not None and not context.user.problem:
            own = {"USER": context.user, "LOGNAME": context.user}
            if context.home is not None:
                own["HOME"] = context.user._replace(text=context.home)
        return own | dict(context.environment)

    def _variable(self, name: str, origin: Origin, variables: Mapping[str, Word]) -> Word:
        if name in variables:
            return variables[name]
        if self.unread:
            problem = f"${name} may be set in {self.unread[0]}, which cannot be read"
            return Word(f"${name}", origin, problem)
        text = f"${name} is set by nothing in the unit: systemd passes an empty text or no argument"
        self.notebook.add(origin, codes.NO_EXPANSION, text)
        return Word("", origin)

    def _user(self) -> tuple[Word | None, str | None]:
        setting = self.unit.last("Service", "User")
        origin = Origin(self.source.fragment.path)
        if self.source.owner:
            self.notebook.add(
                origin, codes.USER_UNIT,
                f"this user unit of {self.source.owner} becomes a system unit with User=; lingering"
                " is no longer needed for it",
            )  # fmt: skip
            owner = self.source.owner
            return Word(owner, origin), self.surroundings.home(owner)
        if setting is None:
            if self.unit.is_true("Service", "DynamicUser"):
                self.notebook.add(
                    origin, codes.USER_UNKNOWN, "DynamicUser= has no user to carry over: `vllm` is"
                    " sparkd's default"
                )  # fmt: skip
                return None, None
            self._note_default_target()
            return Word("root", origin), "/root"
        word = self.known.expand(setting.value, setting.origin)
        if "%u" in setting.value:
            self.notebook.add(
                setting.origin, codes.DYNAMIC_USER,
                "User=%u is the user of the service manager, root, not the one that was meant",
            )  # fmt: skip
        return word, self.surroundings.home(word.text)

    def _note_default_target(self) -> None:
        for setting in self.unit.all("Install", "WantedBy"):
            if "default.target" in setting.value.split():
                self.notebook.add(
                    setting.origin, codes.USER_UNKNOWN, "WantedBy=default.target is what user units"
                    " have: if this is one, import it from ~/.config/systemd/user of its user; it"
                    " is read as root's"
                )  # fmt: skip

    def _single(self, key: str) -> Word | None:
        setting = self.unit.last("Service", key)
        return self.known.expand(setting.value, setting.origin) if setting else None

    def _directory(self, home: str | None) -> str:
        word = self._single("WorkingDirectory")
        if word is None:
            owner = self.source.owner
            return (self.surroundings.home(owner) or "") if owner else "/"
        text = word.text.removeprefix("-")
        return (home or "") if text == "~" else text

    def _search_path(self) -> str:
        settings = self.unit.all("Service", "ExecSearchPath")
        return ":".join(setting.value for setting in settings) or _SEARCH_PATH

    def _environment(self) -> dict[str, Word]:
        environment: dict[str, Word] = {}
        for setting in self.unit.all("Service", "Environment"):
            environment |= dict(unit_words.environment(setting, self.known, self._ignored))
        for setting in self.unit.all("Service", "EnvironmentFile"):
            environment |= self._environment_file(setting)
        for setting in self.unit.all("Service", "UnsetEnvironment"):
            for raw in unit_words.split(setting.value):
                environment.pop(raw.text, None)
        return environment

    def _environment_file(self, setting: Setting) -> dict[str, Word]:
        word = self.known.expand(setting.value, setting.origin)
        path = word.text.removeprefix("-")
        if not word.problem and not path.startswith("/"):
            message = f"EnvironmentFile={path} is no absolute path: systemd ignores it"
            self.notebook.add(setting.origin, codes.SETTING, message)
            return {}
        text = None if word.problem else self.surroundings.read(path)
        if text is None:
            self.unread.append(path)
            reason = word.problem or f"{path} was not read: its variables are unknown here"
            self.notebook.add(setting.origin, codes.UNKNOWN_VALUE, reason)
            return {}
        return dict(unit_words.environment_file(text, path, self._ignored))

    def _ignored(self, text: str, origin: Origin) -> None:
        what = (
            f"`{ascii(text[:40])[1:-1]}` is no name of a variable" if text else "a word without `=`"
        )
        self.notebook.add(origin, codes.SETTING, f"{what}: systemd ignores it")

    def _names(self) -> tuple[str, ...]:
        stem = self.unit.name.rpartition(".")[0]
        prefix, at, instance = stem.partition("@")
        return (unit_words.unescape_name(instance), prefix) if at and instance else (stem,)

    def _complete(self, launch: Launch) -> Launch:
        after = [
            name
            for key in ("After", "Requires", "BindsTo", "Requisite")
            for setting in self.unit.all("Unit", key)
            for name in setting.value.split()
            if name.endswith(".service")
        ]
        settings = dict(self._memory())
        if launch.image is None and launch.user is not None and launch.user.text == "root":
            self.notebook.add(
                launch.user.origin, codes.RUNS_AS_ROOT, "the engine runs as root, and still will"
            )
        if self.owns:
            settings |= dict(self._own_settings())
            environment = {
                key: word for key, word in launch.environment.items() if key != LAUNCH_HASH_VARIABLE
            }
            launch = replace(launch, exact=True, environment=environment, names=(self._own_name(),))
        return replace(
            launch, unit=self.unit.name, is_users=bool(self.source.owner), after=tuple(after),
            settings=settings,
        )  # fmt: skip

    def _memory(self) -> Iterator[tuple[str, tuple[object, Origin]]]:
        setting = self.unit.last("Service", "MemoryMax")
        if setting is None or setting.value == "infinity":
            return
        yield "memory.max", (setting.value, setting.origin)
        if not self.owns:
            self.notebook.add(
                setting.origin, codes.NOT_A_GUARD,
                "MemoryMax= is kept; it bounds compilers and host memory, not CUDA's unified"
                " memory",
            )  # fmt: skip

    def _own_name(self) -> str:
        marker = marker_of(self.source.fragment.text)
        return marker.engine if marker else ""

    def _own_settings(self) -> Iterator[tuple[str, tuple[object, Origin]]]:
        """Yield the keys of engines.d that a unit of sparkd's carries in its helpers' options."""
        options = dict(self._helper_options())
        for option, key in (("--order", "order"), ("--budget", "ready.budget"),
                            ("--warmup", "ready.warmup"),
                            ("--expect-version", "ready.expect-version")):  # fmt: skip
            if option in options:
                yield key, _own_value(key, options[option])
        for setting in self.unit.all("Service", "LoadCredential"):
            name, _, path = setting.value.partition(":")
            yield f"credentials.{name}", (path, setting.origin)
        directory = self.unit.last("Service", "WorkingDirectory")
        if directory is not None and not self.unit.all("Service", "CacheDirectory"):
            yield "runtime.cache", (directory.value.removeprefix("-"), directory.origin)

    def _helper_options(self) -> Iterator[tuple[str, Word]]:
        for key in ("ExecStartPre", "ExecStartPost"):
            for setting in self.unit.all("Service", key):
                for command in unit_words.commands(setting, self.known):
                    for word in command.words[1:]:
                        name, _, value = word.text.partition("=")
                        yield name, word._replace(text=value)

    def _check_template(self, starts: Iterable[Setting]) -> None:
        if "@" in self.unit.name:
            return
        for setting in (*starts, *self.unit.all("Service", "Environment")):
            if "%i" in setting.value or "%I" in setting.value:
                text = "%i is empty here: the unit is no template"
                self.notebook.add(setting.origin, codes.NOT_A_TEMPLATE, text)

    def _note_settings(self) -> None:
        service_type = self.unit.last("Service", "Type")
        kind = service_type.value if service_type else "simple"
        seen: set[tuple[str, str, str]] = set()
        for setting in self.unit.settings:
            if not setting.value or setting.section.startswith("X-"):
                continue
            effective = self.unit.all(setting.section, setting.key)
            if setting not in effective or (setting.section, setting.key, setting.value) in seen:
                continue
            seen.add((setting.section, setting.key, setting.value))
            if note := _fault(setting, kind, self.unit) or _leftover(setting):
                code, text = note
                self.notebook.add(setting.origin, code, text)


def _own_value(key: str, word: Word) -> tuple[object, Origin]:
    value: object = word.text
    if key == "order":
        value = int(word.text)
    elif key == "ready.budget":
        value = f"{word.text}s"
    elif key == "ready.warmup":
        value = {"auto": True, "none": False}.get(word.text, word.text)
    return value, word.origin


def _fault(setting: Setting, kind: str, unit: Unit) -> tuple[str, str] | None:
    """Return the code and sentence for a setting that is known to do harm or nothing."""
    key, value = setting.key, setting.value
    lowered = value.lower()
    if key == "Restart" and value in {"on-failure", "no", "on-abnormal", "on-abort", "on-watchdog"}:
        return codes.ON_FAILURE, (
            f"Restart={value} misses an exit with status 0, which vLLM makes when its core has"
            " died: sparkd uses Restart=always, bounded"
        )
    if key == "TimeoutStartSec" and kind == "simple":
        return codes.START_TIMEOUT, (
            "TimeoutStartSec= with Type=simple ends when the process is forked, not when the model"
            " is loaded: ready.budget takes its place"
        )
    if key.startswith("StartLimit") and setting.section == "Service":
        return codes.START_LIMIT_SECTION, f"{key}= in [Service] is ignored: sparkd counts itself"
    if key == "SendSIGKILL" and lowered in {"no", "false", "0", "off"}:
        return codes.NO_SIGKILL, "SendSIGKILL=no leaves a stuck engine for ever: not carried over"
    if key == "DynamicUser" and unit.last("Service", "User") is not None:
        return codes.DYNAMIC_USER, "DynamicUser= beside User=: the user is taken, the rest is not"
    if key in _BREAKS_CUDA and lowered in {"yes", "true", "1", "on"}:
        return codes.BREAKS_CUDA, f"{key}= breaks CUDA: not carried over"
    if key == "OOMScoreAdjust" and value.lstrip("-").isdigit() and int(value) <= -500:
        return (
            codes.OOM_SCORE,
            f"OOMScoreAdjust={value} makes the kernel kill everything else first",
        )
    if key == "RemainAfterExit" and kind == "oneshot":
        return codes.ONESHOT, "Type=oneshot with RemainAfterExit=: nothing supervises the engine"
    if key == "SuccessExitStatus":
        return codes.KEEP_ALIVE, (
            f"SuccessExitStatus={value} declares failures to be successes: not carried over;"
            " disable a timer that keeps such a unit alive"
        )
    if key in {"StandardOutput", "StandardError"} and value.startswith(
        ("append:", "file:", "trunc")
    ):
        return codes.NO_JOURNAL, f"{key}={value}: sparkd's units log to the journal"
    return _fault_of_commands(setting)


def _fault_of_commands(setting: Setting) -> tuple[str, str] | None:
    key, value = setting.key, setting.value
    if key == "ExecStartPre" and (" pull " in f" {value} "):
        return codes.PULL, "the image is pulled at each start: the start needs the network"
    if key in {"Requires", "BindsTo", "PartOf", "Requisite"}:
        others = [name for name in value.split() if name not in _NETWORK]
        if any(name.endswith(".service") for name in others):
            return codes.ORDER, (
                f"{key}={value} is not carried over: a restart of one engine must not stop another;"
                " order among engines is kept"
            )
        return (codes.SETTING, f"{key}={value} is not carried over") if others else None
    return None


def _leftover(setting: Setting) -> tuple[str, str] | None:
    key, value = setting.key, setting.value
    if key in _COVERED:
        return None
    if not key:
        return codes.SETTING, (
            f"the line that begins with `{value.split()[0][:40]}` is no assignment: systemd ignores"
            " it; does a backslash miss at the end of the one before?"
        )
    shown = value if len(value) <= 60 else value[:59] + "…"
    if key.startswith(("Exec", "StartLimit")):
        code = codes.COMMAND if key.startswith("Exec") else codes.SETTING
        return code, f"{key}={shown} is not carried over"
    return codes.SETTING, f"{key}={shown} is not carried over"
