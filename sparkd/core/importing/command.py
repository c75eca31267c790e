# SPDX-License-Identifier: Apache-2.0
"""From a command line to the vLLM server that it starts, through wrappers, shells and scripts."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from sparkd.core.importing import codes
from sparkd.core.importing.model import (
    Context,
    Launch,
    NotAServerError,
    Notebook,
    Origin,
    RefusalError,
    TenantError,
    Word,
    share,
)
from sparkd.core.importing.shell import Shell
from sparkd.core.importing.shell_state import Invocation, State

_MAX_DEPTH = 6
_OMNI_REASON = "vLLM-Omni is not supported: sparkd runs text engines"
# Flags with a share of the memory, and what that share leaves out.
_SHARES: Mapping[str, str] = {
    "--gpu-memory-utilization": "",
    "--mem-fraction-static": ", weights and KV cache only",
}
_API_SERVER = "vllm.entrypoints.openai.api_server"
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*\Z")
_SHELL_SHEBANG = re.compile(r"#!\s*\S*?(?:/env\s+(?:-\S+\s+)*)?(?:\S*/)?(?:ba|da|z|k)?sh\b")
_OMNI = re.compile(r"vllm[-_.]omni|\Aomni\Z", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)\Z", re.DOTALL)

# Other servers, by what their command lines and images are called.
_OTHER_SERVERS: Mapping[str, str] = {
    "sglang": "SGLang", "llama-server": "llama.cpp", "llama.cpp": "llama.cpp", "ollama": "Ollama",
    "trtllm": "TensorRT-LLM", "tritonserver": "Triton", "tensorrt": "TensorRT-LLM",
    "text-generation": "text-generation-inference", "lmdeploy": "LMDeploy",
    "text-embeddings": "text-embeddings-inference", "aphrodite": "Aphrodite", "mlc_llm": "MLC",
    "infinity_emb": "Infinity", "tabbyapi": "TabbyAPI", "exllama": "ExLlama",
}  # fmt: skip

# What stands in front of engines.
_FRONTS: Mapping[str, str] = {"litellm": "LiteLLM, a proxy", "open-webui": "Open WebUI"}

# Wrappers that change nothing about what is started, and their options that take a value.
_WRAPPERS: Mapping[str, frozenset[str]] = {
    "exec": frozenset({"-a"}),
    "nohup": frozenset(),
    "setsid": frozenset(),
    "time": frozenset(),
    "nice": frozenset({"-n", "--adjustment"}),
    "ionice": frozenset({"-c", "-n", "--class", "--classdata"}),
    "chrt": frozenset(),
    "taskset": frozenset({"-c", "--cpu-list"}),
    "numactl": frozenset({"-N", "-m", "-C", "-i", "-p"}),
    "stdbuf": frozenset({"-i", "-o", "-e"}),
    "unbuffer": frozenset(),
    "timeout": frozenset({"-k", "-s"}),
    "tini": frozenset(),
    "dumb-init": frozenset(),
    "catatonit": frozenset(),
    "systemd-cat": frozenset({"-t", "-p", "--identifier", "--priority"}),
    "systemd-inhibit": frozenset(),
    "flock": frozenset({"-w", "-E"}),
    "prlimit": frozenset(),
    "command": frozenset(),
}
_POSITIONALS = {"timeout": 1, "flock": 1, "chrt": 1}


def follow(words: Sequence[Word], context: Context) -> list[Launch]:
    """Return the vLLM servers that a command line starts.

    Raises:
        NotAServerError: it starts no server.
        RefusalError: it starts another server, or nobody can say what without running it.
    """
    words, context = _unwrap(list(words), context)
    if not words:
        raise NotAServerError(context.origin, "nothing is started")
    program = words[0]
    if program.problem:
        raise RefusalError(program.origin, f"the program cannot be known: {program.problem}")
    base = posixpath.basename(program.text)
    _refuse_others(words)
    if base in _FRONTS:
        raise NotAServerError(program.origin, f"this is {_FRONTS[base]}, not vLLM")
    if base == "vllm":
        return [_vllm(program, words[1:], context)]
    if _PYTHON.match(base):
        return _python(program, words[1:], context)
    if base in _SHELLS:
        return _shell(words, context)
    if base in {"docker", "podman", "nerdctl", "docker-compose", "podman-compose"}:
        # Imported here, because a container's command is followed by this module again.
        from sparkd.core.importing import docker  # noqa: PLC0415

        return docker.launches(words, context)
    return _script(program, words[1:], context)


def _vllm(program: Word, arguments: Sequence[Word], context: Context) -> Launch:
    if any(word.text == "--omni" for word in arguments):
        raise TenantError(program.origin, _OMNI_REASON)
    if not arguments or arguments[0].text != "serve":
        shown = f"vllm {arguments[0].text}" if arguments else "vllm"
        raise NotAServerError(program.origin, f"`{shown}` is no server")
    return _launch(program, arguments[1:], context, _venv_of(program, context))


def _launch(
    program: Word, arguments: Sequence[Word], context: Context, venv: Word | None
) -> Launch:
    return Launch(
        origin=context.origin, names=context.names, program=program, arguments=tuple(arguments),
        environment=context.environment, venv=venv, user=context.user, group=context.group,
        image=context.image, directory=context.directory, published=context.published,
        mounts=context.mounts, written=context.written,
    )  # fmt: skip


def _venv_of(program: Word, context: Context) -> Word | None:
    """Return the environment whose `bin` holds the program; None where nothing says which."""
    if context.image is not None:
        return None
    if "/" in program.text:
        path = posixpath.normpath(posixpath.join(context.directory or "/", program.text))
        if not program.text.startswith("/") and not context.directory:
            return None
        folder, _, name = path.rpartition("/")
        return (
            Word(folder.removesuffix("/bin"), program.origin)
            if folder.endswith("/bin") and name
            else None
        )
    if context.venv is not None:
        return None if context.venv.problem else context.venv
    path_variable = context.environment.get("PATH")
    # systemd looks a bare name up in its own path, a shell in $PATH.
    search = context.search_path or (path_variable.text if path_variable else "")
    for folder in search.split(":"):
        if folder.endswith("/bin") and context.surroundings.is_executable(f"{folder}/vllm"):
            origin = path_variable.origin if path_variable else program.origin
            return Word(folder.removesuffix("/bin"), origin)
    return None


def _python(program: Word, arguments: Sequence[Word], context: Context) -> list[Launch]:
    rest = list(arguments)
    while rest and rest[0].text.startswith("-") and rest[0].text != "-m":
        if rest[0].text in {"-c", "-"}:
            raise TenantError(program.origin, "a Python program of its own starts the server")
        rest = rest[2:] if rest[0].text in {"-W", "-X"} else rest[1:]
    if len(rest) >= 2 and rest[0].text == "-m":
        module, rest = rest[1], rest[2:]
        if _OMNI.search(module.text):
            raise TenantError(module.origin, _OMNI_REASON)
        if module.text == _API_SERVER:
            context.notebook.add(
                module.origin, codes.REWRITTEN, f"`-m {_API_SERVER}` is written as `vllm serve`"
            )
            return [_launch(program, rest, context, _venv_of(program, context))]
        if module.text in {"vllm", "vllm.entrypoints.cli.main", "vllm.scripts"}:
            return [_vllm(program, rest, context)]
        if module.text.startswith("vllm.entrypoints"):
            reason = f"{module.text} is not vLLM's OpenAI server"
            raise TenantError(module.origin, reason)
        raise NotAServerError(module.origin, f"python -m {module.text} is no vLLM server")
    if rest and posixpath.basename(rest[0].text) == "vllm":
        return [_vllm(rest[0], rest[1:], context)]
    what = rest[0].text if rest else "nothing"
    raise TenantError(
        program.origin, f"a Python program ({what}) starts whatever it starts: an opaque wrapper"
    )


def _refuse_others(words: Sequence[Word]) -> None:
    base = posixpath.basename(words[0].text)
    if _OMNI.search(base):
        raise TenantError(words[0].origin, _OMNI_REASON)
    is_python = bool(_PYTHON.match(base))
    candidates = [base]
    if is_python:
        candidates += [word.text for word in words[1:4] if not word.text.startswith("-")]
    for text in candidates:
        for mark, name in _OTHER_SERVERS.items():
            if mark in text.lower():
                raise other_server(words[0].origin, name, words)
    if base in {"ray", "torchrun", "mpirun", "accelerate", "srun"}:
        reason = f"{base} starts several processes or hosts; sparkd runs one vLLM on one GPU"
        raise TenantError(words[0].origin, reason)


def other_server(origin: Origin, name: str, words: Sequence[Word]) -> TenantError:
    """The refusal of another server, with what its command line says of memory."""
    texts = [part for word in words for part in word.text.split("=", 1)]
    for flag, value in pairwise(texts):
        if flag in _SHARES:
            found = share(value, f"{flag} of {origin}{_SHARES[flag]}")
            return TenantError(origin, f"this is {name}, not vLLM", found)
    return TenantError(origin, f"this is {name}, not vLLM")


def _unwrap(words: list[Word], context: Context) -> tuple[list[Word], Context]:
    """Take off `env`, `nice`, `sudo` and the like; what they add goes into the context."""
    while words and not words[0].problem:
        base = posixpath.basename(words[0].text)
        start = words[0]
        match = _ASSIGNMENT.match(start.text)
        if match and "/" not in match[1]:
            environment = {**context.environment, match[1]: start._replace(text=match[2])}
            context = replace(context, environment=environment)
            words = words[1:]
        elif base == "env":
            words, context = _unwrap_env(words[1:], context)
        elif base in {"sudo", "runuser", "su", "doas", "setpriv", "gosu"}:
            words, context = _unwrap_user(base, words, context)
        elif base in {"conda", "mamba", "micromamba"} and [w.text for w in words[1:2]] == ["run"]:
            words, context = _unwrap_conda(words, context)
        elif base in {"uv", "uvx", "poetry", "pipenv", "pixi", "hatch", "pdm"}:
            words, context = _unwrap_manager(base, words, context)
        elif base in _WRAPPERS and len(words) > 1:
            words = _skip_options(words[1:], _WRAPPERS[base])
            words = words[_POSITIONALS.get(base, 0) :]
            if base == "taskset" and words and re.match(r"(?:0x)?[0-9a-fA-F,-]+\Z", words[0].text):
                words = words[1:]
            if base not in {"exec", "nohup", "setsid", "command"}:
                text = f"`{base}` around vLLM is not carried over"
                context.notebook.add(start.origin, codes.COMMAND, text)
        else:
            break
    return words, context


def _skip_options(words: list[Word], with_value: frozenset[str]) -> list[Word]:
    while words and words[0].text.startswith("-"):
        option = words[0].text
        words = words[1:]
        if option == "--":
            break
        if option in with_value and words:
            words = words[1:]
    return words


def _unwrap_env(words: list[Word], context: Context) -> tuple[list[Word], Context]:
    environment = dict(context.environment)
    while words:
        text = words[0].text
        if text in {"-i", "-", "--ignore-environment"}:
            environment, words = {}, words[1:]
        elif text in {"-u", "--unset"} and len(words) > 1:
            environment.pop(words[1].text, None)
            words = words[2:]
        elif text in {"-C", "--chdir"} and len(words) > 1:
            context = replace(context, directory=words[1].text)
            words = words[2:]
        elif text.startswith(("-S", "--split-string")):
            raise RefusalError(words[0].origin, "`env -S` splits a text of its own: write it out")
        elif text.startswith("-"):
            words = words[1:]
        elif match := _ASSIGNMENT.match(text):
            environment[match[1]] = words[0]._replace(text=match[2])
            words = words[1:]
        else:
            break
    return words, replace(context, environment=environment)


def _unwrap_user(base: str, words: list[Word], context: Context) -> tuple[list[Word], Context]:
    origin = words[0].origin
    rest = words[1:]
    user: Word | None = None
    if base == "su":
        raise RefusalError(origin, "`su` hands a text to another user's shell: an opaque wrapper")
    if base == "gosu":
        user, rest = (rest[0], rest[1:]) if rest else (None, rest)
    while rest and rest[0].text.startswith("-"):
        option, equals, value = rest[0].text.partition("=")
        rest_origin, rest = rest[0], rest[1:]
        if option == "--":
            break
        if option in {"-u", "--user", "--reuid"}:
            user = rest_origin._replace(text=value) if equals else (rest[0] if rest else None)
            rest = rest if equals else rest[1:]
        elif option in {"-g", "--group", "--regid", "-p", "-C", "-h"} and not equals:
            rest = rest[1:]
    if base in {"sudo", "doas"} and user is None:
        user = Word("root", origin)
    if user is not None:
        context = replace(context, user=user, home=context.surroundings.home(user.text))
    return rest, context


def _unwrap_conda(words: list[Word], context: Context) -> tuple[list[Word], Context]:
    program, rest = words[0], words[2:]
    venv: Word | None = None
    prefix = program.text.removesuffix("/bin/" + posixpath.basename(program.text))
    while rest and rest[0].text.startswith("-"):
        option, equals, value = rest[0].text.partition("=")
        if option in {"-n", "--name", "-p", "--prefix", "--cwd"}:
            word = rest[0]._replace(text=value) if equals else (rest[1] if rest[1:] else rest[0])
            rest = rest if equals else rest[1:]
            if option in {"-p", "--prefix"}:
                venv = word
            elif option != "--cwd":
                unknown = "" if prefix != program.text else "conda's prefix is not written here"
                venv = word._replace(text=f"{prefix}/envs/{word.text}", problem=unknown)
        rest = rest[1:]
    return rest, replace(context, venv=venv)


def _unwrap_manager(base: str, words: list[Word], context: Context) -> tuple[list[Word], Context]:
    """`uv run`, `poetry run` …: the environment is the manager's business and is not known."""
    origin = words[0].origin
    rest = words[1:]
    if base != "uvx":
        if not rest or rest[0].text != "run":
            raise NotAServerError(origin, f"`{base}` starts no server here")
        rest = rest[1:]
    valued = frozenset({"--with", "--python", "-p", "--project", "--directory", "--extra",
                        "--group", "--env-file", "--index-url", "--from", "-e", "--environment",
                        "--torch-backend", "--extra-index-url"})  # fmt: skip
    given = {word.text for word in rest}
    before, rest = rest, _skip_options(rest, valued)
    options = before[: len(before) - len(rest)]
    context = _note_manager(base, options, context)
    venv = f"{context.directory}/.venv"
    plain = base == "uv" and not given & {"--with", "--project", "--directory", "--isolated"}
    if plain and context.directory and context.surroundings.is_executable(f"{venv}/bin/vllm"):
        text = f"`uv run` uses the project's environment, {venv}; it is not synchronised any more"
        context.notebook.add(origin, codes.DERIVED, text)
        return rest, replace(context, venv=Word(venv, origin))
    text = f"`{base}` chooses the Python environment at each start, which sparkd does not"
    context.notebook.add(origin, codes.COMMAND, text)
    unknown = f"{base} chooses the environment"
    return rest, replace(context, venv=Word("", origin, unknown))


