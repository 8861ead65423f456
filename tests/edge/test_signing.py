"""Signatures: from a key file, from AWS KMS, and the reasons that a receipt states where there is none."""

from __future__ import annotations

import base64
import copy
import functools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from moto import mock_aws
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey  # type: ignore[attr-defined]

from agent.attest import open_attester
from edge.aws import PAUSE_S
from edge.signing import FileSigner, KmsSigner, Signer, SigningFailed, open_signer, signature
from shared.attestation import attested, check_attestation
from shared.dsse import MAX_PAE, pae, statement, verify_envelope
from shared.keyfile import KeyFileError, SigningKey, load_or_create
from shared.keys import key_id, load_keys
from tests.edge.support import SCALE, settings
from tests.shared.build import NOW, example_measurement, measured_payload, result, roadmap_payload
from tests.shared.test_dsse import pem

ROOT = Path(__file__).parents[2]
ARN = "arn:aws:kms:us-east-1:123456789012:key/a-key-that-is-not-there"
OTHER = pem(ec.generate_private_key(ec.SECP256R1())).decode()
PAUSED = "not signed: the key service failed a moment ago and is left alone for some seconds"
NOT_P256 = "not signed: the key in the key service is not P-256"
SDK = {"boto3", "botocore.session", "botocore.client"}


def unsigned(note: str) -> dict[str, Any]:
    """The block of a receipt without a signature."""
    return {"signed": False, "status": "DSSE_PLACEHOLDER", "note": note}


