"""HTTP as this host does it: proxies, certificates and passwords out of pip's, uv's and apt's own settings."""

from __future__ import annotations

import base64
import netrc
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from urllib3.util import Retry

from envbuilder import __version__
from envbuilder.lock.client import PythonClient, ca_bundle

CONNECT_SECONDS = 15.0
READ_SECONDS = 60.0
_APT_SETTING = re.compile(r'^(?P<key>Acquire::https?::[^ ]+) "(?P<value>[^"]*)";$')


def new_session() -> requests.Session:
    """A session that trusts what this host trusts and tries again what may pass: refused connections, 429, 5xx.

    A connection that breaks amid a file is for ``download`` to take up again.
    """
    session = requests.Session()
    session.verify = ca_bundle() or True
    retry = Retry(
        total=None,
        connect=2,
        read=2,
        status=4,
        other=0,
        redirect=5,
        backoff_factor=0.5,
        status_forcelist=(429, 500, 502, 503, 504),
        allowed_methods=("GET", "HEAD"),
        raise_on_status=False,
    )
    session.mount("https://", HTTPAdapter(max_retries=retry))
    session.mount("http://", HTTPAdapter(max_retries=retry))
    # What is stored is what was sent: a length and a hash are of the file itself, not of a compressed form.
    session.headers.update({"User-Agent": f"envbuilder/{__version__}", "Accept-Encoding": "identity"})
    return session


def quick(session: requests.Session | None = None) -> requests.Session:
    """``session`` (a new one without) that asks once: for finding out whether a host answers at all."""
    session = session or new_session()
    session.mount("https://", HTTPAdapter(max_retries=0))
    session.mount("http://", HTTPAdapter(max_retries=0))
    return session


def python_session(client: PythonClient) -> requests.Session:
    """A session for the files of the client's Python index."""
    session = new_session()
    if client.client_cert:
        session.cert = client.client_cert
    if client.proxy:
        session.proxies.update(http=client.proxy, https=client.proxy)
    if client.index:
        parts = urlsplit(client.index)
        if parts.username:
            session.auth = _OnlyFor(parts.hostname or "", unquote(parts.username), unquote(parts.password or ""))
        if parts.hostname in {host.split(":")[0] for host in client.insecure_hosts}:
            session.verify = False
    return session


def debian_session(mirror: str) -> requests.Session:
    """A session for the packages at ``mirror``, with apt's proxy, certificates and passwords for it."""
    session = new_session()
    settings, parts = _apt_settings(), urlsplit(mirror)
    host = parts.hostname or ""
    for scheme in ("http", "https"):
        key = f"Acquire::{scheme}::Proxy"
        proxy = settings.get(f"{key}::{host}") or settings.get(key)
        if proxy:
            # apt's own setting goes before the environment's, which requests would prefer.
            session.trust_env = False
            session.proxies.update({} if proxy == "DIRECT" else {scheme: proxy})
    if bundle := settings.get("Acquire::https::CaInfo") or settings.get("Acquire::https::CAInfo"):
        session.verify = bundle
    if parts.username:
        session.auth = _OnlyFor(host, unquote(parts.username), unquote(parts.password or ""))
    elif login := _apt_login(host):
        session.auth = _OnlyFor(host, *login)
    return session


class _OnlyFor(AuthBase):
    """A password that goes to the host it is for and to no other the files may lie on."""

    def __init__(self, host: str, username: str, password: str) -> None:
        self._host = host
        self._header = f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if urlsplit(request.url or "").hostname == self._host:
            request.headers["Authorization"] = self._header
        return request


@cache
def _apt_settings() -> dict[str, str]:
    program = shutil.which("apt-config")
    if program is None:
        return {}
    run = subprocess.run([program, "dump"], capture_output=True, text=True, check=False)
    return {m["key"]: m["value"] for line in run.stdout.splitlines() if (m := _APT_SETTING.match(line)) and m["value"]}


def _apt_login(host: str) -> tuple[str, str] | None:
    paths = [Path("/etc/apt/auth.conf"), *sorted(Path("/etc/apt/auth.conf.d").glob("*.conf"))]
    for path in paths:
        try:
            found = netrc.netrc(path).authenticators(host)
        except (OSError, netrc.NetrcParseError):
            continue
        if found:
            return found[0], found[2] or ""
    return None
