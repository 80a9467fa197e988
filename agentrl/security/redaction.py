"""Redaction of secrets. A secret is detected by its key or format, or because an environment variable contains it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import JsonValue

REDACTED = "(redacted)"
MIN_CHARACTERS = 8
"""Minimum length of a secret from an environment variable. A shorter value may be an ordinary word."""

_NAMES = frozenset(("secret", "secrets", "password", "passwd", "passphrase", "pwd", "token", "key", "apikey", "cookie"))
_CREDENTIALS = frozenset(("bearer", "jwt", "authorization", "auth", "credential", "credentials", "pat"))
_ENDINGS = ("token", "apikey", "secret", "password")
_COLUMNS = frozenset(("score", "prompt", "label", "labels", "image", "images", "answer", "reward", "observation"))
"""Words for which `<word>_key` is the name of a column or property, not a secret."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_FORMS = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\bsk-[\w-]{12,}|\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\bAIza[\w-]{20,}|\bxox[a-z]-[\w-]{10,}|\bnvapi-[\w-]{16,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|(?<=\bBearer )[^\s'\"]{8,}|(?<=\bBasic )[A-Za-z0-9+/=]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]{0,20000}(?:-----END [A-Z ]*PRIVATE KEY-----)?"
)
_IN_URL = re.compile(r"(://[^/\s:@'\"]*:)[^/\s@'\"]+(?=@)")
_IN_QUERY = re.compile(r"(?i)([?&](?:[\w-]*(?:key|token|secret|password|signature)|sig)=)[^&#\s'\"]+")
_from_environment: set[str] = set()


def remember_secret(value: str) -> None:
    """Redact the value of an environment variable in all later texts, unless the value is a path or too short."""
    if len(value) >= MIN_CHARACTERS and not value.startswith(("/", "~", ".")):
        _from_environment.add(value)


def is_secret_name(name: str) -> bool:
    """Whether a value with this name is a secret: api_key, X-Api-Key, accessToken, GH_PAT; not max_tokens."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] == "env" or (words[-1] == "key" and words[0] in _COLUMNS):
        return False
    return bool((_NAMES | _CREDENTIALS) & set(words)) or any(word.endswith(_ENDINGS) for word in words)


def redacted_text(text: str) -> str:
    """Return `text` with its secrets redacted: values of environment variables, and texts in the format of a secret."""
    for secret in _from_environment:
        text = text.replace(secret, REDACTED)
    text = _FORMS.sub(REDACTED, text)
    return _IN_QUERY.sub(rf"\1{REDACTED}", _IN_URL.sub(rf"\1{REDACTED}", text))


def redacted_value(value: JsonValue, *, secret: bool = False) -> JsonValue:
    """Return `value` with the secrets in its texts redacted. If `secret` is True, redact all texts completely."""
    if isinstance(value, Mapping):
        return {name: redacted_value(inner, secret=secret or is_secret_name(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redacted_value(inner, secret=secret) for inner in value]
    if not isinstance(value, str):
        return value
    return REDACTED if secret and value else redacted_text(value)


def holds_redacted(value: object) -> bool:
    """Whether a value contains redacted text."""
    if isinstance(value, Mapping):
        return any(map(holds_redacted, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_redacted, value))
    return isinstance(value, str) and REDACTED in value
