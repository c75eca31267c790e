# SPDX-License-Identifier: Apache-2.0
"""Containers that start again by themselves, read from their engines' files.

The fixtures of Docker are written by hand after its documented files: no Docker engine was there.
Those of Podman are rows of a db.sql of Podman 5.4.2, without what nobody reads.
"""

import contextlib
import json
import sqlite3
import time
from pathlib import Path

import pytest

from sparkd.adapters import container_files, doctor_units
from sparkd.core.doctor import ports
from sparkd.core.doctor.containers import Container, rival, unit_rival

FIXTURES = Path(__file__).parents[1] / "fixtures/containers"
ROW = Container(
    engine="docker", name="x", policy="always", runs=True, stopped_by_hand=False,
    command=("vllm", "serve", "/m", "--port", "8012"), host_network=False, published=(8011,),
)  # fmt: skip


def docker_root(tmp_path: Path) -> Path:
    (tmp_path / "containers").symlink_to(FIXTURES / "docker")
    return tmp_path


def podman_root(tmp_path: Path) -> Path:
    database = sqlite3.connect(tmp_path / "db.sql")
    database.execute("CREATE TABLE ContainerConfig (ID TEXT, Name TEXT, PodID TEXT, JSON TEXT)")
    database.execute("CREATE TABLE ContainerState (ID TEXT, State INT, ExitCode INT, JSON TEXT)")
    for file in sorted((FIXTURES / "podman").glob("*.json")):
        row = json.loads(file.read_text())
        # Podman writes the JSON as bytes.
        config, state = (json.dumps(row[part]).encode() for part in ("config", "state"))
        number = row["config"]["id"]
        database.execute("INSERT INTO ContainerConfig VALUES (?, ?, NULL, ?)",
                         (number, row["config"]["name"], config))  # fmt: skip
        database.execute("INSERT INTO ContainerState VALUES (?, 1, NULL, ?)", (number, state))
    database.commit()
    database.close()
    return tmp_path


def test_dockers_files_say_who_starts_again_and_on_which_ports(tmp_path: Path) -> None:
    found = {one.name: one for one in container_files.docker(docker_root(tmp_path), "docker")}
    assert sorted(found) == ["once", "stopped", "vllm-host", "vllm-published"]
    assert found["vllm-published"] == Container(
        "docker", "vllm-published", "unless-stopped", runs=True, stopped_by_hand=False,
        command=("vllm/vllm-openai:v0.27.1", "vllm", "serve", "--model", "/m", "--port", "8000"),
        host_network=False, published=(8011,),
    )  # fmt: skip
    rivals = {name: rival(one) for name, one in found.items()}
    assert rivals["once"] is None, "nobody starts it again"
    assert rivals["stopped"] is None, "unless-stopped, and somebody stopped it"
    published, host = rivals["vllm-published"], rivals["vllm-host"]
    assert published is not None
    assert host is not None
    assert published.who == "docker container vllm-published (restart: unless-stopped)"
    # Its --port is one of its own network.
    assert (set(published.ports), ports.ports_of(published.text)) == ({8011}, set())
    assert ports.ports_of(host.text) == {8012}


def test_podmans_database_says_the_same(tmp_path: Path) -> None:
    podman_root(tmp_path)
    found = {one.name: one for one in container_files.podman(tmp_path, "podman")}
    assert [file.name for file in tmp_path.iterdir()] == ["db.sql"], "nothing is left behind"
    assert sorted(found) == ["hosted", "plain", "vllm-old"]
    assert found["vllm-old"].published == (8011, 9000, 9001, 9002)
    assert not found["vllm-old"].host_network
    assert (found["hosted"].host_network, found["hosted"].policy) == (True, "unless-stopped")
    assert found["plain"].policy == ""
    hosted = rival(found["hosted"])
    assert hosted is not None
    assert ports.ports_of(hosted.text) == {8012}
    assert rival(found["plain"]) is None


@pytest.mark.parametrize(
    ("changes", "starts"),
    [
        ({}, True),
        ({"policy": "no"}, False),
        ({"policy": ""}, False),
        ({"policy": "always", "runs": False, "stopped_by_hand": True}, True),
        ({"policy": "unless-stopped", "runs": False, "stopped_by_hand": True}, False),
        ({"policy": "unless-stopped", "runs": False}, True),
        ({"policy": "on-failure", "runs": False, "stopped_by_hand": True}, False),
        ({"policy": "unless-stopped", "stopped_by_hand": True}, True),
    ],
)
def test_who_is_started_again(changes: dict[str, object], starts: bool) -> None:  # noqa: FBT001
    one = ROW._replace(**changes)  # type: ignore[arg-type]
    assert (rival(one) is not None) is starts


