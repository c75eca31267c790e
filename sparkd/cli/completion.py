# SPDX-License-Identifier: Apache-2.0
"""Writes the bash completion from the verb table: `python3 -m sparkd.cli.completion`."""

import sys

from sparkd.cli.verbs import VERBS, Verb

_HEAD = """\
# SPDX-License-Identifier: Apache-2.0
# bash completion for sparkctl(1), written by `python3 -m sparkd.cli.completion`. Do not edit.

_sparkctl() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}
    local verb=${COMP_WORDS[1]} options='' positional=''
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W '%s --help --version' -- "$current")
        return
    fi
    case $verb in
"""
_TAIL = """\
        *) return ;;
    esac
    case $previous in
        --engine) positional=engine options='' ;;
%s\
    esac
    if [[ $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options --help" -- "$current")
    elif [[ $positional == engine ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(sparkctl status --names 2>/dev/null)" -- "$current")
    elif [[ $positional == file ]]; then
        compopt -o filenames
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    fi
}
complete -F _sparkctl sparkctl
"""


def bash() -> str:
    """The completion script."""
    verbs = " ".join(verb.name for verb in VERBS)
    values = sorted(
        flag
        for verb in VERBS
        for option in verb.options
        if option.metavar and option.metavar != "ENGINE"
        for flag in option.flags
    )
    free = f"        {'|'.join(dict.fromkeys(values))}) return ;;\n" if values else ""
    return _HEAD % verbs + "".join(_case(verb) for verb in VERBS) + _TAIL % free


def _case(verb: Verb) -> str:
    options = " ".join(flag for option in verb.options for flag in option.flags)
    metavar = verb.argument.metavar if verb.argument else ""
    positional = {"ENGINE": "engine", "": "", "ID": "", "ACTION": ""}.get(metavar, "file")
    return f"        {verb.name}) options='{options}' positional={positional} ;;\n"


if __name__ == "__main__":
    sys.stdout.write(bash())
