"""`make deploy`: builds the edge and deploys it to AWS with the SAM CLI.

The first time SAM asks for the stack's name, its region and its parameters, and keeps the answers in `samconfig.toml`,
which is not committed; later ones use them. Each deployment gets a name of its own: SAM would publish no new version
of the function where only a parameter's value has changed (aws/serverless-application-model#3820), and CloudFormation
reads secrets anew only for a resource that changes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tools.build import SOURCES

ROOT: Final = Path(__file__).parents[1]
CONFIG: Final = "samconfig.toml"
BUILT: Final = Path(".aws-sam/build/template.yaml")
ARCHITECTURES: Final = ("arm64", "x86_64")
FALLBACK_REGION: Final = "us-east-1"
"""Where credentials are checked if no region is named yet."""

_ALIAS: Final = re.compile(r"^( +)AutoPublishAlias: live$", re.MULTILINE)
_ARCHITECTURE: Final = re.compile(r'\bArchitecture=(["\']?)(\w+)\1')
STACK: Final = "specdec"
"""What SAM offers as the stack's name, and docs/deploy.md goes by."""


class DeployError(Exception):
    """Nothing can be deployed; the message says why, in one line."""


@dataclass(frozen=True)
class Saved:
    """What SAM was told before, as far as it matters here."""

    arch: str | None = None
    region: str | None = None
    profile: str | None = None
    overrides: tuple[str, ...] = ()

    def overridden(self, arch: str) -> list[str]:
        """Returns all parameters as SAM takes them, with this processor: what it is not given it would ask for anew."""
        if self.arch is None:
            return [*self.overrides, f"Architecture={arch}"]
        return [_ARCHITECTURE.sub(f'Architecture="{arch}"', one) for one in self.overrides]


def saved(root: Path) -> Saved | None:
    """Returns the answers of an earlier deployment, None if there are none.

    Raises:
        DeployError: If they cannot be read.
    """
    try:
        config = tomllib.loads((root / CONFIG).read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise DeployError(f"{CONFIG} cannot be read; delete it to be asked for everything again") from None
    default: Mapping[str, Any] = config.get("default", {})
    said = {
        name: value
        for command in ("global", "deploy")
        for name, value in default.get(command, {}).get("parameters", {}).items()
    }
    overrides = said.get("parameter_overrides", "")
    texts = tuple(map(str, filter(None, [overrides] if isinstance(overrides, str) else overrides)))
    found = _ARCHITECTURE.search(" ".join(texts))
    return Saved(found[2] if found else None, said.get("region"), said.get("profile"), texts)


def release_name(now: datetime, commit: str | None) -> str:
    """Returns the name of a release: ten digits that no other has, then the commit.

    SAM makes the version's logical id of the first ten characters, which must be letters and digits.
    """
    return f"{now:%y%m%d%H%M}" + (f"-{commit}" if commit else "")


def name_release(template: Path, release: str) -> None:
    """Writes a release's name into a built template, where SAM takes it for a change of the function.

    Raises:
        DeployError: If the template is not as expected.
    """
    line = rf'\g<0>\n\g<1>AutoPublishCodeSha256: "{release}"'
    text, count = _ALIAS.subn(line, template.read_text("utf-8") if template.is_file() else "")
    if count != 1:
        raise DeployError(f"{BUILT} is not the template that `sam build` makes of template.yaml")
    template.write_text(text, "utf-8")


def find_sam() -> str:
    """Returns where the SAM CLI is.

    Raises:
        DeployError: If it is nowhere.
    """
    beside = Path(sys.executable).parent
    found = shutil.which("sam", path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{beside}")
    if found is None:
        raise DeployError("the SAM CLI is not installed; `make setup` does that")
    return found


def check_credentials(given: Saved) -> str:
    """Returns the number of the AWS account that will be deployed to.

    Raises:
        DeployError: If there are no credentials, or AWS does not take them.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        session = boto3.Session(profile_name=given.profile)
        if session.get_credentials() is None:
            raise DeployError(
                "there are no AWS credentials; run `aws configure` or `aws sso login`, or set AWS_PROFILE"
            )
        region = session.region_name or given.region or FALLBACK_REGION
        limits = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 2})
        account: str = session.client("sts", region_name=region, config=limits).get_caller_identity()[
            "Account"
        ]
    except ClientError as error:
        raise DeployError(f"AWS refuses the credentials: {error.response['Error']['Code']}") from None
    except BotoCoreError as error:
        raise DeployError(f"the AWS credentials cannot be used: {error}") from None
    return account


def deploy(root: Path, arch: str | None, guided: bool) -> int:
    """Builds and deploys; returns an exit status.

    Args:
        root: The project.
        arch: The processor, if it is named.
        guided: Whether SAM asks for everything again.

    Raises:
        DeployError: If it does not get as far as SAM.
    """
    sam = find_sam()
    before = saved(root)
    if before and before.arch and arch and arch != before.arch and not guided:
        raise DeployError(f"{CONFIG} says Architecture={before.arch}; change it there, or take --guided")
    if missed := _untracked(root):
        raise DeployError(
            f"git does not track {missed[0]}, so it would not be packed; add it, or take it away"
        )
    account = check_credentials(before or Saved())
    arch = arch or (before.arch if before else None) or ARCHITECTURES[0]
    print(f"==> building for {arch}, to deploy to account {account}", flush=True)
    if status := _build(sam, root, arch):
        return status
    if before is not None and not guided:
        return _run([sam, "deploy"], root)
    named = [] if before else ["--stack-name", STACK]
    overrides = (before or Saved()).overridden(arch)
    status = _run([sam, "deploy", "--guided", *named, "--parameter-overrides", *overrides], root)
    after = saved(root)
    if status or after is None or after.arch in (None, arch):
        return status
    # Answered otherwise than it was built: until it is built again the function cannot start.
    print(f"==> Architecture is {after.arch}: building again", flush=True)
    return _build(sam, root, str(after.arch)) or _run([sam, "deploy"], root)


def _build(sam: str, root: Path, arch: str) -> int:
    command = [sam, "build", "--parameter-overrides", f"Architecture={arch}"]
    if status := _run(command, root, ARCH=arch):
        return status
    name_release(root / BUILT, release_name(datetime.now(UTC), _commit(root)))
    return 0


def _commit(root: Path) -> str | None:
    return _git(root, "describe", "--always", "--dirty", "--exclude", "*").strip() or None


def _untracked(root: Path) -> list[str]:
    """Returns the files that whoever made them may think are packed."""
    return _git(root, "ls-files", "--others", "--exclude-standard", "--", *SOURCES).splitlines()


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def _run(command: Sequence[str], root: Path, **environ: str) -> int:
    return subprocess.run(command, cwd=root, env={**os.environ, **environ}).returncode


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Deploys; returns SAM's exit status, or 2 if it does not come to that."""
    parser = argparse.ArgumentParser(prog="python -m tools.deploy", description=__doc__)
    parser.add_argument("--arch", choices=ARCHITECTURES, help="the function's processor (arm64)")
    parser.add_argument("--guided", action="store_true", help="let SAM ask for everything again")
    arguments = parser.parse_args(argv)
    try:
        return deploy(root, arguments.arch, arguments.guided)
    except DeployError as error:
        print(f"deploy: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
