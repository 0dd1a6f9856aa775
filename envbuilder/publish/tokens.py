"""Answering a registry that asks who is there: Basic, and tokens as the distribution specification has them."""

from __future__ import annotations

import base64
import json
import re
import threading
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.auth import AuthBase

from envbuilder.errors import SourceError
from envbuilder.publish.answers import body_of, clock_off, finish, reasons
from envbuilder.publish.credentials import Login, login_command, login_for

_TIMEOUT = (15, 60)
_TOKEN_LIMIT = 1 << 20
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_CLIENT = "envbuilder"


class RegistryAuth(AuthBase):
    """Adds what the registry ``host`` asked for to requests to it, and to it alone.

    ``actions`` is what tokens are asked for: "pull" or "pull,push". A token that runs out amid the work is replaced.
    Safe for several threads. Raises SourceError, with the command that logs in, when the registry refuses for good.
    """

    def __init__(self, session: requests.Session, host: str, address: str, repository: str, actions: str) -> None:
        self._session = session
        self._host = host
        self._netloc = urlsplit(address).netloc
        self._repository = repository
        self._actions = actions
        self._lock = threading.Lock()
        self._header: str | None = None
        self._login: Login | None = None
        self._sought = False

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Log in where the registry has asked for it before, and listen whether it asks now."""
        if urlsplit(request.url or "").netloc != self._netloc:
            return request
        if self._header:
            request.headers["Authorization"] = self._header
        body: Any = request.body
        start = body.tell() if hasattr(body, "tell") else None
        request.hooks["response"].append(lambda answer, **how: self._answered(answer, start, how))
        return request

    def _answered(self, answer: requests.Response, start: int | None, how: dict[str, Any]) -> requests.Response:
        """Log in once and ask again when the registry wants to know who is there."""
        request = answer.request
        if answer.status_code != 401 or urlsplit(request.url or "").netloc != self._netloc:
            return answer
        self._log_in(answer, request.headers.get("Authorization"))
        finish(answer)
        again = request.copy()
        if start is not None:
            body: Any = again.body
            body.seek(start)
        again.headers["Authorization"] = str(self._header)
        second: requests.Response = answer.connection.send(again, **how)
        second.history.append(answer)
        second.request = again
        if second.status_code == 401:
            raise self._refused(second)
        return second

    def _log_in(self, answer: requests.Response, sent: str | None) -> None:
        """Have a header to send; several threads that are refused at once log in once."""
        with self._lock:
            if self._header and sent != self._header:
                return
            if not self._sought:
                self._login, self._sought = login_for(self._host, self._repository), True
            kind, _, rest = answer.headers.get("WWW-Authenticate", "").partition(" ")
            said = dict(_CHALLENGE.findall(rest))
            if kind.lower() == "bearer" and "realm" in said:
                self._header = f"Bearer {self._token(said)}"
            elif self._login and not self._login.identity and sent is None:
                self._header = _basic(self._login)
            else:
                raise self._refused(answer)

    def _token(self, said: dict[str, str]) -> str:
        realm = said["realm"]
        scope = f"repository:{self._repository}:{self._actions}"
        asked = {"service": said.get("service", ""), "scope": scope}
        parts = urlsplit(realm)
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if self._login and parts.scheme != "https" and not local:
            raise SourceError(
                f"{self._host} wants the password sent unencrypted, to {realm}",
                cure="It was not sent. Ask whoever runs the registry to serve its tokens over HTTPS.",
            )
        try:
            if self._login and self._login.identity:
                form = {**asked, "grant_type": "refresh_token", "client_id": _CLIENT}
                form["refresh_token"] = self._login.secret
                answer = self._session.post(realm, data=form, timeout=_TIMEOUT, auth=_Nothing(), stream=True)
            else:
                known = _Known(self._login) if self._login else _Nothing()
                answer = self._session.get(realm, params=asked, timeout=_TIMEOUT, auth=known, stream=True)
        except requests.RequestException as error:
            raise SourceError(
                f"{parts.netloc}, which gives out the tokens of {self._host}, does not answer",
                cure="Check the network and the proxy, then run it again.",
                detail=str(error),
            ) from None
        if answer.status_code in (400, 401, 403):
            raise self._refused(answer)
        try:
            data = json.loads(body_of(answer, _TOKEN_LIMIT)) if answer.status_code == 200 else {}
            return str(data.get("token") or data["access_token"])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, requests.RequestException):
            raise SourceError(
                f"{parts.netloc} answers {answer.status_code} {answer.reason} in place of a token for {self._host}",
                cure="Try again later; behind a proxy, check that it lets the registry's own answers through.",
            ) from None

    def _refused(self, answer: requests.Response) -> SourceError:
        detail = "\n".join([*([text] if (text := reasons(answer)) else []), *clock_off(answer)]) or None
        doing = "push to" if "push" in self._actions else "pull from"
        if self._login is None:
            return SourceError(
                f"{self._host} wants a login to {doing} {self._repository}, and none is stored here",
                cure=f"Log in, then run it again: {login_command(self._host)}",
                detail=detail,
            )
        who = f"of {self._login.username!r} " if self._login.username else ""
        return SourceError(
            f"{self._host} refuses the login {who}that {self._login.store} holds: it expired, was withdrawn, "
            f"or may not {doing} {self._repository}",
            cure=f"Log in again, then run it again: {self._login.command}",
            detail=detail,
        )


class _Nothing(AuthBase):
    """No login at all; without it requests would take one from ~/.netrc."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request


class _Known(_Nothing):
    def __init__(self, login: Login) -> None:
        self._header = _basic(login)

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = self._header
        return request


def _basic(login: Login) -> str:
    return f"Basic {base64.b64encode(f'{login.username}:{login.secret}'.encode()).decode()}"
