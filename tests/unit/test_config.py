# SPDX-License-Identifier: Apache-2.0
"""The configuration as operators write it, right and wrong."""

from collections.abc import Sequence

import pytest

from sparkd.core.config import Config, ConfigErrors, Source, load
from sparkd.core.config_model import HangMode, HangPolicy, ListenAddress, Tenant, Warmup
from sparkd.core.quantities import MemoryLimit

GIB = 1 << 30
SPARK = int(121.6 * GIB)

HOST = """
[host]
reserve = "20G"
[compile]
max_jobs = 4
nvcc_threads = 1
inductor_threads = 4
[memory]
high = "105G"
max  = "112G"
[restart]
burst = 3
window = "1h"
delay = "5s"
[metrics]
listen = "127.0.0.1:9837"
"""

NEMOTRON = """\
model = "/models/Nemotron-3.5-Lightning-30B-A3B-NVFP4"
port = 8012
order = 10                 # lower starts first
user = "vllm"
[runtime]
venv = "/opt/vllm"
[serve]
quantization = "modelopt"
gpu-memory-utilization = 0.25
max-model-len = 262144
served-model-name = ["nemotron"]
tool-call-parser = "qwen3_xml"
enable-auto-tool-choice = true
[env]
VLLM_USE_FLASHINFER_MOE_FP4 = "1"
[credentials]
HF_TOKEN = "/etc/sparkd/secrets/hf_token"
[ready]
budget = "1080s"
warmup = true
expect-version = "0.27.1"
[hang]
mode = "observe"
"""

MINIMAL = 'model = "org/m"\nport = 8001\n[runtime]\nvenv = "/opt/vllm"\n'


def engine(text: str | bytes, name: str = "m") -> Source:
    return Source(f"/etc/sparkd/engines.d/{name}.toml", text, name)


def host(text: str | bytes) -> Source:
    return Source("/etc/sparkd/sparkd.toml", text)


def accept(*sources: Source, memory_total: int | None = None) -> Config:
    return load(sources, memory_total)


def refuse(*sources: Source, memory_total: int | None = None) -> list[str]:
    with pytest.raises(ConfigErrors) as refused:
        load(sources, memory_total)
    return [str(error) for error in refused.value.errors]


def test_the_documented_example() -> None:
    config = accept(host(HOST), engine(NEMOTRON, "nemotron"), memory_total=SPARK)
    assert config.host.reserve == MemoryLimit(bytes=20 * GIB)
    assert config.host.memory_high == MemoryLimit(bytes=105 * GIB)
    assert config.host.restart.window_seconds == 3600
    (nemotron,) = config.engines
    assert nemotron.unit == "vllm-nemotron.service"
    assert nemotron.executable == "/opt/vllm/bin/vllm"
    assert (nemotron.port, nemotron.order, nemotron.user) == (8012, 10, "vllm")
    assert nemotron.serve[:4] == ("--quantization", "modelopt", "--gpu-memory-utilization", "0.25")
    assert nemotron.served_names == ("nemotron",)
    assert nemotron.env == (("VLLM_USE_FLASHINFER_MOE_FP4", "1"),)
    assert [(c.name, c.path, c.line) for c in nemotron.credentials] == [
        ("HF_TOKEN", "/etc/sparkd/secrets/hf_token", 17)
    ]
    assert nemotron.ready.budget_seconds == 1080
    assert nemotron.ready.expect_version == "0.27.1"
    assert nemotron.hang == HangPolicy(HangMode.OBSERVE, 300, 2700, 600)


def test_defaults() -> None:
    config = accept(engine(MINIMAL))
    assert config.host.reserve == MemoryLimit(percent=16)
    assert config.host.memory_max == MemoryLimit(percent=92)
    assert config.host.memory_high is None
    assert config.host.metrics == ListenAddress("127.0.0.1", 9837)
    assert config.host.restart.delay_seconds == 5
    (m,) = config.engines
    assert (m.host, m.order, m.user, m.group, m.autostart) == ("127.0.0.1", 50, "vllm", None, True)
    assert (m.cache, m.cache_is_default) == ("/var/cache/vllm/m", True)
    assert m.cuda_home == "/usr/local/cuda"
    assert m.served_names == ("org/m",)
    assert m.ready.budget_seconds == 1080
    assert m.ready.warmup is Warmup.AUTO
    assert m.hang.mode is HangMode.OBSERVE


