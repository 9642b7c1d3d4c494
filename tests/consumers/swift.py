"""A Swift toolchain of Debian in a root folder of its own, and ONNX Runtime's Swift package over the C API.

The Objective-C sources of that package need Apple's runtime; what stands in for them has the same names and signatures
(docs/facts/release_consumers.md, R.8), and so does the product's own for libraries without Objective-C.
"""

import shutil
import subprocess
from importlib import resources
from pathlib import Path

import onnxruntime
import pytest

from pipeline.core.releases import SWIFT_REPOSITORY
from tests.debian_packages import unpacked

PACKAGES = ("swiftlang", "libc6-dev", "libstdc++-14-dev", "dash", "coreutils", "git")
LINKS = ("bin", "sbin", "lib", "lib64")
ENTER = """\
root=$1 tree=$2 work=$3
shift 3
mount --rbind "$tree/usr" "$root/usr" && mount --rbind "$work" "$root/build" && mount --rbind /dev "$root/dev" &&
mount -t proc proc "$root/proc" && PATH="$PATH:/usr/sbin" && exec chroot "$root" /usr/bin/env -i "$@"
"""
ENVIRONMENT = (
    "HOME=/root", "PATH=/usr/libexec/swift/bin:/usr/bin", "LC_ALL=C.UTF-8", "ORT_DISABLE_TELEMETRY=1",
    "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*", "LD_LIBRARY_PATH=/build/lib",
)  # fmt: skip

BINDINGS_MANIFEST = """\
// swift-tools-version: 5.9
import PackageDescription
let package = Package(
    name: "onnxruntime", platforms: [.iOS(.v15), .macOS(.v14)],
    products: [.library(name: "onnxruntime", type: .static, targets: ["OnnxRuntimeBindings"])],
    targets: [.target(name: "COnnxRuntime"), .target(name: "OnnxRuntimeBindings", dependencies: ["COnnxRuntime"])]
)
"""
MODULE_MAP = 'module COnnxRuntime {\n    header "onnxruntime_c_api.h"\n    link "onnxruntime_c"\n    export *\n}\n'
CRYPTO = """\
#include <stdint.h>
#include <string.h>
// Apple's CommonCrypto as far as the classes use it: SHA-256 by FIPS 180-4.
#define CC_SHA256_DIGEST_LENGTH 32
typedef uint32_t CC_LONG;
typedef struct { uint32_t state[8]; uint64_t size; uint8_t block[64]; } CC_SHA256_CTX;
static inline uint32_t cc_turn(uint32_t x, int n) { return x >> n | x << (32 - n); }
static inline uint32_t cc_root(int number, int root) {  // 32 bits of the fraction of a prime's root
    int prime = 1;
    for (int found = 0; found <= number;) {
        int divisor = 2;
        prime++;
        while (prime % divisor) divisor++;
        found += divisor == prime;
    }
    unsigned __int128 low = 0, high = (unsigned __int128)1 << 40, wanted = prime;
    wanted <<= root == 2 ? 64 : 96;
    while (high - low > 1) {
        unsigned __int128 middle = (low + high) / 2, power = middle * middle;
        if (root == 3) power *= middle;
        if (power <= wanted) low = middle; else high = middle;
    }
    return (uint32_t)low;
}
static inline void cc_block(CC_SHA256_CTX *context) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++) {
        const uint8_t *at = context->block + 4 * i;
        w[i] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (cc_turn(a, 7) ^ cc_turn(a, 18) ^ a >> 3) + w[i - 7]
            + (cc_turn(b, 17) ^ cc_turn(b, 19) ^ b >> 10);
    }
    memcpy(s, context->state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t one = s[7] + (cc_turn(s[4], 6) ^ cc_turn(s[4], 11) ^ cc_turn(s[4], 25))
            + ((s[4] & s[5]) ^ (~s[4] & s[6])) + cc_root(i, 3) + w[i];
        uint32_t two = (cc_turn(s[0], 2) ^ cc_turn(s[0], 13) ^ cc_turn(s[0], 22))
            + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; i++) context->state[i] += s[i];
}
static inline int CC_SHA256_Init(CC_SHA256_CTX *context) {
    for (int i = 0; i < 8; i++) context->state[i] = cc_root(i, 2);
    context->size = 0;
    return 1;
}
static inline int CC_SHA256_Update(CC_SHA256_CTX *context, const void *data, CC_LONG size) {
    for (CC_LONG i = 0; i < size; i++) {
        context->block[context->size++ % 64] = ((const uint8_t *)data)[i];
        if (context->size % 64 == 0) cc_block(context);
    }
    return 1;
}
static inline int CC_SHA256_Final(unsigned char *digest, CC_SHA256_CTX *context) {
    uint64_t bits = context->size * 8;
    uint8_t byte = 0x80;
    do { CC_SHA256_Update(context, &byte, 1); byte = 0; } while (context->size % 64 != 56);
    for (int i = 7; i >= 0; i--) { byte = (uint8_t)(bits >> 8 * i); CC_SHA256_Update(context, &byte, 1); }
    for (int i = 0; i < 32; i++) digest[i] = (unsigned char)(context->state[i / 4] >> (24 - 8 * (i % 4)));
    return 1;
}
"""
BUILD = f"""
set -e
cd /build/onnxruntime-swift-package-manager
git init -q .
git add .
git -c user.name=test -c user.email=test@localhost commit -qm "The package"
git tag "$1"
cd /build/app
swift package config set-mirror --original {SWIFT_REPOSITORY} --mirror file:///build/onnxruntime-swift-package-manager
swift build --disable-sandbox -j 2 -Xlinker -L/build/lib -Xcc -I/build/crypto -Xswiftc -I/build/crypto
"""


