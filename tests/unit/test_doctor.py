# SPDX-License-Identifier: Apache-2.0
"""Every code of the doctor has a state that it is found in and a near one that it is not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sparkd.adapters import model_files
from sparkd.cli.main import main
from sparkd.core.config import load
from sparkd.core.config_model import Tenant
from sparkd.core.config_reader import Source
from sparkd.core.config_state import UnitFile
from sparkd.core.doctor import driver, engines, host, last_boot, memory, origins, ports, units
from sparkd.core.doctor.model import BY_CODE, CODES, markdown
from sparkd.core.doctor.origins import DropIn
from sparkd.core.quantities import MemoryLimit
from sparkd.core.unit_state import UnitFacts

DOCS = Path(__file__).parents[2] / "docs/doctor.md"
GIB = 1 << 30
HOST = host.Facts(
    memory_total=120 * GIB, memory_available=100 * GIB, floor=7 * GIB, swap_total=0, swap_free=0,
    page_size=4096, kernel="6.11", machine="aarch64", gpus=("NVIDIA GB10",), driver="580.95.05",
    driver_library="580.95.05", has_gpu_device=True, pressure={"some": 0.0, "full": 0.0},
    killers=(), clock_synchronised=True, programs={"sparkctl": ("/usr/bin/sparkctl",)},
    memory_controller=True, daemon="1.0", version="1.0", systemd="255", manager_path="/usr/bin",
    cuda_on_manager_path=False, limits={"nofile": "1024/4096"},
)  # fmt: skip
ENGINE = engines.Facts(
    name="a", user="vllm", user_exists=True, executable="/opt/vllm/bin/vllm",
    executable_usable=True, untrusted=(), model="/models/a", model_is_path=True,
    model_readable=True, missing=(),
    has_config=True, has_tokenizer=True, cache="/var/cache/vllm/a", cache_is_default=True,
    cache_exists=True, cache_writable=True, nvcc="/usr/local/cuda/bin/nvcc", has_gpu=True,
    port=8001, holders=(),
)  # fmt: skip
UNIT = units.Facts(
    name="a", in_config=True, autostart=True, port=8001, file=UnitFile.OURS, file_detail="x",
    matches=True, load_state="loaded", unit_file_state="enabled", need_reload=False, after=(),
    held="", order=50, drop_ins=(), active=True,
)  # fmt: skip
AROUND = units.Host(
    target_enabled=True,
    stale_drop_ins=(),
    missing_units=frozenset(),
    retired_units=frozenset(),
    rivals=(),
    begun="",
)


def drop_in(key: str, value: str) -> DropIn:
    return DropIn("/etc/x.conf", 2, key, value, None, None)


def of_host(**changes: object) -> list[str]:
    return [one.code for one in host.judge(HOST._replace(**changes))]  # type: ignore[arg-type]


def of_engine(**changes: object) -> list[str]:
    return [one.code for one in engines.judge(ENGINE._replace(**changes))]  # type: ignore[arg-type]


def of_unit(around: units.Host = AROUND, **changes: object) -> list[str]:
    return [one.code for one in units.judge([UNIT._replace(**changes)], around)]  # type: ignore[arg-type]


def around(**changes: object) -> units.Host:
    return AROUND._replace(**changes)  # type: ignore[arg-type]


def with_drop_in(key: str, value: str) -> list[str]:
    return of_unit(drop_ins=(drop_in(key, value),))


def of_driver(running: str, ready: str, loaded: str = "580.95.05", library: str = "") -> list[str]:
    facts = driver.Facts("a", running_with=running, ready_with=ready)
    return [one.code for one in driver.judge([facts], loaded, library)]


COMFYUI = Tenant("comfyui", MemoryLimit(20 * GIB), "comfyui.service")


def of_tenant(**seen: str) -> list[str]:
    state = UnitFacts("comfyui.service", **seen)  # type: ignore[arg-type]
    return [one.code for one in memory.judge([COMFYUI], {"comfyui.service": state})]


def of_boot(*order: str, planned: tuple[str, ...] = ("a", "b"), changed: bool = False) -> list[str]:
    starts = [last_boot.Start(name, 20.0 + 60 * at, 55.0) for at, name in enumerate(order)]
    return [one.code for one in last_boot.judge(planned, starts, changed_since=changed)]


RIVAL = units.Rival("unit /etc/old.service", "ExecStart=/x/vllm serve /m --port 8001")
RIVALS = AROUND._replace(rivals=(RIVAL,))
FOUND: dict[str, tuple[Callable[[], list[str]], Callable[[], list[str]]]] = {
    "DOC101": (
        lambda: of_host(memory_available=6 * GIB),
        lambda: of_host(memory_available=7 * GIB),
    ),
    "DOC102": (lambda: of_host(driver=""), lambda: of_host(driver="", has_gpu_device=False)),
    "DOC103": (lambda: of_host(driver_library="590.1"), lambda: of_host(driver_library="")),
    "DOC104": (lambda: of_host(page_size=65536), of_host),
    "DOC105": (lambda: of_host(pressure=None), lambda: of_host(pressure={})),
    "DOC106": (lambda: of_host(killers=("earlyoom",)), of_host),
    "DOC107": (lambda: of_host(clock_synchronised=False), lambda: of_host(clock_synchronised=None)),
    "DOC108": (
        lambda: of_host(programs={"sparkctl": ("/usr/bin/sparkctl", "/usr/local/bin/sparkctl")}),
        of_host,
    ),
    "DOC109": (lambda: of_host(memory_controller=False), lambda: of_host(memory_controller=None)),
    "DOC110": (lambda: of_host(daemon=""), of_host),
    "DOC111": (lambda: of_host(daemon="0.9"), of_host),
    "DOC302": (lambda: of_engine(user_exists=False, executable_usable=None), of_engine),
    "DOC303": (
        lambda: of_engine(executable_usable=False),
        lambda: of_engine(executable_usable=None),
    ),
    "DOC304": (lambda: of_engine(untrusted=("/opt can be written",)), of_engine),
    "DOC305": (lambda: of_engine(model_readable=False), lambda: of_engine(model_readable=None)),
    "DOC306": (lambda: of_engine(missing=("a.safetensors",)), of_engine),
    "DOC307": (
        lambda: of_engine(has_tokenizer=False),
        lambda: of_engine(model_is_path=False, has_config=False),
    ),
    "DOC308": (
        lambda: of_engine(cache_writable=False),
        lambda: of_engine(cache_writable=False, cache_exists=False),
    ),
    "DOC309": (lambda: of_engine(nvcc=""), lambda: of_engine(nvcc="", has_gpu=False)),
    "DOC310": (lambda: of_engine(holders=("python (PID 7)",)), of_engine),
    "DOC311": (
        lambda: of_driver("580.95.05", "580.95.05", library="590.1"),
        lambda: of_driver("580.95.05", "570.1", library="580.95.05"),
    ),
    "DOC401": (lambda: of_unit(file=UnitFile.EDITED), of_unit),
    "DOC402": (
        lambda: of_unit(file=UnitFile.FOREIGN),
        lambda: [c for c in of_unit(file=UnitFile.FOREIGN, load_state="masked") if c != "DOC404"],
    ),
    "DOC403": (lambda: with_drop_in("Restart", "no"), lambda: with_drop_in("Restart", "always")),
    "DOC404": (lambda: of_unit(load_state="masked"), of_unit),
    "DOC405": (lambda: of_unit(around(stale_drop_ins=("/etc/x.service.d",))), of_unit),
    "DOC406": (
        lambda: of_unit(around(missing_units=frozenset({"gone.service"})), after=("gone.service",)),
        lambda: of_unit(after=("there.service",)),
    ),
    "DOC407": (lambda: of_unit(need_reload=True), of_unit),
    "DOC408": (lambda: of_unit(in_config=False), of_unit),
    "DOC409": (lambda: of_unit(matches=False), lambda: of_unit(matches=None)),
    "DOC410": (lambda: of_unit(RIVALS), lambda: of_unit(RIVALS, port=8002)),
    "DOC411": (lambda: of_unit(around(begun="revision 3")), of_unit),
    "DOC412": (lambda: of_tenant(load_state="not-found"), lambda: of_tenant(load_state="masked")),
    "DOC501": (
        lambda: of_unit(around(target_enabled=False)),
        lambda: of_unit(around(target_enabled=None)),
    ),
    "DOC502": (
        lambda: of_unit(unit_file_state="disabled"),
        lambda: of_unit(unit_file_state="disabled", autostart=False),
    ),
    "DOC503": (lambda: of_unit(held="3 deaths"), of_unit),
    "DOC504": (lambda: of_boot("b", "a"), lambda: of_boot("a", "b")),
}
# Found by the command itself, which the tests under a real systemd run.
BY_COMMAND = {"DOC001", "DOC201", "DOC301"}


@pytest.mark.parametrize("code", FOUND)
def test_a_code_is_found_where_it_should_be_and_not_beside_it(code: str) -> None:
    positive, negative = FOUND[code]
    assert positive() == [code]
    assert negative() == []


def test_every_code_has_an_example() -> None:
    assert FOUND.keys() | BY_COMMAND == BY_CODE.keys()
    assert [code.code for code in CODES] == sorted(BY_CODE)


@pytest.mark.parametrize(
    ("key", "value", "takes_away"),
    [
        ("ExecStartPre", "", True),
        ("ExecStartPre", "/bin/true", False),
        ("ExecStopPost", "", True),
        ("Restart", "on-failure", True),
        ("KillMode", "mixed", False),
        ("SuccessExitStatus", "1", True),
        ("SuccessExitStatus", "", False),
        ("Environment", "MAX_JOBS=64", True),
        ("Environment", '"A=1" VLLM_LOGGING_LEVEL=DEBUG', False),
        ("UnsetEnvironment", "NVCC_THREADS", True),
        ("MemoryMax", "10G", False),
        ("Nice", "5", False),
    ],
)
def test_a_drop_in_counts_only_when_it_takes_something_away(
    key: str,
    value: str,
    takes_away: bool,  # noqa: FBT001
) -> None:
    assert (with_drop_in(key, value) == ["DOC403"]) is takes_away


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ExecStart=/opt/vllm/bin/vllm serve /m --port 8012", {8012}),
        ("ExecStart=/opt/vllm/bin/vllm serve /m \\\n  --port=8012", {8012}),
        ("ExecStart=/x/bin/vllm serve /m", {8000}),
        ("@reboot root python3 -m vllm.entrypoints.openai.api_server --port 81", {81}),
        ("# /x/vllm serve /m --port 8012", set()),
        ("ExecStart=/usr/bin/nginx --port 8012", set()),
        ("vllm serve 'unbalanced --port 9", {9}),
        ("Description=vllm proxy", set()),
        ("vllm serve m --port ${PORT}", {8000}),
        ("ExecStart=/usr/bin/docker run --rm -p 8012:8000 vllm/vllm-openai --port 8000", {8012}),
        ("docker run -p127.0.0.1:8012-8013:8000-8001/tcp vllm/vllm-openai", {8012, 8013}),
        ("podman create --publish=8012:8000 --publish 9 vllm/vllm-openai", {8012}),
        ("docker run --network=host vllm/vllm-openai vllm serve m --port 8012", {8012}),
        ("docker run --net host -p 1:1 vllm/vllm-openai vllm serve m", {8000}),
        ("docker pull vllm/vllm-openai", set()),
    ],
)
def test_ports_are_read_from_what_starts_a_server(text: str, expected: set[int]) -> None:
    assert ports.ports_of(text) == expected


def test_the_boot_order_is_after_then_order_and_a_cycle_ends() -> None:
    a = UNIT._replace(name="a", order=1, after=("vllm-b.service",))
    b = UNIT._replace(name="b", order=9)
    c = UNIT._replace(name="c", order=5)
    d = UNIT._replace(name="d", unit_file_state="disabled")
    assert [one.name for one in units.boot_order([a, b, c, d])] == ["c", "b", "a"]
    cycle = b._replace(after=("vllm-a.service",))
    assert sorted(one.name for one in units.boot_order([a, cycle])) == ["a", "b"]


@pytest.mark.parametrize(
    ("running", "ready", "loaded", "library", "said"),
    [
        ("580.1", "580.1", "590.2", "590.2", "driver 580.1; the loaded module is 590.2, libcuda"),
        ("580.1", "580.1", "580.1", "590.2", "driver 580.1; libcuda on disk is 590.2"),
        ("", "580.1", "590.2", "590.2", "ready had driver 580.1, 590.2 is loaded now"),
        ("580.1", "", "580.1", "580.1", ""),
        ("580.1", "", "580.1", "", ""),
        ("", "580.1", "580.1", "590.2", ""),
        ("", "580.1", "", "590.2", ""),
        ("", "", "590.2", "590.2", ""),
    ],
)
def test_a_changed_driver_is_told_only_of_what_is_known(
    running: str, ready: str, loaded: str, library: str, said: str
) -> None:
    found = list(driver.judge([driver.Facts("a", running, ready)], loaded, library))
    assert [one.subject for one in found] == (["a"] if said else [])
    assert all(said in one.reason for one in found)


def test_the_last_boot_is_compared_only_where_it_can_be() -> None:
    assert of_boot("b", "a", changed=True) == []
    assert of_boot("b") == []
    assert of_boot("gone", "a", "b") == []
    by_hand = [last_boot.Start("b", 10.0, 50.0), last_boot.Start("a", 3_000.0, 50.0)]
    assert list(last_boot.judge(["a", "b"], by_hand, changed_since=False)) == []
    assert [start.engine for start in last_boot.of_the_boot(by_hand)] == ["b"]
    assert list(last_boot.lines(by_hand)) == [
        "1. b was launched 10 s after the boot and ready 50 s later"
    ]


def test_the_memory_plan_counts_tenants_and_not_what_runs_in_place_of_others() -> None:
    host_text = '[host]\nreserve = "20G"\n[tenants.comfyui]\nmemory = "20G"\n'
    engine = 'model = "/m{0}"\nport = {0}\n[runtime]\nvenv = "/v"\n[serve]\n{1}'
    share = "gpu-memory-utilization = 0.5\n"
    config = load(
        [
            Source("sparkd.toml", f'{host_text}unit = "comfyui.service"\n'),
            Source("a.toml", engine.format(8001, share), "a"),
            Source("b.toml", "autostart = false\n" + engine.format(8002, share), "b"),
        ],
        120 * GIB,
    )
    runs = UnitFacts("comfyui.service", load_state="loaded", active_state="active",
                     unit_file_state="disabled")  # fmt: skip
    plan = memory.plan(config, 120 * GIB, {"comfyui.service": runs})
    assert plan.left == 20 * GIB
    assert list(memory.lines(plan)) == [
        "host.reserve 20.0 GiB",
        "tenant comfyui 20.0 GiB (comfyui.service runs, does not start at boot)",
        "engine a 60.0 GiB (0.5 of all)",
        "engine b 60.0 GiB (0.5 of all, in place of others)",
        "left of 120.0 GiB: 20.0 GiB",
    ]
    unseen = memory.plan(config, 120 * GIB, {})
    assert "could not be looked at" in unseen.claims[1].note
    assert memory.to_json(None) is None


def test_an_after_to_a_retired_server_is_told_and_one_to_an_engine_is_not() -> None:
    first = UNIT._replace(name="b", unit_file_state="disabled", autostart=False)
    second = UNIT._replace(after=("vllm-b.service", "old.service"))
    retired = AROUND._replace(retired_units=frozenset({"old.service"}))
    found = list(units.judge([first, second], retired))
    assert [one.code for one in found] == ["DOC406"]
    assert "After=old.service" in found[0].reason


def test_every_value_says_where_it_comes_from() -> None:
    text = 'port = 8001\nmodel = "/m"\n[serve]\nmax-model-len = 17\n[ready]\nbudget = "90s"\n'
    found = {value.key: value for value in origins.values(Source("/etc/a.toml", text, "a"))}
    assert found["port"] == ("port", "8001", "/etc/a.toml:1")
    assert found["serve.max-model-len"].origin == "/etc/a.toml:4"
    assert found["ready.budget"] == ("ready.budget", '"90s"', "/etc/a.toml:6")
    assert found["order"].origin == "default"


def test_secrets_are_not_shown() -> None:
    text = (
        '[env]\nHF_TOKEN = "swordfish"\nX = "hf_swordfish0123456789"\n'
        '[alerts]\nwebhook = "https://x/swordfish"\n'
        'more-webhooks = [{ url = "https://x/swordfish" }]\n'
    )
    engine = origins.values(Source("a.toml", text, "a"))
    machine = origins.values(Source("sparkd.toml", text))
    assert "swordfish" not in repr([engine, machine])
    assert {"env.HF_TOKEN", "env.X"} <= {value.key for value in engine}
    assert "alerts.webhook" in {value.key for value in machine}


def tensors(size: int, cut: int = 0) -> bytes:
    header = b'{"w": {"dtype": "F32", "shape": [%d], "data_offsets": [0, %d]}}' % (size // 4, size)
    data = len(header).to_bytes(8, "little") + header + bytes(size)
    return data[: len(data) - cut]


def test_a_model_with_a_missing_or_torn_file_is_not_complete(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "a.safetensors").write_bytes(tensors(64))
    (tmp_path / "b.safetensors").write_bytes(tensors(64, cut=1))
    index = '{"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "c.safetensors"}}'
    (tmp_path / "model.safetensors.index.json").write_text(index)
    seen = model_files.look(tmp_path)
    assert seen is not None
    assert seen.missing == ("b.safetensors", "c.safetensors")
    (tmp_path / "b.safetensors").write_bytes(tensors(64))
    (tmp_path / "c.safetensors").write_bytes(tensors(4))
    seen = model_files.look(tmp_path)
    assert seen is not None
    assert seen.missing == ()
    assert seen.weights == sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    assert seen.has_tokenizer


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00" * 7, b"\xff" * 64, (9).to_bytes(8, "little") + b"not json!", b"version"],
)
def test_what_is_no_safetensors_file_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    seen = model_files.look(tmp_path)
    assert seen is not None
    assert seen.missing == ("a.safetensors",)


def test_the_page_of_codes_is_what_the_table_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--document"]) == 0
    assert capsys.readouterr().out == markdown()
    begin = "<!-- codes: generated by `sparkctl doctor --document`; do not edit -->\n"
    generated = DOCS.read_text().partition(begin)[2].partition("<!-- end of codes -->")[0]
    assert generated == markdown(), "write it again: sparkctl doctor --document"
