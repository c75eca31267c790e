# SPDX-License-Identifier: Apache-2.0
"""Certificates for receivers of alerts, made by openssl(1)."""

import subprocess
from pathlib import Path
from typing import NamedTuple

LIMIT = 60


class CertificatePair(NamedTuple):
    """A certificate and its private key."""

    certificate: Path
    key: Path


def self_signed(where: Path) -> CertificatePair:
    """One for localhost that nobody vouches for."""
    return _made(where, "self", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")


def certificate_authority(where: Path) -> CertificatePair:
    """A private authority."""
    usage = "keyUsage=critical,keyCertSign,cRLSign"  # Python 3.13 asks for it
    return _made(where, "ca", "/CN=sparkd test authority", "-addext", usage)


def signed_by(authority: CertificatePair, where: Path, subject: str) -> CertificatePair:
    """One that the authority has signed, for a subject such as `IP:127.0.0.1`."""
    pair = CertificatePair(where / "server.crt", where / "server.key")
    request, names = where / "server.csr", where / "server.names"
    names.write_text(
        f"subjectAltName={subject}\nbasicConstraints=CA:FALSE\n"
        "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    )
    _openssl("req", *_KEY, "-keyout", pair.key, "-out", request, "-subj", "/CN=server")
    _openssl(
        "x509", "-req", "-in", request, "-CA", authority.certificate, "-CAkey", authority.key,
        "-CAcreateserial", "-out", pair.certificate, "-days", "30", "-extfile", names,
    )  # fmt: skip
    return pair


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _made(where: Path, name: str, subject: str, *more: str) -> CertificatePair:
    pair = CertificatePair(where / f"{name}.crt", where / f"{name}.key")
    out = ("-keyout", pair.key, "-out", pair.certificate, "-subj", subject, "-days", "30")
    _openssl("req", "-x509", *_KEY, *out, *more)
    return pair


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=LIMIT)
