# SPDX-License-Identifier: Apache-2.0
"""The rendered units: what must be in them, in which section, and what must never be."""

import re

import pytest

from sparkd.core.config import Config, Source, load
from sparkd.core.helper_options import post_mortem_argv
from sparkd.core.marker import is_hand_edited, launch_hash, marker_of, same_content
from sparkd.core.units import (
    HostFacts,
    render,
    start_timeout_seconds,
    units_enabled_when_new,
)

NO_SWAP = HostFacts(has_swap=False)
SWAP = HostFacts(has_swap=True)


def source(name: str, top: str = "", rest: str = "", port: int = 8001) -> Source:
    text = f'{top}model = "org/{name}"\nport = {port}\n[runtime]\nvenv = "/opt/vllm"\n{rest}'
    return Source(f"/tmp/elsewhere/{name}.toml", text, name)


def config(*sources: Source, host: str = "") -> Config:
    return load([Source("sparkd.toml", host), *sources], None)


def service(top: str = "", rest: str = "", host: str = "", facts: HostFacts = NO_SWAP) -> str:
    return render(config(source("m", top, rest), host=host), facts)["vllm-m.service"]


def values(text: str, section: str, key: str) -> list[str]:
    """Return the values of a key, with continuation lines joined as systemd joins them."""
    joined = re.sub(r" *\\\n *", " ", text)
    found, current = [], ""
    for line in joined.splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif current == section and line.startswith(f"{key}="):
            found.append(line.removeprefix(f"{key}="))
    return found


def value(text: str, section: str, key: str) -> str:
    (only,) = values(text, section, key)
    return only


@pytest.mark.parametrize(
    ("section", "key", "expected"),
    [
        ("Unit", "StartLimitIntervalSec", "14400"),
        ("Unit", "StartLimitBurst", "21"),
        ("Service", "Type", "exec"),
        ("Service", "NotifyAccess", "all"),
        ("Service", "Restart", "always"),
        ("Service", "RestartSec", "5"),
        ("Service", "TimeoutStartSec", "2376"),
        ("Service", "TimeoutStopSec", "60"),
        ("Service", "KillMode", "mixed"),
        ("Service", "OOMPolicy", "kill"),
        ("Service", "OOMScoreAdjust", "-100"),
        ("Service", "MemoryMax", "92%"),
        ("Service", "LogRateLimitIntervalSec", "1s"),
        ("Service", "LogRateLimitBurst", "1000000"),
        ("Service", "LimitNOFILE", "1048576"),
        ("Service", "LimitMEMLOCK", "infinity"),
        ("Service", "Slice", "vllm.slice"),
        ("Service", "User", "vllm"),
        ("Service", "CacheDirectory", "vllm/m"),
        ("Service", "WorkingDirectory", "/var/cache/vllm/m"),
        ("Service", "NoNewPrivileges", "yes"),
        ("Install", "WantedBy", "vllm.target"),
        ("X-Sparkd", "Engine", "m"),
    ],
)
def test_settings(section: str, key: str, expected: str) -> None:
    assert value(service(), section, key) == expected


@pytest.mark.parametrize(
    "forbidden",
    [
        "SuccessExitStatus",  # a helper's status would turn a failed gate into "active"
        "RestartPreventExitStatus",
        "PrivateDevices",  # hides /dev/nvidia*
        "MemoryDenyWriteExecute",  # breaks CUDA and every JIT
        "ProtectClock",  # implies a device allow-list
        "DeviceAllow",
        "MemoryHigh",  # no swap
        "Requires=vllm",
        "sh -c",
    ],
)
def test_what_must_not_be_there(forbidden: str) -> None:
    settings = [line for line in service(rest="[serve]\nx = 1\n").splitlines() if line[:1] != "#"]
    assert not [line for line in settings if forbidden in line]


@pytest.mark.parametrize(
    "assignment",
    [
        "PYTHONUNBUFFERED=1",
        "MAX_JOBS=4",
        "NVCC_THREADS=1",
        "FLASHINFER_NVCC_THREADS=1",
        "TORCHINDUCTOR_COMPILE_THREADS=4",
        "CMAKE_BUILD_PARALLEL_LEVEL=4",
        "CUDA_HOME=/usr/local/cuda",
        "HOME=/var/cache/vllm/m",
        "VLLM_CACHE_ROOT=/var/cache/vllm/m/.cache/vllm",
        "FLASHINFER_WORKSPACE_BASE=/var/cache/vllm/m",
        "TRITON_CACHE_DIR=/var/cache/vllm/m/.triton/cache",
        "CUDA_CACHE_PATH=/var/cache/vllm/m/.nv/ComputeCache",
    ],
)
def test_environment(assignment: str) -> None:
    assert assignment in values(service(), "Service", "Environment")