def run(work: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the toolchain with `work` as its /build; skips where that cannot be had."""
    if not shutil.which("unshare"):
        pytest.skip("no unshare here: folders cannot be mounted without root")
    tree = unpacked(*PACKAGES)
    root = work.with_name(f"{work.name} root")
    for name in ("usr", "proc", "dev", "tmp", "build", "root"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in LINKS:
        if not (root / name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    enter = ["unshare", "--map-root-user", "--mount", "--pid", "--fork", "sh", "-c", ENTER, "sh"]
    done = subprocess.run(
        [*enter, str(root), str(tree), str(work), *ENVIRONMENT, *command], capture_output=True, text=True, check=False
    )
    if "unshare failed" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    return done


def build(work: Path, version: str, *libraries: Path, onnxruntime_library: Path | None = None) -> str:
    """Build the app in `work`/app with ONNX Runtime's Swift package of a version; what the tools say of failing.

    `libraries` stand for what the package links on Apple's systems; the wheel's library computes, or another one.
    """
    _write_bindings(work / "onnxruntime-swift-package-manager")
    (work / "lib").mkdir()
    write_crypto(work / "crypto")
    installed = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*")
    library = onnxruntime_library or next(installed)
    for name in ("libonnxruntime_c.so", "libonnxruntime.so.1"):
        shutil.copy(library, work / "lib" / name)
    links = "".join(f" -Xlinker /build/lib/{Path(shutil.copy(path, work / 'lib')).name}" for path in libraries)
    done = run(work, "sh", "-c", BUILD.rstrip() + links, "sh", version)
    return done.stdout + done.stderr if done.returncode else ""


def write_crypto(folder: Path) -> None:
    """Write what stands in for Apple's CommonCrypto."""
    folder.mkdir()
    (folder / "CommonCrypto.h").write_text(CRYPTO)
    (folder / "module.modulemap").write_text('module CommonCrypto {\n    header "CommonCrypto.h"\n    export *\n}\n')


def _write_bindings(folder: Path) -> None:
    headers = unpacked("libonnxruntime-dev", with_dependencies=False) / "usr/include/onnxruntime"
    include = folder / "Sources/COnnxRuntime/include"
    include.mkdir(parents=True)
    shutil.copy(headers / "onnxruntime_c_api.h", include)
    (include / "module.modulemap").write_text(MODULE_MAP)
    (folder / "Sources/COnnxRuntime/empty.c").touch()
    (folder / "Sources/OnnxRuntimeBindings").mkdir()
    source = resources.files("pipeline.features.apple") / "templates/OnnxRuntimeBindings.swift"
    (folder / "Sources/OnnxRuntimeBindings/OnnxRuntimeBindings.swift").write_text(source.read_text("utf-8"))
    (folder / "Package.swift").write_text(BINDINGS_MANIFEST)
