"""`make deploy`: what it asks of the SAM CLI, with a stand-in for that, and what it says when it cannot begin."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from samcli.lib.config.samconfig import SamConfig
from samcli.yamlhelper import yaml_dump

from tests.edge.sam import ROOT, source, transformed
from tests.edge.test_signing import closed_port
from tools import deploy

# Writes down how it was called; builds and remembers answers as the real one does, as far as it matters.
FAKE = """#!{python}
import json, os, pathlib, sys
with open("calls", "a") as calls:
    calls.write(json.dumps([sys.argv[1:], os.environ.get("ARCH")]) + "\\n")
if sys.argv[1] == os.environ.get("FAKE_FAILS"):
    sys.exit(3)
built = pathlib.Path(".aws-sam/build/template.yaml")
if sys.argv[1] == "build":
    built.parent.mkdir(parents=True, exist_ok=True)
    built.write_text(pathlib.Path("as-built.yaml").read_text())
elif "--guided" in sys.argv and os.environ.get("FAKE_SAVES"):
    pathlib.Path("samconfig.toml").write_text(os.environ["FAKE_SAVES"])
"""

BUILT = yaml_dump(source())
RELEASE = re.compile(r'^      AutoPublishAlias: live\n      AutoPublishCodeSha256: "(\d{10})"$', re.MULTILINE)


def answers(arch: str) -> str:
    """Return `samconfig.toml` as the SAM CLI keeps answers."""
    return f"""version = 0.1