def _note_manager(base: str, options: Sequence[Word], context: Context) -> Context:
    """Note what the options of a manager change beside the environment that it chooses."""
    for index, word in enumerate(options):
        name, equals, value = word.text.partition("=")
        given = word._replace(text=value) if equals else (options[index + 1 :] or [word])[0]
        if name == "--env-file":
            text = f"{given.text}, of `{base} run`, was not read: its variables are unknown here"
            context.notebook.add(given.origin, codes.UNKNOWN_VALUE, text)
        elif name == "--directory":
            place = posixpath.join(context.directory, given.text)
            context = replace(context, directory=place if place.startswith("/") else "")
    return context


def _shell(words: Sequence[Word], context: Context) -> list[Launch]:
    index, has_command = 1, False
    while index < len(words) and words[index].text.startswith(("-", "+")):
        option = words[index].text
        if option in {"-o", "+o", "--rcfile", "--init-file"}:
            index += 1
        elif not option.startswith("--") and "c" in option:
            has_command = True
        index += 1
    if index >= len(words):
        raise RefusalError(words[0].origin, "a shell reads its commands from its input")
    if not has_command:
        return _script(words[index], words[index + 1 :], context, is_shell=True)
    text = words[index]
    if text.problem:
        raise RefusalError(text.origin, f"the shell's command cannot be known: {text.problem}")
    if any("l" in word.text for word in words[1:index] if not word.text.startswith("--")):
        context.notebook.add(
            text.origin, codes.COMMAND, "a login shell also reads profiles, which were not followed"
        )
    positional = tuple(words[index + 2 :])
    return follow_script(text.text, text.origin.source, text.origin.line, positional, context)