def test_engines_come_in_the_order_of_starting() -> None:
    def at(order: int, port: int) -> str:
        return MINIMAL.replace("port = 8001", f"port = {port}\norder = {order}").replace(
            "org/m", f"org/{port}"
        )

    config = accept(engine(at(50, 8001), "b"), engine(at(50, 8002), "a"), engine(at(10, 8003), "z"))
    assert [e.name for e in config.engines] == ["z", "a", "b"]


def test_crlf_is_fine() -> None:
    assert accept(engine(MINIMAL.replace("\n", "\r\n"))).engines[0].port == 8001


@pytest.mark.parametrize(
    ("addition", "expected"),
    [
        # one row per wrong type of an integer
        ("order = true", "order: true: must be an integer from 0 to 999"),
        ("order = 5.0", "order: 5.0: must be an integer from 0 to 999"),
        ('order = "5"', 'order: "5": must be an integer from 0 to 999'),
        ("order = nan", "order: nan: must be an integer from 0 to 999"),
        ("order = -1", "order: -1: must be an integer from 0 to 999"),
        ("order = 1000", "order: 1000: must be an integer from 0 to 999"),
        ("order = 2020-01-01", "order: 2020-01-01: must be an integer from 0 to 999"),
        ("order = [1]", "order: (a list): must be an integer from 0 to 999"),
        ("order = {a = 1}", "order: (a table): must be an integer from 0 to 999"),
        ("autostart = 1", "autostart: 1: must be true or false"),
        ('autostart = "yes"', 'autostart: "yes": must be true or false'),
        ('host = "localhost"', 'host: "localhost": must be an IP address'),
        ('user = "a b"', 'user: "a b": must be a user name'),
        ('user = "-rf"', 'user: "-rf": must be a user name'),
        ('group = ""', 'group: "": must be a group name'),
        # unknown keys: the nearest known one, or where it belongs
        ("ordre = 5", "ordre: is no known key (did you mean order?)"),
        ("Order = 5", "Order: is no known key (did you mean order?)"),
        ("budget = 5", "budget: is no known key (it belongs in [ready])"),
        ("max_jobs = 5", "max_jobs: is no known key (it belongs in [compile] of sparkd.toml)"),
        ("max-model-len = 5", "max-model-len: is no known key (vLLM's flags go into [serve])"),
        ('"" = 1', '"": is no known key'),
        ("[runtimes]", "runtimes: is no known section (did you mean runtime?)"),
        ("[ready]\nbugdet = 1", "ready.bugdet: is no known key (did you mean budget?)"),
        ("serve = 5", "serve: 5: must be a table: write [serve]"),
        ("ready = 5", "ready: 5: must be a table: write [ready]"),
        ("[[hang]]", "hang: (a list): must be a table: write [hang]"),
        # sizes, durations, choices
        ("[ready]\nbudget = 1080", 'ready.budget: 1080: must be a duration from "5s" to "1d"'),
        ('[ready]\nbudget = "1080"', 'ready.budget: "1080": must be a duration'),
        ('[ready]\nbudget = "1 h"', 'ready.budget: "1 h": must be a duration'),
        ('[ready]\nbudget = "0s"', 'ready.budget: "0s": must be a duration'),
        ('[ready]\nbudget = "2d"', 'ready.budget: "2d": must be a duration'),
        ('[ready]\nwarmup = "auto"', 'ready.warmup: "auto": must be true, false,'),
        ("[ready]\nwarmup = 1", "ready.warmup: 1: must be true, false,"),
        ('[ready]\nexpect-version = "0.1 "', 'ready.expect-version: "0.1 ": must be a version'),
        ('[hang]\nmode = "on"', 'hang.mode: "on": must be "off", "observe" or "act"'),
        ('[memory]\nmax = "12Q"', 'memory.max: "12Q": must be a size'),
        ('[memory]\nmax = "0"', 'memory.max: "0": must be a size'),
        ('[memory]\nmax = "101%"', 'memory.max: "101%": must be a size'),
        ("[memory]\nmax = 92", "memory.max: 92: must be a size"),
        # env
        ("[env]\nA = 1", 'env.A: 1: must be a string: write "1" for 1'),
        ('[env]\n1A = "1"', 'env.1A: "1": must be named with letters'),
        ('[env]\n"A=B" = "1"', 'env."A=B": "1": must be named with letters'),
        ('[env]\nA = "a\\u0000b"', 'env.A: "a\\u0000b": must not contain a NUL'),
        ('[env]\nMAX_JOBS = "20"', 'env.MAX_JOBS: "20": cannot be set in [env]: it is a cap'),
        ('[env]\nPATH = "/x"', 'env.PATH: "/x": cannot be set in [env]: use runtime.path-extra'),
        ('[env]\nSPARKD_X = "1"', 'env.SPARKD_X: "1": cannot be set in [env]'),
        ('[env]\nNOTIFY_SOCKET = "1"', 'env.NOTIFY_SOCKET: "1": cannot be set in [env]'),
        # serve, as the file's error
        ("[serve]\nmax_model_len = 5", "serve.max_model_len: 5: must be vLLM's flag name"),
        ("[serve]\nport = 5", "serve.port: 5: cannot be set in [serve]"),
        ("[serve]\nx = true\nno-x = true", "serve.no-x: contradicts serve.x"),
        (
            "[serve]\ngpu-memory-utilization = 1.5",
            "serve.gpu-memory-utilization: 1.5: must be a number greater than 0 and at most 1",
        ),
    ],
)
def test_one_error(addition: str, expected: str) -> None:
    # Top-level keys must precede the tables, so the addition comes first.
    is_table = addition.startswith("[")
    text = f"{MINIMAL}{addition}\n" if is_table else f"{addition}\n{MINIMAL}"
    errors = refuse(engine(text))
    assert len(errors) == 1, errors
    line = text.splitlines().index(addition.splitlines()[-1]) + 1
    assert errors[0].startswith(f"/etc/sparkd/engines.d/m.toml:{line}: {expected}")


