"""The bill of materials names every Python distribution and Debian package, as they were pinned."""

import re
from email.parser import HeaderParser
from typing import Any

import pytest
from packaging.markers import Marker
from tests.e2e.agent_image import ROOT
from tests.image.conftest import Unpacked

pytestmark = pytest.mark.long

UNKNOWN = {"NOASSERTION", "NONE", ""}
OURS = "gpu-device-plugin"


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def listed(image: Unpacked, kind: str) -> dict[str, dict[str, Any]]:
    """Packages of the bill of one kind (`pypi`, `deb`), by name."""
    found = {}
    for package in image.bill["packages"]:
        places = [reference["referenceLocator"] for reference in package.get("externalRefs", [])]
        if any(place.startswith(f"pkg:{kind}/") for place in places):
            found[normal(package["name"])] = package
    return found


def installed(image: Unpacked) -> dict[str, str]:
    """Version by name of every Python distribution in the image."""
    found = {}
    for file in image.root.glob("usr/**/*.dist-info/METADATA"):
        told = HeaderParser().parsestr(file.read_text())
        found[normal(told["Name"])] = told["Version"]
    return found


def test_every_python_distribution_is_listed_with_version_and_licence(image: Unpacked) -> None:
    bill = listed(image, "pypi")
    assert {name: package["versionInfo"] for name, package in bill.items()} == installed(image)
    for name, package in bill.items():
        assert {package["licenseDeclared"], package["licenseConcluded"]} - UNKNOWN, name


def test_every_debian_package_is_listed_with_its_version(image: Unpacked) -> None:
    packages = {}
    for file in (image.root / "var/lib/dpkg/status.d").iterdir():
        told = HeaderParser().parsestr(file.read_text())
        packages[normal(told["Package"])] = told["Version"]
        assert told["Architecture"] in (image.architecture, "all")
    bill = listed(image, "deb")
    assert {"libc6", "python3-11-minimal", "libssl3"} <= set(packages)
    assert {name: package["versionInfo"] for name, package in bill.items()} == packages


def test_versions_are_those_that_are_pinned(image: Unpacked) -> None:
    """What was tested is what is shipped: .ci/constraints.txt."""
    text = (ROOT / ".ci" / "constraints.txt").read_text()
    entries = re.findall(r"^([\w.-]+)==([^\s;]+)(?: *; (.*?))? *\\?$", text, re.MULTILINE)
    pinned = {
        name: version
        for name, version, marker in entries
        if not marker or Marker(marker).evaluate({"python_full_version": "3.11.2"})
    }
    wanted = {name: version for name, version in installed(image).items() if name != OURS}
    assert {name: pinned[name] for name in wanted} == wanted