def test_cuda_is_first_on_path() -> None:
    text = service(rest='cuda_home = "/opt/cuda"\npath-extra = ["/opt/x"]\n')
    (path,) = [v for v in values(text, "Service", "Environment") if v.startswith("PATH=")]
    assert path.startswith("PATH=/opt/cuda/bin:/opt/x:/opt/vllm/bin:/usr/local/sbin:")


def test_the_operators_variables_come_last_and_once() -> None:
    text = service(rest='[env]\nTRITON_CACHE_DIR = "/x"\nHF_HOME = "/models/hf"\n')
    assignments = values(text, "Service", "Environment")
    assert [a for a in assignments if a.startswith("TRITON")] == ["TRITON_CACHE_DIR=/x"]
    assert "HF_HOME=/models/hf" in assignments


def test_commands() -> None:
    text = service(
        top='order = 10\nhost = "0.0.0.0"\nuser = "ai"\n',
        rest='[serve]\ngpu-memory-utilization = 0.25\nserved-model-name = ["a", "b c"]\n'
        '[ready]\nbudget = "270s"\nwarmup = "embedding"\nexpect-version = "0.21.0"\n',
    )
    assert value(text, "Service", "ExecStartPre") == (
        "+/usr/libexec/sparkd/await-slot --engine=m --unit=vllm-m.service --order=10"
        " --host=0.0.0.0 --port=8001 --executable=/opt/vllm/bin/vllm --model=org/m --user=ai"
        ' --memory-utilization=0.25 "--reserve=16%%" "--floor=6%%" --max-jobs=4'
        " --job-memory=4294967296 --burst=3 --window=3600"
    )
    assert value(text, "Service", "ExecStart") == (
        "/opt/vllm/bin/vllm serve org/m --host 0.0.0.0 --port 8001"
        ' --gpu-memory-utilization 0.25 --served-model-name a "b c"'
    )
    assert value(text, "Service", "ExecStartPost") == (
        "+/usr/libexec/sparkd/await-ready --engine=m --unit=vllm-m.service --pid=${MAINPID}"
        ' --host=127.0.0.1 --port=8001 --served-name=a "--served-name=b c" --budget=270'
        " --cold-budget=540"
        " --warmup=embedding --expect-version=0.21.0"
    )
    assert value(text, "Service", "ExecStopPost") == (
        "+/usr/libexec/sparkd/post-mortem --engine=m --unit=vllm-m.service --burst=3 --window=3600"
    )


def test_secrets_are_files_and_only_files() -> None:
    text = service(rest='[credentials]\nHF_TOKEN = "/etc/s/hf"\nVLLM_API_KEY = "/etc/s/key"\n')
    assert values(text, "Service", "LoadCredential") == [
        "HF_TOKEN:/etc/s/hf",
        "VLLM_API_KEY:/etc/s/key",
    ]
    assert value(text, "Service", "ExecStart").startswith(
        "/usr/libexec/sparkd/with-credentials --export=HF_TOKEN --export=VLLM_API_KEY --"
        " /opt/vllm/bin/vllm serve org/m "
    )
    assert "--api-key-credential=VLLM_API_KEY" in value(text, "Service", "ExecStartPost")
    assert "--api-key-credential" not in service(rest='[credentials]\nHF_TOKEN = "/etc/s/hf"\n')


@pytest.mark.parametrize("budget", [5, 270, 1080, 1200, 7200, 86400])
def test_systemds_time_limit_is_always_longer_than_the_gates(budget: int) -> None:
    (engine,) = config(source("m", rest=f'[ready]\nbudget = "{budget}s"\n')).engines
    assert start_timeout_seconds(engine) >= 2 * budget + 120


def test_memory_high_needs_swap() -> None:
    host = '[memory]\nhigh = "105G"\nmax = "112G"\n'
    assert values(service(host=host), "Service", "MemoryHigh") == []
    assert value(service(host=host, facts=SWAP), "Service", "MemoryHigh") == str(105 << 30)


def test_an_engines_own_memory_limit() -> None:
    assert value(service(rest='[memory]\nmax = "50G"\n'), "Service", "MemoryMax") == str(50 << 30)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (["50G", "40G"], str(92 << 30)),
        (["30%", "40%"], "72%"),
        (["50%", "40%", "10%"], "infinity"),
        (["92%", "92%"], "infinity"),
        (["50G", "40%"], "infinity"),
        ([], "infinity"),
    ],
)
def test_the_slice_is_a_backstop_above_the_sum(limits: list[str], expected: str) -> None:
    sources = [
        source(f"e{index}", rest=f'[memory]\nmax = "{limit}"\n', port=8001 + index)
        for index, limit in enumerate(limits)
    ]
    text = render(config(*sources), NO_SWAP)["vllm.slice"]
    assert value(text, "Slice", "MemoryMax") == expected