@pytest.mark.parametrize("port", ["true", "8000.0", '"8000"', "nan", "-1", "0", "80", "65536"])
def test_ports(port: str) -> None:
    (error,) = refuse(engine(MINIMAL.replace("8001", port)))
    assert error.startswith("/etc/sparkd/engines.d/m.toml:2: port: ")
    assert error.endswith(": must be an integer from 1024 to 65535")


@pytest.mark.parametrize(
    "model",
    [
        "",
        " ",
        "-x",
        "~/m",
        "./m",
        "../m",
        "a\\nb",
        "a\\u0000b",
        "a\\u0085b",
        "a\\u202eb",
        "a\\u2028",
    ],
)
def test_models(model: str) -> None:
    (error,) = refuse(engine(MINIMAL.replace("org/m", model)))
    assert "m.toml:1: model: " in error
    assert "must be a Hugging Face name or an absolute path" in error


@pytest.mark.parametrize(
    "path",
    ["", "opt/vllm", "/", "/opt/", "/opt//v", "/opt/../v", "/opt/./v", "~/v", "/o v", "/o%n",
     "/o$x", "/o:p", "/o\\\\", "/o\\n", "/é", '/o\\"'],
)  # fmt: skip
def test_paths(path: str) -> None:
    (error,) = refuse(engine(MINIMAL.replace("/opt/vllm", path)))
    assert "m.toml:4: runtime.venv: " in error
    assert "must be an absolute path" in error