def _script(
    program: Word, arguments: Sequence[Word], context: Context, *, is_shell: bool = False
) -> list[Launch]:
    path = program.text
    if "/" not in path and not is_shell:
        raise NotAServerError(program.origin, f"`{path}` is no vLLM server")
    if context.image is not None:
        raise TenantError(
            program.origin,
            f"{path} is a script inside the image, which cannot be read: an opaque wrapper",
        )
    if not path.startswith("/") and context.directory:
        path = posixpath.normpath(posixpath.join(context.directory, path))
    text = context.surroundings.read(path)
    if text is None:
        raise TenantError(program.origin, f"the script {path} cannot be read: an opaque wrapper")
    if not is_shell and text.startswith("#!") and not _SHELL_SHEBANG.match(text):
        raise TenantError(program.origin, f"{path} is no shell script: an opaque wrapper")
    if "\0" in text[:4096]:
        raise TenantError(program.origin, f"{path} is a binary: an opaque wrapper")
    return follow_script(text, path, 1, tuple(arguments), context)


def follow_script(
    text: str, source: str, first_line: int, positional: tuple[Word, ...] | None, context: Context
) -> list[Launch]:
    """Return the one server that a script ends in.

    Raises:
        RefusalError: it starts none, several, or one under a condition.
    """
    if context.depth >= _MAX_DEPTH:
        raise RefusalError(context.origin, "scripts call one another too deeply")
    state = State(
        source=source, notebook=context.notebook, surroundings=context.surroundings,
        variables=dict(context.environment), exported=set(context.environment),
        positional=positional, home=context.home, directory=context.directory,
        first_line=first_line, venv=context.venv,
    )  # fmt: skip
    Shell(state).run(text)
    found: list[tuple[Invocation, list[Launch]]] = []
    refusals: list[RefusalError] = []
    opaque: list[RefusalError] = []
    for invocation in state.invocations:
        inner = replace(
            context, origin=invocation.origin, environment=invocation.environment,
            venv=invocation.venv,
            directory=invocation.directory, depth=context.depth + 1, search_path="",
            written=context.written | state.written,
        )  # fmt: skip
        scratch = Notebook()
        try:
            launches = follow(invocation.argv, replace(inner, notebook=scratch))
        except RefusalError as error:
            if _could_be_server(invocation) and not isinstance(error, NotAServerError):
                refusals.append(error)
            else:
                is_shown = invocation.origin.source == source and (
                    source == context.origin.source or _is_script(text, source)
                )
                _report_command(invocation, context.notebook, is_shown=is_shown)
                opaque += _opaque(invocation, error)
        else:
            for note in scratch.notes:
                context.notebook.add(Origin(note.source, note.line), note.code, note.text)
            found.append((invocation, launches))
    if not found and not refusals and opaque:
        raise opaque[0]
    return _only_one(found, refusals, context, source, first_line)


