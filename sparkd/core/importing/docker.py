# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SIM905 - a table of words reads best as text
"""`docker run`, `podman run` and `docker compose run|up` lines."""

import posixpath
from collections.abc import Mapping, Sequence

from sparkd.core.importing import container, dot_env, ports
from sparkd.core.importing.container import Container
from sparkd.core.importing.model import (
    Context,
    Launch,
    Mount,
    NotAServerError,
    RefusalError,
    TenantError,
    Word,
)

# Options of `run` without a value; every other one takes one.
_SWITCHES = frozenset(
    "-d --detach -i --interactive -t --tty --rm --init --privileged --read-only -P --publish-all"
    " --no-healthcheck --oom-kill-disable --sig-proxy -q --quiet --replace --tls-verify --help"
    " --disable-content-trust --rmi --no-hosts --env-host --http-proxy --no-hostname".split()
)
_SHORT_SWITCHES = frozenset("ditPq")
_SHORT_VALUED = frozenset("aceghlmpuvw")
# Global options of docker and podman that take a value.
_GLOBAL_VALUED = frozenset(
    "-H --host -c --context --config -l --log-level --connection --root --url".split()
)
SILENT = frozenset(
    "-d --detach -i --interactive -t --tty --rm --init --name --gpus --runtime --entrypoint -e"
    " --env --env-file -p --publish --replace -q --quiet -w --workdir --device --ipc --network"
    " --net --sig-proxy --label -l --pid --cidfile --sdnotify --cgroups --log-driver".split()
)


def launches(words: Sequence[Word], context: Context) -> list[Launch]:
    """Return the server that a container command line starts.

    Raises:
        NotAServerError: it is another command, such as `docker stop`.
        RefusalError: it starts something that is written elsewhere.
    """
    program = posixpath.basename(words[0].text)
    rest = list(words[1:])
    if program in {"docker-compose", "podman-compose"}:
        return _compose(rest, context)
    while rest and rest[0].text.startswith("-"):
        option = rest[0].text
        rest = rest[2:] if option in _GLOBAL_VALUED else rest[1:]
    if rest and rest[0].text == "container":
        rest = rest[1:]
    verb = rest[0].text if rest else ""
    if verb == "compose":
        return _compose(rest[1:], context)
    if verb == "exec":
        raise TenantError(
            words[0].origin,
            f"`{program} exec` starts vLLM inside a container that lives on without it: nothing"
            " would see it die",
        )
    if verb == "start":
        name = rest[-1].text
        raise TenantError(
            words[0].origin,
            f"`{program} start {name}` starts a container that was made elsewhere: import its"
            f" `{program} run` line",
        )
    if verb not in {"run", "create"}:
        raise NotAServerError(words[0].origin, f"`{program} {verb}` starts no server")
    return _run(rest[1:], context)


def _run(words: list[Word], context: Context) -> list[Launch]:
    described = Container(context.origin)
    options, rest = read_options(words)
    apply_options(described, options, context)
    if not rest:
        raise RefusalError(context.origin, "no image is named")
    described.image, described.command = rest[0], rest[1:]
    container.note_options(options, context, SILENT)
    return container.launches(described, context)


def read_options(words: Sequence[Word]) -> tuple[list[tuple[str, Word]], list[Word]]:
    """Return the options with their values and what follows: the image and its command."""
    options: list[tuple[str, Word]] = []
    index = 0
    while index < len(words) and words[index].text.startswith("-"):
        word = words[index]
        text = word.text
        index += 1
        if text == "--":
            break
        if text.startswith("--"):
            name, equals, value = text.partition("=")
            if equals:
                options.append((name, word._replace(text=value)))
            elif name in _SWITCHES:
                options.append((name, word._replace(text="")))
            else:
                value_word = words[index] if index < len(words) else word
                options.append((name, value_word))
                index += 1
            continue
        for position, letter in enumerate(text[1:], start=1):
            attached = text[position + 1 :].removeprefix("=")
            if letter in _SHORT_SWITCHES:
                options.append((f"-{letter}", word._replace(text="")))
            elif letter in _SHORT_VALUED and attached:
                options.append((f"-{letter}", word._replace(text=attached)))
                break
            else:
                value_word = words[index] if index < len(words) else word
                options.append((f"-{letter}", value_word))
                index += 1
                break
    return options, list(words[index:])