@pytest.mark.parametrize(
    "name",
    ["../../etc/x", "a/b", ".", "", "%H", "-rf", "a@b", "a" * 49, "é", "con\u202e", "a ", "A",
     "1a", "a_b", "a\n"],
)  # fmt: skip
def test_engine_names(name: str) -> None:
    (error,) = refuse(Source("/etc/sparkd/engines.d/x.toml", MINIMAL, name))
    assert error.startswith("/etc/sparkd/engines.d/x.toml: file name: ")
    assert "must be 1 to 48 characters of a-z" in error
    assert error.isprintable()


def test_longest_engine_name() -> None:
    assert accept(engine(MINIMAL, "a" + "-9" * 23 + "z")).engines[0].name.endswith("z")


@pytest.mark.parametrize(
    ("data", "line", "rule"),
    [
        (b"\xef\xbb\xbf" + MINIMAL.encode(), ":1", "byte order mark"),
        (b"a = 1\nb = '\xe9'\n", ":2", "must be UTF-8"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, "", "must not nest"),
        (b"a = " + b"{a=" * 3000 + b"1" + b"}" * 3000, "", "must not nest"),
        (b"a = " + b"9" * 5000, "", "thousands of digits"),
        (b"x" * ((1 << 20) + 1), "", "larger than 1 MiB"),
        (b"a = 1\na = 2\n", ":2", "is not valid TOML"),
        (b"a = 1\nb\n", ":2", "is not valid TOML"),
        (b'a = """', ":1", "is not valid TOML"),
        (b"a = 1\n\nb = [1", ":3", "is not valid TOML"),
        (b"\x00", ":1", "is not valid TOML"),
    ],
)
def test_text_that_is_no_toml(data: bytes, line: str, rule: str) -> None:
    (error,) = refuse(engine(data))
    assert error.startswith(f"/etc/sparkd/engines.d/m.toml{line}: ")
    assert rule in error


def test_all_errors_at_once_sorted_by_file_and_line() -> None:
    errors = refuse(
        host("[host]\nreserve = 1\n[compile]\nmax_jobs = 0\n"),
        engine('prt = 1\n[ready]\nbudget = 5\n[runtime]\nvenv = "x"\n', "b"),
        engine("[", "a"),
    )
    places = [error.split(": ")[0].removeprefix("/etc/sparkd/") for error in errors]
    assert places == [
        "engines.d/a.toml:1",
        "engines.d/b.toml:1",
        "engines.d/b.toml:1",
        "engines.d/b.toml:1",
        "engines.d/b.toml:3",
        "engines.d/b.toml:5",
        "sparkd.toml:2",
        "sparkd.toml:4",
    ]


def test_runtime_is_one_of_two() -> None:
    image = "vllm/vllm-openai@sha256:" + "0" * 64
    with_image = MINIMAL.replace('venv = "/opt/vllm"', f'image = "{image}"')
    (error,) = refuse(engine(with_image))
    assert "container runtime is not supported by this version yet" in error
    (error,) = refuse(engine(with_image.replace(image, "vllm/vllm-openai:latest")))
    assert "must name a digest" in error
    (error,) = refuse(engine(MINIMAL + f'image = "{image}"\n'))
    assert "choose one" in error
    (error,) = refuse(engine('model = "a/b"\nport = 8000\n'))
    assert "runtime.venv: is required" in error


def test_required_keys() -> None:
    errors = refuse(engine(""))
    assert [error.split(": ")[1] for error in errors] == ["model", "port", "runtime.venv"]


def two(first: str, second: str) -> Sequence[str]:
    return refuse(engine(first, "a"), engine(second, "b"))


def test_duplicate_port_names_both_places() -> None:
    (error,) = two(MINIMAL, MINIMAL.replace("org/m", "org/n"))
    assert error == (
        "/etc/sparkd/engines.d/b.toml:2: port: 8001: is taken by engine a"
        " (/etc/sparkd/engines.d/a.toml:2)"
    )


def test_duplicate_served_name() -> None:
    other = MINIMAL.replace("8001", "8002").replace("org/m", "org/n")
    (error,) = two(MINIMAL, other + '[serve]\nserved-model-name = ["x", "org/m"]\n')
    assert 'b.toml:6: serve.served-model-name: "org/m": is taken by engine a' in error