def _only_one(
    found: Sequence[tuple[Invocation, list[Launch]]], refusals: Sequence[RefusalError],
    context: Context, source: str, first_line: int,
) -> list[Launch]:  # fmt: skip
    certain = [item for item in found if not item[0].is_conditional]
    if not found and refusals:
        raise refusals[0]
    if not found:
        raise NotAServerError(Origin(source, first_line), "it starts no vLLM server")
    if len(found) > 1 or refusals:
        places = sorted({item[0].origin.line for item in found} | {e.origin.line for e in refusals})
        lines = ", ".join(map(str, places))
        raise RefusalError(
            Origin(source), f"it starts several servers (lines {lines}): give each its own source"
        )
    if not certain:
        raise TenantError(
            found[0][0].origin,
            "vLLM is started under a condition, in a loop or in a function: an opaque wrapper",
        )
    invocation, launches = certain[0]
    _report_plumbing(invocation, context.notebook)
    return launches


def _could_be_server(invocation: Invocation) -> bool:
    """Return whether a command that could not be followed may be what starts the server."""
    words = [word.text for word in invocation.argv]
    base = posixpath.basename(words[0]) if words else ""
    if base in {"docker", "podman"}:
        return any(word in {"run", "compose", "exec", "start"} for word in words[1:4])
    marks = ("vllm", "serve", "launch", *_OTHER_SERVERS)
    return any(mark in " ".join(words).lower() for mark in marks)


