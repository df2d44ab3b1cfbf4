"""Print a wheel's requirements that hold here (no extras), less the named ones."""

from __future__ import annotations

import email
import sys
import zipfile

from pip._vendor.packaging.requirements import Requirement

wheel = zipfile.ZipFile(sys.argv[1])
about = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for line in email.message_from_bytes(wheel.read(about)).get_all("Requires-Dist") or []:
    requirement = Requirement(line)
    holds = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if requirement.name not in sys.argv[2:] and holds:
        requirement.marker = None
        print(requirement)
