"""Mistakes that users make, and what each answer must say: cause and remedy, and never the wrong culprit."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Mistake:
    """A command line with the files that it meets, its exit code, and words of its answer in any case."""

    line: str
    code: int
    cause: tuple[str, ...]
    remedy: tuple[str, ...]
    files: dict[str, str | bytes] = field(default_factory=dict)
    """Beside those of the work folder; a text for `c.toml` is what follows a config's first lines."""
    never: tuple[str, ...] = ()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
NO_MODEL_BLAME = ("check_model", "fix the model", "mend the model", "does not run on this computer")

COMMAND_LINE = (
    Mistake("cnvert my.onnx", 2, ("no such command 'cnvert'",), ("convert",)),
    Mistake("op-config chek c", 2, ("no such command 'chek'",), ("check",)),
    Mistake("help rnu", 2, ("no such command 'rnu'",), ("run",)),
    Mistake("run --modle my.onnx", 2, ("no such option", "--modle"), ("--model",)),
    Mistake("tune my.toml --minutes nan", 2, ("nan is not a number",), ("--minutes", "--help")),
    Mistake("run my.toml --plan --percent 1 --percent nan", 2, ("nan is not",), ("--percent",)),
    Mistake("run", 2, ("config file or --model",), ("--model",)),
    Mistake("run my.toml --model my.onnx", 2, ("either",), ("config file or --model",)),
    Mistake("run my.onnx", 2, ("this is a model",), ("ort-mobile run --model my.onnx",)),
    Mistake("run nope.toml", 2, ("no such config file", "nope.toml"), ("ort-mobile init",)),
    Mistake("run --model nope.onnx", 2, ("no such", "nope.onnx"), ("check the path",)),
    Mistake("run --model empty", 2, ("this is a folder", "empty"), ("name one model",)),
    Mistake("init empty", 2, ("this is a folder", "empty"), ("name one model",)),
    Mistake("perf empty", 2, ("this is a folder", "empty"), ("name one model",)),
    Mistake("init nope.onnx", 2, ("no such model file", "nope.onnx"), ("check the path",)),
    Mistake("init my.onnx", 2, ("already", "my.toml"), ("--output", "--force")),
    Mistake("convert nope.onnx --output o", 2, ("no such", "nope.onnx"), ("check the path",)),
    Mistake("convert my.onnx", 2, ("missing option", "--output"), ("--help",)),
    Mistake("convert my.onnx --output my.toml", 2, ("is a file",), ("directory",)),
    Mistake("convert empty --output o", 2, ("no models in it",), ("folder or archive",)),
    Mistake("convert my.onnx --output o --level al", 2, ("'al' is not one of",), ("did you mean all",)),
    Mistake("convert my.onnx --output o --style fix", 2, ("'fix' is not one of",), ("fixed",)),
    Mistake("convert my.onnx --output o --ep nnpai", 2, ("'nnpai'",), ("nnapi",)),
    Mistake("convert my.onnx --output o --ep xnnpack", 2, ("'xnnpack' is not one of",), ("nnapi", "coreml-nn")),
    Mistake("convert my.onnx --output o --dimension batch", 2, ("is not name=n",), ("batch=1",)),
    Mistake("convert my.onnx --output o --dimension batch=0", 2, ("'batch=0'",), ("batch=1",)),
    Mistake("convert seq.onnx --output o --dimension bacth=1", 2, ("bacth",), ("batch",)),
    Mistake("convert my.onnx --output o --ort-release banana", 2, ("banana",), ("1.",), never=("internal error",)),
    Mistake("partition nope.onnx --ep nnapi", 2, ("no such", "nope.onnx"), ("check the path",)),
    Mistake("partition my.onnx --ep nnapi --reference nope.aar", 2, ("nope.aar",), ("library",)),
    Mistake("partition my.onnx --ep nnapi --fix my.onnx", 2, ("would replace the model",), ("another file",)),
    Mistake("partition seq.onnx --ep nnapi --dimension bacth=3", 1, ("no open dimension 'bacth'",), ("batch",)),
    Mistake("partition my.onnx --ep nnpai", 2, ("nnpai",), ("nnapi",)),
    Mistake("check nope.onnx", 2, ("no such", "nope.onnx"), ("check the path",)),
    Mistake("check seq.onnx --dimension bacth=3", 1, ("no open dimension 'bacth'",), ("batch",)),
    Mistake("perf nope.ort", 2, ("no such", "nope.ort"), ("check the path",)),
    Mistake("perf my.onnx --threads many", 2, ("'many' is no number",), ("from 0 to 1024",)),
    Mistake("perf my.onnx --spinning maybe", 2, ("'maybe' is not one of",), ("on, off",)),
    Mistake("perf my.onnx --provider nnpai", 2, ("nnpai",), ("nnapi",)),
    Mistake("perf my.onnx --nnapi-flags USE_FP61", 2, ("'use_fp61'",), ("use_fp16",)),
    Mistake("perf my.onnx --device phone", 2, ("phone",), ("adb:`",)),
    Mistake("perf my.onnx --library nope.so", 2, ("nope.so",), ("android:1.29.0",)),
    Mistake("accuracy my.onnx", 2, ("missing option", "--reference"), ("--help",)),
    Mistake("accuracy my.onnx --reference my.onnx", 2, ("measured on test data",), ("labels",)),
    Mistake(
        "accuracy my.onnx --reference nope.onnx --test-data empty", 2, ("no such", "nope.onnx"), ("check the path",)
    ),
    Mistake(
        "accuracy my.onnx --reference my.onnx --test-data nope",
        2,
        ("no such test data", "nope"),
        ("check `test_data`",),
        never=NO_MODEL_BLAME,
    ),
    Mistake(
        "accuracy my.onnx --reference my.onnx --test-data empty --preprocess size=3",
        2,
        ("no preprocessing", "size"),
        ("resize",),
    ),
    Mistake(
        "accuracy my.onnx --reference my.onnx --test-data empty --part half", 2, ("'half'", "calibration"), ("--help",)
    ),
    Mistake("report empty", 2, ("no results here", "results.sqlite"), ("output folder",)),
    Mistake("report output/my --campaign nope", 2, ("no campaign 'nope'", "stored are"), ("name another",)),
    Mistake("bundle rebuild nowhere", 2, ("no results here",), ("output folder",)),
    Mistake("bundle verify empty", 2, ("bundle",), ("manifest",)),
    Mistake("bundle verify nowhere", 2, ("nowhere",), ("bundle",)),
    Mistake("prove nowhere --library x.aar", 2, ("nowhere",), ("bundle",)),
    Mistake("library get nope:1.29.0", 2, ("nope:1.29.0",), ("android:",)),
    Mistake("library get android:banana", 2, ("banana",), ("1.",)),
    Mistake("library show nope.aar", 2, ("nope.aar",), ("path",)),
    Mistake("devices 'api=new'", 2, ("api",), ("29",)),
    Mistake("build plan", 2, ("what is to be built",), ("--target",)),
    Mistake(
        "build plan --target android-arm64", 2, ("no target 'android-arm64'",), ("did you mean android-arm64-v8a",)
    ),
    Mistake("build plan my.toml --target phone", 2, ("no target 'phone'",), ("android-arm64",)),
    Mistake("build plan --target linux-x86_64 --op-config nope", 2, ("nope",), ("check the path",)),
    Mistake("build plan --target linux-x86_64 --source empty", 2, ("empty",), ("clone",)),
    Mistake("build probe arm64", 2, ("arm64",), ("arm64-v8a",)),
    Mistake("completion powershell", 2, ("powershell",), ("bash",)),
)

