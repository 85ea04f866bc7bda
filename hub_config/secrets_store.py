"""Secrets of one installation: made once, kept in files that only root reads, never printed.

The demo password is the exception: it is shown at start, because a person has to type it.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

SERVICES = ("hub", "reclaimer", "admin", "scheduler")
"""Holders of a service token: who may speak to the scheduler as a service, and, under the same
name, to the Hub (`hub` and `admin` speak only to the scheduler)."""


@dataclass(frozen=True, slots=True)
class SecretFiles:
    """The secrets folder. Every method may be called any number of times; what exists is kept."""

    folder: Path

    @property
    def service_tokens_file(self) -> Path:
        """JSON object {service name: token}, read by the scheduler."""
        return self.folder / "service-tokens.json"

    @property
    def store_credentials_file(self) -> Path:
        """JSON object with access_key and secret_key, read by supervisors."""
        return self.folder / "store-credentials.json"

    @property
    def cookie_secret_file(self) -> Path:
        """The Hub's cookie secret, in the form JupyterHub reads."""
        return self.folder / "cookie-secret"

    def service_tokens(self) -> dict[str, str]:
        """Tokens of all services; a service added by a newer version gets one now."""
        known = self._read_object(self.service_tokens_file)
        missing = [name for name in SERVICES if name not in known]
        if missing:
            known |= {name: secrets.token_hex(32) for name in missing}
            _write(self.service_tokens_file, json.dumps(known))
        return known

    def service_token(self, name: str) -> str:
        """The token of one service. Raises `KeyError` for an unknown one."""
        return self.service_tokens()[name]

    def service_token_file(self, name: str) -> Path:
        """A file that holds nothing but the token of one service, for programs that take a path."""
        path = self.folder / f"{name}.token"
        return self._once(path, self.service_token(name))

    def store_credentials(self) -> tuple[str, str]:
        """Access key and secret key of the embedded store."""
        made = {"access_key": secrets.token_hex(10).upper(), "secret_key": secrets.token_hex(20)}
        path = self._once(self.store_credentials_file, json.dumps(made))
        kept = json.loads(path.read_text())
        return kept["access_key"], kept["secret_key"]

    def cookie_secret(self) -> Path:
        """The file with the Hub's cookie secret: log-ins survive a restart."""
        return self._once(self.cookie_secret_file, secrets.token_hex(32))

    def proxy_token(self) -> str:
        """What the Hub and its proxy share; fixed, so that a proxy left running is found again."""
        return self._text("proxy-token", secrets.token_hex(32))

    def crypt_key(self) -> str:
        """JUPYTERHUB_CRYPT_KEY: encrypts what the Hub keeps about sessions (64 hex digits)."""
        return self._text("crypt-key", secrets.token_hex(32))

    def demo_password(self) -> str:
        """The password of the demo users; loopback only."""
        return self._text("demo-password", secrets.token_hex(4))

    def admin_password(self) -> str:
        """The administrator's password; long, because an administrator may become anybody."""
        return self._text("admin-password", secrets.token_hex(16))

    def create_all(self) -> None:
        """Make whatever is missing."""
        for name in self.service_tokens():
            self.service_token_file(name)
        self.store_credentials()
        self.cookie_secret()
        texts = (self.proxy_token, self.crypt_key, self.demo_password, self.admin_password)
        for make in texts:
            make()

    def _text(self, name: str, fresh: str) -> str:
        return self._once(self.folder / name, fresh).read_text().strip()

    @staticmethod
    def _once(path: Path, content: str) -> Path:
        if not path.exists():
            _write(path, content)
        return path

    @staticmethod
    def _read_object(path: Path) -> dict[str, str]:
        try:
            return {str(k): str(v) for k, v in json.loads(path.read_text()).items()}
        except FileNotFoundError:
            return {}


def _write(path: Path, content: str) -> None:
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(path)
