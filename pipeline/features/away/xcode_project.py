"""An Xcode project of an app and of the tests that start it, as a property list in XML, which Xcode reads, too.

The format is that of Xcode 15 and later, which take a Swift package of a folder beside the project.
"""

import hashlib
import plistlib
from typing import Any

APP, TESTS = "Package", "PackageTests"
LIBRARY = "PackageRunner"
"""The Swift package beside the project, and its product that the app links."""

PREFIX = "ORT_MOBILE_PREFIX"
"""The build setting that the identifiers of app and tests begin with: nobody can sign one that is another's."""

SETTINGS = {
    "ALWAYS_SEARCH_USER_PATHS": "NO",
    "CODE_SIGN_STYLE": "Automatic",
    "CURRENT_PROJECT_VERSION": "1",
    "GENERATE_INFOPLIST_FILE": "YES",
    "MARKETING_VERSION": "1.0",
    PREFIX: "dev.ortmobile",
    "PRODUCT_NAME": "$(TARGET_NAME)",
    "SDKROOT": "iphoneos",
    "SWIFT_VERSION": "5.0",
    "TARGETED_DEVICE_FAMILY": "1,2",
}
APP_SETTINGS = {
    "INFOPLIST_FILE": "Info.plist",
    "INFOPLIST_KEY_UIApplicationSceneManifest_Generation": "YES",
    "INFOPLIST_KEY_UILaunchScreen_Generation": "YES",
    "PRODUCT_BUNDLE_IDENTIFIER": f"$({PREFIX}).package",
}
TEST_SETTINGS = {"PRODUCT_BUNDLE_IDENTIFIER": f"$({PREFIX}).package.tests", "TEST_TARGET_NAME": APP}

INFO = plistlib.dumps({"LSSupportsOpeningDocumentsInPlace": True, "UIFileSharingEnabled": True}).decode()
"""What the generated Info.plist lacks: Xcode drops UIFileSharingEnabled where it is a build setting."""

SCHEME = """\
<?xml version="1.0" encoding="UTF-8"?>
<Scheme LastUpgradeVersion="1600" version="1.7">
  <BuildAction parallelizeBuildables="YES" buildImplicitDependencies="YES">
    <BuildActionEntries>
      <BuildActionEntry buildForTesting="YES" buildForRunning="YES" buildForProfiling="YES" buildForArchiving="YES" buildForAnalyzing="YES">
        {app}
      </BuildActionEntry>
    </BuildActionEntries>
  </BuildAction>
  <TestAction buildConfiguration="Release" selectedDebuggerIdentifier="" selectedLauncherIdentifier="Xcode.IDEFoundation.Launcher.PosixSpawn" shouldUseLaunchSchemeArgsEnv="YES">
    <Testables>
      <TestableReference skipped="NO">
        {tests}
      </TestableReference>
    </Testables>
  </TestAction>
  <LaunchAction buildConfiguration="Release" selectedDebuggerIdentifier="" selectedLauncherIdentifier="Xcode.IDEFoundation.Launcher.PosixSpawn">
    <BuildableProductRunnable runnableDebuggingMode="0">
      {app}
    </BuildableProductRunnable>
  </LaunchAction>
</Scheme>
"""  # noqa: E501 - as Xcode writes it
REFERENCE = (
    '<BuildableReference BuildableIdentifier="primary" BlueprintIdentifier="{}" BuildableName="{}" BlueprintName="{}" '
    f'ReferencedContainer="container:{APP}.xcodeproj"/>'
)


def _id(name: str) -> str:
    """The 24 digits that stand for an object of the project, by a name of ours."""
    return hashlib.sha256(name.encode()).hexdigest()[:24].upper()