FILES = (
    Mistake("convert e.onnx --output o", 1, ("e.onnx", "empty"), ("remedy",), files={"e.onnx": b""}),
    Mistake("convert l.onnx --output o", 1, ("git lfs pointer",), ("git lfs pull",), files={"l.onnx": LFS}),
    Mistake("convert t.onnx --output o", 1, ("t.onnx",), ("zip",), files={"t.onnx": b"PK\x03\x04" + b"x" * 90}),
    Mistake("convert out/my.all-fixed.ort --output o", 1, ("ort format",), ("onnx",)),
    Mistake("convert text.onnx --output o", 1, ("text.onnx",), ("remedy",), files={"text.onnx": b"<html>404</html>"}),
    Mistake("convert external.onnx --output o", 1, ("weights.bin",), ("remedy",)),
    Mistake("partition l.onnx --ep nnapi", 1, ("git lfs pointer",), ("git lfs pull",), files={"l.onnx": LFS}),
    Mistake(
        "op-config create my.onnx",
        1,
        ("looks like an onnx model",),
        ("ort-mobile convert",),
        never=("give it the suffix",),
    ),
    Mistake("op-config create nope", 2, ("no such", "nope"), ("check the path",)),
    Mistake("op-config check nope out", 2, ("cannot read the operator config",), ("check the path",)),
    Mistake("op-config check o.config", 2, ("nothing to check",), ("--from-log",), files={"o.config": ""}),
    Mistake(
        "op-config check o.config out",
        4,
        ("not listed",),
        ("com.microsoft;1;fusedconv", "op-config merge"),
        files={"o.config": "ai.onnx;13;Relu\n"},
    ),
    Mistake(
        "op-config check o.config out", 2, ("o.config:1",), ("comment",), files={"o.config": "ai.onnx;13;Add # x\n"}
    ),
    Mistake("op-config check o.config out", 2, ("ai.onx",), ("ai.onnx",), files={"o.config": "ai.onx;13;Add\n"}),
    Mistake("op-config explain out --operator Foo", 2, ("no artifact uses an operator 'foo'",), ("conv",)),
    Mistake("op-config explain out --operator convv", 2, ("'convv'",), ("did you mean",)),
    Mistake("op-config create out --globally-allowed-types flaot", 2, ("flaot",), ("did you mean float",)),
)

