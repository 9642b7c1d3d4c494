"""Signature files as OpenSSF Model Signing v1.0 has them: other writers' are read, broken ones refused with a reason.

The specification publishes vectors (github.com/ossf/model-signing-spec, test-vectors/v1.0, Apache-2.0). With a copy of
that folder in ORT_MOBILE_OMS_VECTORS they are read, too; the documents made here have the same faults.
"""

import base64
import datetime as dt
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from pipeline.release.envelope import PublicKey, fingerprint, read_private_key, read_public_key, sealed_envelope
from pipeline.release.manifest import SIGNATURE_FILE
from pipeline.release.signature import signed_statement
from tests.release.test_bundle import bundle_in
from tests.release.test_signature import code, run, write_keys

VECTORS = os.environ.get("ORT_MOBILE_OMS_VECTORS", "")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a signed bundle and its keys; tests must not change it."""
    folder = tmp_path_factory.mktemp("signed")
    bundle_in(folder)
    assert code(run("sign", folder / "bundle", "--key", write_keys(folder))) == 0
    return folder


def document(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "bundle" / SIGNATURE_FILE).read_bytes())
    return found


def certificate(key: Path) -> str:
    """A certificate for the owner of a key, signed by themselves, as DER in base64."""
    private = load_pem_private_key(key.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a maker of models")])
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(private.public_key())
        .serial_number(1).not_valid_before(start).not_valid_after(start + dt.timedelta(days=3650))
        .sign(private, hashes.SHA256())
    )  # fmt: skip
    return base64.b64encode(made.public_bytes(Encoding.DER)).decode()


def certified(place: Path, key: str = "key.pem") -> dict[str, Any]:
    chain = {"certificates": [{"rawBytes": certificate(place / key)}]}
    return {**document(place), "verificationMaterial": {"x509CertificateChain": chain, "tlogEntries": []}}


def test_other_writers_order_and_indent_differently(place: Path) -> None:
    text = json.dumps(document(place), indent=4, sort_keys=False).encode()
    assert signed_statement(text, read_public_key(place / "key.pub")).predicate.resources


def test_a_certificate_names_the_key(place: Path) -> None:
    said = signed_statement(json.dumps(certified(place)).encode(), read_public_key(place / "key.pub"))
    assert said.subject[0].name == "demo"


def without(*keys: str) -> Callable[[Path], dict[str, Any]]:
    def made(place: Path) -> dict[str, Any]:
        found = document(place)
        inner = found
        for key in keys[:-1]:
            inner = inner[key]
        del inner[keys[-1]]
        return found

    return made


def of_another(place: Path) -> dict[str, Any]:
    write_keys(place, "other")
    return certified(place, "other.pem")


def no_certificate(place: Path) -> dict[str, Any]:
    found = certified(place)
    found["verificationMaterial"]["x509CertificateChain"]["certificates"] = [{"rawBytes": "bm90IG9uZQ=="}]
    return found


def with_material(material: dict[str, Any]) -> Callable[[Path], dict[str, Any]]:
    return lambda place: {**document(place), "verificationMaterial": {**material, "tlogEntries": []}}


def another_predicate(place: Path) -> dict[str, Any]:
    """A statement of another kind, signed as it should be."""
    found = document(place)
    payload = json.loads(base64.b64decode(found["dsseEnvelope"]["payload"]))
    content = json.dumps({**payload, "predicateType": "https://example.com/another/v1"}).encode()
    envelope = sealed_envelope(content, read_private_key(place / "key.pem", None), named=False)
    return {**found, "dsseEnvelope": {**found["dsseEnvelope"], "payload": envelope.payload,
                                      "signatures": [{"sig": envelope.signatures[0].sig}]}}  # fmt: skip


def another_type(place: Path) -> dict[str, Any]:
    found = document(place)
    found["dsseEnvelope"]["payloadType"] = "text/plain"
    return found


BROKEN: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "no envelope": (without("dsseEnvelope"), "dsseEnvelope"),
    "no material": (without("verificationMaterial"), "verificationMaterial"),
    "no log entries": (without("verificationMaterial", "tlogEntries"), "tlogEntries"),
    "no resources": (lambda place: {**document(place), "dsseEnvelope": {}}, "payload"),
    "another media type": (lambda place: {**document(place), "mediaType": "text/plain"}, "the file is no application"),
    "another predicate": (another_predicate, "what was signed is https://example.com/another/v1"),
    "another payload type": (another_type, "no in-toto statement"),
    "a certificate for another key": (of_another, "it names the key"),
    "a certificate that is none": (no_certificate, "its certificate cannot be read"),
    "an identity": (with_material({"certificate": {"rawBytes": ""}}), "identities of Sigstore are not supported"),
    "no certificates": (with_material({"x509CertificateChain": {"certificates": []}}), "neither a key nor"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_documents_are_refused_with_the_reason(place: Path, fault: str) -> None:
    make, reason = BROKEN[fault]
    with pytest.raises(ValueError, match=reason):
        signed_statement(json.dumps(make(place)).encode(), read_public_key(place / "key.pub"))


def test_an_empty_file_is_refused(place: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        signed_statement(b"", read_public_key(place / "key.pub"))


@pytest.mark.skipif(not VECTORS, reason="ORT_MOBILE_OMS_VECTORS names no folder of published vectors")
def test_published_vectors() -> None:
    """The key of both valid ones is that of the certificate: the vectors have no file of its own for it."""
    folder = Path(VECTORS)
    chain = json.loads((folder / "valid/certificate.bundle.json").read_bytes())["verificationMaterial"]
    der = base64.b64decode(chain["x509CertificateChain"]["certificates"][0]["rawBytes"])
    public = x509.load_der_x509_certificate(der).public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    key = PublicKey(public, fingerprint(public))
    for name in ("key", "certificate"):
        said = signed_statement((folder / f"valid/{name}.bundle.json").read_bytes(), key)
        assert [one.name for one in said.predicate.resources] == ["signme-1", "signme-2"]
    refused = [*folder.glob("invalid*/*.json"), folder / "valid/sigstore.bundle.json"]
    assert len(refused) > 5
    for file in refused:
        with pytest.raises(ValueError, match=r"\w"):
            signed_statement(file.read_bytes(), key)
