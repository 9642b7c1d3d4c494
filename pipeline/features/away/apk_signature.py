"""APK Signature Scheme v2 (Android 7 and later): the blocks of an APK, their digest, and who signed it.

Format: source.android.com/docs/security/features/apksigning/v2. RSA with PKCS #1 v1.5 padding, which signs equal bytes
equally. Numbers are little-endian; `counted` data has its length before it.
"""

import datetime as dt
import hashlib
import mmap
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

RSA_SHA256 = 0x0103
V2 = 0x7109871A
MAGIC = b"APK Sig Block 42"
CHUNK_BYTES = 1 << 20
END_OF_DIRECTORY = b"PK\x05\x06"
OFFSET = slice(16, 20)
"""Where the end of the central directory says at which byte that begins."""

KEY_BITS = 3072
VALID_DAYS = 36_500


def sign(apk: Path, key_file: Path) -> None:
    """Sign an APK without a comment by a key of this user, which is made where it is missing.

    Raises ConfigError for a key that is none, MissingError without cryptography, StorageError.
    """
    key, certificate = _identity(key_file)
    with storage.storage_errors(apk), apk.open("r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
            end_at = content.rfind(END_OF_DIRECTORY)
            end = bytes(view[end_at:])
            (directory_at,) = struct.unpack("<I", end[OFFSET])
            directory = bytes(view[directory_at:end_at])
            # The end of the directory is signed with the offset that it has without the block of signatures
            digest = _digest(view[:directory_at], directory, end)
        block = _block(digest, key, certificate)
        file.seek(directory_at)
        file.write(block + directory)
        file.write(end[: OFFSET.start] + struct.pack("<I", directory_at + len(block)) + end[OFFSET.stop :])


def _block(digest: bytes, key: "RSAPrivateKey", certificate: bytes) -> bytes:
    """The block of signatures, which lies before the central directory."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding

    record = struct.pack("<I", RSA_SHA256) + _counted(digest)
    signed_data = _counted(_counted(record)) + _counted(_counted(certificate)) + _counted(b"")
    signature = key.sign(signed_data, padding.PKCS1v15(), hashes.SHA256())
    public_key = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    signatures = _counted(struct.pack("<I", RSA_SHA256) + _counted(signature))
    signer = _counted(signed_data) + _counted(signatures) + _counted(public_key)
    value = struct.pack("<I", V2) + _counted(_counted(signer))
    pairs = struct.pack("<Q", len(value)) + value
    size = struct.pack("<Q", len(pairs) + 8 + len(MAGIC))
    return size + pairs + size + MAGIC


def _counted(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def _digest(*sections: "bytes | memoryview") -> bytes:
    digests = [
        hashlib.sha256(b"\xa5" + _counted(bytes(section[start : start + CHUNK_BYTES]))).digest()
        for section in sections
        for start in range(0, len(section), CHUNK_BYTES)
    ]
    return hashlib.sha256(b"\x5a" + struct.pack("<I", len(digests)) + b"".join(digests)).digest()


def _identity(file: Path) -> "tuple[RSAPrivateKey, bytes]":
    """The key with its certificate: a phone takes an update of an app only by the key of the app before."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import rsa
    except ImportError as error:
        raise core_errors.missing_extra("sign", "cryptography", "export --for android-test", error) from error
    if not file.exists():
        made = rsa.generate_private_key(65537, KEY_BITS)
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ort-mobile package")])
        begin = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
        certificate = (
            x509.CertificateBuilder(name, name, made.public_key(), 1, begin, begin + dt.timedelta(days=VALID_DAYS))
        ).sign(made, hashes.SHA256())
        text = made.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        storage.make_folder(file.parent)
        own = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with storage.storage_errors(file), os.fdopen(os.open(file, own, 0o600), "wb") as opened:
            opened.write(text + certificate.public_bytes(serialization.Encoding.PEM))
    try:
        content = file.read_bytes()
        key = serialization.load_pem_private_key(content, None)
        certificate = x509.load_pem_x509_certificate(content)
    except (OSError, ValueError) as error:
        raise _bad_key(file, str(error)) from error
    if not isinstance(key, rsa.RSAPrivateKey):
        raise _bad_key(file, "it is no RSA key")
    return key, certificate.public_bytes(serialization.Encoding.DER)


def _bad_key(file: Path, why: str) -> ConfigError:
    remedy = "remove it: a new one is made, and phones want the app of the old one uninstalled"
    return ConfigError("the key of packages cannot be used", where=str(file), why=why[:300], remedy=remedy)
