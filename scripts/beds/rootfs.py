# SPDX-License-Identifier: Apache-2.0
"""Base file systems of the container bed: Debian suites that stand for systemd versions."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from beds.cache import BedError, built, cache_dir, command, digest, locked, say

#: Suite to the systemd it brings. DGX OS 7 has 255, which lies between.
SUITES = {"bookworm": 252, "trixie": 257}

#: What the sparkd package depends on, then what only the tests need: a compiler and libnuma for
#: a real vLLM, supervisor to be measured against.
PACKAGES = """
    systemd systemd-sysv libpam-systemd dbus polkitd util-linux login passwd procps iproute2
    python3 python3-gi python3-pydbus python3-systemd python3-psutil python3-httpx
    python3-structlog python3-prometheus-client python3-tomli-w python3-yaml python3-dotenv
    curl bash-completion libnuma1 gcc g++ libc6-dev supervisor
"""

#: Units that make a container slower to boot, or busy while something is being measured.
MASKED = """
    apt-daily.timer apt-daily-upgrade.timer console-getty.service dpkg-db-backup.timer
    e2scrub_all.timer e2scrub_reap.service fstrim.timer getty@.service supervisor.service
    systemd-firstboot.service systemd-networkd.service systemd-networkd-wait-online.service
    systemd-oomd.service systemd-oomd.socket systemd-timesyncd.service
"""

#: Layers with an installed package that are kept per suite; older ones are removed.
LAYERS_KEPT = 4
#: Base systems that are kept per suite: this recipe's and the one before.
BASES_KEPT = 2
#: What was used within this time is not removed, however many there are.
IN_USE_SECONDS = 6 * 3600


class Layers(NamedTuple):
    """Read-only folders that make up a root file system, uppermost first."""

    folders: tuple[Path, ...]

    @property
    def lowerdir(self) -> str:
        """The value of overlayfs' ``lowerdir=``."""
        return ":".join(str(folder) for folder in self.folders)


def base(suite: str) -> Layers:
    """Base system of one suite, built with mmdebstrap on first use (minutes, some 700 MB).

    Raises:
        BedError: an unknown suite, no mmdebstrap, or its failure.
    """
    if suite not in SUITES:
        raise BedError(f"no bed for {suite!r}; known: {', '.join(SUITES)}")
    # This file is the recipe: a change in it makes a new base.
    recipe = digest(suite, " ".join(PACKAGES.split()), " ".join(MASKED.split()), "recipe 1")
    folder = cache_dir() / f"{suite}-{recipe}"
    if not folder.is_dir():
        folder = built(folder.name, lambda target: _bootstrap(suite, target))
        _forget_old(f"{suite}-{'[0-9a-f]' * 12}", BASES_KEPT, folder)
    return Layers((folder,))


def _bootstrap(suite: str, target: Path) -> None:
    say(f"building the {suite} base system (once, some minutes)")
    mirror = _debian_mirror()
    command(
        [
            "mmdebstrap",
            "--mode=root",
            "--variant=minbase",
            "--quiet",
            f"--include={','.join(PACKAGES.split())}",
            suite,
            str(target),
            *([mirror] if mirror else []),
        ],
        limit=1800,
    )
    target.chmod(0o755)
    units = target / "etc/systemd/system"
    for unit in MASKED.split():
        link = units / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    default = units / "default.target"
    default.unlink(missing_ok=True)
    default.symlink_to("/usr/lib/systemd/system/multi-user.target")
    # The journal has to survive a reboot: tests read it afterwards.
    (target / "var/log/journal").mkdir(exist_ok=True)
    # Each container gets its own; an empty file would make every boot a first boot.
    (target / "etc/machine-id").unlink(missing_ok=True)
    (target / "etc/hostname").write_text("bed\n")
    (target / "etc/resolv.conf").unlink(missing_ok=True)


def _debian_mirror() -> str | None:
    """The mirror this host's own apt uses, when the host is Debian; else mmdebstrap knows one."""
    fields = "$(CREATED_BY)|$(ORIGIN)|$(LABEL)|$(REPO_URI)"
    listing = command(["apt-get", "indextargets", "--format", fields], limit=60)
    for line in listing.splitlines():
        kind, origin, label, address = line.split("|", 3)
        if (kind, origin, label) == ("Packages", "Debian", "Debian"):
            return address
    return None


def with_package(suite: str, deb: Path) -> Layers:
    """The suite's base with one .deb installed, its maintainer scripts run, nothing started.

    Raises:
        BedError: dpkg refused the package; with its words.
    """
    below = base(suite)
    name = f"{suite}-layer-{digest(below.lowerdir, deb.read_bytes().hex())}"
    layer = built(name, lambda target: _install(below, deb, target))
    os.utime(layer)
    _forget_old(f"{suite}-layer-*", LAYERS_KEPT, layer)
    return Layers((layer, *below.folders))


def _install(below: Layers, deb: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".install.", dir=cache_dir()) as folder:
        work, root = Path(folder) / "work", Path(folder) / "root"
        work.mkdir()
        root.mkdir()
        target.chmod(0o755)
        options = f"lowerdir={below.lowerdir},upperdir={target},workdir={work}"
        command(["mount", "-t", "overlay", "overlay", "-o", options, str(root)], limit=30)
        try:
            shutil.copy(deb, root / "tmp/sparkd.deb")
            command(["chroot", str(root), "dpkg", "--install", "/tmp/sparkd.deb"], limit=300)
            (root / "tmp/sparkd.deb").unlink()
        finally:
            command(["umount", str(root)], limit=30)
            # overlayfs makes it with mode 000, which the folder's own removal cannot enter
            shutil.rmtree(work, ignore_errors=True)


def _forget_old(pattern: str, kept: int, current: Path) -> None:
    """Remove what earlier recipes built, but for the newest few and what is in use now."""
    with locked("forget"):
        found = sorted(
            cache_dir().glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True
        )
        mounts = Path("/proc/self/mounts").read_text(errors="replace")
        for folder in found[kept:]:
            # Another test run may use it without having it mounted at this moment.
            lately = time.time() - folder.stat().st_mtime < IN_USE_SECONDS
            if folder != current and not lately and str(folder) not in mounts:
                shutil.rmtree(folder, ignore_errors=True)


def tool_from_package(package: str, path: str) -> Path:
    """One program out of a distribution package, unpacked into the cache and not installed.

    Args:
        package: Debian package name, e.g. ``prometheus``.
        path: file in it, relative to the root, e.g. ``usr/bin/promtool``.

    Raises:
        BedError: apt cannot fetch the package, or it has no such file.
    """

    def unpack(target: Path) -> None:
        say(f"fetching {path} from the package {package}")
        with tempfile.TemporaryDirectory() as folder:
            # apt drops to its own user for downloads and warns where that user cannot write
            Path(folder).chmod(0o777)
            command(["apt-get", "download", "-qq", package], limit=600, cwd=folder)
            archive = next(Path(folder).glob("*.deb"))
            command(["dpkg-deb", "-x", str(archive), str(target)], limit=300)
        if not (target / path).is_file():
            raise BedError(f"{package} has no {path}")

    return built(f"tool-{package}", unpack) / path


def host_has(tool: str) -> bool:
    """Whether the host can run that program."""
    return shutil.which(tool) is not None