class _Objects:
    """The objects of a project by their id; each refers to others by theirs."""

    def __init__(self) -> None:
        self.all: dict[str, dict[str, Any]] = {}

    def add(self, of: str, isa: str, /, **fields: Any) -> str:
        """Add an object; its id."""
        self.all[_id(of)] = {"isa": isa, **fields}
        return _id(of)

    def file(self, path: str, kind: str) -> str:
        """A file or a folder by its path from the project."""
        name = path.rpartition("/")[2]
        return self.add(
            f"file {path}", "PBXFileReference", lastKnownFileType=kind, name=name, path=path, sourceTree="SOURCE_ROOT"
        )

    def phase(self, target: str, isa: str, *files: str, key: str = "fileRef") -> str:
        """A phase of a target's build, with files or products."""
        members = [self.add(f"{target} {isa} {file}", "PBXBuildFile", **{key: file}) for file in files]
        return self.add(
            f"{target} {isa}", isa, buildActionMask="2147483647", files=members, runOnlyForDeploymentPostprocessing="0"
        )

    def configurations(self, of: str, settings: dict[str, str]) -> str:
        """The one configuration of a target or of the project."""
        release = self.add(f"{of} release", "XCBuildConfiguration", name="Release", buildSettings=settings)
        return self.add(
            f"{of} configurations",
            "XCConfigurationList",
            buildConfigurations=[release],
            defaultConfigurationIsVisible="0",
            defaultConfigurationName="Release",
        )

    def target(
        self, name: str, kind: str, ending: str, settings: dict[str, str], phases: list[str], **more: Any
    ) -> str:
        """A target and its product."""
        product = self.add(
            f"{name} product",
            "PBXFileReference",
            explicitFileType="wrapper.application" if ending == "app" else "wrapper.cfbundle",
            includeInIndex="0",
            path=f"{name}.{ending}",
            sourceTree="BUILT_PRODUCTS_DIR",
        )
        fields = {"dependencies": [], "buildRules": [], **more}
        return self.add(
            name,
            "PBXNativeTarget",
            name=name,
            productName=name,
            productReference=product,
            productType=f"com.apple.product-type.{kind}",
            buildConfigurationList=self.configurations(name, settings),
            buildPhases=phases,
            **fields,
        )


def project(sources: tuple[str, str], resources: dict[str, str], lowest: str) -> dict[str, str]:
    """The files of the project by their path: an app of one source and a test of the other, with resources.

    `resources` are files and folders by their path from the project, with the type that Xcode gives such.
    """
    objects = _Objects()
    app_source, test_source = (objects.file(path, "sourcecode.swift") for path in sources)
    carried = [objects.file(path, kind) for path, kind in resources.items()]
    root = _id("project")
    package = objects.add("package", "XCLocalSwiftPackageReference", relativePath=LIBRARY)
    product = objects.add("library", "XCSwiftPackageProductDependency", productName=LIBRARY, package=package)
    app = objects.target(
        APP,
        "application",
        "app",
        APP_SETTINGS,
        [
            objects.phase(APP, "PBXSourcesBuildPhase", app_source),
            objects.phase(APP, "PBXFrameworksBuildPhase", product, key="productRef"),
            objects.phase(APP, "PBXResourcesBuildPhase", *carried),
        ],
        packageProductDependencies=[product],
    )
    proxy = objects.add(
        "proxy", "PBXContainerItemProxy", containerPortal=root, proxyType="1", remoteGlobalIDString=app, remoteInfo=APP
    )
    tests = objects.target(
        TESTS,
        "bundle.ui-testing",
        "xctest",
        TEST_SETTINGS,
        [objects.phase(TESTS, "PBXSourcesBuildPhase", test_source)],
        dependencies=[objects.add("dependency", "PBXTargetDependency", target=app, targetProxy=proxy)],
    )
    products = objects.add(
        "products",
        "PBXGroup",
        children=[objects.all[target]["productReference"] for target in (app, tests)],
        name="Products",
        sourceTree="<group>",
    )
    group = objects.add(
        "group", "PBXGroup", children=[app_source, test_source, *carried, products], sourceTree="<group>"
    )
    objects.add(
        "project",
        "PBXProject",
        attributes={"BuildIndependentTargetsInParallel": "1", "LastUpgradeCheck": "1600"},
        buildConfigurationList=objects.configurations("project", {**SETTINGS, "IPHONEOS_DEPLOYMENT_TARGET": lowest}),
        compatibilityVersion="Xcode 15.0",
        developmentRegion="en",
        hasScannedForEncodings="0",
        knownRegions=["en", "Base"],
        mainGroup=group,
        packageReferences=[package],
        productRefGroup=products,
        projectDirPath="",
        projectRoot="",
        targets=[app, tests],
    )
    document = {"archiveVersion": "1", "classes": {}, "objectVersion": "60", "objects": objects.all, "rootObject": root}
    folder = f"{APP}.xcodeproj"
    return {
        f"{folder}/project.pbxproj": plistlib.dumps(document).decode(),
        f"{folder}/xcshareddata/xcschemes/{APP}.xcscheme": SCHEME.format(
            app=REFERENCE.format(app, f"{APP}.app", APP), tests=REFERENCE.format(tests, f"{TESTS}.xctest", TESTS)
        ),
        "Info.plist": INFO,
    }