def test_what_is_no_store_of_containers_is_left_out(tmp_path: Path) -> None:
    assert list(container_files.docker(tmp_path, "docker")) == []
    broken = tmp_path / "containers/x"
    broken.mkdir(parents=True)
    (broken / "config.v2.json").write_text('{"Name": ["/x"], "Config": 3, "Args": [1, "a"]}')
    assert list(container_files.docker(tmp_path, "docker")) == []
    (broken / "hostconfig.json").write_text('{"PortBindings": {"1/tcp": [3, {"HostPort": 5}]}}')
    (one,) = container_files.docker(tmp_path, "docker")
    assert (one.policy, one.command, one.published) == ("", ("a",), (5,))
    assert list(container_files.podman(tmp_path, "podman")) == []
    (tmp_path / "db.sql").write_text("this is no database" * 100)
    assert list(container_files.podman(tmp_path, "podman")) == []


def test_a_view_without_an_end_is_given_up(tmp_path: Path) -> None:
    """A user's database is read by root, and its tables may be what the user likes."""
    database = sqlite3.connect(tmp_path / "db.sql")
    database.execute(
        "CREATE VIEW ContainerConfig AS WITH RECURSIVE n(ID, JSON) AS"
        " (SELECT 1, '{}' UNION ALL SELECT ID + 1, JSON FROM n) SELECT * FROM n WHERE ID < 0"
    )
    database.execute("CREATE TABLE ContainerState (ID TEXT, JSON TEXT)")
    database.commit()
    database.close()
    begun = time.monotonic()
    assert list(container_files.podman(tmp_path, "podman")) == []
    assert time.monotonic() - begun < 60, "it came back at all"


def test_what_a_user_wrote_there_costs_root_neither_memory_nor_an_error(tmp_path: Path) -> None:
    bindings = {"PortBindings": {"1/tcp": [{"HostPort": "9" * 5000}, {"HostPort": "8011"}]}}
    folder = tmp_path / "containers/x"
    folder.mkdir(parents=True)
    (folder / "config.v2.json").write_text('{"Name": "/x"}')
    (folder / "hostconfig.json").write_text(json.dumps(bindings))
    (one,) = container_files.docker(tmp_path, "docker")
    assert one.published == (8011,), "Python takes no number of so many digits"

    every = {"host_port": 60000, "range": 65535}
    config = {"name": "many", "newPortMappings": [every, {"host_port": -1}, *[every] * 50]}
    with contextlib.closing(sqlite3.connect(tmp_path / "db.sql")) as database:
        database.execute("CREATE TABLE ContainerConfig (ID TEXT, JSON TEXT)")
        database.execute("CREATE TABLE ContainerState (ID TEXT, JSON TEXT)")
        database.execute("INSERT INTO ContainerConfig VALUES ('1', ?)", (json.dumps(config),))
        database.commit()
        (one,) = container_files.podman(tmp_path, "podman")
        assert one.published == tuple(range(60000, 65536))

        database.execute("DROP TABLE ContainerConfig")
        database.execute("CREATE VIEW ContainerConfig AS SELECT '1' AS ID, zeroblob(9e6) AS JSON")
        database.commit()
    assert list(container_files.podman(tmp_path, "podman")) == [], "it could be gigabytes"


def test_an_older_podman_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [
        {
            "Name": "old", "State": {"Running": True}, "Path": "vllm", "Args": ["serve", "/m"],
            "Config": {"Image": "vllm/vllm-openai"},
            "HostConfig": {
                "RestartPolicy": {"Name": "always"}, "NetworkMode": "bridge",
                "PortBindings": {"8000/tcp": [{"HostIp": "", "HostPort": "8014"}]},
            },
        }
    ]  # fmt: skip
    program = tmp_path / "podman"
    program.write_text(f"#!/bin/sh\n[ $1 = ps ] && echo 1f || echo '{json.dumps(answer)}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (one,) = container_files.asked_podman()
    assert (one.engine, one.name, one.policy, one.published) == ("podman", "old", "always", (8014,))
    program.write_text("#!/bin/sh\nexit 125\n")
    assert list(container_files.asked_podman()) == []


def test_a_unit_that_podman_wrote_starts_a_container_by_its_name() -> None:
    text = (
        "[Service]\nExecStartPre=/usr/bin/podman stop x\n"
        "ExecStart=/usr/bin/podman start vllm-old\nExecStop=/usr/bin/podman stop -t 10 vllm-old\n"
    )
    assert list(ports.containers_started(text)) == ["vllm-old"]
    assert list(ports.containers_started("ExecStart=/usr/bin/docker start -a llm\n")) == ["llm"]
    assert list(ports.containers_started("ExecStart=/usr/bin/nginx start x\n")) == []


def test_of_two_containers_of_one_name_none_hides_the_other() -> None:
    text = "[Service]\nExecStart=/usr/bin/podman start llm\n"
    roots = Container("podman", "llm", "no", False, False, (), False, (8000,))
    users = Container("ann's podman", "llm", "no", False, False, (), False, (8001,))
    other = Container("docker", "web", "no", False, False, (), False, (80,))
    for known in ([roots, users, other], [users, other, roots]):
        found = unit_rival("unit u", text, known, is_quadlet=False)
        assert found is not None
        assert found.ports == (8000, 8001)
    assert unit_rival("unit u", text, [other], is_quadlet=False) is None


def test_the_doctor_reads_stores_on_this_host_without_an_error() -> None:
    assert all(one.who for one in doctor_units.rivals())
