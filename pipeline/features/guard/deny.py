"""A list of session options that apps must not try on some phones, signed by who signs the bundle: it only forbids."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from device_runner import options as runner_options
from pipeline.campaign import run_options
from pipeline.core.errors import ConfigError
from pipeline.release import manifest as bundle_manifest
from pipeline.release import signature

FORMAT = "ort-mobile deny 1"
MOST_ROWS = 200
MOST_CHARACTERS = 16 << 10
HIGHEST_LEVEL = 10_000
"""Of Android: none is higher."""

DAY_SECONDS = 86_400


def signed_list(
    manifest: bundle_manifest.Manifest,
    denied: Sequence[runner_options.Denied],
    key: Path,
    passphrase: str | None,
    *,
    serial: int,
    days: int,
) -> bytes:
    """The list as `Guard.deny` of the Android classes takes it: lines, and a last one with the signature.

    Raises ConfigError for a list that is longer than phones take, and as `signature.read_private_key`.
    """
    rows = list(dict.fromkeys(_rows(denied)))
    expires = int(time.time()) + days * DAY_SECONDS
    head = "\t".join((FORMAT, _plain(manifest.content.name), str(serial), str(expires)))
    payload = "".join(f"{line}\n" for line in (head, *rows))
    text = payload + _signature(payload.encode(), key, passphrase) + "\n"
    if len(rows) > MOST_ROWS or len(text) > MOST_CHARACTERS:
        raise ConfigError(
            f"the list has {len(rows)} rows and {len(text):,} characters",
            where="--from",
            why=f"phones take {MOST_ROWS} rows and {MOST_CHARACTERS:,} characters",
            remedy="leave out devices that no user has, or give a provider once for all of them with a `*`",
        )
    return text.encode()


def _rows(denied: Sequence[runner_options.Denied]) -> Iterator[str]:
    """Patterns of session options, chip and system; API levels; files; why. The CPU is never forbidden."""
    for denial in denied:
        if not denial.options.on_cpu:
            way, level = run_options.options_name(denial.options), denial.devices.api_level
            levels = (str(level), str(level)) if level else ("0", str(HIGHEST_LEVEL))
            why = f"{denial.kind.value}: {denial.message}"[:100]
            yield "\t".join(map(_plain, (way, f"*{denial.devices.chip}", "*", *levels, "*", why)))


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _signature(payload: bytes, path: Path, passphrase: str | None) -> str:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    key = signature.read_private_key(path, passphrase)
    return key.sign(payload, ECDSA(getattr(hashes, signature.HASHES[key.curve.name])())).hex()
