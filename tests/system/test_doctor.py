# SPDX-License-Identifier: Apache-2.0
"""The doctor under a real systemd: planted faults are found, a clean box has none of them."""

import json
from typing import Any

import pytest

from tests.system.lab import Lab

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
