# SPDX-License-Identifier: Apache-2.0
"""What becomes of an engine's environment: [env], [credentials], search path and caches."""

import re
from collections.abc import Mapping

from sparkd.core.config import load
from sparkd.core.engine_environment import OWNED_VARIABLES, engine_environment
from sparkd.core.importing import codes, vllm_args
from sparkd.core.importing.draft import Draft, loaded
from sparkd.core.importing.model import Origin, RefusalError, Word
from sparkd.core.importing.subject import Subject
from sparkd.core.secrecy import contains_secret, is_secret_name
from sparkd.core.text import is_plain_path

_SECRETS = "/etc/sparkd/secrets"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_HF_VARIABLES = frozenset(
    {"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HOME",
     "TRANSFORMERS_CACHE"}
)  # fmt: skip
_SYSTEM_PATH = frozenset(
    {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/snap/bin"}
)


def carry_over(subject: Subject, draft: Draft) -> None:
    """Write the environment into a draft whose top and runtime are written.

    Raises:
        RefusalError: a placeholder in it was never filled in.
    """
    environment = dict(subject.launch.environment)
    cuda = environment.pop("CUDA_HOME", None)
    if cuda is not None and not cuda.problem and cuda.text != "/usr/local/cuda":
        draft.runtime.append(("cuda_home", cuda.text.rstrip("/"), str(cuda.origin)))
    path = environment.pop("PATH", None)
    if path is not None and subject.venv is not None:
        cuda_home = cuda.text.rstrip("/") if cuda else "/usr/local/cuda"
        _search_path(path, subject.venv.text, cuda_home, subject, draft)
    defaults = _defaults(subject, draft)
    for name, word in environment.items():
        if defaults.get(name) == word.text and not word.problem:
            continue
        _variable(name, word, subject, draft)
    _own_credentials(subject, draft)
    for name, origin in subject.table.secrets.items():
        _secret(name, origin, "it stood on the command line", subject, draft)
    if subject.leaves_image:
        _mounted_cache(subject, draft)
    _note_cache(subject, draft)


def _defaults(subject: Subject, draft: Draft) -> Mapping[str, str]:
    """Return what sparkd's unit sets by itself, for a unit that sparkd wrote."""
    if not subject.launch.exact:
        return {}
    bare = Draft(top=draft.top, runtime=draft.runtime)
    engine = loaded(bare.text(""), subject.name).engines
    return engine_environment(engine[0], load([], None).host.compile) if engine else {}


def _search_path(path: Word, venv: str, cuda_home: str, subject: Subject, draft: Draft) -> None:
    if path.problem:
        subject.notebook.add(path.origin, codes.UNKNOWN_VALUE, f"PATH: {path.problem}")
        return
    covered = _SYSTEM_PATH | {f"{venv}/bin", f"{cuda_home}/bin", ""}
    extra: list[str] = []
    for folder in path.text.split(":"):
        bare = folder.rstrip("/")
        if bare in covered or bare in extra:
            continue
        if is_plain_path(bare):
            extra.append(bare)
        else:
            subject.notebook.add(
                path.origin, codes.UNKNOWN_VALUE, f"PATH: {folder} is not carried over"
            )
    if extra:
        draft.runtime.append(("path-extra", extra, str(path.origin)))


def _variable(name: str, word: Word, subject: Subject, draft: Draft) -> None:
    notebook, origin = subject.notebook, word.origin
    if not _VARIABLE.match(name):
        notebook.add(origin, codes.SETTING, "what is set here has no name of a variable")
    elif is_secret_name(name) or contains_secret(word.text):
        why = word.problem or "it stood in the environment"
        _secret(name, origin, why, subject, draft)
    elif name in OWNED_VARIABLES or name.startswith("SPARKD_"):
        reason = OWNED_VARIABLES.get(name, "sparkd's own variables begin with SPARKD_")
        text = f"{name}={word.text} is not carried over: {reason}"
        notebook.add(origin, codes.HOST_OWNED, text)
    elif word.problem:
        text = f"{name} is not carried over: {word.problem}"
        notebook.add(origin, codes.UNKNOWN_VALUE, text)
    elif (found := vllm_args.placeholder(word.text)) and not subject.launch.exact:
        raise RefusalError(origin, f"the placeholder {found} was never filled in")
    else:
        if name == "VLLM_SKIP_INIT_MEMORY_CHECK" and word.text not in {"", "0"}:
            notebook.add(origin, codes.SKIPS_CHECK, "it switches off vLLM's own memory check")
        text = subject.on_host(word.text)
        if text.startswith(("./", "../")):
            text = subject.anchored(name, text, origin)
        draft.env.append((name, text, str(origin)))


def _secret(name: str, origin: Origin, why: str, subject: Subject, draft: Draft) -> None:
    if any(key == name for key, _, _ in draft.credentials):
        return
    path = f"{_SECRETS}/{subject.name}.{name.lower()}"
    draft.credentials.append((name, path, str(origin)))
    subject.notebook.add(
        origin, codes.SECRET,
        f"{name} is a secret and is not copied ({why}): write its value to {path}, owned by"
        " root with mode 0600",
    )  # fmt: skip


def _own_credentials(subject: Subject, draft: Draft) -> None:
    for key, (value, origin) in subject.launch.settings.items():
        if key.startswith("credentials."):
            name = key.removeprefix("credentials.")
            draft.credentials.append((name, value, str(origin)))


def _mounted_cache(subject: Subject, draft: Draft) -> None:
    for mount in subject.launch.mounts:
        is_cache = mount.container.rstrip("/") == "/root/.cache/huggingface"
        is_set = bool(_HF_VARIABLES & subject.launch.environment.keys())
        if is_cache and mount.host.startswith("/") and not is_set:
            draft.env.append(("HF_HOME", mount.host, "the volume of the container"))


def _note_cache(subject: Subject, draft: Draft) -> None:
    launch, model = subject.launch, subject.table.model
    if model is None or model.text.startswith("/") or subject.uses_image or launch.exact:
        return
    names = {key for key, _, _ in draft.env}
    if names & _HF_VARIABLES or "download-dir" in subject.table.flags:
        return
    subject.notebook.add(
        model.origin, codes.CACHE_MOVES,
        f"HOME becomes /var/cache/vllm/{subject.name}: set HF_HOME in [env] to the cache that"
        " holds the weights today, or they are downloaded again",
    )  # fmt: skip
