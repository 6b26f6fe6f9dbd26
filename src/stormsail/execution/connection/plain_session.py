"""`plain_session`: an HTTP session that sends what it is given, once, and nothing else.

ccxt hands over a finished address, headers and body. A session of `requests` would merge them with
cookies, proxies and settings of the environment, take the address apart and put it together again,
and look for redirects to follow: half of the processor time of a request, for nothing that an order
needs. A redirect is refused, because a redirected POST is a second order.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stormsail.execution.connection.wire import not_done, wire

if TYPE_CHECKING:
    from requests import Response

_WITHOUT_BODY = ("GET", "HEAD")


def plain_session() -> Any:  # noqa: ANN401 - a class of a library that may be absent
    """Return a session for ccxt; its hooks and errors are those of `requests`."""
    from requests import PreparedRequest, Session
    from requests.exceptions import TooManyRedirects
    from requests.structures import CaseInsensitiveDict

    def prepared(
        method: str, url: str, data: bytes | None, headers: Mapping[str, str]
    ) -> PreparedRequest:
        made = PreparedRequest()
        made.method, made.url, made.body = method, url, data
        made.headers = CaseInsensitiveDict(headers)
        if data is not None or method not in _WITHOUT_BODY:
            made.headers["Content-Length"] = str(len(data or b""))
        return made

    class PlainSession(Session):
        def request(  # type: ignore[override]
            self,
            method: str,
            url: str,
            *,
            data: bytes | None = None,
            headers: Mapping[str, str] | None = None,
            timeout: float | None = None,
            proxies: Mapping[str, str] | None = None,
            verify: bool = True,
            **more: object,
        ) -> "Response":
            names = sorted(name for name, value in more.items() if value is not None)
            if names:
                raise not_done(", ".join(names))
            request = prepared(method, url, data, headers or {})
            response = self.get_adapter(url).send(
                request, timeout=timeout, verify=verify, proxies=dict(proxies or {})
            )
            for hook in self.hooks["response"]:
                hook(response)
            if response.is_redirect:
                raise TooManyRedirects("a redirect is not followed", response=response)
            response.content  # noqa: B018 - read now: the connection is free for the next request
            return response

    session = PlainSession()
    session.trust_env = False
    for prefix in ("https://", "http://"):
        session.mount(prefix, wire())
    return session
