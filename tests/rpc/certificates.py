"""Certificates for tests: an authority, a server, clients; made by the openssl command where it is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest


class Authority:
    """A certificate authority in a folder; each certificate is a pair of PEM texts (key, certificate)."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("the openssl command is not installed")
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._run("req", "-x509", *NEW_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", f"/CN={name}")
        self.certificate = (folder / "ca.pem").read_bytes()

    def issue(self, name: str, alternative_name: str, days: int = 2) -> tuple[bytes, bytes]:
        """A key and a certificate for `/CN=name` with one subject alternative name ("IP:127.0.0.1", "URI:x:y")."""
        extension = self._folder / "san.ext"
        extension.write_text(f"subjectAltName={alternative_name}\n")
        self._run("req", *NEW_KEY, "-keyout", "one.key", "-out", "one.csr", "-subj", f"/CN={name}")
        signed = ("x509", "-req", "-in", "one.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        self._run(*signed, "-out", "one.pem", "-days", str(days), "-extfile", extension.name)
        return (self._folder / "one.key").read_bytes(), (self._folder / "one.pem").read_bytes()

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._folder, check=True, capture_output=True)


NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
