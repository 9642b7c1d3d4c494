"""Mistakes that users make, and what each answer must say: cause and remedy, and never the wrong culprit."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
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
    Mistake(line="cnvert my.onnx", code=2, cause=("no such command 'cnvert'",), remedy=("convert",)),
    Mistake(line="op-config chek c", code=2, cause=("no such command 'chek'",), remedy=("check",)),
    Mistake(line="help rnu", code=2, cause=("no such command 'rnu'",), remedy=("run",)),
    Mistake(line="run --modle my.onnx", code=2, cause=("no such option", "--modle"), remedy=("--model",)),
    Mistake(line="tune my.toml --minutes nan", code=2, cause=("nan is not a number",), remedy=("--minutes", "--help")),
    Mistake(line="run my.toml --plan --percent 1 --percent nan", code=2, cause=("nan is not",), remedy=("--percent",)),
    Mistake(line="run", code=2, cause=("config file or --model",), remedy=("--model",)),
    Mistake(line="run my.toml --model my.onnx", code=2, cause=("either",), remedy=("config file or --model",)),
    Mistake(line="run my.onnx", code=2, cause=("this is a model",), remedy=("ort-mobile run --model my.onnx",)),
    Mistake(line="run nope.toml", code=2, cause=("no such config file", "nope.toml"), remedy=("ort-mobile init",)),
    Mistake(line="run --model nope.onnx", code=2, cause=("no such", "nope.onnx"), remedy=("check the path",)),
    Mistake(line="run --model empty", code=2, cause=("this is a folder", "empty"), remedy=("name one model",)),
    Mistake(line="init empty", code=2, cause=("this is a folder", "empty"), remedy=("name one model",)),
    Mistake(line="perf empty", code=2, cause=("this is a folder", "empty"), remedy=("name one model",)),
    Mistake(line="init nope.onnx", code=2, cause=("no such model file", "nope.onnx"), remedy=("check the path",)),
    Mistake(line="init my.onnx", code=2, cause=("already", "my.toml"), remedy=("--output", "--force")),
    Mistake(line="convert nope.onnx --output o", code=2, cause=("no such", "nope.onnx"), remedy=("check the path",)),
    Mistake(line="convert my.onnx", code=2, cause=("missing option", "--output"), remedy=("--help",)),
    Mistake(line="convert my.onnx --output my.toml", code=2, cause=("is a file",), remedy=("directory",)),
    Mistake(line="convert empty --output o", code=2, cause=("no models in it",), remedy=("folder or archive",)),
    Mistake(
        line="convert my.onnx --output o --level al",
        code=2,
        cause=("'al' is not one of",),
        remedy=("did you mean all",),
    ),
    Mistake(line="convert my.onnx --output o --style fix", code=2, cause=("'fix' is not one of",), remedy=("fixed",)),
    Mistake(line="convert my.onnx --output o --ep nnpai", code=2, cause=("'nnpai'",), remedy=("nnapi",)),
    Mistake(
        line="convert my.onnx --output o --ep xnnpack",
        code=2,
        cause=("'xnnpack' is not one of",),
        remedy=("nnapi", "coreml-nn"),
    ),
    Mistake(line="convert my.onnx --output o --dimension batch", code=2, cause=("is not name=n",), remedy=("batch=1",)),
    Mistake(line="convert my.onnx --output o --dimension batch=0", code=2, cause=("'batch=0'",), remedy=("batch=1",)),
    Mistake(line="convert seq.onnx --output o --dimension bacth=1", code=2, cause=("bacth",), remedy=("batch",)),
    Mistake(
        line="convert my.onnx --output o --ort-release banana",
        code=2,
        cause=("banana",),
        remedy=("1.",),
        never=("internal error",),
    ),
    Mistake(line="partition nope.onnx --ep nnapi", code=2, cause=("no such", "nope.onnx"), remedy=("check the path",)),
    Mistake(line="partition my.onnx --ep nnapi --reference nope.aar", code=2, cause=("nope.aar",), remedy=("library",)),
    Mistake(
        line="partition my.onnx --ep nnapi --fix my.onnx",
        code=2,
        cause=("would replace the model",),
        remedy=("another file",),
    ),
    Mistake(
        line="partition seq.onnx --ep nnapi --dimension bacth=3",
        code=1,
        cause=("no open dimension 'bacth'",),
        remedy=("batch",),
    ),
    Mistake(line="partition my.onnx --ep nnpai", code=2, cause=("nnpai",), remedy=("nnapi",)),
    Mistake(line="check nope.onnx", code=2, cause=("no such", "nope.onnx"), remedy=("check the path",)),
    Mistake(line="check seq.onnx --dimension bacth=3", code=1, cause=("no open dimension 'bacth'",), remedy=("batch",)),
    Mistake(line="perf nope.ort", code=2, cause=("no such", "nope.ort"), remedy=("check the path",)),
    Mistake(line="perf my.onnx --threads many", code=2, cause=("'many' is no number",), remedy=("from 0 to 1024",)),
    Mistake(line="perf my.onnx --spinning maybe", code=2, cause=("'maybe' is not one of",), remedy=("on, off",)),
    Mistake(line="perf my.onnx --provider nnpai", code=2, cause=("nnpai",), remedy=("nnapi",)),
    Mistake(line="perf my.onnx --nnapi-flags USE_FP61", code=2, cause=("'use_fp61'",), remedy=("use_fp16",)),
    Mistake(line="perf my.onnx --device phone", code=2, cause=("phone",), remedy=("adb:`",)),
    Mistake(line="perf my.onnx --library nope.so", code=2, cause=("nope.so",), remedy=("android:1.29.0",)),
    Mistake(line="accuracy my.onnx", code=2, cause=("missing option", "--reference"), remedy=("--help",)),
    Mistake(line="accuracy my.onnx --reference my.onnx", code=2, cause=("measured on test data",), remedy=("labels",)),
    Mistake(
        line="accuracy my.onnx --reference nope.onnx --test-data empty",
        code=2,
        cause=("no such", "nope.onnx"),
        remedy=("check the path",),
    ),
    Mistake(
        line="accuracy my.onnx --reference my.onnx --test-data nope",
        code=2,
        cause=("no such test data", "nope"),
        remedy=("check `test_data`",),
        never=NO_MODEL_BLAME,
    ),
    Mistake(
        line="accuracy my.onnx --reference my.onnx --test-data empty --preprocess size=3",
        code=2,
        cause=("no preprocessing", "size"),
        remedy=("resize",),
    ),
    Mistake(
        line="accuracy my.onnx --reference my.onnx --test-data empty --part half",
        code=2,
        cause=("'half'", "calibration"),
        remedy=("--help",),
    ),
    Mistake(line="report empty", code=2, cause=("no results here", "results.sqlite"), remedy=("output folder",)),
    Mistake(
        line="report output/my --campaign nope",
        code=2,
        cause=("no campaign 'nope'", "stored are"),
        remedy=("name another",),
    ),
    Mistake(line="bundle rebuild nowhere", code=2, cause=("no results here",), remedy=("output folder",)),
    Mistake(line="bundle verify empty", code=2, cause=("bundle",), remedy=("manifest",)),
    Mistake(line="bundle verify nowhere", code=2, cause=("nowhere",), remedy=("bundle",)),
    Mistake(line="prove nowhere --library x.aar", code=2, cause=("nowhere",), remedy=("bundle",)),
    Mistake(line="library get nope:1.29.0", code=2, cause=("nope:1.29.0",), remedy=("android:",)),
    Mistake(line="library get android:banana", code=2, cause=("banana",), remedy=("1.",)),
    Mistake(line="library show nope.aar", code=2, cause=("nope.aar",), remedy=("path",)),
    Mistake(line="devices 'api=new'", code=2, cause=("api",), remedy=("29",)),
    Mistake(line="build plan", code=2, cause=("what is to be built",), remedy=("--target",)),
    Mistake(
        line="build plan --target android-arm64",
        code=2,
        cause=("no target 'android-arm64'",),
        remedy=("did you mean android-arm64-v8a",),
    ),
    Mistake(line="build plan my.toml --target phone", code=2, cause=("no target 'phone'",), remedy=("android-arm64",)),
    Mistake(
        line="build plan --target linux-x86_64 --op-config nope", code=2, cause=("nope",), remedy=("check the path",)
    ),
    Mistake(line="build plan --target linux-x86_64 --source empty", code=2, cause=("empty",), remedy=("clone",)),
    Mistake(line="build probe arm64", code=2, cause=("arm64",), remedy=("arm64-v8a",)),
    Mistake(line="completion powershell", code=2, cause=("powershell",), remedy=("bash",)),
)

FILES = (
    Mistake(
        line="convert e.onnx --output o", code=1, files={"e.onnx": b""}, cause=("e.onnx", "empty"), remedy=("remedy",)
    ),
    Mistake(
        line="convert l.onnx --output o",
        code=1,
        files={"l.onnx": LFS},
        cause=("git lfs pointer",),
        remedy=("git lfs pull",),
    ),
    Mistake(
        line="convert t.onnx --output o",
        code=1,
        files={"t.onnx": b"PK\x03\x04" + b"x" * 90},
        cause=("t.onnx",),
        remedy=("zip",),
    ),
    Mistake(line="convert out/my.all-fixed.ort --output o", code=1, cause=("ort format",), remedy=("onnx",)),
    Mistake(
        line="convert text.onnx --output o",
        code=1,
        files={"text.onnx": b"<html>404</html>"},
        cause=("text.onnx",),
        remedy=("remedy",),
    ),
    Mistake(line="convert external.onnx --output o", code=1, cause=("weights.bin",), remedy=("remedy",)),
    Mistake(
        line="partition l.onnx --ep nnapi",
        code=1,
        files={"l.onnx": LFS},
        cause=("git lfs pointer",),
        remedy=("git lfs pull",),
    ),
    Mistake(
        line="op-config create my.onnx",
        code=1,
        cause=("looks like an onnx model",),
        remedy=("ort-mobile convert",),
        never=("give it the suffix",),
    ),
    Mistake(line="op-config create nope", code=2, cause=("no such", "nope"), remedy=("check the path",)),
    Mistake(
        line="op-config check nope out", code=2, cause=("cannot read the operator config",), remedy=("check the path",)
    ),
    Mistake(
        line="op-config check o.config",
        code=2,
        files={"o.config": ""},
        cause=("nothing to check",),
        remedy=("--from-log",),
    ),
    Mistake(
        line="op-config check o.config out",
        code=4,
        files={"o.config": "ai.onnx;13;Relu\n"},
        cause=("not listed",),
        remedy=("com.microsoft;1;fusedconv", "op-config merge"),
    ),
    Mistake(
        line="op-config check o.config out",
        code=2,
        files={"o.config": "ai.onnx;13;Add # x\n"},
        cause=("o.config:1",),
        remedy=("comment",),
    ),
    Mistake(
        line="op-config check o.config out",
        code=2,
        files={"o.config": "ai.onx;13;Add\n"},
        cause=("ai.onx",),
        remedy=("ai.onnx",),
    ),
    Mistake(
        line="op-config explain out --operator Foo",
        code=2,
        cause=("no artifact uses an operator 'foo'",),
        remedy=("conv",),
    ),
    Mistake(line="op-config explain out --operator convv", code=2, cause=("'convv'",), remedy=("did you mean",)),
    Mistake(
        line="op-config create out --globally-allowed-types flaot",
        code=2,
        cause=("flaot",),
        remedy=("did you mean float",),
    ),
)

TARGET = '[[targets]]\nname = "phone"\nplatform = "android"\n'

CONFIGS = tuple(
    Mistake(
        line="run c.toml --convert-only --output o",
        code=2,
        files={"c.toml": text},
        cause=cause,
        remedy=remedy,
        never=("internal error", *NO_MODEL_BLAME),
    )
    for text, cause, remedy in (
        ("pathh = 1", ("unknown key `pathh`", "c.toml:4"), ("did you mean `path`",)),
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
        (f"{TARGET}abis = ['arm64']", ("arm64",), ("arm64-v8a",)),
        (f"{TARGET}library = 'nope.aar'", ("nope.aar",), ("check the path",)),
        (f"{TARGET}min_os_version = '15'", ("min_os_version",), ("min_api_level",)),
        (f"{TARGET}{TARGET}", ("phone",), ("name",)),
        ("[[targets]]\nname = 'i'\nplatform = 'ios'\nmin_api_level = 27", ("min_api_level",), ("min_os_version",)),
        ("[[targets]]\nname = 'i'\nplatform = 'andriod'", ("platform",), ("android",)),
        ("[[runs]]\nprovider = 'nnpai'", ("nnpai",), ("nnapi",)),
        ("[[runs]]\nprovider = 'nnapi'\nflags = ['USE_FP61']", ("use_fp61",), ("use_fp16",)),
        ("[[runs]]\nvariants = ['basik-*']", ("basik-*",), ("basic",)),
        ("[variants]\nlevels = ['al']", ("levels",), ("all",)),
        ("[variants]\naware = ['nnpai']", ("nnpai",), ("nnapi",)),
        ("[measure]\nrounds = 0", ("rounds",), ("remedy",)),
        ("[conditions]\nmax_thermal_status = 9", ("max_thermal_status",), ("remedy",)),
    )
)

BUNDLES = (
    Mistake(line="bundle verify changed", code=4, cause=("changed",), remedy=("remedy",)),
    Mistake(line="bundle verify added", code=4, cause=("added: evil.bin",), remedy=("remedy",)),
    Mistake(line="bundle verify output/my/bundle --digest 00", code=2, cause=("digest",), remedy=("hex",)),
    Mistake(line="run my.toml --convert-only --output foreign", code=2, cause=("foreign",), remedy=("--output",)),
    Mistake(line="run my.toml --convert-only --output my.onnx", code=2, cause=("my.onnx",), remedy=("directory",)),
    Mistake(line="run my.toml --device adb:NOPE --output o", code=3, cause=("nope",), remedy=("ort-mobile devices",)),
    Mistake(line="run my.toml --device phone --output o", code=2, cause=("phone",), remedy=("adb:`",)),
)

MISTAKES = (*COMMAND_LINE, *FILES, *CONFIGS, *BUNDLES)
