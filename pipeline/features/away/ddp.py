"""What Google's Developer Device Platform takes of a package: one archive to push, one executable, one command.

A run there is `gcloud beta device-run sessions submit android-executable` with files to push, paths to pull and a shell
script as its executable; at most 50 files are pushed, so the package goes as one archive. Nothing here calls it.
"""

import tarfile

from pipeline.core import files as storage
from pipeline.features.away.plan import MadePackage

PLACE = "/data/local/tmp/ort-mobile"
"""The folder on the phone: the shell user may write and execute there."""

FOLDER = "ddp"
ARCHIVE, START, SUBMIT = "package.tar", "start.sh", "submit.sh"

LONGEST = "3h"
"""The most that an executable may run; what is left then is for a package with --rest."""

SCRIPT = f"""#!/system/bin/sh
# The executable of the farm: unpacks the package that was pushed, and runs it.
cd {PLACE} && tar -xf {ARCHIVE} && exec sh run.sh
"""

COMMAND = f"""#!/bin/sh
# Run the package on a phone of the Developer Device Platform: sh {SUBMIT} DEVICE, as shiba-34.
cd "${{0%/*}}" || exit 2
exec gcloud beta device-run sessions submit android-executable --device="${{1:?name a device, as shiba-34}}" \\
  --executable={START} --executable-timeout={LONGEST} \\
  --other-files-to-push={ARCHIVE}={PLACE}/{ARCHIVE} --paths-to-pull={PLACE}/session
"""


def write_ddp(made: MadePackage) -> None:
    """Write the archive of a package, the script that starts it, and the command that submits it, into its folder."""
    package = made.folder
    folder, paths = package / FOLDER, [path for path in sorted(package.rglob("*")) if path.is_file()]
    storage.make_folder(folder)
    with storage.storage_errors(folder), tarfile.open(folder / ARCHIVE, "w", format=tarfile.USTAR_FORMAT) as archive:
        for path in paths:
            info = tarfile.TarInfo(path.relative_to(package).as_posix())
            info.size, info.mode = path.stat().st_size, 0o755 if path.name == "probe" else 0o644
            with path.open("rb") as file:
                archive.addfile(info, file)
    storage.write_text(folder / START, SCRIPT)
    storage.write_text(folder / SUBMIT, COMMAND)
