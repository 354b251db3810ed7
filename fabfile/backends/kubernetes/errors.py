"""What an API of Kubernetes answers when it does not do what it is asked, in one line that says what mends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from fabfile.remote.known_hosts import SshError

_TRAINER = "Kubeflow Trainer v2 is not installed there"
_MISSING = {
    "PyTorchJob": "Kubeflow's training operator is not installed there",
    "TrainJob": _TRAINER,
    "TrainingRuntime": _TRAINER,
}
"""Kind that a cluster does not know -> why."""
_LONGEST = 400  # characters of the API's own words


class KubeError(SshError):
    """The API refuses a request, or does not answer: one line. A kind of SshError, so that whatever goes on after a
    lost connection does so here as well."""

    def __init__(self, text: str, code: int = 0, *, is_missing: bool = False) -> None:
        super().__init__(text)
        self.code = code
        """HTTP's status; 0: there was no answer, or no sense in it."""
        self.is_missing = is_missing
        """There is no object of that name."""


class Asked(Protocol):
    """Whom a request went to."""

    server: str
    who: str

    def ended(self) -> str:
        """What is known of why it does not answer, to be added to a line; empty: nothing."""


@contextmanager
def explained(api: Asked, what: str) -> Iterator[None]:
    """Turn the errors of lightkube and of HTTP into KubeError. `what`: the object that was asked for."""
    import httpx2
    from lightkube import ConfigError

    try:
        yield
    except httpx2.HTTPStatusError as error:  # lightkube's ApiError is one
        raise _refused(api, what, _status(error.response)) from None
    except ConfigError as error:
        raise KubeError(f"{api.who}: {_line(error)}", 401) from None
    except httpx2.TimeoutException:
        raise KubeError(f"{api.server}: no answer in time{api.ended()}") from None
    except httpx2.HTTPError as error:
        raise KubeError(f"{api.server}: {_transport(error)}{api.ended()}") from None
    except (httpx2.InvalidURL, OSError, ValueError) as error:
        raise KubeError(f"{api.server}: {_line(error) or type(error).__name__}") from None


def _transport(error: Exception) -> str:
    """Why there was no answer: the system's own words, which httpx2 has at the end of its."""
    text = _line(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        why = text.rpartition("CERTIFICATE_VERIFY_FAILED] ")[2].partition(" (_ssl")[0]
        return f"its certificate is not trusted ({why}): somebody else answers there, or the cluster was made again"
    if "Connection refused" in text:
        return "connection refused"
    return text or "the connection was lost"


def _status(response: Any) -> dict[str, Any]:
    """The API's Status in an answer; what HTTP says, if there is none."""
    try:
        found = response.json()
        if isinstance(found, dict) and found.get("kind") == "Status":
            return {"code": response.status_code, **found}
    except ValueError:
        pass
    return {"code": response.status_code, "message": f"HTTP {response.status_code} {response.reason_phrase}"}


def _refused(api: Asked, what: str, status: dict[str, Any]) -> KubeError:
    """The error for a Status of the API."""
    code, message = int(status.get("code") or 0), _line(status.get("message", ""))
    if code == 401:
        return KubeError(f"{api.server}: 401: does not accept {api.who}", code)
    if code == 403 and "forbidden" in message and "exceeded quota" not in message and "admission" not in message:
        return KubeError(f"{api.server}: 403: {api.who} lacks a right: {message}", code)
    # An object that is missing is named; a kind that is not known is not.
    if code == 404 and not (status.get("details") or {}).get("name"):
        why = _MISSING.get(what.partition(" ")[0], "")
        return KubeError(f"{api.server}: 404: {what}: {message}{': ' if why else ''}{why}", code)
    return KubeError(f"{api.server}: {what}: {message or code}", code, is_missing=code == 404)


def _line(text: object) -> str:
    return " ".join(str(text).split())[:_LONGEST]
