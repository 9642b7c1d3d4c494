"""What AWS Device Farm takes of a package: its APK as app and as test, and a test spec that runs it and keeps results.

Format: docs.aws.amazon.com/devicefarm/latest/developerguide, "Test spec reference and syntax"; commands of aws-cli's
`devicefarm`. The user runs them, and nothing here calls the farm.
"""

from pipeline.core import files as storage
from pipeline.features.away import apk
from pipeline.features.away.plan import MadePackage

FOLDER = "devicefarm"
SPEC, SUBMIT = "testspec.yml", "submit.sh"

LONGEST_MINUTES = 150
"""The most that a job may run; what is left then is for a package with --rest."""

TEST_SPEC = f"""version: 0.1
android_test_host: amazon_linux_2
phases:
  test:
    commands:
      - adb -s "$DEVICEFARM_DEVICE_UDID" shell am instrument -w -r {apk.RUNNER}
  post_test:
    commands:
      - adb -s "$DEVICEFARM_DEVICE_UDID" exec-out {apk.TAKE} | tar -xf - -C "$DEVICEFARM_LOG_DIR"
artifacts:
  - $DEVICEFARM_LOG_DIR
"""
"""What `post_test` brings is there in any case: also of a run that reached its time."""

COMMANDS = f"""#!/bin/sh
# Run the package on AWS Device Farm: sh {SUBMIT} PROJECT_ARN DEVICE_POOL_ARN, with aws and curl.
set -eu
cd "${{0%/*}}"
project=${{1:?name the ARN of a project}} pool=${{2:?name the ARN of a device pool}}
upload() {{ # FILE TYPE: its ARN, when the farm has looked at it
  set -- $(aws devicefarm create-upload --project-arn "$project" --name "${{1##*/}}" --type "$2" \\
    --query 'upload.[arn,url]' --output text) "$1"
  [ $# -eq 3 ] || return 1
  curl --fail --silent --show-error --upload-file "$3" "$2" >&2
  while :; do
    case $(aws devicefarm get-upload --arn "$1" --query upload.status --output text) in
      SUCCEEDED) echo "$1"; return ;;
      FAILED) echo "the farm refuses $3" >&2; return 1 ;;
    esac
    sleep 5
  done
}}
app=$(upload ../{apk.FOLDER}/{apk.APK} ANDROID_APP)
test=$(upload ../{apk.FOLDER}/{apk.APK} INSTRUMENTATION_TEST_PACKAGE)
spec=$(upload {SPEC} INSTRUMENTATION_TEST_SPEC)
aws devicefarm schedule-run --project-arn "$project" --app-arn "$app" --device-pool-arn "$pool" --name package \\
  --test "type=INSTRUMENTATION,testPackageArn=$test,testSpecArn=$spec" \\
  --execution-configuration jobTimeoutMinutes={LONGEST_MINUTES}
"""


def write_device_farm(made: MadePackage) -> None:
    """Write the APK of a package, the test spec, and the commands that submit both, into its folder."""
    apk.write_android_test(made)
    storage.write_text(made.folder / FOLDER / SPEC, TEST_SPEC)
    storage.write_text(made.folder / FOLDER / SUBMIT, COMMANDS)