[default.deploy.parameters]
stack_name = "specdec"
region = "eu-central-1"
capabilities = "CAPABILITY_IAM"
parameter_overrides = "TowerUrl=\\"wss://tower.example.org/specdec\\" Architecture=\\"{arch}\\" RunBurst=\\"10\\""
"""


@dataclass(frozen=True)
class Done:
    """How it ended."""

    returncode: int
    stdout: str
    stderr: str


class Project:
    """A project's folder with the stand-in on the path."""

    def __init__(self, root: Path, capfd: pytest.CaptureFixture[str], **environ: str) -> None:
        """Make it; `environ` is all that is known of AWS."""
        self.root = root
        self._capfd = capfd
        bin_ = root / "bin"
        bin_.mkdir()
        (bin_ / "sam").write_text(FAKE.format(python=sys.executable))
        (bin_ / "sam").chmod(0o755)
        (root / "as-built.yaml").write_text(BUILT)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "FAKE_"))}
        nowhere = {name: "/nowhere" for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")}
        self._environ = {**kept, **nowhere, **environ, "PATH": f"{bin_}:{os.environ['PATH']}"}

    def run(self, *arguments: str, **environ: str) -> Done:
        """Deploy."""
        self._capfd.readouterr()
        with mock.patch.dict(os.environ, {**self._environ, **environ}, clear=True):
            status = deploy.main(arguments, self.root)
        return Done(status, *self._capfd.readouterr())

    def calls(self) -> list[Any]:
        """Return the arguments of SAM's calls since the last time, and ARCH."""
        path = self.root / "calls"
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        path.unlink(missing_ok=True)
        return found


class _Sts(BaseHTTPRequestHandler):
    """An AWS Security Token Service that takes any credentials."""

    def do_POST(self) -> None:
        """Say whose they are."""
        self.rfile.read(int(self.headers["Content-Length"]))
        said = (
            b'<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>'
            b"<Account>123456789012</Account></GetCallerIdentityResult></GetCallerIdentityResponse>"
        )
        self.send_response(200)
        self.send_header("Content-Type", "text/xml")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    """Where that service listens."""
    with HTTPServer(("127.0.0.1", 0), _Sts) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def project(tmp_path: Path, aws: str, capfd: pytest.CaptureFixture[str]) -> Project:
    """A project of somebody who may deploy."""
    known = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL_STS": aws}
    return Project(tmp_path, capfd, **known)


def built(arch: str) -> list[Any]:
    """Return the call that builds."""
    return [["build", "--parameter-overrides", f"Architecture={arch}"], arch]


def asked(arch: str) -> list[Any]:
    """Return the call that asks for the first time."""
    named = ["--stack-name", "specdec", "--parameter-overrides", f"Architecture={arch}"]
    return [["deploy", "--guided", *named], None]


def asked_again(arch: str) -> list[Any]:
    """Return the call that asks again, and offers what was answered before."""
    before = f'TowerUrl="wss://tower.example.org/specdec" Architecture="{arch}" RunBurst="10"'
    return [["deploy", "--guided", "--parameter-overrides", before], None]


PLAIN = [["deploy"], None]


def test_first_deployment_asks_later_ones_do_not(project: Project) -> None:
    """It builds before all else; the first time SAM asks, afterwards it uses what was answered."""
    done = project.run(FAKE_SAVES=answers("arm64"))
    assert done.returncode == 0, done.stderr
    assert "building for arm64, to deploy to account 123456789012" in done.stdout
    assert project.calls() == [built("arm64"), asked("arm64")]
    assert project.run().returncode == 0
    assert project.calls() == [built("arm64"), PLAIN]
    assert project.run("--guided").returncode == 0
    assert project.calls() == [built("arm64"), asked_again("arm64")]


def test_processor_of_the_build_is_that_of_the_function(project: Project) -> None:
    """Later builds are for the processor that was answered; an answer that differs from the build is built again."""
    assert project.run("--arch", "x86_64", FAKE_SAVES=answers("x86_64")).returncode == 0
    assert project.calls() == [built("x86_64"), asked("x86_64")]
    assert project.run().returncode == 0
    assert project.calls() == [built("x86_64"), PLAIN]
    done = project.run("--arch", "arm64")
    assert (done.returncode, project.calls()) == (2, [])
    assert (
        done.stderr == "deploy: samconfig.toml says Architecture=x86_64; change it there, or take --guided\n"
    )
    (project.root / "samconfig.toml").unlink()
    done = project.run(FAKE_SAVES=answers("x86_64"))
    assert "Architecture is x86_64: building again" in done.stdout
    assert project.calls() == [built("arm64"), asked("arm64"), built("x86_64"), PLAIN]


def test_each_release_is_named(project: Project) -> None:
    """The built template names the release, so that SAM publishes a version for it."""
    before = datetime.now(UTC) - timedelta(minutes=1)
    assert project.run().returncode == 0
    found = RELEASE.search((project.root / deploy.BUILT).read_text())
    assert found
    named = datetime.strptime(found[1], "%y%m%d%H%M").replace(tzinfo=UTC)
    assert before <= named <= datetime.now(UTC)


def test_a_parameter_alone_makes_a_new_version(tmp_path: Path) -> None:
    """Two releases that differ in a parameter only are two versions, and the function's description names each."""
    found = []
    for release, url in (("2611301200-1a2b3c4", "wss://one"), ("2611301201-1a2b3c4-dirty", "wss://two")):
        template = tmp_path / release
        template.write_text(BUILT)
        deploy.name_release(template, release)
        resources = transformed(template.read_text(), TowerUrl=url)["Resources"]
        assert resources["EdgeFunction"]["Properties"]["Description"] == release
        found.append(next(name for name, item in resources.items() if item["Type"] == "AWS::Lambda::Version"))
    assert found == ["EdgeFunctionVersion2611301200", "EdgeFunctionVersion2611301201"]


def test_what_would_not_be_packed_is_named(project: Project) -> None:
    """A module that git does not track is missing in the artifact, and the function would not start."""
    subprocess.run(["git", "init", "-q"], cwd=project.root, check=True, timeout=60)
    (project.root / "edge").mkdir()
    (project.root / "edge" / "new.py").touch()
    one_line(project.run(), "git does not track edge/new.py, so it would not be packed")
    assert project.calls() == []
    subprocess.run(["git", "add", "edge"], cwd=project.root, check=True, timeout=60)
    assert project.run().returncode == 0


def test_release_names() -> None:
    """The time in ten digits, then the commit, if it is known."""
    at = datetime(2026, 11, 30, 12, 5, tzinfo=UTC)
    assert deploy.release_name(at, "1a2b3c4") == "2611301205-1a2b3c4"
    assert deploy.release_name(at, None) == "2611301205"


def test_another_template_is_not_deployed(project: Project) -> None:
    """If what SAM built is not this template, nothing is deployed."""
    (project.root / "as-built.yaml").write_text("Resources: {}\n")
    done = project.run()
    assert (done.returncode, project.calls()) == (2, [built("arm64")])
    assert done.stderr.startswith("deploy: .aws-sam/build/template.yaml is not the template")


@pytest.mark.parametrize(("command", "calls"), [("build", 1), ("deploy", 2)])
def test_failures_of_sam_are_its_own(project: Project, command: str, calls: int) -> None:
    """What SAM says stands, its exit status is passed on, and nothing follows."""
    done = project.run(FAKE_FAILS=command, FAKE_SAVES=answers("x86_64"))
    assert (done.returncode, done.stderr) == (3, "")
    assert len(project.calls()) == calls


def one_line(done: Done, words: str) -> None:
    """Check that one line says why, and that SAM's exit status was none."""
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"deploy: {words}")
    assert done.stderr.count("\n") == 1


