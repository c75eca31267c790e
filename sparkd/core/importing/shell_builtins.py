# SPDX-License-Identifier: Apache-2.0
"""What the builtins of a shell change: the directory, the options, the positional parameters.

`source` is not among them: it reads another script, see `shell`.
"""

from collections.abc import Sequence

from sparkd.core.importing import shell_environments
from sparkd.core.importing.model import Word
from sparkd.core.importing.shell_fields import as_written, join
from sparkd.core.importing.shell_state import Invocation, State
from sparkd.core.importing.shell_words import Token

_CHANGING_DIRECTORY = frozenset({"cd", "pushd", "popd"})
_CONDAS = frozenset({"conda", "mamba", "micromamba"})


def follow(argv: Sequence[Word], line: int, state: State) -> bool:
    """Follow a builtin; return whether it was one."""
    name, rest = argv[0].text, argv[1:]
    if name in _CHANGING_DIRECTORY:
        _change_directory(name, rest, line, state)
    elif name in _CONDAS and [word.text for word in rest[:1]] == ["activate"]:
        shell_environments.activate_conda(rest[1:], line, state)
    elif name == "eval":
        _eval(rest, line, state)
    elif name == "set":
        _set(rest, state)
    elif name == "unset":
        _unset(rest, line, state)
    elif name == "shift" and state.positional:
        count = int(rest[0].text) if rest and rest[0].text.isdigit() else 1
        state.positional = state.positional[count:]
    else:
        return False
    return True


def follow_under_condition(
    argv: Sequence[Word], tokens: Sequence[Token], line: int, state: State
) -> bool:
    """Follow what a builtin under a condition may change; return whether it was one."""
    name, place, shown = argv[0].text, state.at(line).line, as_written(tokens)
    if name in _CHANGING_DIRECTORY:
        state.lost = f"`{shown}` at line {place} depends on a condition"
        state.remember_in_function("PWD", state.lost)
    elif name in {"set", "shift"}:
        if name == "shift" or any(word.text == "--" for word in argv):
            state.unknown_positional = f"they are changed under a condition at line {place}"
    elif name == "unset":
        for word in argv[1:]:
            reason = f"{word.text} is unset under a condition at line {place}"
            state.tainted[word.text] = reason
    elif name == "eval" and "conda" not in shown and "mamba" not in shown:
        state.forget_all(line, shown)
        return False
    else:
        return False
    return True


def _change_directory(name: str, words: Sequence[Word], line: int, state: State) -> None:
    places = [word for word in words if word.text not in {"-L", "-P", "-e", "--"}]
    if name == "cd" and not places and state.home:
        places = [Word(state.home, state.at(line))]
    if name == "popd" or not places or places[0].text.startswith(("-", "+")):
        shown = " ".join([name, *(word.text for word in words)])
        state.lost = f"`{shown}` at line {state.at(line).line} goes where only a shell can tell"
        return
    target = places[0]
    if target.problem:
        state.lost = f"`{name}` at line {state.at(line).line}: {target.problem}"
    elif target.text.startswith("/") or not state.lost:
        state.directory, state.lost = join(state.directory, target.text), ""


def _unset(words: Sequence[Word], line: int, state: State) -> None:
    for word in words:
        name, bracket, _ = word.text.partition("[")
        if bracket:
            state.forget(name, line, f"unset {word.text}")
            continue
        state.variables.pop(name, None)
        state.tainted.pop(name, None)
        state.exported.discard(name)


def _set(words: Sequence[Word], state: State) -> None:
    for index, word in enumerate(words):
        text, following = word.text, words[index + 1].text if words[index + 1 :] else ""
        if text == "--" or not text.startswith(("-", "+")):
            is_value = index > 0 and words[index - 1].text.endswith("o")
            if text == "--" or not is_value:
                state.positional = tuple(words[index + (text == "--") :])
                state.unknown_positional = ""
                return
        elif "a" in text[1:] or ("o" in text[1:] and following == "allexport"):
            state.exports_all = text.startswith("-")


def _eval(rest: Sequence[Word], line: int, state: State) -> None:
    raw = " ".join(word.text for word in rest)
    if not shell_environments.hook_conda(raw, state):
        state.forget_all(line, f"eval {raw}")
        state.invocations.append(
            Invocation((Word("eval", state.at(line)), *rest), {}, state.venv, "",
                       False, False, "", False, state.at(line))
        )  # fmt: skip
