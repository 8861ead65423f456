"""The SAM template and what it packs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools import build

ROOT = Path(__file__).parents[2]
SAM = Path(sys.executable).parent / "sam"


@pytest.mark.skipif(not SAM.exists(), reason="the SAM CLI is not installed")
def test_template_passes_sam_and_cfn_lint(tmp_path: Path) -> None:
    """Sam validate --lint has nothing to say; it needs a region but no credentials and no network."""
    done = subprocess.run(
        [SAM, "validate", "--lint", "-t", ROOT / "template.yaml"],
        capture_output=True,
        text=True,
        timeout=240,
        env={
            **os.environ,
            "AWS_DEFAULT_REGION": "us-east-1",
            "SAM_CLI_TELEMETRY": "0",
            "HOME": str(tmp_path),
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is a valid SAM Template" in done.stdout


def test_function_has_few_rights() -> None:
    """The function may read one secret, sign by one key, and put and get in one table: nothing else, no wildcard."""
    text = (ROOT / "template.yaml").read_text("utf-8")
    function = text[text.index("  EdgeFunction:") : text.index("  SigningKey:")]
    assert re.findall(r"Action: (.+)", function) == [
        "secretsmanager:GetSecretValue",
        "[kms:Sign, kms:GetPublicKey]",
        "[dynamodb:PutItem, dynamodb:GetItem]",
    ]
    assert re.findall(r"Resource: (.+)", function) == [
        "!Ref TowerTokenSecretArn",
        "!GetAtt SigningKey.Arn",
        "!GetAtt Receipts.Arn",
    ]
    assert "*" not in function.replace("{proxy+}", "")


def test_receipts_outlive_the_stack() -> None:
    """Key and table stay when the stack goes or replaces them, and the table cannot be deleted by mistake."""
    text = (ROOT / "template.yaml").read_text("utf-8")
    for name, kind in (("SigningKey", "AWS::KMS::Key"), ("Receipts", "AWS::DynamoDB::Table")):
        resource = text[text.index(f"  {name}:\n    Type: {kind}") :]
        assert "DeletionPolicy: Retain\n    UpdateReplacePolicy: Retain" in resource[:200]
    assert "DeletionProtectionEnabled: true" in text
    assert "KeySpec: ECC_NIST_P256\n      KeyUsage: SIGN_VERIFY" in text


def test_no_cold_start_waits_for_the_token() -> None:
    """The function gets the token itself, and the secret's name for when the token has been rotated."""
    text = (ROOT / "template.yaml").read_text("utf-8")
    assert 'SPECDEC_TOWER_TOKEN: !Sub "{{resolve:secretsmanager:${TowerTokenSecretArn}}}"' in text
    assert "SPECDEC_TOWER_TOKEN_SECRET: !Ref TowerTokenSecretArn" in text


def test_artifact_holds_edge_and_shared_only() -> None:
    """SAM's build is `make build`'s, which packs the two folders that the function may import, and no other."""
    text = (ROOT / "edge" / "Makefile").read_text("utf-8")
    assert '-m tools.build --arch $(ARCH) --into "$(ARTIFACTS_DIR)"' in text
    assert build.SOURCES == ("edge", "shared")


def test_packed_packages_are_those_of_the_project() -> None:
    """edge/requirements.txt pins as pyproject.toml does, less what only the local server needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = {*project["dependencies"], *project["optional-dependencies"]["edge"]}
    lines = (ROOT / "edge" / "requirements.txt").read_text("utf-8").splitlines()
    packed = {line for line in lines if line and not line.startswith("#")}
    assert packed <= declared
    assert not any(line.startswith(("uvicorn", "httpx", "boto3")) for line in packed)
