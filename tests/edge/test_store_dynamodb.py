"""Receipts in a DynamoDB table: conditional puts alone, and the same promises as in a directory."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from edge.aws import PAUSE_S
from edge.store import Receipt, StoreAlarm, StoreDown, is_signed
from edge.store_dynamodb import DynamoStore
from shared.canonical import canonical_bytes
from shared.labels import PAYLOAD_SCHEMA
from tests.edge.store_writer import FIRST, PUTS, SECOND, signed, stored_after, unsigned
from tests.edge.test_signing import aws_client, aws_environment, closed_port
from tests.edge.test_store import ALARM, DIGEST, LOGGED, exact
from tests.shared.build import measured_payload

TABLE = "receipts"
KEY = {"digest": {"S": DIGEST}}
NEW = "attribute_not_exists(digest)"
UPGRADE = "signed = :no AND payload = :same"


class Table:
    """A table, the store in it, and everything that the store asked."""

    def __init__(self) -> None:
        """Make the table."""
        self.client: Any = aws_client("dynamodb")
        self.outside: Any = aws_client("dynamodb", "another")
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.client.create_table(
            TableName=TABLE,
            KeySchema=[{"AttributeName": "digest", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "digest", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        self.store = DynamoStore(TABLE, lambda: self.client)
        self.client.meta.events.register("provide-client-params.dynamodb.*", self._asked)

    def _asked(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        self.calls.append((model.name, dict(params)))

    def conditions(self) -> list[str]:
        """The conditions of all puts, after checking that nothing but conditional puts and exact reads was asked."""
        found = []
        for name, params in self.calls:
            assert params["TableName"] == TABLE
            if name == "GetItem":
                assert params == {"TableName": TABLE, "Key": params["Key"], "ConsistentRead": True}
                assert list(params["Key"]) == ["digest"]
                continue
            assert name == "PutItem"
            assert params["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"
            values = params.get("ExpressionAttributeValues")
            if params["ConditionExpression"] == NEW:
                assert values is None
            else:
                assert values == {":no": {"BOOL": False}, ":same": params["Item"]["payload"]}
            found.append(params["ConditionExpression"])
        self.calls.clear()
        return found

    def items(self) -> list[dict[str, Any]]:
        """All items, by another client than the store's."""
        found: list[dict[str, Any]] = self.outside.scan(TableName=TABLE)["Items"]
        return found

    def tamper(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """Change the one item behind the store's back."""
        (item,) = self.items()
        changed = change(item)
        self.outside.put_item(TableName=TABLE, Item=changed)
        return changed


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    """An empty table."""
    aws_environment(monkeypatch)
    with mock_aws():
        yield Table()


def in_canonical_order(receipt: Receipt) -> Receipt:
    """A receipt whose payload has its members in the order of its exact bytes, in which a table gives it back."""
    return {**receipt, "payload": json.loads(canonical_bytes(receipt["payload"]))}


def large(size: int) -> dict[str, Any]:
    """A payload of exactly so many bytes."""
    payload = {"schema": PAYLOAD_SCHEMA, "text": ""}
    return {**payload, "text": "x" * (size - len(canonical_bytes(payload)))}


# What is stored


def test_nothing_is_there(table: Table) -> None:
    """An empty table has no receipt; reads are consistent."""
    assert table.store.get(DIGEST) is None
    assert table.calls == [("GetItem", {"TableName": TABLE, "Key": KEY, "ConsistentRead": True})]


@pytest.mark.parametrize("payload", [FIRST, measured_payload()], ids=["odd", "measured"])
@pytest.mark.parametrize("make", [unsigned, signed])
def test_comes_back_as_it_was(
    table: Table, payload: dict[str, Any], make: Callable[[dict[str, Any]], Receipt]
) -> None:
    """A receipt comes back with every member in its place and every number as it was, to any instance."""
    receipt = make(payload)
    before = exact(receipt)
    assert table.store.put(receipt) is receipt
    assert exact(receipt) == before
    back = DynamoStore(TABLE, lambda: table.outside).get(receipt["payload_sha3_256"])
    assert exact(back) == exact(in_canonical_order(receipt))
    assert back is not None and list(back) == list(receipt)
    assert canonical_bytes(back["payload"]) == canonical_bytes(payload)
    assert table.conditions() == [NEW]


def test_item(table: Table) -> None:
    """The item holds the exact bytes once, and the receipt without its copies of them."""
    receipt = table.store.put(signed(FIRST))
    (item,) = table.items()
    kept = json.loads(item["receipt"]["S"])
    assert item == {
        "digest": {"S": DIGEST},
        "payload": {"B": canonical_bytes(FIRST)},
        "receipt": {"S": item["receipt"]["S"]},
        "signed": {"BOOL": True},
        "generated_at": {"S": receipt["generated_at"]},
    }
    assert kept == {**receipt, "payload": None, "payload_canonical_base64": None}
    assert list(kept) == list(receipt)
    assert FIRST["text"] not in item["receipt"]["S"]


def test_same_payload_again(table: Table) -> None:
    """The first receipt of a payload stays; the table hands it back with the refusal, so that nothing is read."""
    first = table.store.put(unsigned(FIRST))
    before = table.items()
    assert exact(table.store.put(unsigned(FIRST, "another note"))) == exact(in_canonical_order(first))
    assert table.items() == before
    assert [name for name, _ in table.calls] == ["PutItem", "PutItem"]
    assert table.conditions() == [NEW, NEW]


def test_signed_takes_the_place_of_unsigned_once(table: Table) -> None:
    """A signed receipt takes an unsigned one's place; then it stays, against unsigned and signed ones alike."""
    table.store.put(unsigned(FIRST))
    first = signed(FIRST, "first")
    assert table.store.put(first) is first
    assert table.conditions() == [NEW, NEW, UPGRADE]
    before = table.items()
    for later in (unsigned(FIRST), signed(FIRST, "second"), unsigned(FIRST, "another note")):
        assert exact(table.store.put(later)) == exact(in_canonical_order(first))
        assert exact(table.store.get(DIGEST)) == exact(in_canonical_order(first))
    assert table.items() == before
    assert table.conditions() == [NEW] * 3


def test_receipts_beside_each_other(table: Table) -> None:
    """A sequence of puts ends as it does in a directory."""
    for number, receipt in enumerate(PUTS):
        back = table.store.put(receipt)
        assert back == stored_after(number + 1)[back["payload_sha3_256"]]
    there = stored_after(len(PUTS))
    assert {digest: table.store.get(digest) for digest in there} == there
    assert len(table.items()) == len(there) == 3
    table.conditions()


def test_receipt_that_is_not_of_its_payload(table: Table) -> None:
    """A receipt whose digest is not its payload's is refused before anything is asked."""
    with pytest.raises(StoreAlarm, match="^a receipt does not hold the payload that its digest names$"):
        table.store.put({**unsigned(FIRST), "payload_sha3_256": "0" * 64})
    assert table.calls == []


def between(table: Table, work: Callable[[], Any]) -> None:
    """Do something once, just before the store's next upgrade reaches the table."""

    def before_call(params: dict[str, Any], **_: Any) -> None:
        if json.loads(params["body"])["ConditionExpression"] == UPGRADE:
            table.client.meta.events.unregister("before-call.dynamodb.PutItem", before_call)
            work()

    table.client.meta.events.register("before-call.dynamodb.PutItem", before_call)


def test_upgrade_that_came_second(table: Table) -> None:
    """Who finds another writer's signature in the place where his should go takes that one."""
    table.store.put(unsigned(FIRST))
    first = signed(FIRST, "another writer")
    between(table, lambda: DynamoStore(TABLE, lambda: table.outside).put(first))
    assert exact(table.store.put(signed(FIRST, "late"))) == exact(in_canonical_order(first))
    assert exact(table.store.get(DIGEST)) == exact(in_canonical_order(first))
    assert table.conditions() == [NEW, NEW, UPGRADE]


def test_item_tampered_with_before_the_upgrade(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    """Other bytes that come under the digest just before an upgrade are an alarm, and are not written over."""
    table.store.put(unsigned(FIRST))
    between(table, lambda: table.tamper(lambda item: {**item, "payload": {"B": b"{}"}}))
    with pytest.raises(StoreAlarm, match=f"^{ALARM}$"):
        table.store.put(signed(FIRST))
    assert caplog.messages == [LOGGED]
    (item,) = table.items()
    assert item["payload"] == {"B": b"{}"}


def test_item_that_vanished(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    """An item that somebody deletes just before an upgrade is a failure of the store, told as such."""
    table.store.put(unsigned(FIRST))
    between(table, lambda: table.outside.delete_item(TableName=TABLE, Key=KEY))
    with pytest.raises(StoreDown) as caught:
        table.store.put(signed(FIRST))
    assert str(caught.value) == "the receipts' table refused: ConditionalCheckFailedException"
    assert caplog.messages == ["receipt store: ConditionalCheckFailedException"]


def test_put_whose_answer_was_lost(table: Table) -> None:
    """A put that is repeated, because its answer got lost, finds its own receipt and is content with it."""
    receipt = signed(FIRST, "mine")
    table.store.put(receipt)
    assert exact(table.store.put(receipt)) == exact(in_canonical_order(receipt))
    assert table.conditions() == [NEW, NEW]


# Tampering


def receipt_with(**members: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Replaces members of the receipt in an item."""
    return lambda item: {
        **item,
        "receipt": {"S": json.dumps({**json.loads(item["receipt"]["S"]), **members})},
    }


def receipt_without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Takes a member out of the receipt in an item."""

    def change(item: dict[str, Any]) -> dict[str, Any]:
        kept = json.loads(item["receipt"]["S"])
        del kept[name]
        return {**item, "receipt": {"S": json.dumps(kept)}}

    return change


def attribute(**attributes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Replaces attributes of an item."""
    return lambda item: {**item, **attributes}


def attribute_without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Takes an attribute out of an item."""
    return lambda item: {key: value for key, value in item.items() if key != name}


def other_signed(item: dict[str, Any]) -> dict[str, Any]:
    """Turns an item's flag over."""
    return {**item, "signed": {"BOOL": not item["signed"]["BOOL"]}}


TAMPERED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "payload": attribute(payload={"B": canonical_bytes(SECOND)}),
    "payload, one byte more": lambda item: {**item, "payload": {"B": item["payload"]["B"] + b" "}},
    "payload, empty": attribute(payload={"B": b""}),
    "payload as text": attribute(payload={"S": canonical_bytes(FIRST).decode()}),
    "no payload": attribute_without("payload"),
    "digest of the receipt": receipt_with(payload_sha3_256="0" * 64),
    "no digest in the receipt": receipt_without("payload_sha3_256"),
    "another receipt and payload": lambda item: {
        **item,
        "payload": {"B": canonical_bytes(SECOND)},
        "receipt": {"S": json.dumps({**unsigned(SECOND), "payload": None})},
    },
    "flag": other_signed,
    "flag of another type": attribute(signed={"S": "true"}),
    "no flag": attribute_without("signed"),
    "signed is no boolean": receipt_with(signature={"signed": "yes"}),
    "signed is a number": receipt_with(signature={"signed": 1}),
    "no signature": receipt_without("signature"),
    "signature of another type": receipt_with(signature=[]),
    "receipt, half": lambda item: {**item, "receipt": {"S": item["receipt"]["S"][:100]}},
    "receipt, not JSON": attribute(receipt={"S": "hello"}),
    "receipt, a list": attribute(receipt={"S": "[]"}),
    "receipt, pairs": attribute(receipt={"S": '[["payload_sha3_256", "x"]]'}),
    "receipt, text": attribute(receipt={"S": '"x"'}),
    "receipt, null": attribute(receipt={"S": "null"}),
    "receipt, deep": attribute(receipt={"S": "[" * 50_000}),
    "receipt, twice the same name": lambda item: {
        **item,
        "receipt": {"S": '{"schema":1,' + item["receipt"]["S"][1:]},
    },
    "receipt, not finite": lambda item: {**item, "receipt": {"S": '{"x":NaN,' + item["receipt"]["S"][1:]}},
    "receipt as bytes": lambda item: {**item, "receipt": {"B": item["receipt"]["S"].encode()}},
    "no receipt": attribute_without("receipt"),
}


@pytest.mark.parametrize("make", [unsigned, signed])
@pytest.mark.parametrize("how", TAMPERED)
def test_tampered_item(
    table: Table,
    caplog: pytest.LogCaptureFixture,
    how: str,
    make: Callable[[dict[str, Any]], Receipt],
) -> None:
    """An item that is damaged or says something else is an alarm, is not given out and is left as it is."""
    table.store.put(make(FIRST))
    changed = table.tamper(TAMPERED[how])
    calls: list[Callable[[], Any]] = [
        lambda: table.store.get(DIGEST),
        lambda: table.store.put(unsigned(FIRST)),
        lambda: table.store.put(signed(FIRST)),
    ]
    for call in calls:
        caplog.clear()
        with pytest.raises(StoreAlarm) as caught:
            call()
        assert str(caught.value) == ALARM
        assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
            ("CRITICAL", LOGGED)
        ]
    assert table.items() == [changed]


def test_copies_in_the_receipt_count_for_nothing(table: Table) -> None:
    """What somebody writes into the places of the payload's copies is not read: the exact bytes are."""
    table.store.put(signed(FIRST))
    table.tamper(receipt_with(payload=SECOND, payload_canonical_base64="e30="))
    assert exact(table.store.get(DIGEST)) == exact(in_canonical_order(signed(FIRST)))
    table.tamper(receipt_without("payload"))
    assert table.store.get(DIGEST) == signed(FIRST)


# Many writers


def one_at_a_time(client: Any, patch: pytest.MonkeyPatch) -> None:
    """Let the table take one call after the other, as DynamoDB does for one item; moto promises nothing."""
    lock = threading.Lock()
    call = client._endpoint.make_request

    def make_request(*args: Any) -> Any:
        with lock:
            return call(*args)

    patch.setattr(client._endpoint, "make_request", make_request)


def test_crowd_of_threads(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred writers of one payload, each with its own signature, one is stored and all get that one back."""
    one_at_a_time(table.client, monkeypatch)
    gate = threading.Barrier(100)

    def work(number: int) -> Receipt:
        store = DynamoStore(TABLE, lambda: table.client)
        gate.wait(60)
        return store.put(signed(FIRST, str(number)))

    with ThreadPoolExecutor(100) as pool:
        back = list(pool.map(work, range(100)))
    (item,) = table.items()
    winner = table.store.get(DIGEST)
    assert winner is not None and item["signed"] == {"BOOL": True}
    assert [receipt for receipt in back if receipt != winner] == []
    assert table.conditions() == [NEW] * 100


def test_signed_and_unsigned_at_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of writers with and without signature one signed receipt wins, and every signed writer gets that one."""
    one_at_a_time(table.client, monkeypatch)
    gate = threading.Barrier(20)

    def work(number: int) -> Receipt:
        gate.wait(60)
        return table.store.put(signed(FIRST, str(number)) if number % 2 else unsigned(FIRST, str(number)))

    with ThreadPoolExecutor(20) as pool:
        back = list(pool.map(work, range(20)))
    winner = table.store.get(DIGEST)
    assert winner is not None and is_signed(winner)
    assert [receipt for receipt in back[1::2] if receipt != winner] == []
    assert len({exact(in_canonical_order(receipt)) for receipt in back[::2]} - {exact(winner)}) <= 1
    table.conditions()


# Limits and failures


@pytest.mark.parametrize("size", [250_000, 400_000])
def test_large_receipts(table: Table, size: int) -> None:
    """A payload is kept once, so that one of 250 KB fits, and even one that leaves 9 KB for the rest."""
    receipt = signed(large(size))
    table.store.put(receipt)
    (item,) = table.items()
    assert len(item["payload"]["B"]) == size
    assert (
        sum(len(name) + len(next(iter(value.values()))) for name, value in item.items() if name != "signed")
        < 409_600
    )
    assert DynamoStore(TABLE, lambda: table.outside).get(receipt["payload_sha3_256"]) == receipt
    assert table.store.put(unsigned(large(size))) == receipt


def test_receipt_beyond_the_limit(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    """What is larger than an item may be is not stored, and the sentence names the table's refusal."""
    with pytest.raises(StoreDown) as caught:
        table.store.put(signed(large(410_000)))
    assert str(caught.value) == "the receipts' table refused: ValidationException"
    assert caplog.messages == ["receipt store: ValidationException"]
    assert table.items() == []


@pytest.mark.parametrize(
    "code",
    [
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "RequestLimitExceeded",
        "InternalServerError",
        "ResourceNotFoundException",
        "AccessDeniedException",
        "UnrecognizedClientException",
        "ConditionalCheckFailedException",
    ],
)
def test_refusals(table: Table, caplog: pytest.LogCaptureFixture, code: str) -> None:
    """Whatever the table refuses with, the store is down and says with what; the message stays out of it."""
    calls: dict[str, Callable[[], Any]] = {
        "put_item": lambda: table.store.put(unsigned(FIRST)),
        "get_item": lambda: table.store.get(DIGEST),
    }
    for operation, call in calls.items():
        caplog.clear()
        with Stubber(table.client) as stub:
            stub.add_client_error(operation, code, "a message with an account number in it")
            with pytest.raises(StoreDown) as caught:
                call()
            stub.assert_no_pending_responses()
        assert str(caught.value) == f"the receipts' table refused: {code}"
        assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
            ("ERROR", f"receipt store: {code}")
        ]
    assert table.items() == []


def test_missing_table(table: Table) -> None:
    """A table that does not exist is a store that is down."""
    with pytest.raises(StoreDown, match="^the receipts' table refused: ResourceNotFoundException$"):
        DynamoStore("another", lambda: table.outside).put(unsigned(FIRST))


@pytest.mark.parametrize(
    ("environ", "kind"),
    [
        ({}, "EndpointConnectionError"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "NoCredentialsError"),
        ({"AWS_DEFAULT_REGION": ""}, "NoRegionError"),
        ({"AWS_ENDPOINT_URL_DYNAMODB": "no url"}, "ValueError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_table_to_ask(
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    kind: str,
) -> None:
    """A table that cannot be reached, or an SDK that is not set up, is a store that is down."""
    url = {"AWS_ENDPOINT_URL_DYNAMODB": f"http://127.0.0.1:{closed_port()}"}
    aws_environment(monkeypatch, **{**url, **environ})
    for name, value in environ.items():
        if not value:
            monkeypatch.delenv(name)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    calls: list[Callable[[], Any]] = [
        lambda: DynamoStore(TABLE).put(unsigned(FIRST)),
        lambda: DynamoStore(TABLE).get(DIGEST),
    ]
    for call in calls:
        with pytest.raises(StoreDown) as caught:
            call()
        assert str(caught.value) == f"the receipts' table did not answer: {kind}"


def test_silent_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that takes connections and says nothing is given up on."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        aws_environment(monkeypatch, AWS_ENDPOINT_URL_DYNAMODB=f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(StoreDown, match="^the receipts' table did not answer: ReadTimeoutError$"):
            DynamoStore(TABLE).get(DIGEST)


def test_a_table_that_did_not_answer_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """After no answer nothing is asked for a while, so that callers do not wait in vain one after the other."""
    aws_environment(monkeypatch, AWS_ENDPOINT_URL_DYNAMODB=f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    clock = [0.0]
    store = DynamoStore(TABLE, clock=lambda: clock[0])
    again = "^the receipts' table failed a moment ago and is left alone for some seconds$"
    for at, sentence in (
        (0.0, "EndpointConnectionError$"),
        (PAUSE_S - 0.1, again),
        (PAUSE_S, "EndpointConnectionError$"),
        (PAUSE_S + 1, again),
    ):
        clock[0] = at
        with pytest.raises(StoreDown, match=sentence):
            store.get(DIGEST)


def test_no_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the SDK the store is down."""
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    with pytest.raises(StoreDown, match="^boto3 is not installed here$"):
        DynamoStore(TABLE).get(DIGEST)


def test_client_is_patient_for_a_short_time_only(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual client waits 0.8 s for a connection and for an answer, tries twice, and is made once."""
    made: list[Any] = []
    make = boto3.client

    def client(*args: Any, **more: Any) -> Any:
        made.append(make(*args, **more))
        return made[-1]

    monkeypatch.setattr(boto3, "client", client)
    store = DynamoStore(TABLE)
    assert made == []
    store.put(unsigned(FIRST))
    store.get(DIGEST)
    (one,) = made
    config = one.meta.config
    assert (config.connect_timeout, config.read_timeout) == (0.8, 0.8)
    assert config.retries == {"total_max_attempts": 2, "mode": "standard"}
    assert one.meta.service_model.service_name == "dynamodb"