def test_ordering_edges() -> None:
    units = render(
        config(
            source("c", "order = 10\n", port=8003),
            source("a", "order = 20\n", port=8001),
            source("b", "order = 20\n", port=8002),
        ),
        NO_SWAP,
    )
    network = "network-online.target"
    assert values(units["vllm-c.service"], "Unit", "After") == [network]
    assert values(units["vllm-a.service"], "Unit", "After") == [network, "vllm-c.service"]
    assert values(units["vllm-b.service"], "Unit", "After") == [
        network,
        "vllm-c.service vllm-a.service",
    ]


def test_a_custom_cache_is_not_created_by_systemd() -> None:
    text = service(rest='cache = "/data/cache"\n')
    assert values(text, "Service", "CacheDirectory") == []
    assert value(text, "Service", "WorkingDirectory") == "-/data/cache"
    assert "HOME=/data/cache" in values(text, "Service", "Environment")


def test_the_target_does_not_hold_up_the_boot() -> None:
    text = render(config(), NO_SWAP)["vllm.target"]
    assert value(text, "Unit", "DefaultDependencies") == "no"
    assert value(text, "Unit", "Conflicts") == "shutdown.target"
    assert value(text, "Unit", "Before") == "shutdown.target"
    assert value(text, "Install", "WantedBy") == "multi-user.target"


def test_autostart_decides_what_a_first_apply_enables() -> None:
    enabled = units_enabled_when_new(
        config(source("a"), source("b", "autostart = false\n", port=8002))
    )
    assert enabled == {"vllm.target", "vllm-a.service"}


def test_rendering_is_reproducible_and_does_not_depend_on_where_the_file_lay() -> None:
    there = Source("/somewhere/m.toml", str(source("m").data), "m")
    assert render(config(source("m")), NO_SWAP) == render(config(there), NO_SWAP)


def test_every_file_carries_a_marker_that_holds() -> None:
    for name, text in render(config(source("m")), NO_SWAP).items():
        marker = marker_of(text)
        assert marker is not None, name
        assert marker.engine == ("m" if name == "vllm-m.service" else "")
        assert not is_hand_edited(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Restart=always", "Restart=no"),
        ("# A backstop", "# Backstop"),
        ("\n[Install]", "\n\n[Install]"),
        ("Engine=m", "Engine=n"),
        ("Version=", "Version=9"),
    ],
)
def test_an_edit_by_hand_is_seen(old: str, new: str) -> None:
    edited = service().replace(old, new, 1)
    assert edited != service()
    assert is_hand_edited(edited)
    assert marker_of(edited) is not None


@pytest.mark.parametrize(
    "text", ["", "[Service]\nExecStart=/bin/x\n", "[X-Sparkd]\n", "ContentHash=x\n", "[X-Sparkd"]
)
def test_a_foreign_unit_has_no_marker(text: str) -> None:
    assert marker_of(text) is None
    assert not is_hand_edited(text)
    assert launch_hash(text) is None


def test_the_launch_hash_is_in_the_environment_and_in_the_marker() -> None:
    text = service()
    assert f"SPARKD_LAUNCH_HASH={launch_hash(text)}" in values(text, "Service", "Environment")
    assert (launch_hash(text) or "").startswith("sha256:")
    assert "0" * 64 not in text


@pytest.mark.parametrize(
    ("top", "rest", "host"),
    [
        ("order = 7\n", "", ""),
        ("", '[ready]\nbudget = "2h"\n', ""),
        ("", '[memory]\nmax = "50G"\n', ""),
        ("", "", "[restart]\nburst = 5\n"),
        ("autostart = false\n", "", ""),
    ],
)
def test_what_needs_no_new_process_keeps_the_launch_hash(top: str, rest: str, host: str) -> None:
    assert launch_hash(service(top, rest, host)) == launch_hash(service())


@pytest.mark.parametrize(
    ("top", "rest", "host"),
    [
        ('user = "ai"\n', "", ""),
        ("", "[serve]\nmax-model-len = 5\n", ""),
        ("", '[serve]\nchat-template = "a b"\n', ""),
        ("", '[env]\nA = "1"\n', ""),
        ("", '[credentials]\nA = "/etc/a"\n', ""),
        ("", "", "[compile]\nmax_jobs = 5\n"),
    ],
)
def test_what_needs_a_new_process_changes_the_launch_hash(top: str, rest: str, host: str) -> None:
    assert launch_hash(service(top, rest, host)) != launch_hash(service())


def test_a_newer_sparkd_alone_is_no_new_content() -> None:
    text = service()
    newer = re.sub("(?m)^Version=.*$", "Version=99", text)
    assert same_content(text, newer)
    assert not same_content(text, text.replace("Restart=always", "Restart=no"))


def test_post_mortem_gets_the_hosts_restart_policy() -> None:
    parsed = config(source("m"), host='[restart]\nburst = 2\nwindow = "30m"\n')
    argv = post_mortem_argv(parsed.engines[0], parsed.host.restart)
    assert argv[-2:] == ["--burst=2", "--window=1800"]