def _opaque(invocation: Invocation, error: RefusalError) -> list[RefusalError]:
    """Return the refusal for a command that may start vLLM in a way that cannot be followed."""
    if any(word.problem for word in invocation.argv[:2]):
        return [] if isinstance(error, NotAServerError) else [error]
    text = " ".join(word.text for word in invocation.argv)
    if "vllm serve" in text or _API_SERVER in text:
        shown = f"`{_shown(invocation.argv)}` may start vLLM: an opaque wrapper"
        return [TenantError(invocation.origin, shown)]
    return []


def _is_script(text: str, source: str) -> bool:
    return text.startswith("#!") or source.endswith((".sh", ".bash"))


def _report_command(invocation: Invocation, notebook: Notebook, *, is_shown: bool) -> None:
    if not is_shown:
        # What stands in a file that a script merely names is not shown: it may be any file.
        notebook.add(invocation.origin, codes.COMMAND, "a command in it is not carried over")
        return
    words = invocation.argv
    name = posixpath.basename(words[0].text) if words else ""
    if name in {"mkdir", "sleep", "clear", "date", "tput", "[", "[[", "test"}:
        return
    condition = " (under a condition)" if invocation.is_conditional else ""
    text = f"the command `{_shown(words)}`{condition} is not carried over"
    notebook.add(invocation.origin, codes.COMMAND, text)
    texts = [word.text for word in words]
    if name in {"docker", "podman"} and "pull" in texts[1:3]:
        notebook.add(invocation.origin, codes.PULL, "the image is pulled at each start")


def _shown(words: Sequence[Word]) -> str:
    text = " ".join(word.text for word in words)
    return text if len(text) <= 80 else text[:79] + "…"


def _report_plumbing(invocation: Invocation, notebook: Notebook) -> None:
    origin = invocation.origin
    if invocation.piped_into.split(" ")[0] == "tee":
        notebook.add(origin, codes.TEE, "a pipe into tee hides vLLM's exit status")
    elif invocation.piped_into:
        notebook.add(origin, codes.REDIRECTED, f"the pipe into `{invocation.piped_into}`")
    if invocation.redirected:
        notebook.add(
            origin,
            codes.REDIRECTED,
            "redirected output is not carried over: it goes to the journal",
        )
    if invocation.in_background:
        notebook.add(
            origin, codes.REDIRECTED, "`&` is not carried over: systemd supervises the process"
        )
