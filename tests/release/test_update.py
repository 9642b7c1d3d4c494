"""Which app an update is for: each part of the rule refuses alone, with its reason, and the old bundle stays."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from device_runner.spec import RunOptions
from pipeline.convert.op_configs import config_texts
from pipeline.core.errors import CheckFailed
from pipeline.core.files import TYPED_CONFIG_FILE
from pipeline.model.signature import TensorInfo
from pipeline.release.app_fit import App, refuse_misfit, requirements, signature_digest
from pipeline.release.manifest import AppRule, Fallback, ModelSignature, verify_bundle
from tests.command import ort_mobile
from tests.features.updates.test_delta import bundle
from tests.onnx_samples import conv_bn
from tests.ort_models import conv_relu, convert
from tests.release.test_bundle import SHIPS
from tests.values import files_of

MODEL = ModelSignature(model="m", inputs=(TensorInfo(name="x", dtype=None, shape=None),), outputs=())
ONE = msgspec.structs.replace(
    SHIPS[0], ort_release="1.29.0", runs=(RunOptions(provider="nnapi"),), library_kind="minimal"
)


def rule(**changes: Any) -> AppRule:
    given = {
        "target": "phone", "lowest_release": "1.29.0", "below_release": "1.30", "format_version": 6,
        "providers": ("nnapi",), "signature_sha256": signature_digest([MODEL]), **changes,
    }  # fmt: skip
    return AppRule(**given)


def made(folder: Path, name: str, content: bytes = b"model", **changes: Any) -> Path:
    rules = changes.pop("requires", None) or (rule(**changes),)
    return bundle(folder, content, name, ships=(ONE,), models=(MODEL,), requires=rules)


def refused(app: App, old: Path, new: Path) -> str:
    try:
        refuse_misfit(app, verify_bundle(old), verify_bundle(new), new)
    except CheckFailed as error:
        return error.why
    return ""


@pytest.mark.parametrize(
    ("app", "changes", "why"),
    [
        (App(release="1.29.0"), {}, ""),
        (App(release="1.29"), {}, ""),
        (App(release="1.29.3", providers=("nnapi", "cpu"), target="phone"), {}, ""),
        (App(release="1.28.1"), {}, "needs ONNX Runtime 1.29.0 or later and below 1.30; the app has 1.28.1"),
        (App(release="1.30.0"), {}, "needs ONNX Runtime 1.29.0 or later and below 1.30; the app has 1.30.0"),
        (App(providers=("cpu", "xnnpack")), {}, "target phone needs the execution provider nnapi"),
        (App(target="tablet"), {}, "it has nothing for target tablet; it has phone"),
        (App(release="1.29.0"), {"signature_sha256": "4" * 64}, "names, types or shapes of inputs or outputs"),
        (App(release="1.29.0"), {"custom_domains": ("my.ops",)}, "target phone needs custom operators of my.ops"),
    ],
)  # fmt: skip
def test_each_part_of_the_rule_refuses_alone(tmp_path: Path, app: App, changes: dict[str, Any], why: str) -> None:
    found = refused(app, made(tmp_path, "old"), made(tmp_path, "new", **changes))
    assert (why in found) if why else (found == "")


def test_the_remedy_names_the_target_that_fits(tmp_path: Path) -> None:
    rules = (rule(), rule(target="ios", lowest_release="1.24.0", below_release="1.25"))
    old, new = made(tmp_path, "old", requires=rules), made(tmp_path, "new", requires=rules)
    with pytest.raises(CheckFailed) as caught:
        refuse_misfit(App(release="1.29.0"), verify_bundle(old), verify_bundle(new), new)
    assert caught.value.remedy == "name the app's target: --target phone"


def test_a_bundle_without_a_rule_is_refused_where_a_rule_is_asked_for(tmp_path: Path) -> None:
    new = bundle(tmp_path, b"model", "new", ships=(ONE,), models=(MODEL,))
    assert "does not say what it requires of apps" in refused(App(release="1.29.0"), made(tmp_path, "old"), new)


def test_operators_are_those_that_the_library_was_built_with(tmp_path: Path) -> None:
    artifact = convert(conv_relu(), tmp_path / "m.ort", level="none")
    new = made(tmp_path, "new", artifact.read_bytes())
    full, less = tmp_path / "full.config", tmp_path / "less.config"
    full.write_text(config_texts([artifact], providers=["nnapi"])[TYPED_CONFIG_FILE])
    less.write_text("ai.onnx;11;Conv\n")
    assert refused(App(operators=full), made(tmp_path, "old"), new) == ""
    assert "the app's library has no ai.onnx:Relu" in refused(App(operators=less), made(tmp_path, "old"), new)


def test_the_rule_is_made_of_what_ships(tmp_path: Path) -> None:
    artifact = convert(conv_bn(8), tmp_path / "m.ort", level="none")
    named = msgspec.structs.replace(ONE, library="android:1.29.0", ort_release="1.29")
    line = msgspec.structs.replace(ONE, target="linux", ort_release="1.31", runs=(RunOptions(),))
    phone, linux = requirements(
        (named, line), (MODEL,), {ONE.file: artifact}, {TYPED_CONFIG_FILE: ""}, {"phone": "MIT"}
    )
    assert (phone.lowest_release, phone.below_release, phone.format_version) == ("1.29.0", "1.30", 6)
    assert (phone.providers, phone.custom_domains, phone.library_license) == (("nnapi",), (), "MIT")
    assert (linux.lowest_release, linux.below_release, linux.library_license) == ("1.31", "1.32", "")
    assert phone.signature_sha256 == signature_digest([MODEL])
    assert phone.operators_sha256 == sha256(b"").hexdigest()


def test_bundles_say_in_which_order_to_fall_back(tmp_path: Path) -> None:
    content = verify_bundle(made(tmp_path, "new")).content
    assert content.rollback == (Fallback.RUN, Fallback.PREVIOUS, Fallback.PACKAGED)


def updated(folder: Path, **changes: Any) -> tuple[Path, Path]:
    """An installed bundle, and the delta to a newer one."""
    old, new = made(folder, "old"), made(folder, "new", b"a newer model", **changes)
    ort_mobile("bundle", "delta", old, new, "--output", folder / "d")
    return old, folder / "d"


def test_a_misfit_leaves_the_old_bundle(tmp_path: Path) -> None:
    old, delta = updated(tmp_path)
    before = files_of(old)
    ort_mobile("bundle", "apply", delta, old, "--runtime", "1.28.0", "--keep", tmp_path / "kept", code=4)
    ort_mobile("bundle", "apply", delta, old, "--runtime", "no release", code=2)
    assert files_of(old) == before
    assert not (tmp_path / "kept").exists()
    ort_mobile("bundle", "apply", delta, old, "--runtime", "1.29.0", "--provider", "nnapi")
    assert files_of(old) == files_of(tmp_path / "new")


def test_the_old_bundle_is_kept_whole_until_the_next_update(tmp_path: Path) -> None:
    old, delta = updated(tmp_path)
    before = files_of(old)
    ort_mobile("bundle", "apply", delta, old, "--keep", tmp_path / "kept")
    assert files_of(tmp_path / "kept") == before
    ort_mobile("bundle", "apply", delta, old, "--keep", tmp_path / "kept")
    assert files_of(tmp_path / "kept") == before
    third = made(tmp_path, "third", b"the newest model")
    ort_mobile("bundle", "delta", old, third, "--output", tmp_path / "e")
    ort_mobile("bundle", "apply", tmp_path / "e", old, "--keep", tmp_path / "kept")
    assert files_of(tmp_path / "kept") == files_of(tmp_path / "new")


def test_what_is_kept_replaces_nothing_of_others(tmp_path: Path) -> None:
    old, delta = updated(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    before = files_of(old)
    ort_mobile("bundle", "apply", delta, old, "--keep", tmp_path / "mine", code=2)
    assert files_of(old) == before
