# SPDX-License-Identifier: Apache-2.0
"""The codes of import notes: stable, documented in docs/import.md, grouped by what they ask for."""

from collections.abc import Mapping
from typing import Final

# 1xx: something in the source is not carried over.
SETTING: Final = "SPI101"
COMMAND: Final = "SPI102"
CONDITIONAL: Final = "SPI103"
REPEATED: Final = "SPI104"
HOST_OWNED: Final = "SPI105"
REDIRECTED: Final = "SPI106"
UNKNOWN_VALUE: Final = "SPI107"
OTHER_SERVICE: Final = "SPI108"
# 2xx: carried over, but it will not be quite the same.
USER_UNIT: Final = "SPI201"
RUNS_AS_ROOT: Final = "SPI202"
USER_UNKNOWN: Final = "SPI203"
VLLM_DEFAULT: Final = "SPI204"
DERIVED: Final = "SPI205"
ORDER: Final = "SPI206"
FALLBACK: Final = "SPI207"
PUBLISHED: Final = "SPI208"
ENTRYPOINT: Final = "SPI209"
CACHE_MOVES: Final = "SPI210"
REWRITTEN: Final = "SPI211"
RENAMED: Final = "SPI212"
# 3xx: secrets.
SECRET: Final = "SPI301"  # noqa: S105 - a code, no secret
# 4xx: the proposal cannot be applied as it stands.
CONTAINER: Final = "SPI401"
MOVING_TAG: Final = "SPI402"
NO_VENV: Final = "SPI403"
REFUSED_BY_LOADER: Final = "SPI404"
CLASH: Final = "SPI405"
SAME_UNIT: Final = "SPI406"
EXISTS: Final = "SPI407"
MEMORY: Final = "SPI408"
# 5xx: faults of the source that importing removes, or that its owner should know.
ON_FAILURE: Final = "SPI501"
START_TIMEOUT: Final = "SPI502"
START_LIMIT_SECTION: Final = "SPI503"
TEE: Final = "SPI504"
NO_SIGKILL: Final = "SPI505"
DYNAMIC_USER: Final = "SPI506"
BREAKS_CUDA: Final = "SPI507"
OOM_SCORE: Final = "SPI508"
NOT_A_TEMPLATE: Final = "SPI509"
ONESHOT: Final = "SPI510"
KEEP_ALIVE: Final = "SPI511"
PULL: Final = "SPI512"
NOT_A_GUARD: Final = "SPI513"
EXITS_0: Final = "SPI514"
HIGH_SHARE: Final = "SPI515"
UNKNOWN_FLAG: Final = "SPI516"
NO_JOURNAL: Final = "SPI517"
SKIPS_CHECK: Final = "SPI518"
NO_EXPANSION: Final = "SPI519"
EMPTY_ARGUMENT: Final = "SPI520"
# 6xx: what is not imported can be counted.
TENANT: Final = "SPI601"

MEANINGS: Final[Mapping[str, str]] = {
    SETTING: "a setting or option of the source is not carried over",
    COMMAND: "a command before, around or after vLLM is not carried over",
    CONDITIONAL: "an argument or assignment depends on a condition and is not carried over",
    REPEATED: "a flag is given more than once; vLLM takes the last one",
    HOST_OWNED: "a variable that sparkd sets itself is not carried over",
    REDIRECTED: "a redirection, pipe or `&` is not carried over: output goes to the journal",
    UNKNOWN_VALUE: "a variable's value cannot be known from the source",
    OTHER_SERVICE: "a service of the source is no vLLM engine and is left alone",
    USER_UNIT: "a user unit becomes a system unit with User=",
    RUNS_AS_ROOT: "the engine ran as root and still will",
    USER_UNKNOWN: "the source does not say who runs the engine; sparkd's default is used",
    VLLM_DEFAULT: "vLLM's own default is written out, because sparkd's differs or needs it",
    DERIVED: "a value was worked out from several lines of the source",
    ORDER: "the order of starting was taken from dependencies or from the order of the sources",
    FALLBACK: "a variable was not set, and the fallback written in the source was taken",
    PUBLISHED: "the container publishes its port under another number or address",
    ENTRYPOINT: "the image's entry point is already `vllm serve` and the command repeats it",
    CACHE_MOVES: "HOME moves to sparkd's cache directory, and the Hugging Face cache with it",
    REWRITTEN: "a flag is written in another way that means the same to vLLM",
    RENAMED: "the engine's name was changed because it was taken or not allowed",
    SECRET: "a secret is not copied; the note says which file to write",
    CONTAINER: "this version of sparkd does not run containers",
    MOVING_TAG: "the image is named by a tag, which can move, and not by a digest",
    NO_VENV: "the source does not say which Python environment vllm is in",
    REFUSED_BY_LOADER: "`sparkctl apply` would refuse the proposal, for the reason given",
    CLASH: "two engines would share a port, a served name or an engine name",
    SAME_UNIT: "today's unit has the very name that sparkd will write",
    EXISTS: "a configuration file of this name exists and is not overwritten",
    MEMORY: "the engines' shares of memory do not fit together",
    ON_FAILURE: "Restart=on-failure misses vLLM's exit with status 0 after its core died",
    START_TIMEOUT: "TimeoutStartSec= does not cover loading the model with Type=simple",
    START_LIMIT_SECTION: "StartLimit*= in [Service] is ignored by systemd",
    TEE: "a pipe into tee hides vLLM's exit status",
    NO_SIGKILL: "SendSIGKILL=no leaves a stuck engine for ever",
    DYNAMIC_USER: "DynamicUser= or User=%u does not name the user that was meant",
    BREAKS_CUDA: "a sandbox setting that CUDA does not work under",
    OOM_SCORE: "a very negative OOMScoreAdjust= protects the engine and endangers the host",
    NOT_A_TEMPLATE: "%i in a unit that is no template is empty",
    ONESHOT: "Type=oneshot with RemainAfterExit= supervises nothing",
    KEEP_ALIVE: "SuccessExitStatus= declares failures to be successes",
    PULL: "the image is pulled at each start: the start needs the network and may change the image",
    NOT_A_GUARD: "a memory limit that does not bound CUDA's unified memory",
    EXITS_0: "the wrapper exits 0 when it believes that vLLM runs already",
    HIGH_SHARE: "gpu-memory-utilization of 0.90 or more on unified memory",
    UNKNOWN_FLAG: "a flag that vLLM 0.32 does not know, or its abbreviation",
    NO_JOURNAL: "output goes only to a file, where no signature is looked for",
    SKIPS_CHECK: "VLLM_SKIP_INIT_MEMORY_CHECK= switches off vLLM's own memory check",
    NO_EXPANSION: "systemd expands no such form of variable; it yields nothing or the text itself",
    EMPTY_ARGUMENT: "an argument is empty",
    TENANT: "sparkd will not run it, and can count its memory as a tenant's",
}  # fmt: skip