def apply_options(
    described: Container, options: Sequence[tuple[str, Word]], context: Context
) -> None:
    """Take up the options that say what runs, with which variables, ports and mounts."""
    described.environment |= _environment(options, context)
    for name, word in options:
        if name in {"-p", "--publish"}:
            described.published += ports.published(word)
        elif name in {"--network", "--net"}:
            container.use_network(described, word, context)
        elif name in {"-v", "--volume", "--mount"}:
            if bind := _bind(name, word.text):
                described.mounts.append(bind)
        elif name == "--name":
            described.names.append(word.text)
        elif name == "--gpus" or (name == "--device" and "nvidia.com/gpu" in word.text):
            described.gpus.append(word)
        elif name == "--entrypoint":
            described.entrypoint = [word] if word.text else []
        elif name in {"-w", "--workdir"}:
            described.directory = word.text


def _environment(options: Sequence[tuple[str, Word]], context: Context) -> dict[str, Word]:
    environment: dict[str, Word] = {}
    for wanted in ({"--env-file"}, {"-e", "--env"}):  # -e wins, wherever it stands
        for name, word in options:
            if name in wanted:
                environment |= _variables(name, word, context)
    return environment


def _variables(name: str, word: Word, context: Context) -> dict[str, Word]:
    if name == "--env-file":
        return dot_env.docker_env_file(word, context)
    key, equals, value = word.text.partition("=")
    if equals:
        return {key: word._replace(text=value)}
    return {key: _from_caller(key, word, context.environment)}


def _bind(name: str, text: str) -> Mount | None:
    if name != "--mount":
        return container.mount(text)
    parts = container.volume_dictionary(text)
    source = parts.get("source") or parts.get("src", "")
    target = parts.get("target") or parts.get("destination") or parts.get("dst", "")
    return container.mount(f"{source}:{target}")


def _from_caller(key: str, word: Word, environment: Mapping[str, Word]) -> Word:
    """Return the value of `-e NAME`, which is taken from whoever runs the line."""
    if key in environment:
        return environment[key]
    return word._replace(text="", problem=f"{key} is taken from the caller's environment")


def _compose(words: list[Word], context: Context) -> list[Launch]:
    from sparkd.core.importing import compose  # noqa: PLC0415 - compose reads commands too

    files: list[Word] = []
    env_files: list[Word] = []
    directory = context.directory
    while words and words[0].text.startswith("-"):
        option, equals, value = words[0].text.partition("=")
        valued = option in {"-f", "--file", "-p", "--project-name", "--env-file", "--profile",
                            "--project-directory", "--ansi", "--progress"}  # fmt: skip
        word = words[0]._replace(text=value) if equals else (words[1] if words[1:] else words[0])
        if option in {"-f", "--file"}:
            files.append(word)
        elif option == "--env-file":
            env_files.append(word)
        elif option == "--project-directory":
            directory = word.text
        words = words[2:] if valued and not equals else words[1:]
    verb = words[0].text if words else ""
    if verb not in {"up", "run", "create"}:
        raise NotAServerError(context.origin, f"`compose {verb}` starts no server")
    if len(files) > 1:
        reason = "several compose files are merged: give the output of `docker compose config`"
        raise RefusalError(context.origin, reason)
    path, text = _compose_file(files[0].text if files else "", directory, context)
    run: compose.Run | None = None
    if verb == "run":
        options, rest = read_options(words[1:])
        if not rest:
            raise RefusalError(context.origin, "`compose run` names no service")
        wanted, run = {rest[0].text}, compose.Run(options, rest[1:])
    else:
        wanted = {word.text for word in words[1:] if not word.text.startswith("-")}
    findings = compose.read(
        text, path, context, wanted=wanted or None, run=run,
        env_files=[word.text for word in env_files], is_alone=bool(files),
    )  # fmt: skip
    if not findings.launches and findings.tenants:
        first = findings.tenants[0]
        raise TenantError(context.origin, f"{path}: {first.reason}", first.share)
    if not findings.launches:
        reason = findings.refused[0].reason if findings.refused else "no service of it is vLLM"
        raise RefusalError(context.origin, f"{path}: {reason}")
    return findings.launches


def _compose_file(given: str, directory: str, context: Context) -> tuple[str, str]:
    names = [given] if given else ["compose.yaml", "compose.yml", "docker-compose.yaml",
                                   "docker-compose.yml"]  # fmt: skip
    for name in names:
        path = name if name.startswith("/") else posixpath.join(directory, name)
        text = context.surroundings.read(posixpath.normpath(path))
        if text is not None:
            return posixpath.normpath(path), text
    where = names[0] if given else f"a compose file in {directory or 'an unknown directory'}"
    raise RefusalError(context.origin, f"{where} cannot be read")