TARGET = '[[targets]]\nname = "phone"\nplatform = "android"\n'

# What the reader of configs itself refuses is in tests/config; these are of all that a run asks of one.
CONFIGS = tuple(
    Mistake(
        "run c.toml --convert-only --output o",
        2,
        cause,
        remedy,
        files={"c.toml": text},
        never=("internal error", *NO_MODEL_BLAME),
    )
    for text, cause, remedy in (
        ("zzz = 1", ("unknown key `zzz`",), ("docs/reference/config.md",)),
        ("test_data = 'nope'", ("test_data", "c.toml:4"), ("check the path",)),
        ("labels = 'nope.npz'", ("labels", "c.toml:4"), ("check the path",)),
        ("name = 'a b'", ("name",), ("remedy",)),
        ("dimensions = { bacth = 1 }", ("bacth",), ("remedy",)),
        ("dimensions = { batch = 0 }", ("dimensions",), ("remedy",)),
        ("x = ", ("not valid toml",), ("fix the line",)),
        (f"{TARGET}ort_release = 1.29", ("ort_release",), ('"1.29"',)),
        (f"{TARGET}ort_release = 'v1.29'", ("v1.29",), ("1.29",)),
        (f"{TARGET}ort_release = '0.9'", ("0.9",), ("your app",)),
        (f"{TARGET}library = 'nope.aar'", ("nope.aar",), ("check the path",)),
        ("[[runs]]\nprovider = 'nnapi'\nflags = ['USE_FP61']", ("use_fp61",), ("use_fp16",)),
        ("[variants]\naware = ['nnpai']", ("nnpai",), ("nnapi",)),
        ("[conditions]\nmax_thermal_status = 9", ("max_thermal_status",), ("remedy",)),
    )
)

BUNDLES = (
    Mistake("bundle verify changed", 4, ("changed",), ("remedy",)),
    Mistake("bundle verify added", 4, ("added: evil.bin",), ("remedy",)),
    Mistake("bundle verify output/my/bundle --digest 00", 2, ("digest",), ("hex",)),
    Mistake("run my.toml --convert-only --output foreign", 2, ("foreign",), ("--output",)),
    Mistake("run my.toml --convert-only --output my.onnx", 2, ("my.onnx",), ("directory",)),
    Mistake("run my.toml --device adb:NOPE --output o", 3, ("nope",), ("ort-mobile devices",)),
    Mistake("run my.toml --device phone --output o", 2, ("phone",), ("adb:`",)),
)

MISTAKES = (*COMMAND_LINE, *FILES, *CONFIGS, *BUNDLES)