def aws_environment(monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    """An AWS environment that leads nowhere."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    values = {
        "AWS_CONFIG_FILE": "/nowhere",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        **more,
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """An AWS region and credentials, and no AWS."""
    aws_environment(monkeypatch)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An AWS of this process's own."""
    aws_environment(monkeypatch)
    with mock_aws():
        yield


@functools.cache
def aws_client(service: str, which: str = "the usual one") -> Any:
    """A client of a service, the same for all tests, for making one takes long; it is to be used under a mock."""
    make: Any = boto3.client
    return make(
        service, region_name="us-east-1", aws_access_key_id="testing", aws_secret_access_key="testing"
    )


class Kms:
    """A KMS client's maker, and everything that the client was asked."""

    def __init__(self) -> None:
        """Begin to listen."""
        self.client = aws_client("kms")
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.made = 0
        self.client.meta.events.register("provide-client-params.kms.*", self._asked)

    def __call__(self) -> Any:
        """Return the client."""
        self.made += 1
        return self.client

    def create(self, spec: str = "ECC_NIST_P256", usage: str = "SIGN_VERIFY") -> str:
        """Create a key and return its ARN."""
        arn: str = self.client.create_key(KeySpec=spec, KeyUsage=usage)["KeyMetadata"]["Arn"]
        self.calls.clear()
        return arn

    def asked(self) -> list[str]:
        """The names of the operations, in order."""
        return [name for name, _ in self.calls]

    def _asked(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        self.calls.append((model.name, dict(params)))


@pytest.fixture
def kms(aws: None) -> Kms:
    """A KMS that works."""
    return Kms()


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        """Begin anywhere."""
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def sign(signer: Signer | None, payload: dict[str, Any] | None = None) -> dict[str, Any]:
    """The signature block of a payload."""
    return signature(signer, payload or roadmap_payload(run_id="r"), NOW)


# Key files


@pytest.mark.parametrize(
    ("private", "alg"),
    [
        (ec.generate_private_key(ec.SECP256R1()), "ECDSA_SHA_256"),
        (ed25519.Ed25519PrivateKey.generate(), "ED25519"),
    ],
    ids=["P-256", "Ed25519"],
)
def test_key_in_memory_signs(private: Any, alg: str) -> None:
    """A key of either kind signs the statement about the payload, and its public half verifies it."""
    signer = FileSigner(SigningKey(private))
    block = sign(signer, measured_payload())
    assert signer.public_pem() == pem(private).decode()
    keyid = key_id(pem(private))
    assert {**block, "envelope": None} == {
        "signed": True,
        "status": "DSSE",
        "keyid": keyid,
        "alg": alg,
        "envelope": None,
    }
    assert block["envelope"]["signatures"][0]["keyid"] == keyid
    said, key = verify_envelope(block["envelope"], load_keys(pem(private)))
    assert (said, key.keyid) == (statement(measured_payload(), NOW), keyid)


def test_file_is_the_settings_signer(tmp_path: Path) -> None:
    """With SPECDEC_SIGNER=file a P-256 key is made in the file at once, and used again by the next instance."""
    path = tmp_path / "keys" / "edge.pem"
    chosen = settings(signer="file", signing_key_file=str(path))
    first, second = open_signer(chosen, None), open_signer(chosen, OTHER)
    assert path.exists()
    assert isinstance(first, FileSigner) and isinstance(second, FileSigner)
    assert first.public_pem() == second.public_pem() == load_or_create(path, "Ed25519").pem
    assert sign(first)["alg"] == "ECDSA_SHA_256"


def test_unusable_file_stops_the_start(tmp_path: Path) -> None:
    """An edge whose key file is open to others does not start."""
    path = tmp_path / "edge.pem"
    load_or_create(path, "P-256")
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="^edge.pem is open to others than its owner; chmod 600 edge.pem$"):
        open_signer(settings(signer="file", signing_key_file=str(path)), None)


def test_nobody_signs() -> None:
    """Without a signer the receipt says so, or what its maker gives as the reason."""
    assert open_signer(settings(), None) is None
    assert sign(None) == unsigned(
        "no signer is configured on this edge; the digest shows damage, not who made the receipt"
    )
    assert signature(None, roadmap_payload(), NOW, "it rains") == unsigned("it rains")


def test_statement_beyond_the_limit(kms: Kms, caplog: pytest.LogCaptureFixture) -> None:
    """A statement that is too large for KMS is signed by nobody, and is not sent."""
    payload = roadmap_payload(run_id="x" * MAX_PAE)
    file, cloud = FileSigner(SigningKey(ec.generate_private_key(ec.SECP256R1()))), KmsSigner(ARN, client=kms)
    for signer in (file, cloud):
        assert sign(signer, payload) == unsigned("not signed: the statement exceeds 4096 bytes")
    assert kms.calls == []
    assert caplog.messages == ["receipt not signed: TOO_LARGE"] * 2


# KMS


def test_kms_signs_the_message_itself(kms: Kms) -> None:
    """KMS gets the PAE whole (RAW, at most 4,096 bytes), never a digest; its public key is fetched once."""
    arn = kms.create()
    signer = KmsSigner(arn, client=kms)
    payloads = [measured_payload(), roadmap_payload(run_id="r"), roadmap_payload(run_id="é" * 1500)]
    blocks = [sign(signer, payload) for payload in payloads]
    assert kms.asked() == ["GetPublicKey", "Sign", "Sign", "Sign"]
    assert kms.calls[0][1] == {"KeyId": arn}
    for (_, asked), block, payload in zip(kms.calls[1:], blocks, payloads, strict=True):
        message = pae("application/vnd.in-toto+json", base64.b64decode(block["envelope"]["payload"]))
        assert asked == {
            "KeyId": arn,
            "Message": message,
            "MessageType": "RAW",
            "SigningAlgorithm": "ECDSA_SHA_256",
        }
        assert len(message) <= 4096
        said, key = verify_envelope(block["envelope"], load_keys(signer.public_pem().encode()))
        assert said == statement(payload, NOW)
        assert (block["alg"], block["keyid"]) == ("ECDSA_SHA_256", key.keyid)
    assert kms.made == 1
    fetched = kms.client.get_public_key(KeyId=arn)["PublicKey"]
    public = load_pem_public_key(signer.public_pem().encode())
    assert public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) == fetched