def test_the_same_model_twice_needs_two_names() -> None:
    (error,) = two(MINIMAL, MINIMAL.replace("8001", "8002"))
    assert 'serve.served-model-name: "org/m": is taken by engine a' in error


def test_duplicates_are_seen_beside_other_errors() -> None:
    errors = two(MINIMAL, MINIMAL.replace("org/m", "org/n") + "[ready]\nbudget = 1\n")
    assert len(errors) == 2


def test_the_metrics_port_is_taken() -> None:
    (error,) = refuse(engine(MINIMAL.replace("8001", "9837")))
    assert "is sparkd's own port" in error


def share(value: str, name: str, port: int, top: str = "") -> Source:
    flag = f"gpu-memory-utilization = {value}\n" if value else ""
    return engine(
        f'{top}model = "org/{name}"\nport = {port}\n[runtime]\nvenv = "/v"\n[serve]\n{flag}', name
    )


def test_memory_that_fits() -> None:
    accept(share("0.25", "a", 8001), share("0.45", "b", 8002), memory_total=SPARK)


def test_memory_that_does_not_fit_shows_the_arithmetic() -> None:
    sources = share("0.25", "a", 8001), share("0.6", "b", 8002)
    (error,) = refuse(*sources, memory_total=SPARK)
    assert error == (
        "/etc/sparkd/engines.d/b.toml:5: serve.gpu-memory-utilization: over-commits memory:"
        " 0.25 (a) + 0.6 (b) of 121.6 GiB and host.reserve 19.5 GiB are 1.2 GiB too much"
    ).replace(":5:", ":6:")
    accept(*sources, memory_total=None)
    accept(*sources, host('[host]\nreserve = "18G"\n'), memory_total=SPARK)


def test_an_engine_without_the_flag_counts_with_vllms_default() -> None:
    (error,) = refuse(share("", "a", 8001), memory_total=SPARK)
    assert "0.92 (a)" in error
    assert "vLLM's default" in error


def test_engines_started_by_hand_must_fit_alone() -> None:
    by_hand = "autostart = false\n"
    accept(share("0.6", "a", 8001), share("0.6", "b", 8002, by_hand), memory_total=SPARK)
    errors = refuse(share("0.6", "a", 8001), share("0.9", "b", 8002, by_hand), memory_total=SPARK)
    assert len(errors) == 1
    assert "b.toml" in errors[0]


COMFYUI = '[tenants.comfyui]\nmemory = "20G"\nunit = "comfyui.service"\n'


def test_tenants_are_counted_beside_the_engines() -> None:
    fits = share("0.25", "a", 8001), share("0.42", "b", 8002)
    config = accept(*fits, host(COMFYUI), memory_total=SPARK)
    assert config.host.tenants == (Tenant("comfyui", MemoryLimit(20 * GIB), "comfyui.service"),)
    assert config.host.tenants_of(SPARK) == 20 * GIB
    more = host(COMFYUI + '[tenants.ollama]\nmemory = "5%"\n')
    (error,) = refuse(*fits, more, memory_total=SPARK)
    assert error == (
        "/etc/sparkd/engines.d/b.toml:6: serve.gpu-memory-utilization: over-commits memory:"
        " 0.25 (a) + 0.42 (b) of 121.6 GiB, 20.0 GiB (tenant comfyui) + 6.1 GiB (tenant ollama)"
        " and host.reserve 19.5 GiB are 5.4 GiB too much"
    )
    assert accept(*fits, more, memory_total=None).host.tenants[1].unit is None


def test_an_engine_started_by_hand_must_fit_beside_the_tenants_too() -> None:
    alone = share("0.7", "a", 8001, "autostart = false\n")
    accept(alone, memory_total=SPARK)
    (error,) = refuse(alone, host(COMFYUI), memory_total=SPARK)
    assert "tenant comfyui" in error


