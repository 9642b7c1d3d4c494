"""The guard of C++ in an app: what `release snippet --guard` writes compiles, and ONNX Runtime runs behind it."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from device_runner.spec import RunOptions
from tests.command import ort_mobile
from tests.features.android.samples import bundle, shipped
from tests.features.languages.test_snippet import built

XNNPACK = RunOptions(provider="xnnpack", provider_options={"intra_op_num_threads": "4"})
CPU = RunOptions(intra_op_threads=2)
MAIN = """
#include <cstdio>
int main(int, char** arguments) {
    static Ort::Env environment(ORT_LOGGING_LEVEL_FATAL, "app");
    ort_mobile::Guard::Listen([](const ort_mobile::GuardEvent& event) { std::puts(event.Json().c_str()); });
    const ort_mobile::Guard guard(arguments[2]);
    const ort_mobile::GuardedModel model = guarded_m(environment, arguments[1], guard, ort_mobile::ReadSample("none"));
    ort_mobile::GuardedSession session = model.OpenNow();
    std::vector<float> x(64);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) / 10.0f - 3.0f;
    const int64_t shape[] = {1, 1, 8, 8};
    const char* inputs[] = {"x"};
    const char* outputs[] = {"y"};
    auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    auto value = Ort::Value::CreateTensor<float>(memory, x.data(), x.size(), shape, 4);
    auto results = session.Run(Ort::RunOptions{nullptr}, inputs, &value, 1, outputs, 1);
    std::puts(session.way().c_str());
    for (const std::string& reason : session.skipped()) std::puts(reason.c_str());
    for (int i = 0; i < 128; ++i) std::printf("%.9g ", results[0].GetTensorData<float>()[i]);
    std::puts("");
    for (float value : M(model.Open()).Run(x).y) std::printf("%.9g ", value);
}
"""


def printed(folder: Path, *more: str, code: int = 0) -> str:
    done = ort_mobile("release", "snippet", folder / "bundle", "--for", *more, "--guard", folder / "guard", code=code)
    return done.out if code == 0 else done.err


def test_the_folder_has_the_headers_and_the_code_a_function_for_each_guarded_model(tmp_path: Path) -> None:
    bundle(tmp_path, (shipped("m", runs=(XNNPACK, CPU)), shipped("plain", runs=(CPU,))))
    code = printed(tmp_path, "cpp")
    assert "guarded_m(" in code
    assert "guarded_plain" not in code
    assert "#include <ort_mobile_guard.h>" in code
    assert (tmp_path / "guard/ort_mobile_guard.h").is_file()


def test_a_language_without_a_guard_is_refused(tmp_path: Path) -> None:
    bundle(tmp_path, (shipped("m", runs=(XNNPACK, CPU)),))
    assert "code for python has no guard" in printed(tmp_path, "python", code=2)
    assert not (tmp_path / "guard").exists()


@pytest.mark.network
def test_code_behind_the_guard_compiles_and_the_cpu_gives_the_outputs_of_the_bundle(tmp_path: Path) -> None:
    bundle(tmp_path, (shipped(runs=(XNNPACK, CPU), file="models/m.ort"),))
    code = printed(tmp_path, "cpp")
    for header in (tmp_path / "guard").glob("*.h"):
        (tmp_path / header.name).write_bytes(header.read_bytes())
    app = built(tmp_path, code.replace("<ort_mobile_guard.h>", '"ort_mobile_guard.h"') + MAIN)
    words = [str(app), str(tmp_path / "bundle/models/m.ort"), str(tmp_path / "storage")]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    event, way, skipped, outputs, by_class = ran.stdout.splitlines()
    assert by_class == outputs
    assert '"event":"refused"' in event
    assert way.startswith("cpu")
    assert skipped.startswith("xnnpack+intra_op_num_threads=4: refused, ")
    import onnxruntime

    x = (np.arange(64, dtype=np.float32) / np.float32(10) - np.float32(3)).reshape(1, 1, 8, 8)
    (expected,) = onnxruntime.InferenceSession(str(tmp_path / "bundle/models/m.ort")).run(None, {"x": x})
    np.testing.assert_allclose(np.array(outputs.split(), np.float32), np.ravel(expected), rtol=1e-5, atol=1e-6)