def test_known_public_key_is_not_fetched(kms: Kms, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the public key given, nothing but signatures is asked of KMS."""
    monkeypatch.setattr(boto3, "client", lambda *_, **__: kms())
    arn = kms.create()
    known = KmsSigner(arn, client=kms).public_pem()
    kms.calls.clear()
    signer = open_signer(settings(signer="kms", kms_key_id=arn), known)
    assert isinstance(signer, KmsSigner)
    assert signer.public_pem() == known
    assert kms.calls == []
    assert [sign(signer)["keyid"] for _ in range(2)] == [key_id(known.encode())] * 2
    assert kms.asked() == ["Sign", "Sign"]


def test_client_is_patient_for_a_short_time_only(kms: Kms, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client that the settings lead to waits 0.8 s for a connection and for an answer, and tries twice."""
    made: list[Any] = []
    make = boto3.client

    def client(*args: Any, **more: Any) -> Any:
        made.append(make(*args, **more))
        return made[-1]

    monkeypatch.setattr(boto3, "client", client)
    signer = open_signer(settings(signer="kms", kms_key_id=kms.create()), None)
    assert made == []
    assert sign(signer)["signed"] and sign(signer)["signed"]
    (one,) = made
    config = one.meta.config
    assert (config.connect_timeout, config.read_timeout) == (0.8, 0.8)
    assert config.retries == {"total_max_attempts": 2, "mode": "standard"}
    assert one.meta.service_model.service_name == "kms"


def test_another_key_than_the_published_one(kms: Kms, caplog: pytest.LogCaptureFixture) -> None:
    """A signature that the published key does not verify is not handed out; log and receipt say why."""
    signer = KmsSigner(kms.create(), OTHER, client=kms)
    why = "the key service signed with another key than the one that is published"
    assert sign(signer) == unsigned(f"not signed: {why}")
    assert sign(signer)["note"].endswith("left alone for some seconds")  # no call that could only fail again
    assert signer.public_pem() == OTHER
    assert caplog.messages == [f"receipt not signed: {why}"]
    assert [(record.name, record.levelname) for record in caplog.records] == [("edge.signing", "ERROR")]


@pytest.mark.parametrize("junk", [b"", b"junk", b"\x30\x06\x02\x01\x01\x02\x01\x01"], ids=repr)
def test_damaged_signature(nowhere: None, junk: bytes) -> None:
    """What is no signature at all is not handed out either."""
    client = aws_client("kms")
    with Stubber(client) as stub:
        stub.add_response("sign", {"Signature": junk})
        assert sign(KmsSigner(ARN, OTHER, client=lambda: client)) == unsigned(
            "not signed: the key service signed with another key than the one that is published"
        )


@pytest.mark.parametrize(
    "code",
    [
        "ThrottlingException",
        "AccessDeniedException",
        "KMSInvalidStateException",
        "NotFoundException",
        "DisabledException",
        "KMSInternalException",
        "DependencyTimeoutException",
        "KeyUnavailableException",
        "InvalidKeyUsageException",
        "ValidationException",
        "UnrecognizedClientException",
        "ExpiredTokenException",
    ],
)
@pytest.mark.parametrize("operation", ["get_public_key", "sign"])
def test_refusals(nowhere: None, caplog: pytest.LogCaptureFixture, operation: str, code: str) -> None:
    """Whatever KMS refuses with, the receipt is unsigned and names the refusal; nothing is raised."""
    client = aws_client("kms")
    signer = KmsSigner(ARN, OTHER if operation == "sign" else None, client=lambda: client)
    with Stubber(client) as stub:
        stub.add_client_error(operation, code, "a message with an account number in it")
        assert sign(signer) == unsigned(f"not signed: the key service refused: {code}")
        stub.assert_no_pending_responses()
    assert caplog.messages == [f"receipt not signed: the key service refused: {code}"]


def test_missing_key(kms: Kms) -> None:
    """A key that does not exist leaves receipts unsigned, with the reason."""
    for known in (None, OTHER):
        assert sign(KmsSigner(ARN, known, client=kms)) == unsigned(
            "not signed: the key service refused: NotFoundException"
        )


@pytest.mark.parametrize("spec", ["RSA_2048", "ECC_NIST_P384", "ECC_SECG_P256K1"])
def test_key_of_another_kind(kms: Kms, caplog: pytest.LogCaptureFixture, spec: str) -> None:
    """A key that is not P-256 signs nothing; it cannot be published either."""
    arn = kms.create(spec)
    signer = KmsSigner(arn, client=kms)
    assert sign(signer) == unsigned(NOT_P256)
    with pytest.raises(SigningFailed, match="^the key in the key service is not P-256$"):
        KmsSigner(arn, client=kms).public_pem()
    assert set(kms.asked()) == {"GetPublicKey"}
    assert caplog.messages == ["receipt not signed: the key in the key service is not P-256"] * 2


@pytest.mark.parametrize(
    "der",
    [
        b"",
        b"junk",
        # A SubjectPublicKeyInfo of an algorithm that no library here knows (OID 1.2.3.4).
        bytes.fromhex("300c300506032a0304030300aabb"),
        ed25519.Ed25519PrivateKey.generate()
        .public_key()
        .public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    ],
    ids=["empty", "junk", "unknown", "Ed25519"],
)
def test_public_key_that_cannot_be_used(nowhere: None, der: bytes) -> None:
    """A public key that is unreadable, unknown or of another kind gives no signature, and no exception."""
    client = aws_client("kms")
    with Stubber(client) as stub:
        stub.add_response("get_public_key", {"PublicKey": der})
        assert sign(KmsSigner(ARN, client=lambda: client)) == unsigned(NOT_P256)


@pytest.mark.parametrize(
    "key",
    [
        ed25519.Ed25519PrivateKey.generate(),
        rsa.generate_private_key(public_exponent=65537, key_size=2048),
    ],
    ids=["Ed25519", "RSA"],
)
def test_published_key_of_another_kind(kms: Kms, key: Any) -> None:
    """A published key that is not P-256 is told before KMS is asked."""
    assert sign(KmsSigner(kms.create(), pem(key).decode(), client=kms)) == unsigned(NOT_P256)
    assert kms.calls == []


# KMS that does not answer


def closed_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """With KMS down the receipt is unsigned and says so."""
    aws_environment(monkeypatch, AWS_ENDPOINT_URL_KMS=f"http://127.0.0.1:{closed_port()}")
    signer = open_signer(settings(signer="kms", kms_key_id=ARN), OTHER)
    assert sign(signer) == unsigned("not signed: the key service did not answer: EndpointConnectionError")


def test_silence_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A KMS that takes connections and says nothing costs the answer a few seconds, once in a while."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        aws_environment(monkeypatch, AWS_ENDPOINT_URL_KMS=f"http://127.0.0.1:{server.getsockname()[1]}")
        signer = open_signer(settings(signer="kms", kms_key_id=ARN), OTHER)
        started = time.monotonic()
        assert sign(signer) == unsigned("not signed: the key service did not answer: ReadTimeoutError")
        assert time.monotonic() - started < 6 * SCALE
        assert sign(signer) == unsigned(PAUSED)


@pytest.mark.parametrize(
    ("unset", "more", "kind"),
    [
        (["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"], {}, "NoCredentialsError"),
        (["AWS_DEFAULT_REGION"], {}, "NoRegionError"),
        ([], {"AWS_PROFILE": "missing"}, "ProfileNotFound"),
        ([], {"AWS_ENDPOINT_URL_KMS": "no url"}, "ValueError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sdk_that_is_not_set_up(
    monkeypatch: pytest.MonkeyPatch, unset: list[str], more: dict[str, str], kind: str
) -> None:
    """An SDK without credentials, region, profile or proper endpoint is a reason like any other."""
    aws_environment(monkeypatch, **more)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    for name in unset:
        monkeypatch.delenv(name)
    signer = open_signer(settings(signer="kms", kms_key_id=ARN), OTHER)
    assert sign(signer) == unsigned(f"not signed: the key service did not answer: {kind}")


def test_no_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edge without the SDK answers all the same."""
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    assert sign(KmsSigner(ARN, OTHER)) == unsigned("not signed: boto3 is not installed here")


@pytest.mark.parametrize("operation", ["get_public_key", "sign"])
def test_pause_after_a_failure(nowhere: None, caplog: pytest.LogCaptureFixture, operation: str) -> None:
    """After a failure KMS is not called for PAUSE_S seconds, then once more; a success ends the matter."""
    kms, clock = Kms(), Clock()
    key = ec.generate_private_key(ec.SECP256R1())
    known = pem(key).decode()
    signer = KmsSigner(ARN, known if operation == "sign" else None, client=kms, clock=clock)
    refused = unsigned("not signed: the key service refused: ThrottlingException")
    with Stubber(kms.client) as stub:
        for _ in range(2):
            stub.add_client_error(operation, "ThrottlingException")
        assert sign(signer) == refused
        assert len(kms.calls) == 1
        for after in (0.0, PAUSE_S / 2, PAUSE_S - 0.001):
            clock.now = 1000.0 + after
            assert sign(signer) == unsigned(PAUSED)
        assert len(kms.calls) == 1
        clock.now = 1000.0 + PAUSE_S
        assert sign(signer) == refused
        assert len(kms.calls) == 2
        clock.now += PAUSE_S - 0.001
        assert sign(signer) == unsigned(PAUSED)
        assert len(kms.calls) == 2
        clock.now += 0.001
        if operation == "get_public_key":
            der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
            stub.add_response("get_public_key", {"PublicKey": der})
        for _ in range(2):
            value = SigningKey(key).sign(_message())
            stub.add_response("sign", {"Signature": value}, {"KeyId": ARN, **_ASKED})
        assert [sign(signer)["signed"], sign(signer)["signed"]] == [True, True]
        stub.assert_no_pending_responses()
    assert caplog.messages == ["receipt not signed: the key service refused: ThrottlingException"] * 2
    assert PAUSE_S == 20.0


_ASKED = {"Message": ANY, "MessageType": "RAW", "SigningAlgorithm": "ECDSA_SHA_256"}


def _message() -> bytes:
    """What is signed for the payload that `sign` takes when it is given none."""
    signer = FileSigner(SigningKey(ec.generate_private_key(ec.SECP256R1())))
    return pae("application/vnd.in-toto+json", base64.b64decode(sign(signer)["envelope"]["payload"]))


def test_public_key_that_was_fetched_outlives_failures(kms: Kms, monkeypatch: pytest.MonkeyPatch) -> None:
    """A public key once fetched is told again while KMS is left alone."""
    clock = Clock()
    signer = KmsSigner(kms.create(), client=kms, clock=clock)
    before = signer.public_pem()
    with Stubber(kms.client) as stub:
        stub.add_client_error("sign", "ThrottlingException")
        assert not sign(signer)["signed"]
    assert sign(signer) == unsigned(PAUSED)
    assert signer.public_pem() == before
    clock.now += PAUSE_S
    assert sign(signer)["signed"]


SDK_ONLY_WHEN_SIGNING = """
import sys
from edge.app import lambda_handler
from edge.issuer import Issuer
from edge.keyring import Keyring
from edge.signing import signature
from tests.edge.support import FakeContext, make_event, settings

sdk = {"boto3", "botocore.session", "botocore.client"}
for path in ("/health", "/openapi.json"):
    lambda_handler(make_event("GET", path), FakeContext())
keyring = Keyring(settings(signer="kms", kms_key_id="a-key"))
Issuer(keyring, None).interim({"generated_at": "2026-11-30T00:00:00Z"})
print(sorted(sdk & set(sys.modules)))
print(signature(keyring.signer, {}, "2026-11-30T00:00:00Z")["note"])
print(sorted(sdk & set(sys.modules)))
"""


def test_sdk_is_loaded_by_the_first_signature() -> None:
    """An edge with KMS and table starts, answers /health and interim results without an AWS SDK."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SDK_ONLY_WHEN_SIGNING],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={
            **environ,
            "SPECDEC_TOWER_URL": "ws://127.0.0.1:9/",
            "SPECDEC_SIGNER": "kms",
            "SPECDEC_KMS_KEY_ID": "a-key",
            "SPECDEC_RECEIPTS_TABLE": "a-table",
            "AWS_CONFIG_FILE": "/nowhere",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_ENDPOINT_URL_KMS": f"http://127.0.0.1:{closed_port()}",
        },
    )
    assert [line for line in done.stdout.splitlines() if not line.startswith("{")] == [
        "[]",
        "not signed: the key service did not answer: EndpointConnectionError",
        str(sorted(SDK)),
    ], done.stderr


# Another implementation's verifier (securesystemslib)


def file_envelope(private: Any) -> tuple[dict[str, Any], str]:
    """An envelope from a key file, and the key."""
    signer = FileSigner(SigningKey(private))
    return sign(signer, measured_payload())["envelope"], signer.public_pem()


def kms_envelope(tmp_path: Path) -> tuple[dict[str, Any], str]:
    """An envelope from KMS, and the key."""
    kms = Kms()
    signer = KmsSigner(kms.create(), client=kms)
    return sign(signer, measured_payload())["envelope"], signer.public_pem()


def tower_envelope(tmp_path: Path) -> tuple[dict[str, Any], str]:
    """A tower's attestation, and the key that it publishes."""
    attester = open_attester(tmp_path)
    frame = {**result(example_measurement()), "ended_at": NOW}
    envelope = attester.envelope(frame)
    published = (tmp_path / "tower-key.pub.pem").read_text()
    assert published == attester.key.pem and attester.key.alg == "ED25519"
    assert check_attestation(envelope, attested(frame), load_keys(published.encode(), "tower")) is not None
    return envelope, published


ENVELOPES: dict[str, Callable[[Path], tuple[dict[str, Any], str]]] = {
    "file, P-256": lambda _: file_envelope(ec.generate_private_key(ec.SECP256R1())),
    "file, Ed25519": lambda _: file_envelope(ed25519.Ed25519PrivateKey.generate()),
    "KMS": kms_envelope,
    "tower": tower_envelope,
}


def accepted(envelope: dict[str, Any], public: str) -> bytes:
    """The bytes of an envelope that securesystemslib accepts as signed by a key.

    It changes what it reads and wants the key id that the envelope names (both are its own ways, not DSSE's).

    Raises:
        VerificationError: If it does not accept it.
    """
    key = SSlibKey.from_crypto(load_pem_public_key(public.encode()), keyid=envelope["signatures"][0]["keyid"])
    read = Envelope.from_dict(copy.deepcopy(envelope))
    assert list(read.verify([key], 1)) == [key_id(public.encode())]
    return read.payload


@pytest.mark.parametrize("name", ENVELOPES)
@pytest.mark.usefixtures("aws")
def test_another_implementation_agrees(tmp_path: Path, name: str) -> None:
    """An independent DSSE verifier accepts our envelopes, and refuses each one that is altered or another key's."""
    envelope, public = ENVELOPES[name](tmp_path)
    body = base64.b64decode(envelope["payload"])
    assert accepted(envelope, public) == body
    altered: dict[str, dict[str, Any]] = {
        "body": {**envelope, "payload": base64.b64encode(body.replace(b"subject", b"subjekt")).decode()},
        "type": {**envelope, "payloadType": "application/json"},
    }
    raw = bytearray(base64.b64decode(envelope["signatures"][0]["sig"]))
    raw[-1] ^= 1
    cut = base64.b64encode(raw).decode()
    altered["signature"] = {**envelope, "signatures": [{**envelope["signatures"][0], "sig": cut}]}
    for what, changed in altered.items():
        assert changed != envelope, what
        with pytest.raises(VerificationError, match="Found: 0, Expected 1"):
            accepted(changed, public)
    for strange in (OTHER, pem(ed25519.Ed25519PrivateKey.generate()).decode()):
        with pytest.raises(VerificationError, match="Found: 0, Expected 1"):
            accepted(envelope, strange)