def test_without_credentials_one_line_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is built in vain."""
    project = Project(tmp_path, capfd, AWS_EC2_METADATA_DISABLED="true")
    one_line(project.run(), "there are no AWS credentials; run `aws configure`")
    one_line(
        project.run(AWS_PROFILE="nobody"), "the AWS credentials cannot be used: The config profile (nobody)"
    )
    assert project.calls() == []


def test_credentials_that_cannot_be_checked(project: Project) -> None:
    """An AWS that does not answer costs one line, too."""
    done = project.run(AWS_ENDPOINT_URL_STS=f"http://127.0.0.1:{closed_port()}")
    one_line(done, "the AWS credentials cannot be used: Could not connect")
    assert project.calls() == []


def test_refused_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that AWS does not know, or no longer, are named with AWS's own word for it."""
    import boto3
    from botocore.stub import Stubber

    client = boto3.client("sts", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    stubber = Stubber(client)
    stubber.add_client_error("get_caller_identity", "ExpiredToken")
    monkeypatch.setattr(boto3.Session, "client", lambda *_, **__: client)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with stubber, pytest.raises(deploy.DeployError, match=r"^AWS refuses the credentials: ExpiredToken$"):
        deploy.check_credentials(deploy.Saved())


def test_without_sam_one_line_says_so(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no set-up was made, neither on the path nor beside the interpreter."""
    (project.root / "bin" / "sam").unlink()
    monkeypatch.setattr(sys, "executable", str(project.root / "python"))
    one_line(project.run(PATH=str(project.root / "bin")), "the SAM CLI is not installed")


def test_a_broken_file_of_answers_is_named(project: Project) -> None:
    """It is not overwritten."""
    (project.root / "samconfig.toml").write_text("version = ")
    one_line(project.run(), "samconfig.toml cannot be read; delete it")


@pytest.mark.parametrize(
    ("kept", "overrides"),
    [
        ('TowerUrl="wss://x" Architecture="x86_64"', ['TowerUrl="wss://x" Architecture="arm64"']),
        (["TowerUrl=wss://x", "Architecture=x86_64"], ["TowerUrl=wss://x", 'Architecture="arm64"']),
    ],
)
def test_answers_are_read_as_sam_writes_them(
    tmp_path: Path, kept: str | list[str], overrides: list[str]
) -> None:
    """SAM's own writer, and the list that people may write instead; all are kept when the processor is another."""
    config = SamConfig(tmp_path)
    config.put(["deploy"], "parameters", "parameter_overrides", kept)
    config.put(["deploy"], "parameters", "profile", "work")
    config.put(["global"], "parameters", "region", "eu-west-1")
    config.flush()
    found = deploy.saved(tmp_path)
    assert found is not None
    assert (found.arch, found.region, found.profile) == ("x86_64", "eu-west-1", "work")
    assert found.overridden("arm64") == overrides
    assert deploy.Saved(overrides=("RunBurst=7",)).overridden("arm64") == ["RunBurst=7", "Architecture=arm64"]
    assert deploy.saved(tmp_path / "elsewhere") is None


def test_answers_are_not_committed() -> None:
    """Git ignores the file, which holds names of secrets and of people."""
    assert "samconfig.toml" in (ROOT / ".gitignore").read_text("utf-8").splitlines()


def test_make_deploy_is_this() -> None:
    """`make deploy` passes the processor on, and `GUIDED=1`; also when a `make` runs the tests."""
    done = subprocess.run(
        ["make", "--no-print-directory", "-n", "deploy", "ARCH=x86_64", "GUIDED=1", "-o", "setup"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ".venv/bin/python -m tools.deploy --arch x86_64 --guided".split()
