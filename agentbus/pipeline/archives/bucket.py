"""An archive in a bucket of S3, or of a server with the same protocol."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import boto3
from botocore import exceptions
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from agentbus.core.errors import AgentBusError, BackendUnavailable, ConfigError, NotFound
from agentbus.pipeline.archives.places import (
    THREADS,
    ArchiveTarget,
    FileInfo,
    Place,
    s3_settings,
)

# A server may refuse a conditional put while another put of the name is in progress, and ask for a
# retry.
_ATTEMPTS = 20
_MISSING = ("NoSuchKey", "404", "NotFound")
_FORBIDDEN = ("AccessDenied", "403", "Forbidden", "AllAccessDisabled")
_UNKNOWN_KEY = (
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"),
    *("AuthorizationHeaderMalformed", "RequestExpired"),
)


class Bucket(Place):
    """A prefix in a bucket: puts are atomic, and a conditional put is exclusive."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""
        self.target = ArchiveTarget("s3", f"{bucket}/{prefix}" if prefix else bucket)

    def uri(self, name: str) -> str:
        return f"s3a://{self.bucket}/{self.prefix}{name}"

    def create(self, name: str, data: bytes) -> bool:
        for attempt in range(_ATTEMPTS):
            try:
                self._put(name, data, IfNoneMatch="*")
            except ClientError as error:
                code = _code(error)
                if code in ("PreconditionFailed", "412"):
                    return False
                if code != "ConditionalRequestConflict" or attempt == _ATTEMPTS - 1:
                    raise self._trouble("write", name, error) from error
            else:
                return True
        return False

    def replace(self, name: str, data: bytes) -> None:
        with self._told("write", name):
            self._put(name, data)

    def read(self, name: str) -> bytes | None:
        with self._told("read", name):
            found = self._asked("get_object", name)
            body: bytes | None = found and found["Body"].read()
            return body

    def read_all(self, names: list[str]) -> list[bytes | None]:
        _ = self._client
        return self._together(self.read, names)

    def listing(self, folder: str, after: str = "") -> Iterator[FileInfo]:
        prefix = self.prefix + (f"{folder}/" if folder else "")
        beyond = {"StartAfter": self.prefix + after} if after else {}
        with self._told("list", folder):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self.bucket, Prefix=prefix, **beyond):
                for found in page.get("Contents", ()):
                    name = found["Key"][len(self.prefix) :]
                    # Skip markers of empty folders, which Spark and consoles leave behind.
                    if not name.endswith("/"):
                        yield FileInfo(name, found["Size"], found["LastModified"].timestamp())

    def delete(self, name: str) -> None:
        with self._told("delete", name):
            self._client.delete_object(Bucket=self.bucket, Key=self.prefix + name)

    def blank(self, name: str) -> None:
        """Do nothing: an object takes no more space than its content."""

    def sync(self, name: str) -> int | None:
        found = self._asked("head_object", name)
        size: int | None = found and found["ContentLength"]
        return size

    def copy(self, source: str, name: str) -> None:
        origin = {"Bucket": self.bucket, "Key": self.prefix + source}
        with self._told("write", name):
            # A file that is too large for one request is copied in several.
            self._client.copy(origin, self.bucket, self.prefix + name)

    def tidy(self, before: float) -> None:
        """Do nothing: an incomplete put leaves no object behind."""

    @functools.cached_property
    def _client(self) -> Any:
        found = s3_settings()
        patient = Config(
            retries={"max_attempts": 5, "mode": "standard"},
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=THREADS,
            # Servers other than AWS's do not know the newer checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        with self._told("open", ""):
            # boto3 finds profiles and roles by itself. Its shared default session would keep the
            # credentials of an earlier call.
            return boto3.session.Session().client(
                "s3",
                config=patient,
                endpoint_url=found.get("endpoint"),
                region_name=found.get("region") or ("us-east-1" if "endpoint" in found else None),
            )

    def _asked(self, call: str, name: str) -> Any:
        """Return the server's reply about a file, None if it does not exist."""
        with self._told("read", name):
            try:
                return getattr(self._client, call)(Bucket=self.bucket, Key=self.prefix + name)
            except ClientError as error:
                if _code(error) in _MISSING:
                    return None
                raise

    def _put(self, name: str, data: bytes, **conditions: str) -> None:
        self._client.put_object(Bucket=self.bucket, Key=self.prefix + name, Body=data, **conditions)

    @contextlib.contextmanager
    def _told(self, doing: str, name: str) -> Iterator[None]:
        """Convert an error of the server or the connection to one sentence."""
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise self._trouble(doing, name, error) from error
        except Exception as error:
            # boto3's copying raises its own errors, which have no common base class.
            if type(error).__module__.partition(".")[0] not in ("boto3", "s3transfer", "botocore"):
                raise
            raise AgentBusError(f"cannot {doing} {self.uri(name)}") from error

    def _trouble(self, doing: str, name: str, error: Exception) -> AgentBusError:
        said = f"cannot {doing} {self.uri(name)}"
        if isinstance(error, exceptions.ClientError):
            # The server's message may contain the access key; its error code does not.
            code = _code(error)
            if code == "NoSuchBucket":
                return NotFound(f"{said}: there is no such bucket", hint="create it first")
            if code in _FORBIDDEN:
                return ConfigError(
                    f"{said}: permission denied", hint="allow it to these credentials"
                )
            if code in _UNKNOWN_KEY:
                return ConfigError(
                    f"{said}: the server refuses the credentials ({code})",
                    hint="check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
                )
            if code in _MISSING:
                return NotFound(f"{said}: not there", hint="check the path")
            return AgentBusError(f"{said}: the server answered {code}")
        if isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
            return ConfigError(
                f"{said}: there are no credentials",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )
        if isinstance(error, (exceptions.HTTPClientError, exceptions.ConnectionError)):
            return BackendUnavailable(
                f"{said}: the server cannot be reached",
                hint="check the network and AWS_ENDPOINT_URL",
            )
        return ConfigError(
            f"{said}: {type(error).__name__}", hint="check the bucket and AWS_REGION"
        )


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", "nothing known"))
