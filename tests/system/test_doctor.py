# SPDX-License-Identifier: Apache-2.0
"""The doctor under a real systemd: planted faults are found, a clean box has none of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.system.lab import HOST, Lab

pytestmark = pytest.mark.system

# What a container without a GPU, a clock and a network of its own has anyway.
USUAL = {"DOC101", "DOC105", "DOC107", "DOC109", "DOC307"}


def look(lab: Lab) -> dict[str, Any]:
    done = lab.machine.run(["/usr/bin/sparkctl", "doctor", "--json"], check=False)
    page = json.loads(done.stdout)
    assert done.returncode == len(page["findings"]) < 99
    return dict(page)


def codes(lab: Lab) -> set[tuple[str, str]]:
    return {(one["code"], one["subject"]) for one in look(lab)["findings"]}


def model(lab: Lab, name: str) -> None:
    lab.push(f"/models/{name}/config.json", '{"model_type": "llama"}')
    lab.push(f"/models/{name}/tokenizer.json", "{}")


def test_a_clean_box_has_no_findings_and_says_where_values_come_from(lab: Lab) -> None:
    lab.engine("one", order=1)
    lab.engine("two", order=2)
    for name in ("one", "two"):
        model(lab, name)
    lab.apply()
    page = look(lab)
    assert {one["code"] for one in page["findings"]} <= USUAL, page["findings"]
    assert page["boot_order"] == ["one", "two"]
    two = next(engine for engine in page["engines"] if engine["name"] == "two")
    values = {value["key"]: value for value in two["values"]}
    assert values["order"]["origin"] == "/etc/sparkd/engines.d/two.toml:3"
    assert values["autostart"]["origin"] == "default"
    assert two["after"] == ["vllm-one.service"]
    lab.machine.run("systemctl stop sparkd")
    assert ("DOC110", "sparkd.service") in codes(lab)
    assert "Next boot" in lab.ctl("doctor", check=False).stdout


def test_every_planted_fault_is_found(lab: Lab) -> None:
    for name in ("one", "two", "three", "four"):
        lab.engine(name)
        model(lab, name)
    lab.apply()
    lab.machine.run(
        ["sed", "-i", "s/^Restart=always/Restart=no/", "/etc/systemd/system/vllm-one.service"]
    )
    lab.push("/etc/systemd/system/vllm-two.service.d/10-x.conf", "[Service]\nRestart=no\nNice=3\n")
    lab.push("/etc/systemd/system/vllm-gone.service.d/10-x.conf", "[Service]\nNice=3\n")
    lab.push(
        "/etc/systemd/system/vllm-three.service.d/10-x.conf", "[Unit]\nAfter=retired.service\n"
    )
    port = lab.ports["four"]
    lab.push(
        "/etc/systemd/system/old.service",
        f"[Service]\nExecStart=/opt/vllm/bin/vllm serve /m --port {port}\n",
    )
    lab.push("/etc/cron.d/vllm", f"@reboot root /opt/vllm/bin/vllm serve /m --port {port}\n")
    lab.ctl("hold", "four", "--why", "a test")
    lab.push("/usr/local/bin/sparkctl", "#!/bin/sh\n")
    lab.machine.run("chmod 755 /usr/local/bin/sparkctl; systemctl daemon-reload")
    lab.machine.run("systemctl disable vllm-three.service")
    lab.machine.run("rm -r /models/two")
    found = codes(lab)
    expected = {
        ("DOC108", "sparkctl"), ("DOC305", "two"), ("DOC401", "vllm-one.service"),
        ("DOC403", "vllm-two.service"), ("DOC405", "/etc/systemd/system/vllm-gone.service.d"),
        ("DOC406", "vllm-three.service"), ("DOC410", "four"), ("DOC502", "three"),
        ("DOC503", "four"),
    }  # fmt: skip
    assert expected <= found, expected - found
    others = {code for code, _ in found - expected}
    assert others <= USUAL | {"DOC309"}, found - expected
    text = lab.machine.run(["/usr/bin/sparkctl", "doctor"], check=False).stdout
    assert "unit /etc/systemd/system/old.service starts a server on port" in text
    assert "/etc/cron.d/vllm starts a server on port" in text
    assert "10-x.conf:3: Nice=3; systemd uses '3'" in text


CONTAINERS = Path(__file__).parents[1] / "fixtures/containers/docker"
TENANTS = """\
[tenants.comfyui]
memory = "64M"
unit = "comfyui.service"
[tenants.gone]
memory = "32M"
unit = "gone.service"
"""


def test_tenants_containers_and_what_the_last_boot_did(lab: Lab) -> None:
    # So long that the other engine has the slot before one that has failed is back.
    lab.push("/etc/sparkd/sparkd.toml", HOST.replace('delay = "1s"', 'delay = "10s"') + TENANTS)
    lab.push("/etc/systemd/system/comfyui.service", "[Service]\nExecStart=sleep infinity\n")
    for name, order in (("one", 1), ("two", 2)):
        lab.engine(name, order=order, life={"load_seconds": 3.0})
        model(lab, name)
    port = str(lab.ports["two"])
    for name in ("config.v2.json", "hostconfig.json"):
        text = (CONTAINERS / "vllm-published" / name).read_text().replace("8011", port)
        lab.push(f"/var/lib/docker/containers/x/{name}", text)
    lab.apply()
    lab.machine.run("systemctl daemon-reload; systemctl start comfyui.service")
    page = look(lab)
    claims = {claim["who"]: claim for claim in page["memory_plan"]["claims"]}
    assert list(claims) == [
        "host.reserve", "tenant comfyui", "tenant gone", "engine one", "engine two",
    ]  # fmt: skip
    assert claims["tenant comfyui"]["note"] == "comfyui.service runs, may start at boot"
    assert claims["tenant gone"]["note"] == "gone.service does not exist"
    found = {(one["code"], one["subject"]): one["reason"] for one in page["findings"]}
    assert found["DOC412", "tenant gone"] == "there is no gone.service"
    assert ("DOC412", "tenant comfyui") not in found
    assert found["DOC410", "two"] == (
        "docker container vllm-published (restart: unless-stopped) starts a server on port"
        f" {port} too"
    )

    def booted() -> dict[str, Any]:
        for name in ("one", "two"):
            lab.until(name, "ready")
        # The database has a start a moment after the unit is ready.
        seen: dict[str, Any] = {}

        def are_known() -> bool:
            seen.update(look(lab))
            return len(seen["last_boot"]) == 2

        lab.machine.wait_until(are_known, lambda: f"two starts are known: {seen['last_boot']}")
        return seen

    lab.machine.reboot()
    page = booted()
    assert [start["engine"] for start in page["last_boot"]] == ["one", "two"]
    first, second = page["last_boot"]
    # Each of the three is rounded to a tenth of a second.
    assert first["launched"] + first["seconds"] < second["launched"] + 0.15
    assert "DOC504" not in {one["code"] for one in page["findings"]}

    # The first start of one fails, so two gets the slot before one is ready.
    lab.life("one", load_seconds=3.0, death="core-killed", death_at_load=0.3)
    lab.machine.reboot()
    lab.until_dead("one")
    lab.life("one", load_seconds=3.0)
    page = booted()
    assert [start["engine"] for start in page["last_boot"]] == ["two", "one"]
    found = {one["code"]: one["reason"] for one in page["findings"]}
    assert found["DOC504"] == "planned is one, two; at the last boot it was two, one"
    text = lab.ctl("doctor", check=False).stdout
    assert "Memory plan" in text
    assert "1. two was launched" in text


def test_a_masked_unit_stays_masked_and_is_told(lab: Lab) -> None:
    lab.engine("one")
    model(lab, "one")
    lab.push("/etc/sparkd/engines.d/bad.toml", "prot = 1\n")
    lab.machine.run("systemctl mask vllm-one.service")
    found = codes(lab)
    assert ("DOC404", "vllm-one.service") in found
    assert any(code == "DOC301" for code, _ in found)
    lab.machine.run("rm /etc/sparkd/engines.d/bad.toml")
    lab.ctl("apply", check=False)
    assert lab.machine.show("vllm-one.service", "LoadState") == {"LoadState": "masked"}


def test_a_user_without_rights_is_told_what_is_not_seen(lab: Lab) -> None:
    lab.engine("one")
    lab.apply()
    lab.machine.run("useradd stranger")
    done = lab.machine.run(["sparkctl", "doctor", "--json"], check=False, user="stranger")
    assert any(one["code"] == "DOC001" for one in json.loads(done.stdout)["findings"])