def test_tenants_that_do_not_fit_by_themselves_are_said_once() -> None:
    text = COMFYUI.replace("20G", "110G")
    (error,) = refuse(share("0.9", "a", 8001), host(text), memory_total=SPARK)
    assert error.startswith("/etc/sparkd/sparkd.toml:2: tenants.comfyui.memory: over-commits")
    assert "110.0 GiB (tenant comfyui) and host.reserve 19.5 GiB are 7.9 GiB more than" in error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[tenants.x]\n", ":1: tenants.x.memory: is required and must be a size"),
        ('[tenants.x]\nmemory = "1.5G"\n', ':2: tenants.x.memory: "1.5G": must be a size'),
        ('[tenants.x]\nmemory = "1G"\nunits = 1\n',
         ":3: tenants.x.units: is no known key (did you mean unit?)"),
        ('[tenants.x]\nmemory = "1G"\nunit = "comfyui"\n', ":3: tenants.x.unit:"),
        ('[tenants.x]\nmemory = "1G"\nunit = "/etc/x.service"\n', ":3: tenants.x.unit:"),
        ('[tenants."A b"]\nmemory = "1G"\n', "the name must be 1 to 48 characters"),
        ('[tenants]\nmemory = "1G"\n', ":2: tenants.memory: must be a table: write [tenants."),
        ('tenants = "20G"\n', ":1: tenants:"),
        ('[tenants.x]\nmemory = "1G"\nunit = "vllm-m.service"\n',
         'tenants.x.unit: "vllm-m.service": is that of engine m'),
        (COMFYUI + COMFYUI.replace(".comfyui]", ".y]"), "is that of tenant comfyui"),
    ],
)  # fmt: skip
def test_tenants_are_read_strictly(text: str, expected: str) -> None:
    (error,) = refuse(engine(MINIMAL, "m"), host(text))
    assert expected in error


@pytest.mark.parametrize("listen", ["0.0.0.0:9837", "192.168.1.5:9837", "[::]:9837"])
def test_metrics_listen_on_loopback_only(listen: str) -> None:
    text = f'[metrics]\nlisten = "{listen}"\n'
    (error,) = refuse(host(text))
    assert "must be a loopback address" in error
    assert str(accept(host(text + "allow-remote = true\n")).host.metrics) == listen


@pytest.mark.parametrize(
    "listen", ["9837", ":9837", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "::1:9837",
               "[127.0.0.1]:9837", "localhost:9837", "[::1:9837", "127.0.0.1:98 37"],
)  # fmt: skip
def test_malformed_listen(listen: str) -> None:
    (error,) = refuse(host(f'[metrics]\nlisten = "{listen}"\n'))
    assert "sparkd.toml:2: metrics.listen" in error


def test_listen_on_ipv6_loopback() -> None:
    assert str(accept(host('[metrics]\nlisten = "[::1]:9837"\n')).host.metrics) == "[::1]:9837"


def test_memory_high_above_max() -> None:
    (error,) = refuse(host('[memory]\nhigh = "113G"\nmax = "112G"\n'))
    assert "sparkd.toml:2: memory.high" in error


def test_delay_shorter_than_window() -> None:
    (error,) = refuse(host('[restart]\nwindow = "10s"\ndelay = "10s"\n'))
    assert "must be shorter than restart.window" in error


SECRET = "hf_CanaryCanaryCanary123"


@pytest.mark.parametrize(
    "text",
    [
        f'[env]\nHF_TOKEN = "{SECRET}"',
        f'[env]\nMY_API_KEY = "{SECRET}"',
        f'[env]\nINNOCENT = "x {SECRET} y"',
        '[env]\nDB_PASSWORD = "Canary"',
        '[env]\nCLIENT_SECRET = "Canary"',
        '[env]\nTOKEN = "Canary"',
        f'[credentials]\nHF_TOKEN = "{SECRET}"',
        '[credentials]\nHF_TOKEN = "Canary"',
        '[credentials]\n"a b" = "Canary"',
        '[serve]\napi-key = "Canary"',
        '[serve]\napi-key = ["Canary"]',
        '[serve]\nhf-token = "Canary"',
        f'[serve]\nx = "{SECRET}"',
        f'[serve]\nx = {{ a = ["{SECRET}"] }}',
        '[serve]\nkv-transfer-config = { password = "Canary" }',
        f'[runtime2]\nx = "{SECRET}"',
        f'[ready]\nhf_token = "{SECRET}"',
        f'[ready]\nbudget = "{SECRET}"',
    ],
)
def test_secrets_are_refused_and_never_shown(text: str) -> None:
    errors = refuse(engine(MINIMAL + text + "\n"))
    assert errors
    assert "Canary" not in "\n".join(errors)


