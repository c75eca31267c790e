# SPDX-License-Identifier: Apache-2.0
"""Facts for the tests of status, metrics, database and daemon, each complete and harmless."""

from typing import Any

from sparkd.core.burst import Ledger, Moment, Policy
from sparkd.core.config_state import ConfigFacts, UnitFile
from sparkd.core.end_of_life import Record
from sparkd.core.status import EngineFacts, Facts, HostFacts
from sparkd.core.unit_state import UnitFacts

NOW = Moment("boot", 1000.0, 1_800_000_000.0)
HASH = "sha256:" + "a" * 64
CURRENT = ConfigFacts(in_config=True, file=UnitFile.OURS, matches=True, hash_on_disk=HASH)


def unit(name: str = "a", **changes: Any) -> UnitFacts:
    facts = UnitFacts(
        unit=f"vllm-{name}.service",
        load_state="loaded",
        active_state="active",
        sub_state="running",
        result="success",
        main_pid=4242,
        invocation_id="1" * 32,
        unit_file_state="enabled",
        state_change=NOW.wall - 60,
        inactive_exit=NOW.wall - 90,
    )
    return facts._replace(**changes)


def record(engine: str = "a", invocation: str = "1" * 32, **changes: Any) -> Record:
    made = Record(
        engine=engine,
        unit=f"vllm-{engine}.service",
        invocation_id=invocation,
        time=NOW.wall - 10,
        requested=False,
        result="success",
        exit_code=0,
        signal=None,
        cls="engine-core-fatal",
        signature="engine-core-died",
        evidence="EngineCore encountered a fatal error",
        reason="the engine core died",
        action="restart",
        action_reason="death 1 of 3 within 1 h: systemd starts it again",
        hint="",
        was_ready=True,
    )
    return made._replace(**changes)


def engine(name: str = "a", **changes: Any) -> EngineFacts:
    facts = EngineFacts(name, unit(name), Ledger(), CURRENT, port=8001, model="/models/a")
    return facts._replace(**changes)


def facts(*engines: EngineFacts, **changes: Any) -> Facts:
    made = Facts(
        version="1.2.3",
        daemon="running",
        now=NOW,
        host=HostFacts(128 << 30, 100 << 30, 1.5, 2, 7 << 30),
        engines=engines,
        policy=Policy(3, 3600.0),
        seen_at=NOW.wall - 1,
    )
    return made._replace(**changes)