def test_a_secret_at_the_top_level_is_not_shown() -> None:
    (error,) = refuse(engine(f'hf_token = "{SECRET}"\n' + MINIMAL))
    assert "Canary" not in error
    assert "secrets go into [credentials]" in error


def test_a_refused_secret_says_what_to_write() -> None:
    (error,) = refuse(engine(MINIMAL + f'[env]\nHF_TOKEN = "{SECRET}"\n'))
    assert 'write HF_TOKEN = "/path/to/file" in [credentials]' in error


def test_a_simulated_engine_is_told_how_to_live() -> None:
    accept(engine(MINIMAL + '[env]\nSPARKD_SIM_LIFE_FILE = "/etc/x.json"\n'))


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "VLLM_MAX_TOKENS", "HF_TOKEN_PATH"])
def test_names_that_only_resemble_secrets(name: str) -> None:
    accept(engine(MINIMAL + f'[env]\n{name} = "1"\n'))


def test_a_variable_cannot_be_both_plain_and_secret() -> None:
    (error,) = refuse(engine(MINIMAL + '[env]\nA = "1"\n[credentials]\nA = "/etc/a"\n'))
    assert "must not stand in [env] as well" in error


@pytest.mark.parametrize(
    ("flags", "warmup"),
    [
        ("", Warmup.AUTO),
        ('runner = "generate"', Warmup.COMPLETION),
        ('runner = "pooling"', Warmup.AUTO),
        ('runner = "pooling"\nconvert = "embed"', Warmup.EMBEDDING),
        ('task = "embed"', Warmup.EMBEDDING),
        ('task = "score"', Warmup.SCORE),
    ],
)
def test_warmup_follows_the_flags(flags: str, warmup: Warmup) -> None:
    config = accept(engine(MINIMAL + f"[serve]\n{flags}\n[ready]\nwarmup = true\n"))
    assert config.engines[0].ready.warmup is warmup


@pytest.mark.parametrize(
    ("text", "warmup"), [("false", Warmup.NONE), ('"embedding"', Warmup.EMBEDDING)]
)
def test_warmup_as_written(text: str, warmup: Warmup) -> None:
    flags = '[serve]\nrunner = "generate"\n'
    config = accept(engine(MINIMAL + flags + f"[ready]\nwarmup = {text}\n"))
    assert config.engines[0].ready.warmup is warmup


@pytest.mark.parametrize(
    ("configured", "probed"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("::1", "::1"), ("192.168.1.5", "192.168.1.5")],
)
def test_the_probe_uses_an_address_that_answers(configured: str, probed: str) -> None:
    config = accept(engine(f'host = "{configured}"\n' + MINIMAL))
    assert config.engines[0].host == configured
    assert config.engines[0].probe_host == probed


def test_a_half_written_file_that_parses_is_still_strict() -> None:
    """Of all prefixes that are accepted, none may be mistaken for the whole file."""
    accepted = [
        length
        for length in range(len(NEMOTRON))
        if _accepted(engine(NEMOTRON[:length], "nemotron"))
    ]
    # Strictness cannot see a cut after a whole line; reading twice (the adapter) is what does.
    assert all(length > NEMOTRON.index("/opt/vllm") for length in accepted)


def _accepted(source: Source) -> bool:
    try:
        load([source], None)
    except ConfigErrors:
        return False
    return True
